//! libFuzzer binary for [`driftq_fuzz::query`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| driftq_fuzz::query(data));
