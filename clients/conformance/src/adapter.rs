//! An adapter of a client: a process that is asked over standard input and answers over standard output.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use crate::stalls::watch;
use crate::trace::{Recorder, Seen};

/// The contract that is judged.
const CONTRACT: u64 = 1;
/// An adapter that has not said what it is after this long has failed.
const HELLO_WITHIN: Duration = Duration::from_secs(60);
/// How long the end of its input may take an adapter to end.
const EXIT_WITHIN: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(5);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// It could not be started.
    #[error("cannot start the adapter: {0}")]
    Spawn(#[from] io::Error),
    /// It ended.
    #[error("the adapter has ended")]
    Ended,
    /// It took too long.
    #[error("the adapter did not answer in time")]
    TimedOut,
    /// Its first line is not that of an adapter of this contract.
    #[error("the adapter introduced itself as {0}, not as one of contract {CONTRACT}")]
    Contract(Value),
}

#[derive(Debug, Default)]
struct Answers {
    by_id: HashMap<u64, Value>,
    hello: Option<Value>,
    ended: bool,
}

/// A running adapter. It is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Adapter {
    incarnation: usize,
    child: Child,
    input: Option<ChildStdin>,
    answers: Arc<(Mutex<Answers>, Condvar)>,
    recorder: Arc<Recorder>,
    next: u64,
    name: String,
}

impl Adapter {
    /// Starts `command`, a line of the shell, and waits until it has said what it is. Its standard error is appended to
    /// the file `log`.
    ///
    /// # Errors
    /// If it does not start, or is no adapter.
    pub(crate) fn start(
        command: &str,
        incarnation: usize,
        log: &Path,
        recorder: Arc<Recorder>,
    ) -> Result<Self, AdapterError> {
        let log = File::options().create(true).append(true).open(log)?;
        let mut child = Command::new("sh")
            .args(["-c", &format!("exec {command}")])
            // So that a kill ends what it has started, too.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        watch(child.id(), incarnation, Arc::clone(&recorder));
        let answers = Arc::new((Mutex::new(Answers::default()), Condvar::new()));
        let input = child.stdin.take();
        if let Some(output) = child.stdout.take() {
            let (answers, recorder) = (Arc::clone(&answers), Arc::clone(&recorder));
            thread::spawn(move || read_answers(BufReader::new(output), incarnation, &answers, &recorder));
        }
        let mut adapter = Self { incarnation, child, input, answers, recorder, next: 1, name: String::new() };
        let hello = adapter.wait(HELLO_WITHIN, |answers| answers.hello.take())?;
        match (hello["adapter"].as_str(), hello["contract"].as_u64()) {
            (Some(name), Some(CONTRACT)) => name.clone_into(&mut adapter.name),
            _ => return Err(AdapterError::Contract(hello)),
        }
        Ok(adapter)
    }

    /// What it calls itself.
    #[must_use]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Which start of an adapter it is.
    #[must_use]
    pub(crate) fn incarnation(&self) -> usize {
        self.incarnation
    }

    /// Asks for an operation, and returns its number.
    ///
    /// # Errors
    /// If the adapter has ended.
    pub(crate) fn ask(&mut self, mut request: Value, expect: Value) -> Result<u64, AdapterError> {
        let id = self.next;
        self.next += 1;
        request["id"] = json!(id);
        let line = format!("{request}\n");
        self.recorder.record(Seen::Call { incarnation: self.incarnation, id, request, expect });
        let input = self.input.as_mut().ok_or(AdapterError::Ended)?;
        input.write_all(line.as_bytes()).and_then(|()| input.flush()).map_err(|_| AdapterError::Ended)?;
        Ok(id)
    }

    /// Waits for the answer to the operation of this number.
    ///
    /// # Errors
    /// If it does not come.
    pub(crate) fn answer(&self, id: u64, within: Duration) -> Result<Value, AdapterError> {
        self.wait(within, |answers| answers.by_id.remove(&id))
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// If it does not come.
    pub(crate) fn call(&mut self, request: Value, within: Duration) -> Result<Value, AdapterError> {
        let id = self.ask(request, Value::Null)?;
        self.answer(id, within)
    }

    /// Whether it still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it and what it has started, and waits for its end.
    pub(crate) fn kill(&mut self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // Fails only where the process has ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }

    /// Ends its input and waits for it to end by itself. False if it does not.
    pub(crate) fn finish(&mut self) -> bool {
        self.input = None;
        let until = Instant::now() + EXIT_WITHIN;
        while Instant::now() < until {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.success();
            }
            thread::sleep(POLL);
        }
        false
    }

    fn wait<T>(&self, within: Duration, mut take: impl FnMut(&mut Answers) -> Option<T>) -> Result<T, AdapterError> {
        let until = Instant::now() + within;
        let (answers, changed) = &*self.answers;
        let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(taken) = take(&mut answers) {
                return Ok(taken);
            }
            if answers.ended {
                return Err(AdapterError::Ended);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(AdapterError::TimedOut);
            }
            answers = changed.wait_timeout(answers, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        if self.is_running() {
            self.kill();
        }
    }
}

fn read_answers(output: impl BufRead, incarnation: usize, answers: &(Mutex<Answers>, Condvar), recorder: &Recorder) {
    let (waiting, changed) = answers;
    for line in output.lines() {
        let Ok(line) = line else { break };
        let answer = serde_json::from_str(&line).unwrap_or(Value::String(line));
        recorder.record(Seen::Answer { incarnation, answer: answer.clone() });
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match answer["id"].as_u64() {
            Some(id) => drop(waiting.by_id.insert(id, answer)),
            None if waiting.hello.is_none() => waiting.hello = Some(answer),
            None => {}
        }
        changed.notify_all();
    }
    waiting.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
    changed.notify_all();
}
