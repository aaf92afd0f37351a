//! Inputs for the targets: those in the corpus, and those derived from them by a deterministic generator.

use std::fs;
use std::path::{Path, PathBuf};

/// The fewest inputs in the corpus of a target.
const INPUTS_MIN: usize = 5;

/// The folder with one subfolder of inputs per target.
pub fn corpus_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The corpus of a target, as (file name, contents) sorted by name.
pub fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = corpus_folder().join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<_> = entries
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    inputs.sort();
    let count = inputs.len();
    assert!(count >= INPUTS_MIN, "{} has {count} inputs, at least {INPUTS_MIN} are needed", folder.display());
    inputs
}

/// Derives inputs from a corpus with a xorshift generator: the same seed gives the same inputs on every machine.
pub struct InputGenerator {
    state: u64,
}

impl InputGenerator {
    /// The seed must not be 0.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn below(&mut self, end: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state % end.max(1) as u64) as usize
    }

    fn random_bytes(&mut self, len_end: usize) -> Vec<u8> {
        (0..self.below(len_end)).map(|_| self.below(256) as u8).collect()
    }

    /// An input of the corpus with a few changes, or random bytes.
    pub fn derive(&mut self, corpus: &[(String, Vec<u8>)]) -> Vec<u8> {
        if self.below(8) == 0 {
            return self.random_bytes(200);
        }
        let mut bytes = corpus[self.below(corpus.len())].1.clone();
        for _ in 0..=self.below(4) {
            let (start, end) = (self.below(bytes.len() + 1), self.below(bytes.len() + 1));
            match self.below(6) {
                0 => bytes.truncate(start),
                1 => drop(bytes.splice(start..start, self.random_bytes(12))),
                2 if start < end => drop(bytes.drain(start..end)),
                3 => {
                    let other = &corpus[self.below(corpus.len())].1;
                    bytes.truncate(start);
                    bytes.extend_from_slice(&other[self.below(other.len())..]);
                }
                _ => {
                    let bit = self.below(8);
                    bytes.get_mut(start).into_iter().for_each(|byte| *byte ^= 1 << bit);
                }
            }
        }
        bytes
    }
}
