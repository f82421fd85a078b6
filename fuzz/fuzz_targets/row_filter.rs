//! Feeds any bytes to the decoder of a serialized RowFilter: decoding, validation, evaluation on a row.
//! It may refuse them; it must not panic, hang, or allocate more than the input can justify.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_bigtable::fuzzing::row_filter(data);
});
