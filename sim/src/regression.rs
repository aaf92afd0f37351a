//! Kept traces: fixed bugs that must not come back, and planted bugs that must be detected.

use std::fs;
use std::path::Path;

use driftq_core::faults::Fault;

use crate::invariants::verdict::Violation;
use crate::trace::{Trace, TraceError, ViolatedInvariant};

/// Why a kept trace no longer shows what it was kept for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Regression {
    /// It must pass and violates an invariant.
    #[error("the trace must pass, but violates: {0}")]
    Violated(Violation),
    /// It names a planted bug but not the invariant that the bug violates.
    #[error(
        "the header names a mutant, or a disk that breaks its contract, but not the violated invariant in \"violates\""
    )]
    Unspecified,
    /// A disk that breaks its contract violates nothing, or another invariant.
    #[error("on a disk that breaks its contract the trace must violate invariant {}: {}, but {}", .wanted.invariant, .wanted.sentence,
        .found.as_ref().map_or("violates nothing".to_owned(), |found| format!("violates {found}")))]
    Contract {
        /// The invariant it must violate.
        wanted: ViolatedInvariant,
        /// The invariant it violates.
        found: Option<Violation>,
    },
    /// The planted bug violates nothing.
    #[error("with {} planted the trace must violate invariant {}: {}, but violates nothing", .fault.name(), .wanted.invariant, .wanted.sentence)]
    Survived {
        /// The bug.
        fault: Fault,
        /// The invariant it must violate.
        wanted: ViolatedInvariant,
    },
    /// The planted bug violates another invariant.
    #[error("with {} planted the trace must violate invariant {}, but violates {found}", .fault.name(), .wanted.invariant)]
    Another {
        /// The bug.
        fault: Fault,
        /// The invariant it must violate.
        wanted: ViolatedInvariant,
        /// The invariant it violates.
        found: Violation,
    },
}

/// Reads the traces in a directory, sorted by file name without extension.
///
/// # Errors
/// The first trace that cannot be read, or the directory.
pub fn load(folder: &Path) -> Result<Vec<(String, Trace)>, TraceError> {
    let unreadable = |cause| TraceError::Unreadable { path: folder.to_owned(), cause };
    let mut traces = Vec::new();
    for file in fs::read_dir(folder).map_err(unreadable)? {
        let path = file.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            traces.push((name, Trace::read(&path)?));
        }
    }
    traces.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(traces)
}

/// Checks that a kept trace still shows what it was kept for. The trace of a fixed bug passes. The trace of a planted
/// bug, or of a disk that breaks its contract, violates exactly the invariant in its header, and passes without the bug
/// or on a sound disk.
///
/// # Errors
/// [`Regression`].
pub fn check(trace: &Trace) -> Result<(), Regression> {
    if trace.header.setup.shows_given_up {
        let wanted = trace.header.violates.clone().ok_or(Regression::Unspecified)?;
        let found = trace.replay(None).violation;
        if !found.as_ref().is_some_and(|found| wanted.is(found)) {
            return Err(Regression::Contract { wanted, found });
        }
        let mut sound = trace.clone();
        sound.header.setup.shows_given_up = false;
        return check_with(&sound, |fault| sound.replay(fault).violation);
    }
    check_with(trace, |fault| trace.replay(fault).violation)
}

/// As [`check`], with `replay` in the place of the simulator: it returns the violation with a planted bug or without.
///
/// # Errors
/// [`Regression`].
pub fn check_with(trace: &Trace, replay: impl Fn(Option<Fault>) -> Option<Violation>) -> Result<(), Regression> {
    if let Some(fault) = trace.header.mutant {
        let wanted = trace.header.violates.clone().ok_or(Regression::Unspecified)?;
        match replay(Some(fault)) {
            Some(found) if wanted.is(&found) => {}
            Some(found) => return Err(Regression::Another { fault, wanted, found }),
            None => return Err(Regression::Survived { fault, wanted }),
        }
    }
    replay(None).map_or(Ok(()), |violation| Err(Regression::Violated(violation)))
}
