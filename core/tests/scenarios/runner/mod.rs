//! The runner: parses a scenario file, applies its commands to a model, and compares what the model prints.

mod args;
mod commands;
mod format;
mod script;
mod session;
mod units;

use std::panic::{AssertUnwindSafe, catch_unwind};

use driftq_core::faults::Faults;

use self::script::diff;
pub use self::script::{Failure, Script};
use self::session::Session;

/// What running a scenario came to.
#[derive(Debug)]
pub struct Run {
    /// The scenario with the actual replies.
    pub actual: Script,
    /// Commands whose replies were not the expected ones, and last what stopped the run, if something did.
    pub failures: Vec<Failure>,
    /// Every command was performed.
    pub is_complete: bool,
}

/// Runs a scenario against a new model. A command that is wrong, or that the model panics on, stops the run.
pub fn run(script: &Script, faults: impl Faults) -> Run {
    let mut session = Session::new(faults);
    let mut run = Run { actual: script.clone(), failures: Vec::new(), is_complete: true };
    for command in run.actual.commands_mut() {
        let text = &command.text;
        let failure = |message: String| Failure { file: script.name.clone(), line: command.line, message };
        match catch_unwind(AssertUnwindSafe(|| session.execute(text, &command.additions))) {
            Ok(Ok(actual)) => {
                if actual != command.expected {
                    run.failures.push(failure(format!("> {text}{}", diff(&command.expected, &actual))));
                }
                command.expected = actual;
            }
            stopped => {
                let cause = stopped.map_or("the model panicked".to_owned(), |wrong| wrong.unwrap_err());
                run.failures.push(failure(format!("> {text}\n  {cause}")));
                run.is_complete = false;
                break;
            }
        }
    }
    run
}
