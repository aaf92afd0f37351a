//! Runs `driftq` without settings from the environment of the tests.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};

/// A command line of `driftq`.
pub(crate) struct Driftq {
    pub(crate) command: Command,
    input: Vec<u8>,
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Driftq {
    pub(crate) fn new(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_driftq"));
        command.args(arguments);
        for name in ["DRIFTQ_URL", "DRIFTQ_KEY", "NO_COLOR"] {
            command.env_remove(name);
        }
        // No file of contexts, unless a test has one.
        command.env("DRIFTQ_CONTEXTS", "/nonexistent/contexts.json");
        Self { command, input: Vec::new() }
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self
    }

    pub(crate) fn run(mut self) -> Ended {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = self.command.spawn().expect("driftq starts");
        // It may end without reading.
        let _ = process.stdin.take().expect("piped").write_all(&self.input);
        let output = process.wait_with_output().expect("driftq ends");
        Ended {
            code: output.status.code().expect("no signal ended it"),
            out: String::from_utf8(output.stdout).expect("UTF-8"),
            err: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    /// Starts it with its output in pipes.
    pub(crate) fn start(mut self) -> Child {
        self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.command.spawn().expect("driftq starts")
    }
}

impl Ended {
    /// Its output, if it succeeded.
    pub(crate) fn succeeded(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self.out
    }

    /// Checks the exit code, that nothing was printed, and that the error is one line that contains a text.
    pub(crate) fn failed(&self, code: i32, text: &str) {
        assert_eq!((self.code, self.err.lines().count()), (code, 1), "{self:?}");
        assert!(self.err.starts_with("driftq: ") && self.err.contains(text), "{text:?} is not in {self:?}");
    }
}
