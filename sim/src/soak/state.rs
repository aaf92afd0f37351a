//! The state of a soak, as stored in its directory.

use std::collections::BTreeSet;

use driftq_core::faults::Fault;
use serde::{Deserialize, Serialize};

use super::pairs::Pair;
use crate::swarm::Profile;
use crate::trace::{ViolatedInvariant, fault_name};

/// The format version that this program writes, and the only one it reads.
pub const VERSION: u64 = 1;
/// The most traces kept per invariant: more of the same add little, and the directory must not grow without bound.
pub const KEPT_MAX: u64 = 5;

/// The state of a soak over all its invocations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The version of the format.
    pub driftq_soak: u64,
    /// The next seed. All seeds before it were run and their violations are kept.
    pub next_seed: u64,
    /// Seeds run.
    pub seeds: u64,
    /// Seeds that violated an invariant.
    pub failures: u64,
    /// Events executed.
    pub events: u64,
    /// Running time, in milliseconds.
    pub elapsed_ms: u64,
    /// The profile of all seeds; `None` if profiles alternate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// The planted bug.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "fault_name")]
    pub mutant: Option<Fault>,
    /// The violated invariants and their counts.
    #[serde(default)]
    pub sentences: Vec<InvariantCount>,
    /// The actions and the faults that have met.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub met: BTreeSet<Pair>,
}

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InvariantCount {
    /// The invariant.
    #[serde(rename = "broken")]
    pub invariant: ViolatedInvariant,
    /// The number of seeds that violated it.
    pub seeds: u64,
}

impl State {
    /// The state of a new soak.
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
            met: BTreeSet::new(),
        }
    }

    /// Parses a state.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let state: Self = serde_json::from_str(text).map_err(|cause| cause.to_string())?;
        match state.driftq_soak {
            VERSION => Ok(state),
            other => Err(format!("format version {other} is not supported; this program reads version {VERSION}")),
        }
    }

    /// The state as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("the value serializes to JSON") + "\n"
    }

    /// The profile of a seed: the chosen one, or each in turn.
    #[must_use]
    pub fn profile_of(&self, seed: u64) -> Profile {
        let in_turn = match seed {
            seed if seed % 50 == 49 => Profile::Weeks,
            seed if seed.is_multiple_of(2) => Profile::Default,
            _ => Profile::Effects,
        };
        self.profile.unwrap_or(in_turn)
    }

    /// Records a seed that was run.
    pub fn record_seed(&mut self, seed: u64, events: u64) {
        self.next_seed = seed.wrapping_add(1);
        self.seeds += 1;
        self.events += events;
    }

    /// Records a violation. Returns whether its trace is to be kept.
    pub fn record_failure(&mut self, invariant: &ViolatedInvariant) -> bool {
        self.failures += 1;
        match self.sentences.iter_mut().find(|known| known.invariant == *invariant) {
            Some(known) => {
                known.seeds += 1;
                known.seeds <= KEPT_MAX
            }
            None => {
                self.sentences.push(InvariantCount { invariant: invariant.clone(), seeds: 1 });
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_round_trips_and_torn_state_is_refused() {
        let mut state = State::new(7, Some(Profile::Effects), Some(Fault::SkipTokenCheck));
        state.record_seed(7, 100);
        assert!(state.record_failure(&ViolatedInvariant { invariant: 6, sentence: "a".to_owned() }));
        let text = state.to_json();
        assert_eq!(State::from_json(&text), Ok(state));
        // A prefix is never accepted.
        for len in 0..text.trim_end().len() {
            assert!(State::from_json(&text[..len]).is_err(), "{}", &text[..len]);
        }
        assert!(State::from_json(&text.replace("\"driftq_soak\": 1", "\"driftq_soak\": 2")).is_err());
    }

    #[test]
    fn traces_per_invariant_are_limited_and_violations_counted() {
        let mut state = State::new(0, None, None);
        let invariant = |sentence: &str| ViolatedInvariant { invariant: 1, sentence: sentence.to_owned() };
        let kept = (0..9).filter(|_| state.record_failure(&invariant("a"))).count() as u64;
        assert_eq!((kept, state.failures), (KEPT_MAX, 9));
        assert!(state.record_failure(&invariant("b")), "another invariant");
    }

    #[test]
    fn profiles_alternate_unless_one_was_chosen() {
        let state = State::new(0, None, None);
        assert_ne!(state.profile_of(4), state.profile_of(5));
        let state = State::new(0, Some(Profile::Default), None);
        assert_eq!(state.profile_of(4), state.profile_of(5));
    }
}
