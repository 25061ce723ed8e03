#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ratekeeper_fuzz::response(data));
