//! libFuzzer binary for [`driftq_fuzz::relocation`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| driftq_fuzz::relocation(data));
