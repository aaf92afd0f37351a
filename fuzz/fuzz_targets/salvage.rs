//! libFuzzer binary for [`driftq_fuzz::salvage`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| driftq_fuzz::salvage(data));
