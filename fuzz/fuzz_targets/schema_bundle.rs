//! Feeds any bytes to the linker of schema bundles, and compares the schemas that it finds.
//! It may refuse them; it must not panic, hang, or allocate more than the input can justify.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_server::fuzzing::schema_bundle(data);
});
