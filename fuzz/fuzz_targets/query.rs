//! The libFuzzer shell of [`driftq_fuzz::query`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| driftq_fuzz::query(data));
