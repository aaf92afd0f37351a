//! Servers of others: started on a temporary folder, stopped with everything that descends from them.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use crate::load::error::Result;
use crate::procfs;

/// A server that does not answer after this long has failed.
const READY_WITHIN: Duration = Duration::from_secs(90);
/// How long one attempt to reach it may take.
const ATTEMPT_WITHIN: Duration = Duration::from_secs(5);
/// How long a command that prepares a server may take.
const PREPARED_WITHIN: Duration = Duration::from_secs(60);
/// How long a server may take to end by itself.
const ENDED_WITHIN: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(20);
/// How much of a log an error shows.
const LOG_TAIL_BYTES: usize = 600;
/// Folders of programs that may not be in the path.
const MORE_PROGRAM_FOLDERS: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/sbin"];

/// A temporary folder for a server: its data, its configuration and its log.
#[derive(Debug)]
pub(crate) struct Folder {
    folder: TempDir,
    owner: Option<User>,
}

impl Folder {
    /// A folder that belongs to `owner`, if the server runs as another user.
    pub(crate) fn new(parent: &Path, owner: Option<User>) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("driftq-compare-").tempdir_in(parent)?;
        if owner.is_some() {
            // The folder itself is not theirs, so that they cannot remove it.
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { folder, owner })
    }

    /// Creates a folder in it.
    pub(crate) fn create(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name);
        fs::create_dir(&path)?;
        if let Some(owner) = self.owner {
            std::os::unix::fs::chown(&path, Some(owner.uid), Some(owner.gid))?;
        }
        Ok(path)
    }

    /// Writes a file in it.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path(name);
        fs::write(&path, text)?;
        Ok(path)
    }

    /// The path of what has this name in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Has a program run in it, log to it and be the first of a process group.
    fn prepare(&self, command: &mut Command) -> io::Result<()> {
        let log = File::options().create(true).append(true).open(self.path("log"))?;
        command.current_dir(self.folder.path()).process_group(0);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        if let Some(owner) = self.owner {
            command.uid(owner.uid).gid(owner.gid);
        }
        Ok(())
    }

    /// Runs a command that ends by itself.
    pub(crate) async fn run(&self, command: &mut Command) -> Result<()> {
        let name = command.get_program().to_string_lossy().into_owned();
        self.prepare(command)?;
        let child = command.spawn().map_err(|error| format!("{name} cannot be run: {error}"))?;
        let mut processes = Processes(vec![Process { child, signal: Signal::KILL }]);
        let give_up = Instant::now() + PREPARED_WITHIN;
        loop {
            match processes.0[0].child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("{name} failed with {status}{}", self.logged()).into()),
                None if Instant::now() > give_up => return Err(format!("{name} did not end{}", self.logged()).into()),
                None => tokio::time::sleep(POLL).await,
            }
        }
    }

    /// The end of the log, as the end of an error message.
    fn logged(&self) -> String {
        let log = fs::read(self.path("log")).unwrap_or_default();
        let text =
            String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TAIL_BYTES)..]).trim().replace('\n', " / ");
        if text.is_empty() { String::new() } else { format!(". It logged: {text}") }
    }
}

/// A user of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// The user of a server that does not run as root; none if this program does not run as root.
    pub(crate) fn instead_of_root(name: &str) -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let user = Self::in_passwd(&fs::read_to_string("/etc/passwd")?, name);
        user.map(Some).ok_or_else(|| format!("it does not run as root, and there is no user {name}").into())
    }

    fn in_passwd(passwd: &str, name: &str) -> Option<Self> {
        let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
        fields
            .filter(|fields| fields.first() == Some(&name))
            .find_map(|fields| Some(Self { uid: fields.get(2)?.parse().ok()?, gid: fields.get(3)?.parse().ok()? }))
    }
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    processes: Processes,
    folder: Folder,
    addr: SocketAddr,
}

impl Server {
    /// Starts a server that ends at SIGKILL.
    pub(crate) fn spawn(command: &mut Command, folder: Folder, addr: SocketAddr) -> Result<Self> {
        let mut server = Self { processes: Processes(Vec::new()), folder, addr };
        server.add(command, Signal::KILL)?;
        Ok(server)
    }

    /// Starts a process beside those there are, which is stopped before them. `signal` is sent to stop it.
    pub(crate) fn add(&mut self, command: &mut Command, signal: Signal) -> Result<()> {
        let name = command.get_program().to_string_lossy().into_owned();
        self.folder.prepare(command)?;
        let child = command.spawn().map_err(|error| format!("{name} cannot be run: {error}"))?;
        self.processes.0.push(Process { child, signal });
        Ok(())
    }

    /// The signal that stops the process which was started last.
    pub(crate) fn stopped_by(mut self, signal: Signal) -> Self {
        if let Some(process) = self.processes.0.last_mut() {
            process.signal = signal;
        }
        self
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// CPU time of all its processes so far.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        procfs::tree_cpu_time(&self.processes.ids())
    }

    /// How it has exited, if it has.
    pub(crate) fn exited(&mut self) -> Option<String> {
        let status = self.processes.0.iter_mut().find_map(|process| process.child.try_wait().ok().flatten())?;
        Some(format!("it exited with {status}{}", self.folder.logged()))
    }

