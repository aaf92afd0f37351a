//! The trace format: a recorded run, with the setup of its world in the first line and one action in each further line.
//!
//! Replaying a trace needs no generator. A seed stands for another run once the swarm changes; a trace keeps its
//! meaning as long as its actions can be parsed, so regressions are kept as traces.

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use driftq_core::faults::{Fault, NoFaults};
use serde::{Deserialize, Serialize};

use crate::actions::Action;
use crate::invariants::{Violation, catalog};
use crate::run::{Run, RunOptions, replay};
use crate::setup::Setup;
use crate::world::{Checks, World};

/// The format version that this program writes, and the only one it reads.
pub const VERSION: u64 = 1;

/// Most bytes of a trace. The longest run of any profile has a hundredth of it.
const BYTES_MAX: u64 = 64 << 20;

/// The first line of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceHeader {
    /// The version of the format.
    pub driftq_trace: u64,
    /// The program that wrote it.
    pub written_by: String,
    /// The seed it was generated from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// What it demonstrates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// The planted bug.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "fault_name")]
    pub mutant: Option<Fault>,
    /// The invariant that was violated when it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub violates: Option<ViolatedInvariant>,
    /// The limits of its world.
    pub setup: Setup,
}

/// The identity of a violation: which invariant, without the details of what was found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViolatedInvariant {
    /// The invariant's number.
    pub invariant: u8,
    /// Its sentence.
    pub sentence: String,
}

impl ViolatedInvariant {
    /// Whether this is the invariant that was violated.
    ///
    /// A trace written by an earlier version may carry a sentence that has been reworded since; then the number
    /// decides.
    #[must_use]
    pub fn is(&self, violation: &Violation) -> bool {
        let is_known = catalog::ALL.iter().any(|invariant| invariant.sentence == self.sentence);
        self.invariant == violation.invariant && (!is_known || self.sentence == violation.sentence)
    }
}

impl From<&Violation> for ViolatedInvariant {
    fn from(violation: &Violation) -> Self {
        Self { invariant: violation.invariant, sentence: violation.sentence.to_owned() }
    }
}

/// A run that can be replayed.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The first line.
    pub header: TraceHeader,
    /// The actions.
    pub actions: Vec<Action>,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("{} cannot be read: {cause}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: std::io::Error,
    },
    /// The file is empty.
    #[error("the file is empty; a trace starts with a line like {{\"driftq_trace\":1,…}}")]
    Empty,
    /// The file is too large to be a trace.
    #[error("the file has more than {BYTES_MAX} bytes; a trace never has")]
    TooLarge,
    /// The first line is not the header of a trace.
    #[error("line 1 is not the header of a trace: the field \"driftq_trace\" is missing")]
    NotATrace,
    /// The format version is not supported.
    #[error("line 1: format version {0} is not supported; this program reads version {VERSION}")]
    Version(String),
    /// A line cannot be parsed.
    #[error("line {line}: {cause}")]
    Line {
        /// The line number, from 1.
        line: usize,
        /// The cause.
        cause: serde_json::Error,
    },
    /// No broker starts with these limits.
    #[error("line 1: no broker starts with this setup: {0}")]
    Setup(String),
}

impl Trace {
    /// The trace of a run.
    #[must_use]
    pub fn of(run: &Run, seed: Option<u64>, mutant: Option<Fault>) -> Self {
        Self {
            header: TraceHeader {
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

    /// Replays it with all checks and the given planted bug.
    #[must_use]
    pub fn replay(&self, fault: Option<Fault>) -> Run {
        replay(&self.header.setup, &self.actions, RunOptions { fault, ..RunOptions::default() })
    }

    /// The lines of the trace.
    #[must_use]
    pub fn to_jsonl(&self) -> String {
        let mut text = json(&self.header);
        for action in &self.actions {
            let _ = write!(text, "\n{}", json(action));
        }
        text.push('\n');
        text
    }

    /// Parses the lines of a trace. Blank lines are ignored; anything else that cannot be parsed is refused.
    ///
    /// # Errors
    /// [`TraceError`], with the line.
    pub fn from_jsonl(text: &str) -> Result<Self, TraceError> {
        let mut lines = (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty());
        let (line, first) = lines.next().ok_or(TraceError::Empty)?;
        let at_line = |line| move |cause| TraceError::Line { line, cause };
        let value: serde_json::Value = serde_json::from_str(first).map_err(at_line(line))?;
        match value.get("driftq_trace") {
            None => return Err(TraceError::NotATrace),
            Some(version) if version.as_u64() == Some(VERSION) => {}
            Some(version) => return Err(TraceError::Version(version.to_string())),
        }
        let header: TraceHeader = serde_json::from_str(first).map_err(at_line(line))?;
        let actions: Result<_, _> =
            lines.map(|(line, text)| serde_json::from_str(text).map_err(at_line(line))).collect();
        let trace = Self { header, actions: actions? };
        trace.header.check_setup()?;
        Ok(trace)
    }

    /// Reads a trace from a file.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let unreadable = |cause| TraceError::Unreadable { path: path.to_owned(), cause };
        let mut text = String::new();
        let file = fs::File::open(path).map_err(unreadable)?;
        if file.metadata().map_err(unreadable)?.len() > BYTES_MAX {
            return Err(TraceError::TooLarge);
        }
        // The size of a device or a file that grows says nothing.
        file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
        if text.len() as u64 > BYTES_MAX {
            return Err(TraceError::TooLarge);
        }
        Self::from_jsonl(&text)
    }

    /// Writes the trace to a file and creates its directory.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, self.to_jsonl())
    }
}

impl TraceHeader {
    /// Refuses limits under which no broker can start: a run with them would not test the broker.
    fn check_setup(&self) -> Result<(), TraceError> {
        self.setup.check().map_err(|rule| TraceError::Setup(rule.to_owned()))?;
        let started =
            crate::panic_capture::catch(|| World::new(&self.setup, NoFaults, Checks { oracle: false }).map(drop));
        match started {
            Ok(Ok(())) => Ok(()),
            Ok(Err(violation)) => Err(TraceError::Setup(violation.found)),
            Err(message) => Err(TraceError::Setup(message)),
        }
    }
}

/// The names of all planted bugs, comma-separated.
#[must_use]
pub fn mutant_names() -> String {
    Fault::ALL.iter().map(|fault| fault.name()).collect::<Vec<_>>().join(", ")
}

/// The planted bug of that name.
///
/// # Errors
/// A message that lists the names.
pub fn mutant_named(name: &str) -> Result<Fault, String> {
    let found = Fault::ALL.iter().copied().find(|fault| fault.name() == name);
    found.ok_or_else(|| format!("unknown mutant \"{name}\"; the mutants are: {}", mutant_names()))
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("the value serializes to JSON")
}

/// Serializes an optional [`Fault`] by its name.
pub(crate) mod fault_name {
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
