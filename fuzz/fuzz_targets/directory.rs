//! Feeds any bytes to what reads the names of a data directory's files, and to the reader of its identity.
//! It may refuse them; it must not panic, and what it takes has one name.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_engine::fuzzing::directory(data);
});
