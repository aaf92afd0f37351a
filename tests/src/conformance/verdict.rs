//! The verdict of a case.

use crate::http::{CallError, Reply};

/// The longest observation in a verdict.
const SEEN_CHARS_MAX: usize = 200;

/// The kind of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VerdictKind {
    /// The server behaves as specified.
    Pass,
    /// It does not.
    Fail,
    /// It behaves as DriftQ documents, which is stricter.
    Deviates,
    /// The clause cannot be observed; the verdict says why.
    NotApplicable,
}

impl VerdictKind {
    /// All kinds, in the order of reports.
    pub const ALL: [Self; 4] = [Self::Pass, Self::Fail, Self::Deviates, Self::NotApplicable];

    /// The kind as reports show it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Deviates => "deviates on purpose",
            Self::NotApplicable => "not applicable",
        }
    }
}

/// What a case observed, and whether that is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The kind.
    pub kind: VerdictKind,
    /// What was observed; for a failure also what was expected.
    pub seen: String,
}

/// How a case ends: at its last line, or early.
pub type Finding = Result<Verdict, Verdict>;

/// The clause holds.
pub(super) fn pass(seen: impl Into<String>) -> Finding {
    Ok(Verdict { kind: VerdictKind::Pass, seen: seen.into() })
}

/// The server behaves as DriftQ documents instead; `decision` names where.
pub(super) fn deviates(seen: impl std::fmt::Display, decision: &str) -> Finding {
    Ok(Verdict { kind: VerdictKind::Deviates, seen: format!("{seen} ({decision})") })
}

/// The clause does not hold.
pub(super) fn fail(expected: impl std::fmt::Display, seen: impl std::fmt::Display) -> Verdict {
    Verdict { kind: VerdictKind::Fail, seen: format!("expected {expected}, saw {seen}") }
}

/// The clause cannot be observed.
pub(super) fn not_applicable(why: impl Into<String>) -> Verdict {
    Verdict { kind: VerdictKind::NotApplicable, seen: why.into() }
}

/// Fails the case unless the condition holds.
pub(super) fn ensure(
    holds: bool,
    expected: impl std::fmt::Display,
    seen: impl std::fmt::Display,
) -> Result<(), Verdict> {
    if holds { Ok(()) } else { Err(fail(expected, seen)) }
}

/// Fails the case unless the response has this status.
pub(super) fn ensure_status(reply: &Reply, status: u16, request: &str) -> Result<(), Verdict> {
    ensure(reply.status == status, format!("{status} to {request}"), brief(reply))
}

/// A response in one line.
pub(super) fn brief(reply: &Reply) -> String {
    shorten(&format!("{} {}", reply.status, reply.body.trim()))
}

/// A text in one line of limited length.
pub(super) fn shorten(text: &str) -> String {
    let line: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    let line = line.trim();
    match line.char_indices().nth(SEEN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

impl From<CallError> for Verdict {
    fn from(error: CallError) -> Self {
        fail("a response", error)
    }
}
