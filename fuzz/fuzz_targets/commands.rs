//! libFuzzer binary for [`driftq_fuzz::commands`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| driftq_fuzz::commands(data));
