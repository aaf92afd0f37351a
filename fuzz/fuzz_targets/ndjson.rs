//! libFuzzer binary for [`driftq_fuzz::ndjson`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| driftq_fuzz::ndjson(data));
