//! Hundreds of damaged folders, each with a real start: the broker refuses with one clear line, or serves every
//! message that was acknowledged and is proven synced.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use driftq_core::log::FileId;
use driftq_core::types::FrameNumber;

use super::daemon::{Start, start};
use super::support::*;

/// The number of damaged folders.
const CASES: usize = 300;

/// Starts at a time: a read that finds damage is repeated for seconds, in which a start only waits.
const PARALLEL: usize = 16;

/// What is done to one file.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Flip { byte: usize, bit: u8 },
    Truncate { len: usize },
    Zero { byte: usize },
    Remove,
}

/// A log and the messages of its only partition: file, end of the frame, and value.
struct KnownLog {
    dir: tempfile::TempDir,
    messages: BTreeMap<u64, (FileId, usize, String)>,
    last: FileId,
    /// The end of what was written to each file; only that is damaged.
    ends: BTreeMap<FileId, usize>,
}

impl KnownLog {
    fn new(snapshot_every_bytes: u64) -> Self {
        let dir = plain_log(snapshot_every_bytes);
        // Messages that are in no segment are in every snapshot.
        let older = |(_, _, offset, value): (String, u32, u64, Vec<u8>)| {
            (offset, (FileId::Snapshot(FrameNumber(0)), 0, String::from_utf8(value).unwrap()))
        };
        let mut all: BTreeMap<u64, (FileId, usize, String)> =
            messages(&state(dir.path())).into_iter().map(older).collect();
        let in_segments = produced(dir.path()).into_iter();
        all.extend(in_segments.map(|message| (message.offset, (message.file, message.end, message.value))));
        assert_eq!(all.len(), 90);
        let used = |file: &FileId| !matches!(file, FileId::Segment(_)) || !frames(dir.path(), *file).is_empty();
        let files: Vec<FileId> = ids(dir.path()).into_iter().filter(used).collect();
        let end = |file: FileId| {
            let bytes = fs::read(path(dir.path(), file)).unwrap();
            (file, bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1)
        };
        let last = *files.iter().rfind(|file| matches!(file, FileId::Segment(_))).unwrap();
        let ends = files.into_iter().map(end).collect();
        Self { dir, messages: all, last, ends }
    }

    fn values(&self) -> BTreeMap<u64, String> {
        self.messages.iter().map(|(offset, (.., value))| (*offset, value.clone())).collect()
    }

    /// The messages that a broker must serve if it starts. The last mark proves everything synced; truncation removes
    /// the mark and all frames after it.
    fn required(&self, file: FileId, damage: Damage) -> BTreeMap<u64, String> {
        let cut = match damage {
            Damage::Truncate { len } if file == self.last => len,
            Damage::Remove if file == self.last => 0,
            Damage::Zero { byte } if file == self.last && byte + 512 >= self.ends[&file] => byte,
            _ => usize::MAX,
        };
        let before = |(at, end, _): &(FileId, usize, String)| *at != file || *end <= cut;
        let kept = self.messages.iter().filter(|(_, message)| before(message));
        kept.map(|(offset, (.., value))| (*offset, value.clone())).collect()
    }
}

fn apply_damage(dir: &Path, file: FileId, damage: Damage) {
    match damage {
        Damage::Flip { byte, bit } => edit(dir, file, |bytes| bytes[byte] ^= 1 << bit),
        Damage::Truncate { len } => edit(dir, file, |bytes| bytes.truncate(len)),
        Damage::Zero { byte } => edit(dir, file, |bytes| {
            let end = bytes.len().min(byte + 512);
            bytes[byte..end].fill(0);
        }),
        Damage::Remove => fs::remove_file(path(dir, file)).unwrap(),
    }
}

/// The damage of each case, the same in every run: mostly flipped bits and truncation.
fn cases(known: &KnownLog) -> Vec<(FileId, Damage)> {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    let files: Vec<_> = known.ends.iter().map(|(file, end)| (*file, *end)).collect();
    let mut one = || {
        let (file, end) = files[random(files.len())];
        // The rest of a header is zeros that are never read.
        let byte = if random(4) == 0 { random(128) } else { 4096 + random(end - 4096) };
        let damage = match random(20) {
            0..=11 => Damage::Flip { byte, bit: random(8) as u8 },
            12..=16 => Damage::Truncate { len: byte },
            17 | 18 => Damage::Zero { byte },
            _ => Damage::Remove,
        };
        (file, damage)
    };
    (0..CASES / 2).map(|_| one()).collect()
}

