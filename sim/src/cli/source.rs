//! The subject of a command: a seed, or a trace in a file.

use std::path::Path;

use driftq_core::faults::Fault;

use super::Misuse;
use super::args::{MutantChoice, Subject, seed};
use crate::run::{Run, RunOptions, run_seed};
use crate::swarm::Profile;
use crate::trace::Trace;

/// A run to examine.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Seed(u64, Profile),
    Trace(Box<Trace>),
}

impl Source {
    /// The subject and the bug to plant: the one on the command line, else the one in the trace.
    pub(super) fn read(subject: &Subject) -> Result<(Self, Option<Fault>), Misuse> {
        let source = Self::named(&subject.source, subject.profile)?;
        let fault = match (subject.mutant, &source) {
            (Some(MutantChoice(fault)), _) => fault,
            (None, Self::Trace(trace)) => trace.header.mutant,
            (None, Self::Seed(..)) => None,
        };
        Ok((source, fault))
    }

    fn named(text: &str, profile: Profile) -> Result<Self, Misuse> {
        if let Ok(seed) = seed(text) {
            return Ok(Self::Seed(seed, profile));
        }
        let path = Path::new(text);
        if !path.exists() || path.is_dir() {
            return Err(Misuse::NoSource(text.to_owned()));
        }
        let trace = Trace::read(path).map_err(|cause| Misuse::Trace { path: path.to_owned(), cause })?;
        Ok(Self::Trace(Box::new(trace)))
    }

    pub(super) fn run(&self, fault: Option<Fault>) -> Run {
        match self {
            Self::Seed(seed, profile) => {
                run_seed(*seed, RunOptions { fault, profile: *profile, ..RunOptions::default() })
            }
            Self::Trace(trace) => trace.replay(fault),
        }
    }

    pub(super) fn seed(&self) -> Option<u64> {
        match self {
            Self::Seed(seed, _) => Some(*seed),
            Self::Trace(trace) => trace.header.seed,
        }
    }

    /// A short description.
    pub(super) fn describe(&self, fault: Option<Fault>) -> String {
        let what = match self {
            Self::Seed(seed, Profile::Default) => format!("seed {seed}"),
            Self::Seed(seed, profile) => format!("seed {seed} of the profile {}", profile.name()),
            Self::Trace(trace) => {
                // The trace of a planted bug describes that bug, which is printed anyway.
                let about = trace.header.about.as_deref().filter(|_| fault.is_none() || fault != trace.header.mutant);
                let about = about.map(|about| format!(", about: {about}")).unwrap_or_default();
                format!("trace of {} actions{about}", trace.actions.len())
            }
        };
        match fault {
            Some(fault) => format!("{what}, with {} planted: {}", fault.name(), fault.description()),
            None => what,
        }
    }
}
