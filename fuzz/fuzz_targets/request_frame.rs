//! Feeds any bytes to what takes the frames of requests in, in two parts, and decodes their messages.
//! It may refuse them; it must not panic, and it makes no difference where they were cut.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_bigtable::fuzzing::request_frame(data);
});
