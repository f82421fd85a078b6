//! Feeds any bytes to the reader of change files and to the decoders of their records.
//! It may refuse them; it must not panic, hang, or allocate more than the input can justify.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_engine::fuzzing::change_file(data);
});
