//! Feeds any bytes to the reader of what an interrupted import or export left.
//! It may refuse them; it must not panic, and it goes on from what it takes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_transfer::fuzzing::transfer_state(data);
});
