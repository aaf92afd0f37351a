//! Launches `driftqd` processes: on a data folder, at a fixed or a free port, directly or under another program. A
//! daemon is killed and reaped when its handle is dropped.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

pub use rustix::process::Signal;

use crate::http::{Client, Request};

/// A daemon that is not ready after this long has failed.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a daemon may take to stop after SIGTERM.
const STOP_WITHIN: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(2);
/// What `driftqd` logs in front of the URL it listens on.
const LISTENING: &str = "listening on ";
/// The ports of [`free_addr`]: above the privileged ones, below those that the system chooses by default.
const PORTS: Range<u16> = 10_000..30_000;
/// The variable with the number of reactors of every daemon, for a run of all tests with another one than the default.
const TEST_REACTORS: &str = "DRIFTQ_TEST_REACTORS";
/// How much of a log an error shows.
const LOG_TAIL_BYTES: usize = 2_000;

/// What is launched, and how.
#[derive(Clone, Debug)]
pub struct Launcher {
    program: PathBuf,
    wrapper: Vec<String>,
    args: Vec<String>,
    env: Vec<(String, String)>,
    addr: SocketAddr,
    data_dir: PathBuf,
    log: PathBuf,
}

impl Launcher {
    /// Launches `program` on a data folder, at a free port of the loopback address. It appends what it logs to the file
    /// `log`.
    #[must_use]
    pub fn new(program: &Path, data_dir: &Path, log: &Path) -> Self {
        Self {
            program: program.to_owned(),
            wrapper: Vec::new(),
            args: Vec::new(),
            env: Vec::new(),
            addr: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            data_dir: data_dir.to_owned(),
            log: log.to_owned(),
        }
    }

    /// Listens at a fixed address, the same for every launch.
    #[must_use]
    pub fn addr(mut self, addr: SocketAddr) -> Self {
        self.addr = addr;
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|&arg| arg.to_owned()));
        self
    }

    /// Runs the program under another one: `strace …`, `prlimit …`.
    #[must_use]
    pub fn wrapper(mut self, wrapper: &[impl AsRef<str>]) -> Self {
        self.wrapper = wrapper.iter().map(|part| part.as_ref().to_owned()).collect();
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Logs to another file.
    #[must_use]
    pub fn log(mut self, log: &Path) -> Self {
        log.clone_into(&mut self.log);
        self
    }

    /// The data folder.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Starts the process and does not wait for it.
    ///
    /// # Errors
    /// [`StartError::Spawn`].
    pub fn launch(&self) -> Result<Daemon, StartError> {
        self.spawn().map_err(|source| StartError::Spawn { program: self.program.clone(), source })
    }

    /// Starts the process and waits until it is ready.
    ///
    /// # Errors
    /// If it cannot be run, exits, or is not ready in time.
    pub fn start(&self) -> Result<Daemon, StartError> {
        let mut daemon = self.launch()?;
        daemon.wait_until_ready()?;
        Ok(daemon)
    }

    fn spawn(&self) -> io::Result<Daemon> {
        let mut log = File::options().create(true).append(true).open(&self.log)?;
        let log_start = log.seek(SeekFrom::End(0))?;
        let mut command = match &self.wrapper[..] {
            [] => Command::new(&self.program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(&self.program);
                command
            }
        };
        command.args(["--addr", &self.addr.to_string(), "--data-dir"]).arg(&self.data_dir).args(&self.args);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DRIFTQ_")) {
            command.env_remove(name);
        }
        if let Some(reactors) = std::env::var_os(TEST_REACTORS) {
            command.env("DRIFTQ_REACTORS", reactors);
        }
        // Its own process group, so that signals reach a wrapper too.
        command.envs(self.env.iter().cloned()).process_group(0);
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        Ok(Daemon { child: KillOnDrop(child), addr: self.addr, log: self.log.clone(), log_start })
    }
}

/// Why a daemon did not start. The message ends with what the daemon logged.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program cannot be run.
    #[error("{} cannot be run: {source}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The process exited before it was ready.
    #[error("it exited with {status}{}", tail(log))]
    Exited {
        /// How.
        status: ExitStatus,
        /// Everything it logged.
        log: String,
    },
    /// The process runs, but was not ready in time.
    #[error("it was not ready within {READY_WITHIN:?}{}", tail(log))]
    NotReady {
        /// Everything it logged.
        log: String,
    },
    /// The process cannot be waited for.
    #[error("it cannot be waited for: {0}")]
    Wait(#[from] io::Error),
}

