//! How far a soak is, as it stands in its folder.

use driftq_core::faults::Fault;
use serde::{Deserialize, Serialize};

use crate::swarm::Profile;
use crate::trace::{ViolatedInvariant, fault_name};

/// The version of the format that this program writes, and the only one it reads.
pub const VERSION: u64 = 1;
/// How many traces of one sentence are kept. More of the same say little, and a folder must not grow without end.
pub const KEPT_MAX: u64 = 5;

/// How far a soak is, over all its runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The version of the format.
    pub driftq_soak: u64,
    /// Every seed from the first up to this one has been lived, and whatever it broke is kept. This one is next.
    pub next_seed: u64,
    /// How many seeds were lived.
    pub seeds: u64,
    /// How many broke a promise.
    pub failures: u64,
    /// How many events there were.
    pub events: u64,
    /// For how long, in milliseconds.
    pub elapsed_ms: u64,
    /// The profile of all seeds; none where they alternate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// The bug that is planted, if one is.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "fault_name")]
    pub mutant: Option<Fault>,
    /// What was broken, and how often.
    #[serde(default)]
    pub sentences: Vec<Sentence>,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sentence {
    /// Which.
    pub broken: ViolatedInvariant,
    /// By how many seeds.
    pub seeds: u64,
}

impl State {
    /// A soak that begins.
    #[must_use]
    pub fn new(next_seed: u64, profile: Option<Profile>, mutant: Option<Fault>) -> Self {
        Self {
            driftq_soak: VERSION,
            next_seed,
            seeds: 0,
            failures: 0,
            events: 0,
            elapsed_ms: 0,
            profile,
            mutant,
            sentences: Vec::new(),
        }
    }

    /// Reads what was written down.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let state: Self = serde_json::from_str(text).map_err(|cause| cause.to_string())?;
        match state.driftq_soak {
            VERSION => Ok(state),
            other => Err(format!("format {other} is not known to this program, which reads format {VERSION}")),
        }
    }

    /// As it is written down.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("names and numbers have a form in JSON") + "\n"
    }

    /// What is in fashion in the world of a seed: where nobody has said, one profile after the other.
    #[must_use]
    pub fn profile_of(&self, seed: u64) -> Profile {
        self.profile.unwrap_or(if seed.is_multiple_of(2) { Profile::Default } else { Profile::Effects })
    }

    /// A seed has been lived.
    pub fn lived(&mut self, seed: u64, events: u64) {
        self.next_seed = seed.wrapping_add(1);
        self.seeds += 1;
        self.events += events;
    }

    /// It broke a promise. Whether its trace is worth keeping.
    pub fn failed(&mut self, broken: &ViolatedInvariant) -> bool {
        self.failures += 1;
        match self.sentences.iter_mut().find(|known| known.broken == *broken) {
            Some(known) => {
                known.seeds += 1;
                known.seeds <= KEPT_MAX
            }
            None => {
                self.sentences.push(Sentence { broken: broken.clone(), seeds: 1 });
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nonsense_is_not() {
        let mut state = State::new(7, Some(Profile::Effects), Some(Fault::SkipTokenCheck));
        state.lived(7, 100);
        assert!(state.failed(&ViolatedInvariant { invariant: 6, sentence: "a".to_owned() }));
        let text = state.to_json();
        assert_eq!(State::from_json(&text), Ok(state));
        // Torn anywhere, it is not taken for less.
        for len in 0..text.trim_end().len() {
            assert!(State::from_json(&text[..len]).is_err(), "{}", &text[..len]);
        }
        assert!(State::from_json(&text.replace("\"driftq_soak\": 1", "\"driftq_soak\": 2")).is_err());
    }

    #[test]
    fn a_few_of_every_sentence_are_kept_and_all_are_counted() {
        let mut state = State::new(0, None, None);
        let broken = |sentence: &str| ViolatedInvariant { invariant: 1, sentence: sentence.to_owned() };
        let kept = (0..9).filter(|_| state.failed(&broken("a"))).count() as u64;
        assert_eq!((kept, state.failures), (KEPT_MAX, 9));
        assert!(state.failed(&broken("b")), "another sentence is new");
    }

    #[test]
    fn profiles_take_turns_unless_one_was_chosen() {
        let state = State::new(0, None, None);
        assert_ne!(state.profile_of(4), state.profile_of(5));
        let state = State::new(0, Some(Profile::Default), None);
        assert_eq!(state.profile_of(4), state.profile_of(5));
    }
}
