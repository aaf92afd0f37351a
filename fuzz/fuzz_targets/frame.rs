//! libFuzzer binary for [`driftq_fuzz::frame`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| driftq_fuzz::frame(data));
