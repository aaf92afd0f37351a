//! A real broker for the tests of the program.

#[path = "../../clients/rust/tests/broker/process.rs"]
mod process;

use self::process::Process;
use crate::program::Driftq;

/// Commands that may fail, each after a second or more, until it has read its log.
const READY_TRIES: u32 = 60;

/// A broker that is killed when it is dropped.
pub(crate) struct Broker {
    process: Process,
}

impl Broker {
    pub(crate) fn start() -> Self {
        let broker = Self { process: Process::start() };
        broker.wait_until_ready();
        broker
    }

    /// It listens before it has read its log. A command repeats what is refused for that, but only for a while.
    fn wait_until_ready(&self) {
        let is_ready = (0..READY_TRIES).any(|_| self.driftq(&["topics", "list", "--names"]).run().code == 0);
        assert!(is_ready, "{} is not ready", self.url());
    }

    pub(crate) fn url(&self) -> &str {
        self.process.url()
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again at the same address after [`kill`](Self::kill).
    pub(crate) fn start_again(&mut self) {
        self.process.start_again();
        self.wait_until_ready();
    }

    /// `driftq` for this broker.
    pub(crate) fn driftq(&self, arguments: &[&str]) -> Driftq {
        Driftq::new(arguments).variable("DRIFTQ_URL", self.url())
    }

    /// The same, which must succeed. Returns its standard output.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        self.driftq(arguments).run().succeeded()
    }

    /// The same, of one JSON document.
    pub(crate) fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let text = self.run(arguments);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    /// The same, of one JSON object per line.
    pub(crate) fn lines(&self, arguments: &[&str]) -> Vec<serde_json::Value> {
        let text = self.run(arguments);
        text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
    }
}
