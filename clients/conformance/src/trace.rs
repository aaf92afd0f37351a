//! What was seen of a run, in the order in which it was seen: requests and answers at the proxies, effects at the
//! ledger, and what the runner did. The judge decides by it alone.

use std::io::{self, BufRead, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One thing that was seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Microseconds since the start of the run.
    pub t: u64,
    /// What was seen.
    #[serde(flatten)]
    pub seen: Seen,
}

impl Entry {
    /// How long the machine kept an adapter from running, if that is what was seen.
    #[must_use]
    pub fn stall(&self) -> Option<Duration> {
        match self.seen {
            Seen::Stalled { us, .. } => Some(Duration::from_micros(us)),
            _ => None,
        }
    }
}

/// What can be seen. An *incarnation* is one start of an adapter; each has a proxy and a ledger of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "seen", rename_all = "snake_case")]
pub enum Seen {
    /// The first entry: what is run, and the scenario itself.
    Run {
        /// The name that the adapter gives to itself.
        adapter: String,
        /// The seed of the faults.
        seed: u64,
        /// The scenario, as in its file.
        scenario: Value,
    },
    /// An adapter was started.
    Started {
        /// Which start of an adapter.
        incarnation: usize,
        /// Which process of the scenario.
        process: usize,
    },
    /// An adapter has ended.
    Ended {
        /// Which start of an adapter.
        incarnation: usize,
        /// Whether the runner, or a step of the scenario, ended it.
        expected: bool,
    },
    /// A complete request passed the proxy.
    Request {
        /// The number of the request.
        exchange: u64,
        /// Whose request it is.
        incarnation: usize,
        /// The number of its connection.
        connection: u64,
        /// The method.
        method: String,
        /// Path and query.
        target: String,
        /// Whether the body is a batch: then it is a list.
        batch: bool,
        /// The header `Idempotency-Key`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        idempotency_key: Option<String>,
        /// The body, null where there is none.
        body: Value,
    },
    /// The head of a stream's answer passed the proxy.
    Head {
        /// The number of the request.
        exchange: u64,
        /// The status.
        status: u16,
    },
    /// A line of a stream passed the proxy.
    Line {
        /// The number of the stream's request.
        exchange: u64,
        /// The line.
        line: Value,
    },
    /// An answer has ended.
    End {
        /// The number of the request.
        exchange: u64,
        /// The status, 0 where no answer came.
        status: u16,
        /// The body of an answer that is no stream; of a batch a list.
        body: Value,
        /// Whether the answer is complete.
        complete: bool,
    },
    /// The client closed its connection, or its process ended.
    Closed {
        /// The number of the connection.
        connection: u64,
    },
    /// An effect in the outside world.
    Effect {
        /// Whose effect it is.
        incarnation: usize,
        /// Its name.
        name: String,
        /// The message, `topic/partition/offset`.
        message: String,
        /// The number of the delivery.
        attempt: u64,
        /// The worker.
        worker: String,
    },
    /// The runner asked an adapter for an operation.
    Call {
        /// Whom it asked.
        incarnation: usize,
        /// The number of the call.
        id: u64,
        /// The operation and its fields.
        request: Value,
        /// What the scenario expects as the answer.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        expect: Value,
    },
    /// An adapter answered, or sent a notice.
    Answer {
        /// Whose answer it is.
        incarnation: usize,
        /// The answer.
        answer: Value,
    },
    /// The machine kept an adapter from running.
    Stalled {
        /// Which start of an adapter.
        incarnation: usize,
        /// For so many microseconds, until now.
        us: u64,
    },
    /// What the broker has at the end, asked for without the proxy.
    Final {
        /// Topics, messages, groups and effects.
        state: Value,
    },
    /// The runner gave up waiting for something.
    TimedOut {
        /// For what.
        what: String,
    },
}

/// Records what is seen, from all threads of a run.
#[derive(Debug)]
pub struct Recorder {
    start: Instant,
    entries: Mutex<Vec<Entry>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { start: Instant::now(), entries: Mutex::default() }
    }
}

impl Recorder {
    /// Records it, with the time.
    pub fn record(&self, seen: Seen) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        // Inside the lock: the order is that of the times.
        let t = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        entries.push(Entry { t, seen });
    }

    /// How many effects an incarnation had.
    #[must_use]
    pub fn effects_of(&self, of: usize) -> usize {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries
            .iter()
            .filter(|entry| matches!(&entry.seen, Seen::Effect { incarnation, .. } if *incarnation == of))
            .count()
    }

    /// How long adapters were kept from running.
    #[must_use]
    pub fn stalled(&self) -> Duration {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().filter_map(Entry::stall).sum()
    }

    /// A copy of all that was recorded.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Writes a trace, an entry per line.
///
/// # Errors
/// If writing fails.
pub fn write(entries: &[Entry], to: &mut impl Write) -> io::Result<()> {
    for entry in entries {
        serde_json::to_writer(&mut *to, entry)?;
        to.write_all(b"\n")?;
    }
    to.flush()
}

/// Reads what [`write()`] wrote.
///
/// # Errors
/// If reading fails, or a line is no entry.
pub fn read(from: impl BufRead) -> io::Result<Vec<Entry>> {
    from.lines().map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}
