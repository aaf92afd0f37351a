//! Traces that are kept: bugs that must not come back, and planted bugs that must be caught.

use std::fs;
use std::path::Path;

use driftq_core::faults::Fault;

use crate::invariants::verdict::Violation;
use crate::trace::{Trace, TraceError, ViolatedInvariant};

/// Why a kept trace does not show any more what it was kept for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Regression {
    /// It is there to show that nothing is broken, and something is.
    #[error("it must pass, and does not: {0}")]
    Violated(Violation),
    /// It is there to show a planted bug, and does not say what that breaks.
    #[error("it names a mutant, or a disk that breaks its contract, and not the invariant that this violates")]
    Unsaid,
    /// A disk that breaks its contract does no harm any more, or other harm.
    #[error("on a disk that breaks its contract it should break invariant {}: {}, and {}", .wanted.invariant, .wanted.sentence,
        .found.as_ref().map_or("breaks nothing".to_owned(), |found| format!("breaks another: {found}")))]
    Contract {
        /// What it should break.
        wanted: ViolatedInvariant,
        /// What it breaks.
        found: Option<Violation>,
    },
    /// The planted bug breaks nothing.
    #[error("with {} planted nothing is broken; it should be invariant {}: {}", .fault.name(), .wanted.invariant, .wanted.sentence)]
    Survived {
        /// The bug.
        fault: Fault,
        /// What it should break.
        wanted: ViolatedInvariant,
    },
    /// The planted bug breaks something else.
    #[error("with {} planted another promise is broken than invariant {}: {found}", .fault.name(), .wanted.invariant)]
    Another {
        /// The bug.
        fault: Fault,
        /// What it should break.
        wanted: ViolatedInvariant,
        /// What it breaks.
        found: Violation,
    },
}

/// The traces in a folder, by their names without the ending, in order.
///
/// # Errors
/// The first that cannot be read, or the folder itself.
pub fn kept(folder: &Path) -> Result<Vec<(String, Trace)>, TraceError> {
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

/// Whether a kept trace still shows what it was kept for. One of a real bug passes; one of a planted bug, or of a disk that
/// breaks its contract, breaks the very sentence in its head, and passes without the bug, or on a better disk.
///
/// # Errors
/// [`Regression`].
pub fn judge(trace: &Trace) -> Result<(), Regression> {
    if trace.head.setup.shows_given_up {
        let wanted = trace.head.violates.clone().ok_or(Regression::Unsaid)?;
        let found = trace.replay(None).violation;
        if !found.as_ref().is_some_and(|found| wanted.is(found)) {
            return Err(Regression::Contract { wanted, found });
        }
        let mut better = trace.clone();
        better.head.setup.shows_given_up = false;
        return judge_by(&better, |fault| better.replay(fault).violation);
    }
    judge_by(trace, |fault| trace.replay(fault).violation)
}

/// The same, by what `live` says is broken with a bug planted or with none. For those who judge the judge.
///
/// # Errors
/// [`Regression`].
pub fn judge_by(trace: &Trace, live: impl Fn(Option<Fault>) -> Option<Violation>) -> Result<(), Regression> {
    if let Some(fault) = trace.head.mutant {
        let wanted = trace.head.violates.clone().ok_or(Regression::Unsaid)?;
        match live(Some(fault)) {
            Some(found) if wanted.is(&found) => {}
            Some(found) => return Err(Regression::Another { fault, wanted, found }),
            None => return Err(Regression::Survived { fault, wanted }),
        }
    }
    live(None).map_or(Ok(()), |violation| Err(Regression::Violated(violation)))
}