    /// Waits until an attempt to use it succeeds, and returns what that returned.
    pub(crate) async fn wait_until_ready<T>(
        &mut self,
        attempt: impl AsyncFn(SocketAddr) -> io::Result<T>,
    ) -> Result<T> {
        let give_up = Instant::now() + READY_WITHIN;
        loop {
            let failure = match tokio::time::timeout(ATTEMPT_WITHIN, attempt(self.addr)).await {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            if let Some(exited) = self.exited() {
                return Err(exited.into());
            }
            if Instant::now() > give_up {
                return Err(
                    format!("it was not ready within {READY_WITHIN:?}: {failure}{}", self.folder.logged()).into()
                );
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Processes that are stopped when this is dropped, the last one first.
#[derive(Debug)]
struct Processes(Vec<Process>);

#[derive(Debug)]
struct Process {
    child: Child,
    /// What it is stopped by.
    signal: Signal,
}

impl Processes {
    fn ids(&self) -> Vec<u32> {
        self.0.iter().map(|process| process.child.id()).collect()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in self.0.iter_mut().rev() {
            process.stop();
        }
    }
}

impl Process {
    /// Sends the signal, waits a while, and kills what is left of its process group and of its descendants.
    fn stop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let descendants: Vec<(u32, u64)> = procfs::descendants(&[self.child.id()])
            .into_iter()
            .filter_map(|pid| Some((pid, procfs::start_time(pid)?)))
            .collect();
        let group = Pid::from_child(&self.child);
        // Each of these fails only if the process is gone.
        let _ = rustix::process::kill_process(group, self.signal);
        let give_up = Instant::now() + ENDED_WITHIN;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < give_up {
            std::thread::sleep(POLL);
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        for (pid, started) in &descendants {
            // Some are in groups of their own.
            if procfs::runs_since(*pid, *started)
                && let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw)
            {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        let _ = self.child.wait();
        // They may still write into the folder that is removed next.
        let give_up = Instant::now() + ENDED_WITHIN;
        while descendants.iter().any(|(pid, started)| procfs::runs_since(*pid, *started)) && Instant::now() < give_up {
            std::thread::sleep(POLL);
        }
    }
}

/// The program of a server: the first of these paths and names that is a file, names being looked for in the path.
pub(crate) fn find_program(names: &[&str]) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(MORE_PROGRAM_FOLDERS.iter().map(PathBuf::from));
    for name in names {
        let found = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
        if let Some(found) = found {
            return Ok(found);
        }
    }
    Err(format!("{} is not installed", names.last().unwrap_or(&"it")).into())
}

/// What a program prints about its version: the first line.
pub(crate) fn version_of(program: &Path, flag: &str) -> String {
    let output = Command::new(program).arg(flag).stdin(Stdio::null()).output();
    let text = output.map(|output| if output.stdout.is_empty() { output.stderr } else { output.stdout });
    let text = String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
    text.lines().next().unwrap_or("unknown version").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(script: &str) -> Server {
        let folder = Folder::new(&std::env::temp_dir(), None).expect("a folder");
        let addr = SocketAddr::from(([127, 0, 0, 1], 1));
        Server::spawn(Command::new("sh").args(["-c", script]), folder, addr).expect("a shell")
    }

    #[test]
    fn user_is_found_by_the_whole_name() {
        let passwd = "postgresql:x:9:9::/:/bin/sh\npostgres:x:101:104:,,,:/var:/bin/sh\nbroken:x\n";
        assert_eq!(User::in_passwd(passwd, "postgres"), Some(User { uid: 101, gid: 104 }));
        assert_eq!(User::in_passwd(passwd, "broken"), None);
        assert_eq!(User::in_passwd(passwd, "root"), None);
    }

    #[tokio::test]
    async fn server_that_exits_is_quoted_and_its_folder_removed() {
        let mut server = server("echo out of order >&2; exit 3");
        let path = server.folder.path("");
        let never = |_| async { Err::<(), _>(io::Error::other("not there")) };
        let error = server.wait_until_ready(never).await.expect_err("it exits").to_string();
        assert!(error.contains("exit status: 3") && error.contains("out of order"), "{error}");
        assert!(path.exists());
        drop(server);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn dropped_server_leaves_no_process() {
        // The shell ignores the signal; one of its children is in a session of its own.
        let mut server = server("trap '' TERM; setsid sleep 100 & sleep 100 & echo started; wait; wait");
        let log = server.folder.path("log");
        let started = async |_| match fs::read_to_string(&log)?.trim() {
            "started" => Ok(()),
            other => Err(io::Error::other(other.to_owned())),
        };
        server.wait_until_ready(started).await.expect("it starts");
        let root = server.processes.ids();
        let give_up = Instant::now() + READY_WITHIN;
        let pids = loop {
            let pids = procfs::descendants(&root);
            let asleep = pids.iter().filter(|pid| name_of(**pid) == "sleep").count();
            assert!(Instant::now() < give_up, "two sleep: {pids:?}");
            if asleep == 2 {
                break pids.into_iter().filter_map(|pid| Some((pid, procfs::start_time(pid)?))).collect::<Vec<_>>();
            }
        };
        drop(server.stopped_by(Signal::TERM));
        let left: Vec<_> = pids.iter().filter(|(pid, started)| procfs::runs_since(*pid, *started)).collect();
        assert!(left.is_empty(), "{left:?}");
    }

    fn name_of(pid: u32) -> String {
        fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
    }
}
