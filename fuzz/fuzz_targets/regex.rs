//! Feeds any bytes to the decoder of a regular expression in RE2 syntax, and a match with it.
//! It may refuse them; it must not panic, hang, or allocate more than the input can justify.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_bigtable::fuzzing::regex(data);
});
