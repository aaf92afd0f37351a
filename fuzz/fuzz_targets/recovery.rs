//! libFuzzer binary for [`driftq_fuzz::recovery`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| driftq_fuzz::recovery(data));