/// Damages a copy of the log, starts the broker on it and checks the result. Returns whether the start was refused.
fn check_start(known: &KnownLog, dir: tempfile::TempDir, file: FileId, damage: Damage) -> Result<bool, String> {
    let dir = copy_into(dir, known.dir.path());
    apply_damage(dir.path(), file, damage);
    let wrong = |what: &str, found: &Start| Err(format!("{file}, {damage:?}: {what}: {found:?}"));
    match start(dir.path()) {
        Start::Refuses(code, line) => {
            let refused = Start::Refuses(code, line.clone());
            let names_file = line.contains("wal-") || line.contains("snap-");
            let names_remedy = line.contains("driftqd wal verify") && line.contains("driftqd wal salvage");
            match line.starts_with("driftqd: ") && code == 1 && names_file && names_remedy {
                true => Ok(true),
                false => wrong("the refusal is not clear", &refused),
            }
        }
        // A payload before the snapshot is damaged, which a start does not notice; nothing wrong is served.
        Start::Loses(found, lost) => {
            let all = known.values();
            let required = known.required(file, damage);
            let is_known = |offset: &u64| found.contains_key(offset) || lost.contains(offset);
            let is_sound = found.iter().all(|(offset, value)| all.get(offset) == Some(value))
                && lost.iter().all(|offset| all.contains_key(offset))
                && required.keys().all(is_known);
            let (code, text) = verify(dir.path());
            match is_sound && code == 1 && text.contains("\ndamaged: wal-") {
                true => Ok(true),
                false => wrong("it loses what is not damaged", &Start::Loses(found, lost)),
            }
        }
        Start::Serves(found) => {
            let all = known.values();
            let required = known.required(file, damage);
            if found.iter().any(|(offset, value)| all.get(offset) != Some(value)) {
                return wrong("it serves messages that were never produced", &Start::Serves(found));
            }
            match required.iter().find(|(offset, _)| !found.contains_key(offset)) {
                None => Ok(false),
                Some((offset, _)) => Err(format!("{file}, {damage:?}: message {offset} is proven synced and missing")),
            }
        }
    }
}

#[test]
fn damaged_folder_is_refused_with_one_clear_line_or_serves_everything_proven() {
    let logs = [KnownLog::new(u64::MAX), KnownLog::new(8 << 10)];
    let cases: Vec<_> = logs
        .iter()
        .flat_map(|known| cases(known).into_iter().map(move |(file, damage)| (known, file, damage)))
        .collect();
    assert_eq!(cases.len(), CASES);
    let (next, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((known, file, damage)) = cases.get(number) else { return };
                    // Every tenth on a disk, which is read past the page cache.
                    let dir = if number % 10 == 0 { tempfile::tempdir().unwrap() } else { memory_dir() };
                    match check_start(known, dir, *file, *damage) {
                        Ok(true) => drop(refused.fetch_add(1, Ordering::Relaxed)),
                        Ok(false) => {}
                        Err(wrong) => panic!("{wrong}"),
                    }
                }
            });
        }
    });
    let refused = refused.into_inner();
    println!("{CASES} damaged folders: {refused} refused, {} served everything proven", CASES - refused);
    assert!(refused > CASES / 3 && refused < CASES, "{refused}");
}

/// Canary: the check fails if a message is missing, or one is served that was not produced.
#[test]
fn start_check_fails_on_missing_and_on_unknown_message() {
    let mut known = KnownLog::new(u64::MAX);
    let (file, damage) = (known.last, Damage::Flip { byte: 3_000, bit: 0 });
    assert_eq!(check_start(&known, memory_dir(), file, damage), Ok(false), "these zeros are never read");
    known.messages.insert(9_999, (known.last, 0, "never produced".to_owned()));
    let found = check_start(&known, memory_dir(), file, damage);
    assert!(
        found.as_ref().is_err_and(|wrong| wrong.contains("message 9999 is proven synced and missing")),
        "{found:?}"
    );
    known.messages.remove(&9_999);
    known.messages.remove(&0);
    let found = check_start(&known, memory_dir(), file, damage);
    assert!(found.as_ref().is_err_and(|wrong| wrong.contains("serves messages that were never produced")), "{found:?}");
}
