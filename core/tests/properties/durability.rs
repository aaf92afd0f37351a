//! What a restart must find: exactly the state that was, as far as the log had got, however often and however disturbed
//! it looks.

use driftq_core::faults::Faults;
use driftq_core::log::{
    CrashPlan, FileId, FolderChange, Malformed, MemoryStorage, Recovered, Replay, SectorFate, Storage, recover,
};
use driftq_core::pipeline::inspect;
use driftq_core::types::Lsn;

use super::ledger::Mark;
use super::steps::Keep;
use super::verdict::{Law, Verdict, Violation};

const SYNCED_IS_FOUND: Law = Law(17, "nothing seen by a client lies beyond what the disk has synced");
const RECOVERED_IS_LIVE: Law = Law(18, "what is recovered is the state that was, by digest");
const SNAPSHOT_AND_TAIL: Law = Law(18, "a snapshot and the log behind it are the whole log");
const TWICE_THE_SAME: Law = Law(19, "recovering twice gives the same");
const INTERRUPTED_THE_SAME: Law = Law(19, "recovery that is interrupted anywhere changes nothing");
const CLOSED: Law = Law(18, "a log closed in an orderly way is found so");

/// Keeps some of what was not synced, by a hash of where it stands.
struct ByHash(u8);

impl ByHash {
    fn draw(&self, what: &str, among: u64) -> u64 {
        let bytes = what.bytes().chain([self.0]);
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        (hash >> 17) % among
    }
}

impl CrashPlan for ByHash {
    fn keep_change(&mut self, change: FolderChange) -> bool {
        self.draw(&format!("{change:?}"), 2) == 0
    }

    fn sector(&mut self, file: FileId, sector: u64) -> SectorFate {
        match self.draw(&format!("{file} {sector}"), 4) {
            0 => SectorFate::Lost,
            1 => SectorFate::Garbage(0x5a),
            _ => SectorFate::Kept,
        }
    }

    fn keep_bytes(&mut self, file: FileId, unsynced: u64) -> u64 {
        self.draw(&file.to_string(), unsynced + 1)
    }
}

/// What is on the disk after the power went.
pub fn after_power_loss(storage: &MemoryStorage, keep: Keep) -> MemoryStorage {
    struct Everything;
    impl CrashPlan for Everything {
        fn keep_change(&mut self, _: FolderChange) -> bool {
            true
        }
        fn sector(&mut self, _: FileId, _: u64) -> SectorFate {
            SectorFate::Kept
        }
    }
    match keep {
        Keep::Nothing => storage.crash(),
        Keep::Everything => storage.crash_with(&mut Everything),
        Keep::Some(seed) => storage.crash_with(&mut ByHash(seed)),
    }
}

/// Notes the last record there is.
#[derive(Default)]
struct LastRecord(Lsn);

impl Replay for LastRecord {
    fn reset(&mut self) {
        self.0 = Lsn(0);
    }

    fn restore(&mut self, _: u8, _: u8, _: &[u8]) -> Result<(), Malformed> {
        Ok(())
    }

    fn replay(&mut self, lsn: Lsn, _: u8, _: u8, _: &[u8]) -> Result<(), Malformed> {
        self.0 = lsn;
        Ok(())
    }
}

/// The digest of what is recovered; a refusal breaks `law`, since nothing here damages a disk.
fn look(disk: &MemoryStorage, law: Law, faults: &impl Faults) -> Result<(u64, Recovered), Violation> {
    let found = inspect(&mut disk.clone(), None, faults);
    let found = found.map(|(state, recovered)| (state.digest(), recovered));
    found.map_err(|error| Violation { invariant: law.0, sentence: law.1, found: error.to_string() })
}

/// Judges a disk after a power loss by the states that were; gives the last record found, or the snapshot it is in.
pub fn judge(disk: &MemoryStorage, history: &[Mark], durable: Lsn, faults: &impl Faults) -> Result<Lsn, Violation> {
    let (digest, recovered) = look(disk, RECOVERED_IS_LIVE, faults)?;
    let mut record = LastRecord::default();
    let found = recover(&mut disk.clone(), None, &mut record);
    TWICE_THE_SAME.holds(found.as_ref() == Ok(&recovered), || format!("{found:?}, then {recovered:?}"))?;
    let last = record.0.max(recovered.snapshot.unwrap_or_default());
    SYNCED_IS_FOUND.holds(recovered.last_lsn >= durable, || format!("{last} of {durable}: {recovered:?}"))?;

    // Where the log ends at the end of a call, that is the state; else it ended within a call.
    let before = history.iter().rev().find(|mark| mark.lsn <= last);
    let after = history.iter().find(|mark| mark.lsn > last);
    let within = after.is_some() && before.is_none_or(|before| before.lsn < last && recovered.snapshot != Some(last));
    let same = before.is_some_and(|before| before.digest == digest);
    RECOVERED_IS_LIVE.holds(within || same, || format!("at {last} {digest:x}, was {before:?}; {recovered:?}"))?;

    interrupted(disk, (digest, &recovered), faults)?;
    without_snapshots(disk, digest, faults)?;
    Ok(last)
}

/// The steps of a start, cut off anywhere.
fn interrupted(disk: &MemoryStorage, found: (u64, &Recovered), faults: &impl Faults) -> Verdict {
    let (digest, recovered) = found;
    let mut steps = recovered.cleanup_steps();
    steps.extend(recovered.next_header().create_steps(99, 1 << 14));
    let mut disk = disk.clone();
    for (done, step) in steps.iter().enumerate() {
        step.perform(&mut disk).map_err(|fault| Violation {
            invariant: 19,
            sentence: INTERRUPTED_THE_SAME.1,
            found: format!("{step:?}: {fault}"),
        })?;
        for keep in [Keep::Nothing, Keep::Everything] {
            let (again, recovered) = look(&after_power_loss(&disk, keep), INTERRUPTED_THE_SAME, faults)?;
            INTERRUPTED_THE_SAME.holds(again == digest, || format!("after {done} of {steps:?}: {recovered:?}"))?;
        }
    }
    Ok(())
}

/// As long as the log reaches back to its beginning, it says all that its snapshots say.
fn without_snapshots(disk: &MemoryStorage, digest: u64, faults: &impl Faults) -> Verdict {
    let mut disk = disk.clone();
    let files = disk.list().expect("lists");
    if files.first().is_none_or(|info| info.file != FileId::Segment(1)) {
        return Ok(());
    }
    for file in files.iter().map(|info| info.file).filter(|file| matches!(file, FileId::Snapshot(_))) {
        disk.uproot(file);
    }
    let (whole, recovered) = look(&disk, SNAPSHOT_AND_TAIL, faults)?;
    SNAPSHOT_AND_TAIL.holds(whole == digest, || format!("{recovered:?}"))
}

/// A closed log says so itself.
pub fn closed_cleanly(is_closed: bool, storage: &MemoryStorage) -> Verdict {
    let recovered = recover(&mut storage.crash(), None, &mut ());
    CLOSED
        .holds(is_closed && recovered.as_ref().is_ok_and(|found| found.clean), || format!("{is_closed} {recovered:?}"))
}
