//! A `driftqd` of our own: started on a temporary folder, killed and reaped whatever happens.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use driftq_tests::daemon::{free_addr, program};
use tempfile::TempDir;

use crate::Result;
use crate::broker::get_status;
use crate::cli::BrokerOptions;

/// A daemon that is not ready after this long has failed.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How often a daemon is asked whether it is ready.
const READY_POLL: Duration = Duration::from_millis(1);
/// A run may bring more messages than a partition keeps by default, and is not meant to measure refusals.
const ROOM_FOR_ANY_RUN: [&str; 4] = ["--max-partition-msgs", "1000000000", "--max-partition-bytes", "1000000000000"];

/// The same for effects that are remembered.
const ROOM_FOR_EFFECTS: (&str, &str) = ("DRIFTQ_MAX_EFFECTS", "1000000000");

/// A child process that does not outlive its guard. It is of our process group: a Ctrl-C at the terminal ends both.
#[derive(Debug)]
pub(crate) struct Guarded(pub(crate) Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        // Both fail only where the process is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running daemon and its folder. Fields are dropped in order: first the process, then what it wrote.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Guarded,
    folder: TempDir,
    program: PathBuf,
    args: Vec<String>,
    addr: SocketAddr,
}

impl Daemon {
    /// Starts the program the options name, on an empty folder, and waits until it is ready.
    pub(crate) async fn start(options: &BrokerOptions, further_args: &[&str]) -> Result<Self> {
        let program = options.driftqd.clone().ok_or("no driftqd to start was named")?;
        let folder = tempfile::Builder::new().prefix("driftq-load-").tempdir_in(options.parent_folder()?)?;
        let addr = free_addr()?;
        let mut args: Vec<String> = ["--addr", &addr.to_string(), "--log-level", "warn"].map(String::from).to_vec();
        args.extend(ROOM_FOR_ANY_RUN.map(String::from));
        args.extend(further_args.iter().map(|&arg| arg.to_owned()));
        args.extend(options.daemon_args.iter().cloned());
        let child = spawn(&program, &args, folder.path())?;
        let mut daemon = Self { child, folder, program, args, addr };
        daemon.wait_until_ready().await?;
        Ok(daemon)
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// The folder that holds its data folder.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills it as `kill -9` does, and waits until the process is gone.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.0.kill()?;
        self.child.0.wait()?;
        Ok(())
    }

    /// Starts the program again on the same folder and address; does not wait. The moment just before is returned.
    pub(crate) fn restart(&mut self) -> Result<Instant> {
        let begun = Instant::now();
        self.child = spawn(&self.program, &self.args, self.folder.path())?;
        Ok(begun)
    }

    /// Waits until it says that it is ready, or tells why it never will be.
    pub(crate) async fn wait_until_ready(&mut self) -> Result<()> {
        let give_up = Instant::now() + READY_WITHIN;
        loop {
            if let Ok(200) = get_status(self.addr, "/v1/readyz").await {
                return Ok(());
            }
            self.check_alive()?;
            if Instant::now() > give_up {
                return Err(
                    format!("{} was not ready within {READY_WITHIN:?}{}", self.program.display(), self.said()).into()
                );
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }

    /// Fails if the process has ended, with what it said last.
    pub(crate) fn check_alive(&mut self) -> Result<()> {
        match self.child.0.try_wait()? {
            Some(status) => Err(format!("{} ended with {status}{}", self.program.display(), self.said()).into()),
            None => Ok(()),
        }
    }

    fn said(&self) -> String {
        let log = fs::read(log_path(self.folder.path())).unwrap_or_default();
        let text = String::from_utf8_lossy(&log[log.len().saturating_sub(2000)..]).trim().to_owned();
        if text.is_empty() { String::new() } else { format!(", saying:\n{text}") }
    }
}

fn spawn(program: &Path, args: &[String], folder: &Path) -> Result<Guarded> {
    let log = File::options().create(true).append(true).open(log_path(folder))?;
    let child = Command::new(program)
        .args(args)
        .arg("--data-dir")
        .arg(folder.join("data"))
        .env(ROOM_FOR_EFFECTS.0, ROOM_FOR_EFFECTS.1)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
    Ok(Guarded(child))
}

fn log_path(folder: &Path) -> PathBuf {
    folder.join("driftqd.log")
}

impl BrokerOptions {
    /// Finds the daemon's program, and has cargo build it where cargo runs us; to be called before anything is timed.
    pub(crate) fn settle_program(&mut self) -> Result<()> {
        if self.url.is_some() || self.driftqd.is_some() {
            return Ok(());
        }
        let found = program("driftq-server", "driftqd");
        self.driftqd = Some(found.map_err(|why| format!("{why}; name one with --driftqd or --url"))?);
        Ok(())
    }

    /// Where temporary folders are made: as told, else beside this program, which lies on a disk.
    pub(crate) fn parent_folder(&self) -> Result<PathBuf> {
        if let Some(dir) = &self.dir {
            return Ok(dir.clone());
        }
        let own = std::env::current_exe()?;
        let beside = own.parent().filter(|folder| tempfile::tempfile_in(folder).is_ok());
        Ok(beside.map_or_else(std::env::temp_dir, Path::to_path_buf))
    }
}
