//! Fuzz targets for recovery: one segment, one snapshot, or a whole folder with arbitrary contents.

use arbitrary::Unstructured;
use driftq_core::faults::{Faults, NoFaults};
use driftq_core::log::{MemoryStorage, RecoveryError};
use driftq_core::types::Boot;

use crate::folder::{Alteration, Folder, Origin};
use crate::golden::{GoldenLog, is_segment};
use crate::input::{below, choose};
use crate::recovered_log::RecoveredLog;

/// Recovers the golden log without its snapshot and with one segment altered by the input.
///
/// Checks that recovery does not panic; that what it accepts is consistent and recovers again to the same state; and
/// that a broker starts on it. If bytes were only damaged, the state is one that existed and contains everything that
/// is proven synced.
pub fn segment(data: &[u8]) {
    segment_with(data, &NoFaults);
}

/// [`segment`] with a bug planted in recovery.
///
/// # Panics
/// If a check fails.
pub fn segment_with(data: &[u8], faults: &impl Faults) {
    let mut input = Unstructured::new(data);
    let segments = GoldenLog::get().segments();
    let altered_index = below(&mut input, segments.len());
    let alteration = choose(&mut input, &Alteration::ALL);
    let mut storage = MemoryStorage::new();
    for (index, (file, bytes)) in segments.into_iter().enumerate() {
        if index == altered_index {
            storage.put_file(*file, alteration.apply(&mut input, *file, bytes));
        } else if alteration != Alteration::Forge || index < altered_index {
            // The segments after a forged one are left out: their headers contain the checksum of the original.
            storage.put_file(*file, bytes.clone());
        }
    }
    check_folder(Folder { storage, origin: alteration.origin() }, data, faults);
}

/// Recovers the golden log with its snapshot altered by the input.
///
/// Checks what [`segment`] checks. Recovery ignores a damaged snapshot and reaches the original state; it refuses a
/// forged one or reaches a consistent state. Written as a snapshot again, the state recovers unchanged.
pub fn snapshot(data: &[u8]) {
    snapshot_with(data, &NoFaults);
}

/// [`snapshot`] with a bug planted in recovery.
///
/// # Panics
/// If a check fails.
pub fn snapshot_with(data: &[u8], faults: &impl Faults) {
    let mut input = Unstructured::new(data);
    let alteration = choose(&mut input, &Alteration::ALL);
    let mut storage = MemoryStorage::new();
    for (file, bytes) in &GoldenLog::get().files {
        let bytes = if is_segment(*file) { bytes.clone() } else { alteration.apply(&mut input, *file, bytes) };
        storage.put_file(*file, bytes);
    }
    check_folder(Folder { storage, origin: alteration.origin() }, data, faults);
}

/// Recovers a folder of files with names and contents from the input: the golden log's own, altered or arbitrary.
///
/// Checks what [`segment`] checks. Files that were renamed or removed count as damaged.
pub fn recovery(data: &[u8]) {
    recovery_with(data, &NoFaults);
}

/// [`recovery`] with a bug planted in recovery.
///
/// # Panics
/// If a check fails.
pub fn recovery_with(data: &[u8], faults: &impl Faults) {
    let folder = Folder::read(&mut Unstructured::new(data));
    check_folder(folder, data, faults);
}

fn check_folder(mut folder: Folder, data: &[u8], faults: &impl Faults) {
    let Some(log) = check_recovery(&mut folder, faults) else { return };
    // Restarts take most of the time. A genuine state is one of the golden log's, so one input in eight suffices.
    if folder.origin == Origin::Genuine && !data.len().is_multiple_of(8) {
        return;
    }
    if log.state.boot() > Boot(0) {
        log.check_snapshot_round_trip();
    }
    log.check_restarts(&folder.storage);
}

/// The recovered log, or `None` if recovery rightly refuses the folder.
fn check_recovery(folder: &mut Folder, faults: &impl Faults) -> Option<RecoveredLog> {
    let golden = GoldenLog::get();
    let proven = golden.proven_frame(&folder.storage);
    let is_genuine = folder.origin == Origin::Genuine;
    let log = match RecoveredLog::recover(&mut folder.storage, faults) {
        Ok(log) => log,
        Err(error @ (RecoveryError::Malformed { .. } | RecoveryError::Contradictory { .. })) if is_genuine => {
            panic!("recovery refuses a record that a broker wrote: {error}");
        }
        Err(_) => return None,
    };
    if is_genuine {
        let last = log.report.last;
        assert_eq!(
            Some(&log.state.digest()),
            golden.digests.get(&last.lsn),
            "another state than the original at LSN {}",
            last.lsn
        );
        let last = last.frame;
        assert!(last >= proven, "recovery ends at frame {last}, but frame {proven} is proven synced");
    }
    Some(log)
}
