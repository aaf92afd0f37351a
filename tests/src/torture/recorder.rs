//! Records the history.
//!
//! A line is one JSON object, written with one `write`, so that a driver that is killed leaves complete lines and every
//! call it made. `docs/histories.md` defines the format.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use driftq_history::{Entry, Phase};
use serde_json::{Value, json};

/// Counters of a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls that clients made.
    pub calls: u64,
    /// Calls that succeeded.
    pub acked: u64,
    /// Messages delivered by streams.
    pub deliveries: u64,
    /// Deliveries of dead letters.
    pub dead: u64,
}

/// Writes a history. Shared by threads.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    lines: Mutex<Lines>,
}

#[derive(Debug)]
struct Lines {
    file: File,
    seq: u64,
    counts: Counts,
}

impl Recorder {
    /// Begins a history.
    ///
    /// # Errors
    /// If the file exists or cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        let lines = Lines { file: File::create_new(path)?, seq: 0, counts: Counts::default() };
        Ok(Self { path: path.to_owned(), lines: Mutex::new(lines) })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of lines.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.lock().seq
    }

    /// Whether there is no line yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The counters so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Writes a line. It is in the file when this returns.
    ///
    /// # Panics
    /// If the line cannot be written: a call that is not in the history cannot be verified.
    pub fn write(&self, (client, incarnation): (&str, u64), op: &str, phase: Phase, args: &Value, result: Value) {
        let t = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
        let mut lines = self.lock();
        let entry = Entry {
            seq: lines.seq,
            t: u64::try_from(t).unwrap_or(u64::MAX),
            client: client.to_owned(),
            incarnation,
            op: op.to_owned(),
            phase,
            args: args.clone(),
            result,
        };
        let mut line = serde_json::to_vec(&entry).expect("entries serialize");
        line.push(b'\n');
        lines.file.write_all(&line).expect("the history is writable");
        lines.seq += 1;
        lines.counts.count(&entry);
    }

    /// Records an action of the driver on the server.
    pub fn driver(&self, op: &str, args: &Value) {
        self.write((DRIVER, 0), op, Phase::Ok, args, json!({}));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client name of the driver.
pub const DRIVER: &str = "driver";

impl Counts {
    fn count(&mut self, entry: &Entry) {
        match (entry.client.as_str(), entry.op.as_str(), entry.phase) {
            (DRIVER, ..) => {}
            (_, "deliver", _) => {
                self.deliveries += 1;
                let topic = entry.args["topic"].as_str().unwrap_or_default();
                self.dead += u64::from(topic.starts_with("dlq."));
            }
            (_, _, Phase::Invoke) => self.calls += 1,
            (_, _, Phase::Ok) => self.acked += 1,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &Path) -> Vec<Entry> {
        let text = std::fs::read_to_string(path).expect("readable");
        text.lines().map(|line| serde_json::from_str(line).expect("an entry")).collect()
    }

    #[test]
    fn line_is_in_file_when_write_returns() {
        let folder = tempfile::tempdir().expect("a folder");
        let recorder = Recorder::create(&folder.path().join("history")).expect("made");
        recorder.write(("c", 0), "produce", Phase::Invoke, &json!({"topic": "t", "value": "v"}), Value::Null);
        let found = lines(recorder.path());
        assert_eq!((found.len(), found[0].phase, found[0].result.clone()), (1, Phase::Invoke, Value::Null));
        assert_eq!(recorder.counts(), Counts { calls: 1, ..Counts::default() });
    }

    #[test]
    fn lines_of_concurrent_threads_are_complete_and_ordered() {
        let folder = tempfile::tempdir().expect("a folder");
        let recorder = Recorder::create(&folder.path().join("history")).expect("made");
        std::thread::scope(|scope| {
            for name in ["a", "b", "c"] {
                let recorder = &recorder;
                scope.spawn(move || {
                    (0..200).for_each(|n| recorder.write((name, 0), "ack", Phase::Ok, &json!({"n": n}), json!({})));
                });
            }
        });
        let found = lines(recorder.path());
        assert!(found.iter().map(|entry| entry.seq).eq(0..600));
        assert_eq!(recorder.counts().acked, 600);
    }

    #[test]
    fn existing_history_is_not_overwritten() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history");
        std::fs::write(&path, "something").expect("written");
        assert!(Recorder::create(&path).is_err());
    }
}
