//! A server and its history: started, disturbed, restarted, drained and verified.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use super::disk::Disk;
use super::recorder::Recorder;
use super::verdict::{self, Verdict};
use super::workload::{GROUPS, Load, TOPICS, Workload};
use super::{drain, interrupt};
use crate::daemon::{Daemon, Launcher, Signal, free_addr};
use crate::http::{Client, Request};

/// How long a client waits for a response. A paused server takes long.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a draining client waits: a timeout on a busy machine would be reported as a violation.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
const IN_FLIGHT_MAX: u64 = 50;

/// What all scenarios of a torture run share.
#[derive(Clone, Debug)]
pub struct Options {
    /// The broker.
    pub driftqd: PathBuf,
    /// The broker on a disk that does not sync.
    pub canary: PathBuf,
    /// The seed of the random numbers.
    pub seed: u64,
    /// Where the files of failed scenarios are kept, if anywhere.
    pub keep: Option<PathBuf>,
}

/// Whether the log is kept completely, so that all of it can be compared with the history, or truncated by snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogMode {
    /// No segment is ever removed.
    Complete,
    /// Frequent snapshots, and segments are removed.
    Snapshots,
    /// As `Snapshots`, with files of a quarter of the size, so that a few calls create one.
    SmallSnapshots,
}

impl LogMode {
    /// The mode of a round: they alternate.
    #[must_use]
    pub fn of_round(round: u64) -> Self {
        if round.is_multiple_of(2) { Self::Snapshots } else { Self::Complete }
    }

    /// Small files, so that a short run creates many.
    fn config(self) -> String {
        let (segment, snapshot, message): (u64, u64, u64) = match self {
            Self::Complete => (1 << 19, 1 << 40, 1 << 15),
            Self::Snapshots => (1 << 19, 1 << 19, 1 << 15),
            Self::SmallSnapshots => (1 << 17, 1 << 17, 1 << 14),
        };
        let (reserve, metadata) = (segment / 8, message / 2);
        format!(
            "[storage]\nsegment_bytes = {segment}\nreserve_bytes = {reserve}\nsnapshot_every_bytes = {snapshot}\n\
             [limits]\nmessage_bytes_max = {message}\nresult_bytes_max = {message}\nkey_bytes_max = 1024\n\
             metadata_bytes_max = {metadata}\nin_flight_max = {IN_FLIGHT_MAX}\n"
        )
    }
}

/// A server, its data folder and its history.
#[derive(Debug)]
pub struct Scenario {
    launcher: Launcher,
    addr: SocketAddr,
    daemon: Option<Daemon>,
    recorder: Arc<Recorder>,
    keep: Option<PathBuf>,
    /// Dropped after the daemon that uses it, and before the folder it is mounted in.
    disk: Option<Disk>,
    home: TempDir,
}

impl Scenario {
    /// A scenario for `program`, with its data in a temporary folder.
    ///
    /// # Errors
    /// If files or an address are not available.
    pub fn new(options: &Options, program: &Path, log: LogMode) -> Result<Self, String> {
        Self::build(options, program, log, |_| Ok(None))
    }

    /// A scenario with its data on a separate disk, which `mount` mounts below the given folder.
    ///
    /// # Errors
    /// If files, an address or the disk are not available.
    pub fn on_disk(
        options: &Options,
        program: &Path,
        log: LogMode,
        mount: impl FnOnce(&Path) -> Result<Disk, String>,
    ) -> Result<Self, String> {
        Self::build(options, program, log, |home| mount(home).map(Some))
    }

    fn build(
        options: &Options,
        program: &Path,
        log: LogMode,
        mount: impl FnOnce(&Path) -> Result<Option<Disk>, String>,
    ) -> Result<Self, String> {
        let home = tempfile::tempdir().map_err(|error| error.to_string())?;
        let disk = mount(home.path())?;
        let data = disk.as_ref().map_or(home.path(), Disk::path).join("data");
        let config = home.path().join("driftqd.toml");
        fs::write(&config, log.config()).map_err(|error| error.to_string())?;
        let addr = free_addr().map_err(|error| format!("no address: {error}"))?;
        let launcher = Launcher::new(program, &data, &home.path().join("driftqd.log"))
            .addr(addr)
            .args(&["--config", &config.to_string_lossy()]);
        let recorder = Recorder::create(&home.path().join("history.jsonl")).map_err(|error| error.to_string())?;
        let groups = GROUPS.map(|(topic, group)| json!({ "topic": topic, "group": group }));
        recorder.driver("setup", &json!({ "max_in_flight": IN_FLIGHT_MAX, "lease_ms": 30_000, "groups": groups }));
        let keep = options.keep.clone();
        Ok(Self { launcher, addr, daemon: None, recorder: Arc::new(recorder), keep, disk, home })
    }

