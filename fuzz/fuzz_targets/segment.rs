//! libFuzzer binary for [`driftq_fuzz::segment`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| driftq_fuzz::segment(data));
