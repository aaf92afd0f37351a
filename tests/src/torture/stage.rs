//! A server and its history: started, harmed, healed, drained and judged.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use super::disk::Disk;
use super::drain;
use super::judge::{self, Verdict};
use super::recorder::Recorder;
use super::workload::{GROUPS, Load, TOPICS, Workload};
use crate::daemon::{Daemon, Recipe, Signal};
use crate::http::{Request, Server};

/// How long a client waits for an answer. A server that was stopped may take its time.
const PATIENCE: Duration = Duration::from_secs(5);
/// And how long who drains waits, on whose answers everything rests: a busy machine is no broken promise.
const PATIENCE_OF_DRAIN: Duration = Duration::from_secs(30);
const IN_FLIGHT_MAX: u64 = 50;

/// What all rounds of a torture have in common.
#[derive(Clone, Debug)]
pub struct Rig {
    /// The broker.
    pub driftqd: PathBuf,
    /// The broker on a disk that does not sync.
    pub canary: PathBuf,
    /// What the random numbers begin with.
    pub seed: u64,
    /// Where histories of broken promises are kept; nowhere unless named.
    pub keep: Option<PathBuf>,
}

/// Whether the log keeps everything, so that the whole of it can be held against the history, or is cut short by snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// Nothing is ever removed.
    Whole,
    /// Snapshots all the time, and segments removed.
    Snapshots,
}

impl Log {
    /// The one for the round of that number: they alternate.
    #[must_use]
    pub fn of_round(round: u64) -> Self {
        if round.is_multiple_of(2) { Self::Snapshots } else { Self::Whole }
    }

    /// Small files, so that a short life sees many of them.
    fn config(self) -> String {
        let every: u64 = if self == Self::Snapshots { 1 << 19 } else { 1 << 40 };
        format!(
            "[storage]\nsegment_bytes = 524288\nreserve_bytes = 65536\nsnapshot_every_bytes = {every}\n\
             [limits]\nmessage_bytes_max = 32768\nresult_bytes_max = 32768\nkey_bytes_max = 1024\n\
             metadata_bytes_max = 16384\nin_flight_max = {IN_FLIGHT_MAX}\n"
        )
    }
}

/// A server, its folder and its history.
#[derive(Debug)]
pub struct Stage {
    recipe: Recipe,
    addr: SocketAddr,
    data: PathBuf,
    daemon: Option<Daemon>,
    recorder: Arc<Recorder>,
    keep: Option<PathBuf>,
    /// Goes after the daemon that works on it, and before the folder it is mounted in.
    disk: Option<Disk>,
    home: TempDir,
}

impl Stage {
    /// A stage for `program`, with a folder of its own for the data.
    ///
    /// # Errors
    /// If the machine does not give what it takes.
    pub fn new(rig: &Rig, program: &Path, log: Log) -> Result<Self, String> {
        Self::build(rig, program, log, |_| Ok(None))
    }

    /// The same with its data on a disk of its own, which `make` mounts below the folder it is given.
    ///
    /// # Errors
    /// If the machine does not give what it takes.
    pub fn on_disk(
        rig: &Rig,
        program: &Path,
        log: Log,
        make: impl FnOnce(&Path) -> Result<Disk, String>,
    ) -> Result<Self, String> {
        Self::build(rig, program, log, |home| make(home).map(Some))
    }

    fn build(
        rig: &Rig,
        program: &Path,
        log: Log,
        make: impl FnOnce(&Path) -> Result<Option<Disk>, String>,
    ) -> Result<Self, String> {
        let home = tempfile::tempdir().map_err(|error| error.to_string())?;
        let disk = make(home.path())?;
        let data = disk.as_ref().map_or(home.path(), Disk::path).join("data");
        let config = home.path().join("driftqd.toml");
        fs::write(&config, log.config()).map_err(|error| error.to_string())?;
        let recipe = Recipe::of(program).with(&["--config", &config.to_string_lossy()]);
        let recorder = Recorder::create(&home.path().join("history.jsonl")).map_err(|error| error.to_string())?;
        let groups = GROUPS.map(|(topic, group)| json!({ "topic": topic, "group": group }));
        recorder.driver("setup", &json!({ "max_in_flight": IN_FLIGHT_MAX, "lease_ms": 2000, "groups": groups }));
        let addr = own_addr().map_err(|error| format!("no address: {error}"))?;
        Ok(Self { recipe, addr, data, daemon: None, recorder: Arc::new(recorder), keep: rig.keep.clone(), disk, home })
    }

    /// The history.
    #[must_use]
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// What is started, to start it in another way.
    #[must_use]
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// The folder in which this stage has its files.
    #[must_use]
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// The data folder.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The server, as clients see it.
    #[must_use]
    pub fn server(&self) -> Server {
        Server::on(self.addr, PATIENCE)
    }

