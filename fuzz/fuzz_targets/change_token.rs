//! Feeds any bytes to the parser of continuation tokens of change streams.
//! It may refuse them; it must not panic, and what it takes it writes back as it was.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_bigtable::fuzzing::change_token(data);
});
