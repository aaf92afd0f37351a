//! libFuzzer binary for [`driftq_fuzz::record`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| driftq_fuzz::record(data));
