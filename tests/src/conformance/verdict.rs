//! What a case comes to.

use crate::http::{CallError, Reply};

/// How long a glimpse of an answer may be.
const SEEN_CHARS_MAX: usize = 200;

/// How a clause stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The server does what the specification says.
    Pass,
    /// It does not.
    Fail,
    /// It does what our documents say instead, each of them a strengthening.
    Deviates,
    /// It cannot be seen here, and the verdict says why.
    NotApplicable,
}

impl Outcome {
    /// All of them, in the order in which they are counted.
    pub const ALL: [Self; 4] = [Self::Pass, Self::Fail, Self::Deviates, Self::NotApplicable];

    /// The outcome in words, as reports show it.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Deviates => "deviates on purpose",
            Self::NotApplicable => "not applicable",
        }
    }
}

/// What a case saw, and what that means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How the clause stands.
    pub outcome: Outcome,
    /// What was seen, in a few words; where it failed, what was expected too.
    pub seen: String,
}

/// How a case ends: at its last line, or early, because it has seen enough.
pub type Finding = Result<Verdict, Verdict>;

/// The clause holds.
pub(super) fn pass(seen: impl Into<String>) -> Finding {
    Ok(Verdict { outcome: Outcome::Pass, seen: seen.into() })
}

/// The server does what our documents say instead; `decision` names which.
pub(super) fn deviates(seen: impl std::fmt::Display, decision: &str) -> Finding {
    Ok(Verdict { outcome: Outcome::Deviates, seen: format!("{seen} ({decision})") })
}

/// The clause does not hold.
pub(super) fn fail(expected: impl std::fmt::Display, seen: impl std::fmt::Display) -> Verdict {
    Verdict { outcome: Outcome::Fail, seen: format!("expected {expected}, saw {seen}") }
}

/// The clause cannot be seen here.
pub(super) fn not_applicable(why: impl Into<String>) -> Verdict {
    Verdict { outcome: Outcome::NotApplicable, seen: why.into() }
}

/// Ends a case that saw something else than it must.
pub(super) fn ensure(
    holds: bool,
    expected: impl std::fmt::Display,
    seen: impl std::fmt::Display,
) -> Result<(), Verdict> {
    if holds { Ok(()) } else { Err(fail(expected, seen)) }
}

/// Ends a case whose answer has another status than it must.
pub(super) fn ensure_status(reply: &Reply, status: u16, asked: &str) -> Result<(), Verdict> {
    ensure(reply.status == status, format!("{status} to {asked}"), glimpse(reply))
}

/// An answer in a few words.
pub(super) fn glimpse(reply: &Reply) -> String {
    shorten(&format!("{} {}", reply.status, reply.body.trim()))
}

/// A text on one line, and not too long.
pub(super) fn shorten(text: &str) -> String {
    let line: String = text.chars().map(|sign| if sign.is_control() { ' ' } else { sign }).collect();
    let line = line.trim();
    match line.char_indices().nth(SEEN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

impl From<CallError> for Verdict {
    fn from(error: CallError) -> Self {
        fail("an answer", error)
    }
}
