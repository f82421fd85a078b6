//! Feeds any bytes to the parsers of page tokens, filters, orders and timeouts of requests.
//! They may refuse them; they must not panic, hang, or allocate more than the input can justify.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_server::fuzzing::admin_text(data);
});