impl From<StartError> for String {
    fn from(error: StartError) -> Self {
        error.to_string()
    }
}

/// A running daemon.
#[derive(Debug)]
pub struct Daemon {
    child: KillOnDrop,
    addr: SocketAddr,
    log: PathBuf,
    /// Where in the log file this process began.
    log_start: u64,
}

impl Daemon {
    /// Where it listens; port 0 until it is known.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The process that was started: the wrapper's, if there is one that does not exec.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Waits until it listens, and finds out where.
    ///
    /// # Errors
    /// If it exits or does not listen in time.
    pub fn wait_until_listening(&mut self) -> Result<(), StartError> {
        self.wait_for(Self::is_listening)
    }

    /// Waits until `GET /v1/readyz` returns 200.
    ///
    /// # Errors
    /// If it exits or is not ready in time.
    pub fn wait_until_ready(&mut self) -> Result<(), StartError> {
        self.wait_for(|daemon| {
            let client = Client::new(daemon.addr, Duration::from_secs(2));
            daemon.is_listening() && client.call(&Request::get("/v1/readyz")).is_ok_and(|reply| reply.status == 200)
        })
    }

    /// Whether the address is known: fixed, or logged.
    fn is_listening(&mut self) -> bool {
        if self.addr.port() == 0
            && let Some((_, rest)) = self.log().split_once(LISTENING)
            && let Some((url, _)) = rest.split_once('\n')
            && let Some((_, addr)) = url.split_once("://")
        {
            self.addr = addr.trim().parse().unwrap_or(self.addr);
        }
        self.addr.port() != 0
    }

    fn wait_for(&mut self, condition: impl Fn(&mut Self) -> bool) -> Result<(), StartError> {
        let deadline = Instant::now() + READY_WITHIN;
        while !condition(self) {
            match self.child.0.try_wait()? {
                Some(status) => return Err(StartError::Exited { status, log: self.log() }),
                None if Instant::now() >= deadline => return Err(StartError::NotReady { log: self.log() }),
                None => std::thread::sleep(POLL),
            }
        }
        Ok(())
    }

    /// Sends a signal to the process and to its wrapper.
    pub fn signal(&self, signal: Signal) {
        let group = rustix::process::Pid::from_child(&self.child.0);
        // Fails only if the whole group has exited.
        let _ = rustix::process::kill_process_group(group, signal);
    }

    /// Sends SIGKILL and waits until the process is gone.
    pub fn kill(&mut self) {
        // The id of a process that was reaped may belong to another one.
        if self.is_running() {
            self.signal(Signal::KILL);
        }
        let _ = self.child.0.wait();
    }

    /// Sends SIGTERM and waits until the process has exited.
    ///
    /// # Errors
    /// If it does not exit in time.
    pub fn stop(&mut self) -> Result<ExitStatus, String> {
        self.signal(Signal::TERM);
        self.wait(STOP_WITHIN)
    }

    /// Waits until the process has exited.
    ///
    /// # Errors
    /// If it does not exit in time.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        let deadline = Instant::now() + limit;
        loop {
            match self.child.0.try_wait().map_err(|error| error.to_string())? {
                Some(status) => return Ok(status),
                None if Instant::now() < deadline => std::thread::sleep(POLL),
                None => return Err(format!("it did not exit within {limit:?}{}", tail(&self.log()))),
            }
        }
    }

    /// How the process has exited, with what it logged last; nothing while it runs.
    pub fn exited(&mut self) -> Option<String> {
        let status = self.child.0.try_wait().ok().flatten()?;
        Some(format!("it exited with {status}{}", tail(&self.log())))
    }

    /// Whether the process runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.0.try_wait(), Ok(None))
    }

    /// Everything this process has logged.
    #[must_use]
    pub fn log(&self) -> String {
        let mut bytes = Vec::new();
        let read = File::open(&self.log).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.log_start))?;
            file.read_to_end(&mut bytes)
        });
        read.map_or_else(|error| error.to_string(), |_| String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A child process that is killed and reaped when dropped.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Both fail only if the process is gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The end of a log, as the end of an error message.
fn tail(log: &str) -> String {
    let text = String::from_utf8_lossy(&log.as_bytes()[log.len().saturating_sub(LOG_TAIL_BYTES)..]);
    let text = text.trim();
    if text.is_empty() { String::new() } else { format!(". It logged:\n{text}") }
}

/// An address that only the caller uses, also while nothing listens there, for daemons that are restarted at the same
/// address: its loopback address belongs to this process, and its port is below those that the system chooses for
/// outgoing connections and for listeners without a fixed port.
///
/// Nothing is bound to find it: a child process that is started at the same time would inherit the socket and keep the
/// address in use until it executes its program.
///
/// # Errors
/// If this process has used all its addresses.
pub fn free_addr() -> io::Result<SocketAddr> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    if number >= PORTS.len() as u16 {
        return Err(io::Error::other("all addresses of this process are used"));
    }
    // Process ids have 22 bits.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ok(SocketAddr::from((Ipv4Addr::new(127, 64 + high % 64, middle, low), PORTS.start + number)))
}

