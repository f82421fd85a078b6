//! Feeds any bytes to the decoders of a whole manifest of a tablet, of the meta store and of a backup's list.
//! It may refuse them; it must not panic, hang, or allocate more than the input can justify.
//! And writes manifests and meta stores of what the bytes say, damages one file, and opens them: what was synced and is whole must be there.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_engine::fuzzing::manifest_file(data);
});
