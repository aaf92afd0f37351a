//! A `driftqd` of our own: started on a folder, killed and reaped whatever happens.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::http::{Request, Server};

/// A daemon that is not ready after this long has failed.
const READY_WITHIN: Duration = Duration::from_secs(60);
const READY_POLL: Duration = Duration::from_millis(2);

/// What is started, and how.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The program.
    pub program: PathBuf,
    /// A program that runs it, with its own arguments: `strace …`, `faketime …`. Empty for none.
    pub wrapper: Vec<String>,
    /// Arguments beyond address and folder.
    pub args: Vec<String>,
    /// Environment variables.
    pub env: Vec<(String, String)>,
}

impl Recipe {
    /// A program with nothing around it.
    #[must_use]
    pub fn of(program: &Path) -> Self {
        Self { program: program.to_owned(), wrapper: Vec::new(), args: Vec::new(), env: Vec::new() }
    }

    /// With further arguments.
    #[must_use]
    pub fn with(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|&arg| arg.to_owned()));
        self
    }

    /// Run by another program.
    #[must_use]
    pub fn under(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(|&part| part.to_owned()).collect();
        self
    }

    fn command(&self) -> Command {
        match &self.wrapper[..] {
            [] => Command::new(&self.program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(&self.program);
                command
            }
        }
    }
}

/// A process of ours, in a group of its own, so that what it has started goes with it.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    addr: SocketAddr,
    log: PathBuf,
}

impl Daemon {
    /// Starts a daemon and does not wait for anything. It appends what it says to the file `log`.
    ///
    /// # Errors
    /// If the program cannot be run.
    pub fn launch(recipe: &Recipe, data_dir: &Path, addr: SocketAddr, log: &Path) -> io::Result<Self> {
        use std::os::unix::process::CommandExt;
        let said = File::options().create(true).append(true).open(log)?;
        let mut command = recipe.command();
        command.args(["--addr", &addr.to_string(), "--data-dir"]).arg(data_dir).args(&recipe.args);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DRIFTQ_")) {
            command.env_remove(name);
        }
        command.envs(recipe.env.iter().cloned()).process_group(0);
        let child = command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said).spawn()?;
        Ok(Self { child, addr, log: log.to_owned() })
    }

    /// Starts a daemon and waits until it is ready.
    ///
    /// # Errors
    /// Says why it will not be, with what it logged last.
    pub fn start(recipe: &Recipe, data_dir: &Path, addr: SocketAddr, log: &Path) -> Result<Self, String> {
        let launched = Self::launch(recipe, data_dir, addr, log);
        let mut daemon = launched.map_err(|error| format!("{} cannot be run: {error}", recipe.program.display()))?;
        daemon.wait_until_ready()?;
        Ok(daemon)
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The process that was started: the wrapper's, if there is one.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it says that it is ready.
    ///
    /// # Errors
    /// Says why it never will be, with what it logged last.
    pub fn wait_until_ready(&mut self) -> Result<(), String> {
        let server = Server::on(self.addr, Duration::from_secs(2));
        let give_up = Instant::now() + READY_WITHIN;
        loop {
            if server.call(&Request::get("/v1/readyz")).is_ok_and(|reply| reply.status == 200) {
                return Ok(());
            }
            match self.child.try_wait() {
                Ok(None) if Instant::now() < give_up => std::thread::sleep(READY_POLL),
                Ok(None) => return Err(format!("it was not ready within {READY_WITHIN:?}{}", self.said())),
                Ok(Some(status)) => return Err(format!("it ended with {status}{}", self.said())),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Sends a signal to it and to what runs it: `"KILL"`, `"STOP"`, `"CONT"`, `"TERM"`.
    pub fn signal(&self, signal: Signal) {
        let group = rustix::process::Pid::from_child(&self.child);
        // Fails only where everybody is gone already.
        let _ = rustix::process::kill_process_group(group, signal);
    }

    /// Kills it as `kill -9` does, and waits until the process is gone.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }

    /// Asks it to end, and waits for that.
    ///
    /// # Errors
    /// If it does not end in time.
    pub fn stop(&mut self) -> Result<ExitStatus, String> {
        self.signal(Signal::TERM);
        self.wait(Duration::from_secs(20))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If it does not come in time.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        let give_up = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if Instant::now() < give_up => std::thread::sleep(READY_POLL),
                Ok(None) => return Err(format!("it did not end within {limit:?}{}", self.said())),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Whether the process is still there.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The end of what it has logged.
    #[must_use]
    pub fn said(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&log[log.len().saturating_sub(2000)..]).trim().to_owned();
        if text.is_empty() { String::new() } else { format!(", saying:\n{text}") }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

pub use rustix::process::Signal;

/// An address on this machine that nobody listens on at the moment.
///
/// # Errors
/// If there is none.
pub fn free_addr() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// The program `name` of this workspace: beside this program, and built by cargo first where cargo runs us.
///
/// # Errors
/// If there is none, or it cannot be built.
pub fn program(package: &str, name: &str) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    if let Some(cargo) = std::env::var_os("CARGO") {
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--locked", "-p", package, "--bin", name]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        } else if own.parent().is_some_and(|folder| folder.ends_with("deps")) {
            // A test's own program: what `cargo test` has built with it will do.
            build.args(["--profile", "test"]);
        }
        let status = build.status().map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("cargo could not build {name}: {status}"));
        }
    }
    // A test's own program lies one folder below.
    let found = own.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| format!("there is no {name} beside {}", own.display()))
}
