//! libFuzzer binary for [`driftq_fuzz::footer`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| driftq_fuzz::footer(data));
