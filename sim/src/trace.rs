//! A life written down: one line for the world, then one line for every step.
//!
//! A trace needs no generator. A seed means another life as soon as the swarm changes; a trace means the same as long as its
//! steps can be read, so what must not be forgotten is kept as a trace.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use driftq_core::faults::{Fault, NoFaults};
use serde::{Deserialize, Serialize};

use crate::actions::Action;
use crate::invariants::verdict::Violation;
use crate::run::{Run, RunOptions, replay};
use crate::setup::Setup;
use crate::world::{Checks, World};

/// The version of the format that this program writes, and the only one it reads.
pub const VERSION: u64 = 1;

/// The first line of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The version of the format.
    pub driftq_trace: u64,
    /// The program that wrote it.
    pub written_by: String,
    /// The seed it was drawn from, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// What it shows, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// The bug that was planted in the broker, if one was.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "by_name")]
    pub mutant: Option<Fault>,
    /// The promise that was broken when it was written, if one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub violates: Option<ViolatedInvariant>,
    /// The sizes and limits of its world.
    pub setup: Setup,
}

/// Which promise was broken: what a violation is known by, whatever was found in its place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViolatedInvariant {
    /// The invariant's number.
    pub invariant: u8,
    /// Its sentence.
    pub sentence: String,
}

impl ViolatedInvariant {
    /// Whether this is what was violated.
    #[must_use]
    pub fn is(&self, violation: &Violation) -> bool {
        (self.invariant, self.sentence.as_str()) == (violation.invariant, violation.sentence)
    }
}

impl From<&Violation> for ViolatedInvariant {
    fn from(violation: &Violation) -> Self {
        Self { invariant: violation.invariant, sentence: violation.sentence.to_owned() }
    }
}

/// A life that can be lived again.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The world.
    pub head: Head,
    /// What happens in it.
    pub actions: Vec<Action>,
}

/// Why a file is not a trace that can be replayed.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("{} cannot be read: {cause}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// There is nothing in it.
    #[error("it is empty; a trace begins with a line like {{\"driftq_trace\":1,…}}")]
    Empty,
    /// Its first line does not say that it is a trace.
    #[error("line 1: not the head of a trace, which names its format as \"driftq_trace\"")]
    NotATrace,
    /// It has another version.
    #[error("line 1: format {0} is not known to this program, which reads format {VERSION}")]
    Version(String),
    /// A line does not say what it should.
    #[error("line {line}: {cause}")]
    Line {
        /// Which, counted from 1.
        line: usize,
        /// What is wrong.
        cause: serde_json::Error,
    },
    /// No world can exist under such limits.
    #[error("line 1: no broker starts under this setup: {0}")]
    Setup(String),
}

impl Trace {
    /// The trace of a life.
    #[must_use]
    pub fn of(run: &Run, seed: Option<u64>, mutant: Option<Fault>) -> Self {
        Self {
            head: Head {
                driftq_trace: VERSION,
                written_by: concat!("driftq-sim ", env!("CARGO_PKG_VERSION")).to_owned(),
                seed,
                about: None,
                mutant,
                violates: run.violation.as_ref().map(ViolatedInvariant::from),
                setup: run.setup.clone(),
            },
            actions: run.actions.clone(),
        }
    }

    /// Lives it, with all checks, under the given bug.
    #[must_use]
    pub fn replay(&self, fault: Option<Fault>) -> Run {
        replay(&self.head.setup, &self.actions, RunOptions { fault, ..RunOptions::default() })
    }

    /// Its lines.
    #[must_use]
    pub fn to_jsonl(&self) -> String {
        let mut text = json(&self.head);
        for action in &self.actions {
            let _ = write!(text, "\n{}", json(action));
        }
        text.push('\n');
        text
    }

    /// Reads the lines of a trace. Blank ones mean nothing; whatever else is not understood is refused.
    ///
    /// # Errors
    /// [`TraceError`], which names the line.
    pub fn from_jsonl(text: &str) -> Result<Self, TraceError> {
        let mut lines = (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty());
        let (line, first) = lines.next().ok_or(TraceError::Empty)?;
        let wrong = |line| move |cause| TraceError::Line { line, cause };
        let look: serde_json::Value = serde_json::from_str(first).map_err(wrong(line))?;
        match look.get("driftq_trace") {
            None => return Err(TraceError::NotATrace),
            Some(version) if version.as_u64() == Some(VERSION) => {}
            Some(version) => return Err(TraceError::Version(version.to_string())),
        }
        let head: Head = serde_json::from_str(first).map_err(wrong(line))?;
        let actions: Result<_, _> = lines.map(|(line, text)| serde_json::from_str(text).map_err(wrong(line))).collect();
        let trace = Self { head, actions: actions? };
        trace.head.check_setup()?;
        Ok(trace)
    }

    /// Reads a trace from a file.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let text = fs::read_to_string(path);
        Self::from_jsonl(&text.map_err(|cause| TraceError::Unreadable { path: path.to_owned(), cause })?)
    }

    /// Writes it to a file, making the folder it is to be in.
    ///
    /// # Errors
    /// The file system's.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, self.to_jsonl())
    }
}

impl Head {
    /// A file may name any numbers. Those under which nothing can run say nothing about the broker.
    fn check_setup(&self) -> Result<(), TraceError> {
        let Setup { lease_ms, slice_bytes, .. } = self.setup;
        if lease_ms == 0 || slice_bytes == 0 {
            return Err(TraceError::Setup("lease_ms and slice_bytes are at least 1".to_owned()));
        }
        let begun =
            crate::panic_capture::catch(|| World::new(&self.setup, NoFaults, Checks { oracle: false }).map(drop));
        match begun {
            Ok(Ok(())) => Ok(()),
            Ok(Err(violation)) => Err(TraceError::Setup(violation.found)),
            Err(said) => Err(TraceError::Setup(said)),
        }
    }
}

/// The names of all bugs that can be planted.
#[must_use]
pub fn mutant_names() -> String {
    Fault::ALL.iter().map(|fault| fault.name()).collect::<Vec<_>>().join(", ")
}

/// The bug of that name.
///
/// # Errors
/// A sentence that lists the names there are.
pub fn mutant_named(name: &str) -> Result<Fault, String> {
    let found = Fault::ALL.iter().copied().find(|fault| fault.name() == name);
    found.ok_or_else(|| format!("there is no mutant \"{name}\"; the mutants are: {}", mutant_names()))
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("names and numbers have a form in JSON")
}

pub(crate) mod by_name {
    use driftq_core::faults::Fault;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(fault: &Option<Fault>, to: S) -> Result<S::Ok, S::Error> {
        match fault {
            Some(fault) => to.serialize_str(fault.name()),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Option<Fault>, D::Error> {
        let name = Option::<String>::deserialize(from)?;
        name.map(|name| super::mutant_named(&name).map_err(serde::de::Error::custom)).transpose()
    }
}
