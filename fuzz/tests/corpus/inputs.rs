//! The inputs: those that are kept, and those that are made from them.

use std::fs;
use std::path::{Path, PathBuf};

/// The fewest inputs a corpus may have.
const INPUTS_MIN: usize = 5;
pub fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The inputs kept for a target, by name.
pub fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = corpus().join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<_> = entries
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    inputs.sort();
    assert!(inputs.len() >= INPUTS_MIN, "{} holds {} inputs", folder.display(), inputs.len());
    inputs
}

/// Numbers that are the same everywhere.
pub struct Numbers(pub u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most)).map(|_| self.below(256) as u8).collect()
    }

    /// An input with a few things done to it, or one of nothing but chance.
    pub fn made_from(&mut self, inputs: &[(String, Vec<u8>)]) -> Vec<u8> {
        if self.below(8) == 0 {
            return self.bytes(200);
        }
        let mut bytes = inputs[self.below(inputs.len())].1.clone();
        for _ in 0..=self.below(4) {
            let (at, end) = (self.below(bytes.len() + 1), self.below(bytes.len() + 1));
            match self.below(6) {
                0 => bytes.truncate(at),
                1 => drop(bytes.splice(at..at, self.bytes(12))),
                2 if at < end => drop(bytes.drain(at..end)),
                3 => {
                    let other = &inputs[self.below(inputs.len())].1;
                    bytes.truncate(at);
                    bytes.extend_from_slice(&other[self.below(other.len())..]);
                }
                _ => {
                    let bit = self.below(8);
                    bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << bit);
                }
            }
        }
        bytes
    }
}
