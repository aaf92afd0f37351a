//! `strace` attached to one thread of a running server, to make its system calls fail, be delayed, or be its last.
//!
//! One thread, because `strace` counts calls per thread: "the fifth" is the fifth of that thread.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};

use crate::daemon::Signal;

/// The thread that writes and syncs the log.
pub const LOG_THREAD: &str = "driftq-log";
/// The thread that creates segments and snapshots.
pub const FILES_THREAD: &str = "driftq-files";

/// An attached `strace`. It detaches when dropped.
#[derive(Debug)]
pub struct SyscallInjector {
    strace: Child,
    /// Kept open, so that `strace` can write to it.
    _stderr: BufReader<ChildStderr>,
}

impl SyscallInjector {
    /// Injects `action`, in the syntax of `strace` after `inject=CALL:`, into the `calls` of the thread of process
    /// `pid` whose name begins with `thread`.
    ///
    /// # Errors
    /// If there is no such thread, or `strace` cannot attach.
    pub fn attach(pid: u32, thread: &str, calls: &str, action: &str) -> Result<Self, String> {
        let tid = find_thread(pid, thread).ok_or_else(|| format!("process {pid} has no thread {thread}"))?;
        let mut command = Command::new("strace");
        command.args(["-p", &tid.to_string(), "-o", "/dev/null", "-e", &format!("trace={calls}")]);
        command.args(["-e", &format!("inject={calls}:{action}")]);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut strace = spawned.map_err(|error| format!("strace cannot be run: {error}"))?;
        let mut stderr = BufReader::new(strace.stderr.take().ok_or("strace has no standard error")?);
        let mut line = String::new();
        let read = stderr.read_line(&mut line);
        let injector = Self { strace, _stderr: stderr };
        match read {
            Ok(_) if line.contains("attached") => Ok(injector),
            _ => Err(format!("strace cannot attach: {}", line.trim())),
        }
    }
}

impl Drop for SyscallInjector {
    fn drop(&mut self) {
        // On SIGTERM strace detaches; it has exited already if the thread has.
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

/// A [wrapper](crate::daemon::Launcher::wrapper) that injects `action` into `calls` of all threads of a server from its
/// start on.
#[must_use]
pub fn wrapper(calls: &str, action: &str) -> Vec<String> {
    let (trace, inject) = (format!("trace={calls}"), format!("inject={calls}:{action}"));
    // -D: the server is the child of this process, and strace a child of the server.
    ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject].map(str::to_owned).to_vec()
}