    /// Sets clients to work.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn work(&self, load: Load, name: &str, seed: u64) -> Result<Workload, String> {
        Workload::start(&self.recorder, &self.server(), load, name, seed).map_err(|error| error.to_string())
    }

    /// Starts the server and waits until it is ready.
    ///
    /// # Errors
    /// Why it does not start.
    pub fn start(&mut self) -> Result<(), String> {
        self.start_as(&self.recipe.clone())
    }

    /// Starts the server in another way, and waits until it is ready.
    ///
    /// # Errors
    /// Why it does not start.
    pub fn start_as(&mut self, recipe: &Recipe) -> Result<(), String> {
        self.recorder.driver("start", &json!({}));
        let log = self.home.path().join("driftqd.log");
        self.daemon = Some(Daemon::start(recipe, &self.data, self.addr, &log)?);
        Ok(())
    }

    /// Starts the server and does not wait for it, so that it can be harmed while it reads its log.
    ///
    /// # Errors
    /// If it cannot be run.
    pub fn launch(&mut self) -> Result<(), String> {
        self.recorder.driver("start", &json!({}));
        let log = self.home.path().join("driftqd.log");
        let launched = Daemon::launch(&self.recipe, &self.data, self.addr, &log);
        self.daemon = Some(launched.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// The running server.
    ///
    /// # Errors
    /// If there is none.
    pub fn daemon(&mut self) -> Result<&mut Daemon, String> {
        self.daemon.as_mut().ok_or_else(|| "the server does not run".to_owned())
    }

    /// Makes the topics and groups that every history has, as far as they are not there.
    ///
    /// # Errors
    /// If the server does not take them.
    pub fn furnish(&self) -> Result<(), String> {
        let make = |target: &str, body: String| match self.server().call(&Request::post(target, &body)) {
            Ok(reply) if reply.status == 201 => Ok(()),
            Ok(reply) => Err(format!("{target}: {} {}", reply.status, reply.body)),
            Err(error) => Err(format!("{target}: {error}")),
        };
        for (name, partitions) in TOPICS {
            make("/v1/topics", json!({ "name": name, "partitions": partitions }).to_string())?;
        }
        GROUPS
            .iter()
            .try_for_each(|(topic, group)| make("/v1/groups", json!({ "topic": topic, "group": group }).to_string()))
    }

    /// Kills the server without a word.
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            self.recorder.driver("kill", &json!({}));
            daemon.kill();
        }
    }

    /// Cuts the power of the disk under the server, ends the server, and puts the disk on again.
    ///
    /// # Errors
    /// What the tools say.
    pub fn cut_power(&mut self) -> Result<(), String> {
        let disk = self.disk.as_mut().ok_or("there is no disk whose power could be cut")?;
        self.recorder.driver("power", &json!({}));
        disk.cut_power()?;
        drop(self.daemon.take());
        disk.remount()
    }

    /// The disk of its own, if it has one.
    ///
    /// # Errors
    /// If it has none.
    pub fn disk(&self) -> Result<&Disk, String> {
        self.disk.as_ref().ok_or_else(|| "this stage has no disk of its own".to_owned())
    }

    /// Asks the server to end, and waits for it.
    ///
    /// # Errors
    /// If it does not.
    pub fn stop(&mut self) -> Result<(), String> {
        let Some(mut daemon) = self.daemon.take() else { return Ok(()) };
        self.recorder.driver("stop", &json!({}));
        daemon.stop().map(drop)
    }

    /// Stops the server's process in its tracks.
    ///
    /// # Errors
    /// If there is none.
    pub fn pause(&mut self) -> Result<(), String> {
        self.recorder.driver("pause", &json!({}));
        self.daemon()?.signal(Signal::STOP);
        Ok(())
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// If there is none.
    pub fn resume(&mut self) -> Result<(), String> {
        self.daemon()?.signal(Signal::CONT);
        self.recorder.driver("resume", &json!({}));
        Ok(())
    }

    /// Heals, restarts, drains, restarts, drains again, and judges what was seen. A server that cannot be brought to that is one that
    /// breaks its promises, too.
    ///
    /// # Errors
    /// Only for what is the driver's own fault.
    pub fn finish(mut self) -> Result<Verdict, String> {
        let settled = self.settle();
        self.conclude(settled.err())
    }

    /// Judges a history that ended because the server could not go on, for `reason`.
    ///
    /// # Errors
    /// Only for what is the driver's own fault.
    pub fn give_up(mut self, reason: String) -> Result<Verdict, String> {
        drop(self.daemon.take());
        self.conclude(Some(reason))
    }

    fn settle(&mut self) -> Result<(), String> {
        self.kill();
        for round in [1, 2] {
            self.start()?;
            self.furnish()?;
            let server = Server::on(self.addr, PATIENCE_OF_DRAIN);
            drain::round(&self.recorder, &server, round)?;
            if round == 2 {
                drain::digest(&self.recorder, &server);
            }
            self.stop()?;
        }
        Ok(())
    }

    fn conclude(&mut self, trouble: Option<String>) -> Result<Verdict, String> {
        if super::interrupt::asked() {
            return Err(super::interrupt::INTERRUPTED.to_owned());
        }
        let verdict = judge::judge(&self.recorder, &self.data, trouble)?;
        if let (false, Some(keep)) = (verdict.is_innocent(), &self.keep) {
            judge::keep(&verdict, self.home.path(), &self.data, keep)?;
        }
        Ok(verdict)
    }
}

/// An address that is this server's alone, also while it is not running: nobody else uses this loopback address, and no outgoing
/// connection comes from it, as clients that knock at a closed port of their own address can end up talking to themselves.
fn own_addr() -> std::io::Result<SocketAddr> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let [_, .., high, low] = (std::process::id().wrapping_mul(61) + NEXT.fetch_add(1, Ordering::Relaxed)).to_be_bytes();
    TcpListener::bind((Ipv4Addr::new(127, 77, high, low.max(1)), 0))?.local_addr()
}