    /// The history.
    #[must_use]
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// How the server is launched.
    #[must_use]
    pub fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    /// The folder with the files of this scenario.
    #[must_use]
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// A client of the server.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.addr, TIMEOUT)
    }

    /// Starts a workload.
    ///
    /// # Errors
    /// If a thread cannot be created.
    pub fn start_workload(&self, load: Load, name: &str, seed: u64) -> Result<Workload, String> {
        Workload::start(&self.recorder, &self.client(), load, name, seed).map_err(|error| error.to_string())
    }

    /// Starts the server and waits until it is ready.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(&mut self) -> Result<(), String> {
        self.start_with(&self.launcher.clone())
    }

    /// Starts the server with another launcher, and waits until it is ready.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_with(&mut self, launcher: &Launcher) -> Result<(), String> {
        self.recorder.driver("start", &json!({}));
        self.daemon = Some(launcher.start()?);
        Ok(())
    }

    /// Starts the server and creates the topics and groups.
    ///
    /// # Errors
    /// If it does not start, or refuses them.
    pub fn start_with_topics(&mut self) -> Result<(), String> {
        self.start()?;
        self.create_topics()
    }

    /// Starts the server without waiting for it, so that faults hit its recovery.
    ///
    /// # Errors
    /// If it cannot be run.
    pub fn launch(&mut self) -> Result<(), String> {
        self.recorder.driver("start", &json!({}));
        self.daemon = Some(self.launcher.launch()?);
        Ok(())
    }

    /// The running server.
    ///
    /// # Errors
    /// If it is not running.
    pub fn daemon(&mut self) -> Result<&mut Daemon, String> {
        self.daemon.as_mut().ok_or_else(|| "the server is not running".to_owned())
    }

    /// Creates the topics and groups of the workload that do not exist.
    ///
    /// # Errors
    /// If the server refuses them.
    pub fn create_topics(&self) -> Result<(), String> {
        let create = |target: &str, body: String| match self.client().call(&Request::post(target, &body)) {
            Ok(reply) if reply.status == 201 => Ok(()),
            Ok(reply) => Err(format!("{target}: {} {}", reply.status, reply.body)),
            Err(error) => Err(format!("{target}: {error}")),
        };
        for (name, partitions) in TOPICS {
            create("/v1/topics", json!({ "name": name, "partitions": partitions }).to_string())?;
        }
        GROUPS
            .iter()
            .try_for_each(|(topic, group)| create("/v1/groups", json!({ "topic": topic, "group": group }).to_string()))
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            self.recorder.driver("kill", &json!({}));
            daemon.kill();
        }
    }

    /// Cuts the power of the server's disk, kills the server, and mounts the disk again.
    ///
    /// # Errors
    /// If a tool fails.
    pub fn cut_power(&mut self) -> Result<(), String> {
        let disk = self.disk.as_mut().ok_or("this scenario has no separate disk")?;
        self.recorder.driver("power", &json!({}));
        disk.cut_power()?;
        drop(self.daemon.take());
        disk.remount()
    }

    /// The separate disk.
    ///
    /// # Errors
    /// If there is none.
    pub fn disk(&self) -> Result<&Disk, String> {
        self.disk.as_ref().ok_or_else(|| "this scenario has no separate disk".to_owned())
    }

    /// Stops the server with SIGTERM and waits for it.
    ///
    /// # Errors
    /// If it does not exit in time.
    pub fn stop(&mut self) -> Result<(), String> {
        let Some(mut daemon) = self.daemon.take() else { return Ok(()) };
        self.recorder.driver("stop", &json!({}));
        daemon.stop().map(drop)
    }

    /// Pauses the server's process with SIGSTOP.
    ///
    /// # Errors
    /// If it is not running.
    pub fn pause(&mut self) -> Result<(), String> {
        self.recorder.driver("pause", &json!({}));
        self.daemon()?.signal(Signal::STOP);
        Ok(())
    }

    /// Resumes the server's process.
    ///
    /// # Errors
    /// If it is not running.
    pub fn resume(&mut self) -> Result<(), String> {
        self.daemon()?.signal(Signal::CONT);
        self.recorder.driver("resume", &json!({}));
        Ok(())
    }

    /// Drains the server twice, with a restart before each, and verifies the history. `faults` is the result of
    /// injecting the faults: a server that failed there is not drained. A server that cannot be drained is a violation.
    ///
    /// # Errors
    /// If the history cannot be verified, or the run was interrupted.
    pub fn finish(mut self, faults: Result<(), String>) -> Result<Verdict, String> {
        let drained = faults.and_then(|()| self.drain_twice());
        drop(self.daemon.take());
        interrupt::check()?;
        let verdict = verdict::verify(&self.recorder, self.launcher.data_dir(), drained.err())?;
        if let (false, Some(keep)) = (verdict.passed(), &self.keep) {
            verdict::keep(&verdict, self.home.path(), self.launcher.data_dir(), keep)?;
        }
        Ok(verdict)
    }

    fn drain_twice(&mut self) -> Result<(), String> {
        self.kill();
        for round in [1, 2] {
            self.start_with_topics()?;
            let client = Client::new(self.addr, DRAIN_TIMEOUT);
            drain::round(&self.recorder, &client, round)?;
            if round == 2 {
                drain::digest(&self.recorder, &client);
            }
            self.stop()?;
        }
        Ok(())
    }
}
