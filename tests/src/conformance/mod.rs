//! The conformance suite: every clause of the DriftQ v1 specification that can be seen over HTTP, asked of any server.
//!
//! A [`Case`] is one clause and a plain function that looks at a server from outside and says what it saw as a [`Verdict`].
//! Cases know nothing of each other: each makes topics and groups of its own, with names that nobody else has, and gets by
//! with two messages and twenty bytes in a partition, so that it holds on a server with the specification's own limits.
//! Where our broker is stricter than the specification on purpose, a case accepts the letter of the specification as well
//! as the documented stricter behaviour, and tells the two apart.

mod cases;
mod probe;
mod report;
mod run;
mod verdict;

pub use cases::cases;
pub use probe::Probe;
pub use report::{Entry, Report};
pub use run::{Options, Restart, RunError, run};
pub use verdict::{Finding, Outcome, Verdict};

/// One clause of the specification, and how to see whether it holds.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Where the clause stands, such as `v1.2 Partition selection`.
    pub section: &'static str,
    /// A short name that no other case has.
    pub name: &'static str,
    /// What must hold, in words.
    pub clause: &'static str,
    /// What the case needs beside a server.
    pub needs: Needs,
    run: fn(&Probe<'_>) -> Finding,
}

/// What a case needs beside a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing more.
    Nothing,
    /// Somebody who restarts the server while its data is kept.
    Restart,
}

/// A case that needs a server and nothing more.
const fn case(section: &'static str, name: &'static str, clause: &'static str, run: fn(&Probe<'_>) -> Finding) -> Case {
    Case { section, name, clause, needs: Needs::Nothing, run }
}

/// A case in the course of which the server is restarted, once: it calls [`Probe::restart`].
const fn durable(
    section: &'static str,
    name: &'static str,
    clause: &'static str,
    run: fn(&Probe<'_>) -> Finding,
) -> Case {
    Case { section, name, clause, needs: Needs::Restart, run }
}
