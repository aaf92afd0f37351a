//! A child process that ends with its handle.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

const POLL: Duration = Duration::from_millis(5);
/// How much of a log an error shows.
const LOG_TAIL_BYTES: usize = 2_000;

/// A running process, killed and reaped when it is dropped. What it writes goes to a file.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a process that appends what it writes to the file `log`.
    ///
    /// # Errors
    /// If the program cannot be run.
    pub(crate) fn start(name: &str, command: &mut Command, log: &Path) -> Result<Self, String> {
        let spawned = File::options()
            .create(true)
            .append(true)
            .open(log)
            .and_then(|file| command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn());
        let failed = |error: io::Error| format!("{name}: {} cannot be run: {error}", command.get_program().display());
        let child = spawned.map_err(failed)?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned() })
    }

    /// Fails if the process has ended by itself.
    ///
    /// # Errors
    /// How it ended, and what it wrote last.
    pub(crate) fn expect_running(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("{} ended by itself: {status}{}", self.name, self.log_tail())),
            Err(error) => Err(format!("{} cannot be waited for: {error}", self.name)),
        }
    }

    /// Sends SIGKILL and waits until the process is gone.
    pub(crate) fn kill(&mut self) {
        // Both fail only if the process is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends SIGTERM.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn terminate(&self) -> Result<(), String> {
        // The process has not been waited for, so its id is still its own.
        kill_process(Pid::from_child(&self.child), Signal::TERM).map_err(|error| format!("{}: {error}", self.name))
    }

    /// Waits until the process has ended as it should.
    ///
    /// # Errors
    /// If it does not end in time, or fails.
    pub(crate) async fn stopped(mut self, within: Duration) -> Result<(), String> {
        let until = Instant::now() + within;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("{} ended with {status}{}", self.name, self.log_tail())),
                Ok(None) if Instant::now() < until => sleep(POLL).await,
                Ok(None) => return Err(format!("{} did not stop within {within:?}{}", self.name, self.log_tail())),
                Err(error) => return Err(format!("{} cannot be waited for: {error}", self.name)),
            }
        }
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let tail = String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TAIL_BYTES)..]).trim().to_owned();
        if tail.is_empty() { tail } else { format!(". It wrote:\n{tail}") }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