/// The `driftqd` to test: the program that the variable `DRIFTQD` names, or that of this workspace.
///
/// # Errors
/// If there is none, or it cannot be built.
pub fn driftqd() -> Result<PathBuf, String> {
    match std::env::var_os("DRIFTQD").map(PathBuf::from) {
        Some(path) if path.is_file() => fs::canonicalize(path).map_err(|error| error.to_string()),
        Some(path) => Err(format!("DRIFTQD: there is no file {}", path.display())),
        None => program("driftq-server", "driftqd"),
    }
}

/// The program `name` of this workspace, beside the running program. If cargo runs this program, it first builds `name`
/// unless that is newer than its sources.
///
/// # Errors
/// If there is none, or it cannot be built.
pub fn program(package: &str, name: &str) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("this crate is not in a workspace")?;
    // A test binary is one folder below.
    let find = || own.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|path| path.is_file());
    if let Some(cargo) = std::env::var_os("CARGO")
        && !find().is_some_and(|program| is_up_to_date(&program, workspace))
    {
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--locked", "-p", package, "--bin", name]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        } else if own.parent().is_some_and(|folder| folder.ends_with("deps")) {
            // A test binary.
            build.args(["--profile", "test"]);
        }
        let status = build.status().map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("cargo could not build {name}: {status}"));
        }
    }
    find().ok_or_else(|| format!("there is no {name} beside {}", own.display()))
}

/// Whether a program is newer than every source and manifest of the workspace. `cargo test --workspace` has just built
/// it then; a build of its package alone would select other features of dependencies and compile them again.
fn is_up_to_date(program: &Path, workspace: &Path) -> bool {
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    let Ok(built) = modified(program) else { return false };
    let is_older = |path: &Path| modified(path).is_ok_and(|modified| modified <= built);
    let Ok(members) = fs::read_dir(workspace) else { return false };
    let members = members.flatten().map(|entry| entry.path()).filter(|path| path.join("Cargo.toml").is_file());
    let mut folders: Vec<PathBuf> = Vec::new();
    let mut manifests = vec![workspace.join("Cargo.toml"), workspace.join("Cargo.lock")];
    for member in members {
        manifests.push(member.join("Cargo.toml"));
        folders.push(member.join("src"));
    }
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if !is_older(&path) {
                return false;
            }
        }
    }
    manifests.iter().all(|manifest| is_older(manifest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_addresses_differ_and_can_be_listened_at() {
        let (first, second) = (free_addr().expect("an address"), free_addr().expect("an address"));
        assert_ne!(first, second);
        for addr in [first, second] {
            let listener = std::net::TcpListener::bind(addr).expect("nothing else uses it");
            let client = std::net::TcpStream::connect(addr).expect("it listens");
            assert_ne!(client.local_addr().expect("its address").ip(), addr.ip(), "no client has the address");
            drop(listener);
        }
    }

    #[test]
    fn program_is_up_to_date_until_a_source_changes() {
        let folder = tempfile::tempdir().expect("a folder");
        let touch = |path: &Path, seconds: u64| {
            let file = File::create(path).expect("created");
            file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(seconds)).expect("set");
        };
        let root = folder.path();
        fs::create_dir_all(root.join("member/src/module")).expect("created");
        let sources = ["Cargo.toml", "Cargo.lock", "member/Cargo.toml", "member/src/module/a.rs"];
        sources.iter().for_each(|source| touch(&root.join(source), 1));
        let program = root.join("program");
        assert!(!is_up_to_date(&program, root), "not built yet");
        touch(&program, 2);
        assert!(is_up_to_date(&program, root));
        for source in sources {
            touch(&root.join(source), 3);
            assert!(!is_up_to_date(&program, root), "{source}");
            touch(&root.join(source), 1);
        }
        fs::remove_file(root.join("Cargo.lock")).expect("removed");
        assert!(!is_up_to_date(&program, root));
    }
}
