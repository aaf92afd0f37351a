//! The size of a folder after many restarts.

use std::fs;
use std::path::Path;

use driftq_core::log::LogId;
use driftq_core::types::{Millis, Timestamp};
use driftq_core::{OpenOptions, PipelineConfig};
use driftq_files::{DataFolder, Prepare};

const SEGMENT: u64 = 1 << 20;

fn size(folder: &Path) -> u64 {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

/// Starts an empty broker on the folder and stops it, cleanly or as if it was killed.
fn run_once(folder: &Path, start: u64, is_clean: bool) {
    let mut storage = DataFolder::open(folder).unwrap().storage().with_prepare(Prepare::Reserve);
    let config = PipelineConfig {
        segment_bytes: SEGMENT,
        reserve_bytes: SEGMENT / 8,
        snapshot_every_segments: 6,
        rest_after: Some(Millis(2_000)),
        ..PipelineConfig::default()
    };
    let now = Timestamp(1_000_000 + start * 10_000);
    let (mut pipeline, _) = OpenOptions::new().config(config).create(LogId([7; 16])).open(&mut storage, now).unwrap();
    pipeline.drive(now, &mut storage);
    if is_clean {
        pipeline.close();
        pipeline.drive(now, &mut storage);
        assert!(pipeline.is_closed());
    }
    assert_eq!(pipeline.failure(), None);
}

#[test]
fn folder_of_an_empty_broker_stays_small_over_clean_and_unclean_restarts() {
    for is_clean in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        for start in 0..25 {
            run_once(folder.path(), start, is_clean);
        }
        let size = size(folder.path());
        assert!(size < 2 * SEGMENT + SEGMENT / 4, "{size} bytes, clean: {is_clean}");
    }
}
