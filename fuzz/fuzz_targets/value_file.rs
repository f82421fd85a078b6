//! Feeds any bytes to the decoders of value files: pointers, footers, frames.
//! They may refuse them; they must not panic, hang, or allocate more than the input can justify.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_engine::fuzzing::value_file(data);
});
