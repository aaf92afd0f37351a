//! How many small frames a second one core writes and reads back. Not a test of anything: run it by hand with
//! `cargo test --release -p driftq-core --test log_speed -- --ignored --nocapture`.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::unwrap_used)]

use std::time::Instant;

use driftq_core::log::{FileId, HEADER_BYTES, LogId, MemoryStorage, SegmentReader, recover};
use driftq_core::types::Lsn;

const FRAMES: u64 = 2_000_000;

fn report(what: &str, payload: usize, started: Instant) {
    let rate = FRAMES as f64 / started.elapsed().as_secs_f64() / 1e6;
    println!("{what} {payload} byte payloads: {rate:.1} million frames/s");
}

#[test]
#[ignore = "a measurement, meant for a release build on a quiet machine"]
fn small_frames_a_second() {
    for payload in [16, 64, 128] {
        let bytes = vec![0x41; payload];
        let header = recover(&mut MemoryStorage::new(), Some(LogId([1; 16])), &mut ()).unwrap().next_header();
        let mut out = Vec::with_capacity(HEADER_BYTES + FRAMES as usize * (payload + 30));
        out.extend_from_slice(&header.encode());
        out.resize(out.capacity(), 1);
        out.truncate(HEADER_BYTES);
        let mut chain = header.chain();

        let started = Instant::now();
        for lsn in 0..FRAMES {
            chain.record(&mut out, Lsn(lsn), 1, 1, |buffer| buffer.extend_from_slice(&bytes)).unwrap();
        }
        report("encode", payload, started);

        let started = Instant::now();
        assert_eq!(SegmentReader::new(&header, &out).count() as u64, FRAMES);
        report("decode", payload, started);

        let mut storage = MemoryStorage::new();
        storage.plant(FileId::Segment(1), out);
        let started = Instant::now();
        assert_eq!(recover(&mut storage, None, &mut ()).unwrap().frames_read, FRAMES);
        report("recover", payload, started);
    }
}
