//! Other programs that are run to measure: callgrind's and perf's, and benches.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, kill_process_group};

use crate::daemon::Signal;
use crate::load::error::{Error, Result};

const POLL: Duration = Duration::from_millis(5);
/// How much of what a program printed an error shows.
const TAIL_BYTES: usize = 500;

/// A running program. It and all its children are killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Tool {
    name: String,
    child: Child,
    output: File,
    errors: File,
}

impl Tool {
    /// Starts a program in a process group of its own.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let (output, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(errors.try_clone()?)
            .spawn()
            .map_err(|error| format!("{name} cannot be run: {error}"))?;
        Ok(Self { name, child, output, errors })
    }

    /// Sends a signal to the program.
    pub(crate) fn signal(&self, signal: Signal) {
        // Fails only if it has exited.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }

    /// What it printed, if it has exited.
    pub(crate) fn exited(&mut self) -> Result<Option<Finished>> {
        let Some(status) = self.child.try_wait()? else { return Ok(None) };
        Ok(Some(Finished {
            name: self.name.clone(),
            status,
            output: text_of(&self.output)?,
            errors: text_of(&self.errors)?,
        }))
    }

    /// Waits until it exits.
    pub(crate) async fn finish(mut self, limit: Duration) -> Result<Finished> {
        let give_up = Instant::now() + limit;
        loop {
            if let Some(finished) = self.exited()? {
                return Ok(finished);
            }
            if Instant::now() > give_up {
                return Err(format!("{} did not end within {limit:?}", self.name).into());
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        // The id of a process that was reaped may belong to another one.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// A program that has exited.
#[derive(Debug)]
pub(crate) struct Finished {
    name: String,
    status: ExitStatus,
    /// What it printed.
    pub(crate) output: String,
    /// What it printed to standard error.
    pub(crate) errors: String,
}

impl Finished {
    /// What it printed, unless it failed.
    pub(crate) fn successful(self) -> Result<String> {
        if self.status.success() { Ok(self.output) } else { Err(self.failure()) }
    }

    /// An error with what it printed last.
    pub(crate) fn failure(&self) -> Error {
        let text = [self.output.trim(), self.errors.trim()].join("\n");
        let tail = String::from_utf8_lossy(&text.as_bytes()[text.len().saturating_sub(TAIL_BYTES)..]).into_owned();
        format!("{}: {}. It printed: {}", self.name, self.status, tail.trim()).into()
    }
}

/// Runs a program to its end.
pub(crate) async fn run(command: &mut Command, limit: Duration) -> Result<Finished> {
    Tool::start(command)?.finish(limit).await
}

/// What a file contains. The position, which the program shares, stays where it is.
fn text_of(file: &File) -> Result<String> {
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len())?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
    }

    #[test]
    fn failed_program_is_quoted() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo why >&2; exit 3"]);
        let finished = block_on(run(&mut command, Duration::from_secs(20))).expect("it runs");
        assert_eq!((finished.output.as_str(), finished.errors.as_str()), ("out\n", "why\n"));
        let error = finished.successful().expect_err("its status").to_string();
        assert!(error.contains("why") && error.contains('3'), "{error}");
    }

    #[test]
    fn program_that_does_not_end_is_given_up_and_killed() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & echo $!; wait"]);
        let tool = Tool::start(&mut command).expect("it starts");
        let pid = (0..2_000)
            .find_map(|_| {
                std::thread::sleep(POLL);
                text_of(&tool.output).expect("its output").trim().parse::<u32>().ok()
            })
            .expect("the id of its child");
        let begun = Instant::now();
        let error = block_on(tool.finish(Duration::from_millis(20))).expect_err("the limit");
        assert!(begun.elapsed() < Duration::from_secs(30), "it was waited for");
        assert!(error.to_string().contains("did not end"), "{error}");
        let is_gone = || {
            std::thread::sleep(POLL);
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.map_or(true, |stat| stat.contains(") Z"))
        };
        assert!((0..2_000).any(|_| is_gone()), "the child {pid} still runs");
    }
}
