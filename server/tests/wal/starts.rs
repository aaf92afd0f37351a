//! Damage by the hundred, each before a real start: the program refuses in one clear line, or everything acknowledged and proven is there.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use driftq_core::log::FileId;
use driftq_core::types::Lsn;

use crate::daemon::{Start, start};
use crate::support::*;

/// How many damages are tried.
const CASES: usize = 300;

/// What is done to one file.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Flip { byte: usize, bit: u8 },
    Cut { len: usize },
    Zero { byte: usize },
    Gone,
}

/// A log and what its only partition holds, message by message: where its frame ends, and its value.
struct Known {
    dir: tempfile::TempDir,
    messages: BTreeMap<u64, (FileId, usize, String)>,
    last: FileId,
    /// Damage is only done to what was written.
    ends: BTreeMap<FileId, usize>,
}

impl Known {
    fn new(snapshot_every_bytes: u64) -> Self {
        let dir = plain_log(snapshot_every_bytes);
        // What stands in no segment any more is in every snapshot.
        let older = |(_, _, offset, value): (String, u32, u64, Vec<u8>)| {
            (offset, (FileId::Snapshot(Lsn(0)), 0, String::from_utf8(value).unwrap()))
        };
        let mut all: BTreeMap<u64, (FileId, usize, String)> =
            messages(&state(dir.path())).into_iter().map(older).collect();
        all.extend(produced(dir.path()).into_iter().map(|made| (made.offset, (made.file, made.end, made.value))));
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

    /// What must be there if it starts. Everything is proven by the last mark; a cut takes the mark along with all behind it.
    fn must_have(&self, file: FileId, harm: Harm) -> BTreeMap<u64, String> {
        let cut = match harm {
            Harm::Cut { len } if file == self.last => len,
            Harm::Gone if file == self.last => 0,
            Harm::Zero { byte } if file == self.last && byte + 512 >= self.ends[&file] => byte,
            _ => usize::MAX,
        };
        let before = |(at, end, _): &(FileId, usize, String)| *at != file || *end <= cut;
        let kept = self.messages.iter().filter(|(_, message)| before(message));
        kept.map(|(offset, (.., value))| (*offset, value.clone())).collect()
    }
}

fn inflict(dir: &Path, file: FileId, harm: Harm) {
    match harm {
        Harm::Flip { byte, bit } => edit(dir, file, |bytes| bytes[byte] ^= 1 << bit),
        Harm::Cut { len } => edit(dir, file, |bytes| bytes.truncate(len)),
        Harm::Zero { byte } => edit(dir, file, |bytes| {
            let end = bytes.len().min(byte + 512);
            bytes[byte..end].fill(0);
        }),
        Harm::Gone => fs::remove_file(path(dir, file)).unwrap(),
    }
}

/// The damages, the same every time: most of them flips and cuts.
fn cases(known: &Known) -> Vec<(FileId, Harm)> {
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
        // What a header fills up with is zeros nobody reads.
        let byte = if random(4) == 0 { random(128) } else { 4096 + random(end - 4096) };
        let harm = match random(20) {
            0..=11 => Harm::Flip { byte, bit: random(8) as u8 },
            12..=16 => Harm::Cut { len: byte },
            17 | 18 => Harm::Zero { byte },
            _ => Harm::Gone,
        };
        (file, harm)
    };
    (0..CASES / 2).map(|_| one()).collect()
}

/// A start in a folder of its own after damage, judged. Says whether it was refused.
fn judged(known: &Known, dir: tempfile::TempDir, file: FileId, harm: Harm) -> Result<bool, String> {
    let dir = copy_into(dir, known.dir.path());
    inflict(dir.path(), file, harm);
    let wrong = |what: &str, found: &Start| Err(format!("{file}, {harm:?}: {what}: {found:?}"));
    match start(dir.path()) {
        Start::Refuses(code, said) => {
            let refused = Start::Refuses(code, said.clone());
            let names_file = said.contains("wal-") || said.contains("snap-");
            let names_remedy = said.contains("driftqd wal verify") && said.contains("driftqd wal salvage");
            match said.starts_with("driftqd: ") && code == 1 && names_file && names_remedy {
                true => Ok(true),
                false => wrong("the refusal is not clear", &refused),
            }
        }
        Start::Serves(found) => {
            let all = known.values();
            let must = known.must_have(file, harm);
            if found.iter().any(|(offset, value)| all.get(offset) != Some(value)) {
                return wrong("it serves what never was", &Start::Serves(found));
            }
            match must.iter().find(|(offset, _)| !found.contains_key(offset)) {
                None => Ok(false),
                Some((offset, _)) => Err(format!("{file}, {harm:?}: message {offset} is proven, and gone")),
            }
        }
    }
}

#[test]
fn three_hundred_damaged_folders_are_refused_in_one_clear_line_or_serve_everything_proven() {
    let logs = [Known::new(u64::MAX), Known::new(8 << 10)];
    let cases: Vec<_> =
        logs.iter().flat_map(|known| cases(known).into_iter().map(move |(file, harm)| (known, file, harm))).collect();
    assert_eq!(cases.len(), CASES);
    let (next, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((known, file, harm)) = cases.get(number) else { return };
                    // Every tenth on a disk, which is read past the system's cache.
                    let dir = if number % 10 == 0 { tempfile::tempdir().unwrap() } else { scratch() };
                    match judged(known, dir, *file, *harm) {
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

/// The judge must see a loss: with a log that is said to hold one message more than it does, every start is wrong.
#[test]
fn a_message_that_is_missing_would_be_noticed() {
    let mut known = Known::new(u64::MAX);
    let (file, harm) = (known.last, Harm::Flip { byte: 3_000, bit: 0 });
    assert_eq!(judged(&known, scratch(), file, harm), Ok(false), "nobody reads those zeros");
    known.messages.insert(9_999, (known.last, 0, "never said".to_owned()));
    let noticed = judged(&known, scratch(), file, harm);
    assert!(noticed.as_ref().is_err_and(|wrong| wrong.contains("message 9999 is proven, and gone")), "{noticed:?}");
    known.messages.remove(&9_999);
    known.messages.remove(&0);
    let noticed = judged(&known, scratch(), file, harm);
    assert!(noticed.as_ref().is_err_and(|wrong| wrong.contains("serves what never was")), "{noticed:?}");
}
