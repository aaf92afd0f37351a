//! libFuzzer binary for [`driftq_fuzz::json_bodies`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| driftq_fuzz::json_bodies(data));
