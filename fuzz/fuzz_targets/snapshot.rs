//! libFuzzer binary for [`driftq_fuzz::snapshot`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| driftq_fuzz::snapshot(data));
