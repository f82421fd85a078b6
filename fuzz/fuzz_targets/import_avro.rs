//! Feeds any bytes to the reader of a file of Avro, to its end or to its first error.
//! It may refuse them; it must not panic, hang, or allocate more than the input can justify.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_transfer::fuzzing::avro(data);
});
