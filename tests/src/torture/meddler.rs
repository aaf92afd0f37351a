//! `strace`, put on one thread of a running server, to make its system calls fail, take long, or be its last.
//!
//! On one thread: `strace` counts calls by thread, and so "the fifth" is the fifth of the thread that is meant.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};

use crate::daemon::Signal;

/// The thread that writes and syncs the log.
pub const LOG_THREAD: &str = "driftq-log";
/// The thread that makes segments and snapshots.
pub const FILES_THREAD: &str = "driftq-files";

/// A `strace` at work. It lets go of the server when this goes.
#[derive(Debug)]
pub struct Meddler {
    strace: Child,
    /// Kept open, so that `strace` can go on talking.
    _said: BufReader<ChildStderr>,
}

impl Meddler {
    /// Meddles with the `calls` of a thread, named by its beginning, of the process `pid`; `how` is what `strace` takes behind `inject=CALL:`.
    ///
    /// # Errors
    /// If there is no such thread, or `strace` may not.
    pub fn on(pid: u32, thread: &str, calls: &str, how: &str) -> Result<Self, String> {
        let tid = find_thread(pid, thread).ok_or_else(|| format!("{pid} has no thread {thread}"))?;
        let mut command = Command::new("strace");
        command.args(["-p", &tid.to_string(), "-o", "/dev/null", "-e", &format!("trace={calls}")]);
        command.args(["-e", &format!("inject={calls}:{how}")]);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut strace = spawned.map_err(|error| format!("strace cannot be run: {error}"))?;
        let mut said = BufReader::new(strace.stderr.take().ok_or("strace has no voice")?);
        let mut line = String::new();
        let read = said.read_line(&mut line);
        let meddler = Self { strace, _said: said };
        match read {
            Ok(_) if line.contains("attached") => Ok(meddler),
            _ => Err(format!("strace does not attach: {}", line.trim())),
        }
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        // A polite end, on which it lets its thread go; it is gone already where the thread is.
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&self.strace), Signal::TERM);
        let _ = self.strace.wait();
    }
}

fn find_thread(pid: u32, name: &str) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let named =
        |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.starts_with(name));
    let task = tasks.filter_map(Result::ok).find(named)?;
    task.file_name().to_str()?.parse().ok()
}

/// The beginning of a command line that runs a server with `calls` of all its threads meddled with, from its first moment on.
#[must_use]
pub fn wrapper(calls: &str, how: &str) -> Vec<String> {
    let (trace, inject) = (format!("trace={calls}"), format!("inject={calls}:{how}"));
    // -D: the server is our child, and strace is its.
    ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject].map(str::to_owned).to_vec()
}
