//! A case of the suite.

use super::probe::Probe;
use super::verdict::Finding;

/// One clause of the specification, and the function that checks it.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The section of the clause, such as `v1.2 Partition selection`.
    pub section: &'static str,
    /// A short unique name.
    pub name: &'static str,
    /// What must hold.
    pub clause: &'static str,
    /// What the case needs beside a server.
    pub needs: Needs,
    pub(super) run: fn(&Probe<'_>) -> Finding,
}

/// What a case needs beside a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// A restart of the server that keeps its data.
    Restart,
}

/// A case that needs a server only.
pub(super) const fn case(
    section: &'static str,
    name: &'static str,
    clause: &'static str,
    run: fn(&Probe<'_>) -> Finding,
) -> Case {
    Case { section, name, clause, needs: Needs::Nothing, run }
}

/// A case during which the server is restarted once: it calls [`Probe::restart`].
pub(super) const fn durable(
    section: &'static str,
    name: &'static str,
    clause: &'static str,
    run: fn(&Probe<'_>) -> Finding,
) -> Case {
    Case { section, name, clause, needs: Needs::Restart, run }
}
