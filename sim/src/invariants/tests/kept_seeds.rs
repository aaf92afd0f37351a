//! Seeds that detected planted bugs before, kept in a file beside the test that uses them. A kept seed is tried first,
//! which makes the search for a seed short; where it no longer detects the bug, others are searched.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// If this variable is set, tests write their files anew.
const WRITE: &str = "DRIFTQ_WRITE_SEEDS";

pub(crate) struct KeptSeeds {
    path: PathBuf,
    kept: BTreeMap<String, u64>,
    found: String,
    searched: usize,
}

impl KeptSeeds {
    /// Reads a file of lines with a key and a seed, below the folder of the package.
    pub(crate) fn read(file: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let text = fs::read_to_string(&path).expect("the file of kept seeds");
        let lines = text.lines().map(|line| line.rsplit_once(' ').expect("a key and a seed"));
        let kept = lines.map(|(key, seed)| (key.to_owned(), seed.parse().expect("a seed"))).collect();
        Self { path, kept, found: String::new(), searched: 0 }
    }

    /// A seed below `end` that detects this bug. The kept one is tried first, then those that detected most bugs.
    pub(crate) fn find(&mut self, key: &str, end: u64, detects: impl Fn(&u64) -> bool) -> Option<u64> {
        let kept = self.kept.get(key).copied().filter(|seed| *seed < end && detects(seed));
        let detected_by = kept.or_else(|| {
            self.searched += 1;
            self.by_success(end).into_iter().find(detects)
        })?;
        writeln!(self.found, "{key} {detected_by}").expect("a string takes all");
        Some(detected_by)
    }

    /// All seeds below `end`, those first that detected most bugs.
    fn by_success(&self, end: u64) -> Vec<u64> {
        let mut successes: BTreeMap<u64, usize> = BTreeMap::new();
        self.kept.values().for_each(|seed| *successes.entry(*seed).or_default() += 1);
        let mut seeds: Vec<u64> = (0..end).collect();
        seeds.sort_by_key(|seed| Reverse(successes.get(seed).copied()));
        seeds
    }

    /// Writes the file anew if that is asked for.
    pub(crate) fn finish(self) {
        if std::env::var_os(WRITE).is_some() {
            fs::write(&self.path, &self.found).expect("the file can be written");
        } else if self.searched > 0 {
            println!("{} seeds were searched; {WRITE}=1 keeps them in {}", self.searched, self.path.display());
        }
    }
}
