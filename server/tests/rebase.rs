//! `driftqd clock rebase`: wall time of a stopped broker is set to the wall clock.

use std::path::Path;

use driftq_core::log::LogId;
use driftq_core::pipeline::inspect;
use driftq_core::types::{Now, Timestamp};
use driftq_core::{OpenOptions, PipelineConfig};
use driftq_files::DataFolder;
use driftq_server::rebase::{RebaseError, rebase};

const START: Timestamp = Timestamp(1_800_000_000_000);
const YEAR_MS: i64 = 365 * 24 * 3_600_000;

fn config() -> PipelineConfig {
    PipelineConfig { segment_bytes: 64 << 10, reserve_bytes: 8 << 10, ..PipelineConfig::default() }
}

/// A log whose wall clock was a year ahead for a moment.
fn log_a_year_ahead(dir: &Path) {
    let folder = DataFolder::open(dir).unwrap();
    let mut storage = folder.storage();
    let (mut pipeline, _) =
        OpenOptions::new().config(config()).create(LogId([7; 16])).open(&mut storage, START).unwrap();
    let now = Now { mono: START, wall: START.shifted(YEAR_MS) };
    pipeline.handle_timeout(now);
    pipeline.close();
    pipeline.drive(now, &mut storage);
}

fn wall_of(dir: &Path) -> Timestamp {
    let folder = DataFolder::open_existing(dir).unwrap();
    let (state, _) = inspect(&mut folder.storage(), None).unwrap();
    state.wall()
}

#[test]
fn rebase_sets_wall_time_of_a_stopped_broker_back_to_the_wall_clock() {
    let dir = tempfile::tempdir().unwrap();
    log_a_year_ahead(dir.path());
    assert_eq!(wall_of(dir.path()), START.shifted(YEAR_MS));
    let now = Now { mono: Timestamp(5), wall: START.shifted(60_000) };
    let rebased = rebase(dir.path(), now).unwrap();
    assert_eq!((rebased.before, rebased.after), (START.shifted(YEAR_MS), now.wall));
    assert_eq!(wall_of(dir.path()), now.wall);
    let text = rebased.to_string();
    assert!(text.contains("2028-01-15T08:00:00.000Z") && text.contains("wall time is now"), "{text}");
    let again = rebase(dir.path(), now).unwrap();
    assert!(again.to_string().ends_with("nothing to do\n"), "{again}");
}

#[test]
fn rebase_of_a_folder_in_use_or_without_a_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let now = Now { mono: Timestamp(5), wall: START };
    assert!(matches!(rebase(dir.path(), now), Err(RebaseError::Recovery(_) | RebaseError::Folder(_))));
    log_a_year_ahead(dir.path());
    let in_use = DataFolder::open(dir.path()).unwrap();
    assert!(matches!(rebase(dir.path(), now), Err(RebaseError::Folder(_))));
    drop(in_use);
    assert!(rebase(dir.path(), now).is_ok());
}
