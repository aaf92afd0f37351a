//! The libFuzzer shell of [`driftq_fuzz::frame`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| driftq_fuzz::frame(data));
