//! Feeds any bytes to the decoders of the catalog's entries: tables and resources of each kind.
//! They may refuse them; they must not panic, hang, or allocate more than the input can justify.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_server::fuzzing::catalog_entry(data);
});
