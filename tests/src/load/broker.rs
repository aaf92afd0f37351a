//! The broker under load: one that is started here or one at a URL, and the requests made outside of measurements.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tempfile::TempDir;

use crate::daemon::{Daemon, Launcher, driftqd, free_addr};
use crate::http::Client;
use crate::load::cli::BrokerOptions;
use crate::load::client::{Connection, Endpoint, get, post};
use crate::load::disk::{self, SyncProbe, Written};
use crate::load::error::Result;
use crate::load::metrics::LogCounters;
use crate::load::tls::{OwnCertificate, Trust, client_of};
use crate::procfs::{self, Memory};

/// A request made outside of a measurement may take this long.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A broker with TLS that is not ready after this long has failed.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How often it is asked whether it is ready.
const POLL: Duration = Duration::from_millis(2);
/// Limits high enough that no run measures refusals.
const LIMITS: [&str; 4] = ["--max-partition-msgs", "1000000000", "--max-partition-bytes", "1000000000000"];
/// The same for effects, whose limit has no flag.
const EFFECTS_LIMIT: (&str, &str) = ("DRIFTQ_MAX_EFFECTS", "1000000000");

/// A broker that is ready.
#[derive(Debug)]
pub(crate) struct Broker {
    server: Endpoint,
    pid: Option<u32>,
    own: Option<OwnBroker>,
}

/// A broker started here. Fields are dropped in order: the process, then its folder.
#[derive(Debug)]
struct OwnBroker {
    daemon: Daemon,
    launcher: Launcher,
    folder: TempDir,
    memory_limit: Option<u64>,
}

impl OwnBroker {
    /// Has the kernel refuse the process more private memory than its limit. Pages of files do not count.
    fn limit_memory(&self) -> Result<()> {
        let Some(bytes) = self.memory_limit else { return Ok(()) };
        let pid = Pid::from_raw(i32::try_from(self.daemon.pid())?).ok_or("the daemon has no process id")?;
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        prlimit(Some(pid), Resource::Data, limit).map_err(|error| format!("the memory limit was refused: {error}"))?;
        Ok(())
    }
}

impl Broker {
    /// Starts a broker, or uses the one at the options' URL, and waits until it is ready.
    pub(crate) async fn open(options: &BrokerOptions, daemon_args: &[&str]) -> Result<Self> {
        if let Some(url) = &options.url {
            let server = options.server_at(url)?;
            let status = get_status(server.clone(), "/v1/readyz").await.map_err(|error| format!("{url}: {error}"))?;
            if status != 200 {
                return Err(format!("{url} is not ready: {status}").into());
            }
            return Ok(Self { server, pid: options.pid, own: None });
        }
        let program = options.driftqd.clone().ok_or("no driftqd to start: name one with --driftqd or --url")?;
        let folder = tempfile::Builder::new().prefix("driftq-load-").tempdir_in(options.parent_folder()?)?;
        let more_args: Vec<&str> = options.daemon_args.iter().map(String::as_str).collect();
        let launcher = Launcher::new(&program, &folder.path().join("data"), &folder.path().join("driftqd.log"))
            .addr(free_addr()?)
            .args(&["--log-level", "warn"])
            .args(&LIMITS)
            .args(daemon_args)
            .args(&more_args)
            .wrapper(&options.wrapper)
            .env(EFFECTS_LIMIT.0, EFFECTS_LIMIT.1);
        let (launcher, tls) = match options.has_tls {
            false => (launcher, None),
            true => {
                let own = OwnCertificate::make(folder.path())?;
                let path = |path: &Path| path.to_str().map(str::to_owned).ok_or("a path that is not UTF-8");
                let (cert, key) = (path(&own.cert)?, path(&own.key)?);
                (launcher.args(&["--tls-cert", &cert, "--tls-key", &key]), Some(own.client()?))
            }
        };
        // The launcher blocks until the daemon is ready, or if that is asked over TLS until it listens.
        let (starting, has_tls) = (launcher.clone(), options.has_tls);
        let daemon = tokio::task::spawn_blocking(move || match has_tls {
            false => starting.start(),
            true => {
                let mut daemon = starting.launch()?;
                daemon.wait_until_listening().map(|()| daemon)
            }
        });
        let daemon = daemon.await??;
        let (server, pid) = (Endpoint { addr: daemon.addr(), tls }, Some(daemon.pid()));
        let own = OwnBroker { daemon, launcher, folder, memory_limit: options.memory_limit };
        own.limit_memory()?;
        let mut broker = Self { server, pid, own: Some(own) };
        if options.has_tls {
            broker.wait_until_ready().await?;
        }
        Ok(broker)
    }

    /// Waits until it accepts commands.
    async fn wait_until_ready(&mut self) -> Result<()> {
        let give_up = Instant::now() + READY_WITHIN;
        while !get_status(self.server.clone(), "/v1/readyz").await.is_ok_and(|status| status == 200) {
            self.check_alive()?;
            if Instant::now() > give_up {
                return Err(format!("driftqd: it was not ready within {READY_WITHIN:?}{}", self.logged()).into());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Stops a broker that was started here, and waits until its process has ended.
    pub(crate) async fn stop(self) -> Result<()> {
        let mut own = self.own.ok_or("only a broker that was started here can be stopped")?;
        // It blocks until the process has exited.
        let status = tokio::task::spawn_blocking(move || own.daemon.stop()).await??;
        if status.success() { Ok(()) } else { Err(format!("driftqd: it exited with {status}").into()) }
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.server.addr
    }

    /// Where it listens, and how it is spoken to.
    pub(crate) fn server(&self) -> Endpoint {
        self.server.clone()
    }

    /// Its process, if it is known.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Fails unless the broker was started here.
    pub(crate) fn require_own(&self) -> Result<()> {
        match self.own {
            Some(_) => Ok(()),
            None => Err("this mode starts its own brokers; --url cannot be used".into()),
        }
    }

    /// Kills the broker and starts it again on the same folder and address; does not wait. Returns the time just before
    /// the start.
    pub(crate) fn kill_and_relaunch(&mut self) -> Result<Instant> {
        let own = self.own.as_mut().ok_or("only a broker that was started here can be killed")?;
        own.daemon.kill();
        let begun = Instant::now();
        own.daemon = own.launcher.launch()?;
        self.pid = Some(own.daemon.pid());
        own.limit_memory()?;
        Ok(begun)
    }

    /// Disk that the data folder of a broker that was started here takes.
    pub(crate) fn disk_used(&self) -> Result<u64> {
        let own = self.own.as_ref().ok_or("only the folder of a broker that was started here can be measured")?;
        disk::used_bytes(own.launcher.data_dir())
    }

    /// What the disk was given until now.
    pub(crate) fn written(&self) -> Written {
        let folder = self.own.as_ref().map(|own| own.folder.path());
        let (process, device) = (self.pid.and_then(procfs::written_bytes), folder.and_then(disk::device_written));
        Written { process, device }
    }

    /// Its counters of the log.
    pub(crate) async fn log_counters(&self) -> Result<LogCounters> {
        LogCounters::parse(&self.metrics().await?)
    }

    /// How many connections it has open.
    pub(crate) async fn open_connections(&self) -> Result<u64> {
        let metrics = self.metrics().await?;
        let open = metrics.lines().find_map(|line| line.strip_prefix("driftq_connections ")?.trim().parse().ok());
        open.ok_or_else(|| "the metrics do not have the number of connections".into())
    }

    async fn metrics(&self) -> Result<String> {
        let mut connection = Connection::connect(self.server()).await?;
        let status = tokio::time::timeout(TIMEOUT, connection.exchange(&get(self.addr(), "/metrics"))).await??;
        if status != 200 {
            return Err(format!("the metrics cannot be read: {status}").into());
        }
        Ok(String::from_utf8_lossy(connection.body()).into_owned())
    }

    /// Its CPU time so far, if its process is known.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        procfs::cpu_time(self.pid?)
    }

    /// Its memory, if its process is known.
    pub(crate) fn memory(&self) -> Option<Memory> {
        procfs::memory(self.pid?)
    }

    /// Its memory, which the mode cannot do without.
    pub(crate) fn require_memory(&self) -> Result<Memory> {
        self.memory().ok_or_else(|| "the broker's memory cannot be read; with --url add --pid".into())
    }

    /// Prints the file system of a broker that was started here, and returns a probe of its disk.
    pub(crate) fn probe_disk(&self) -> Result<Option<SyncProbe>> {
        let Some(own) = &self.own else { return Ok(None) };
        disk::print_file_system(own.folder.path());
        SyncProbe::new(own.folder.path()).map(Some)
    }

    /// What a broker that was started here has logged, as the end of an error message.
    pub(crate) fn logged(&self) -> String {
        let log = self.own.as_ref().map(|own| own.daemon.log()).unwrap_or_default();
        if log.trim().is_empty() { String::new() } else { format!(". The broker logged:\n{}", log.trim()) }
    }

    /// Fails if the broker was started here and has exited, with what it logged.
    pub(crate) fn check_alive(&mut self) -> Result<()> {
        match self.own.as_mut().and_then(|own| own.daemon.exited()) {
            Some(exited) => Err(format!("driftqd: {exited}").into()),
            None => Ok(()),
        }
    }

    /// Warns if the broker has exited: that explains the failures that follow.
    pub(crate) fn warn_if_exited(&mut self) {
        if let Err(error) = self.check_alive() {
            eprintln!("warning: {error}");
        }
    }

    /// Creates a topic with an unused name and returns the name.
    pub(crate) async fn create_topic(&self, partitions: u32) -> Result<String> {
        self.create_topic_with(partitions, "").await
    }

    /// Creates a topic that keeps no acked message, with an unused name, and returns the name.
    pub(crate) async fn create_topic_without_retention(&self, partitions: u32) -> Result<String> {
        self.create_topic_with(partitions, r#","retention_ms":0"#).await
    }

    async fn create_topic_with(&self, partitions: u32, more: &str) -> Result<String> {
        let topic = unused_name();
        let body = format!(r#"{{"name":"{topic}","partitions":{partitions}{more}}}"#);
        let request = post(self.addr(), "/v1/topics", &body);
        let mut connection = Connection::connect(self.server()).await?;
        let status = tokio::time::timeout(TIMEOUT, connection.exchange(&request)).await??;
        if status / 100 != 2 {
            let body = String::from_utf8_lossy(connection.body());
            return Err(format!("the topic could not be created: {status} {body}").into());
        }
        Ok(topic)
    }

    /// How many messages of a topic are not finished in every group; without a group, all of them.
    pub(crate) async fn message_count(&self, topic: &str) -> Result<u64> {
        let (status, body) = self.describe(topic).await?;
        count_in_answer(status, &body)
    }

    /// How many dead letters of a topic there are. Their topic exists from the first one on.
    pub(crate) async fn dead_letter_count(&self, topic: &str) -> Result<u64> {
        match self.describe(&format!("dlq.{topic}")).await? {
            (404, _) => Ok(0),
            (status, body) => count_in_answer(status, &body),
        }
    }

    /// The status and body of a topic's description.
    async fn describe(&self, topic: &str) -> Result<(u16, Vec<u8>)> {
        let mut connection = Connection::connect(self.server()).await?;
        let request = get(self.addr(), &format!("/v1/topics/{topic}"));
        let status = tokio::time::timeout(TIMEOUT, connection.exchange(&request)).await??;
        Ok((status, connection.body().to_vec()))
    }
}

fn count_in_answer(status: u16, body: &[u8]) -> Result<u64> {
    let count = (status == 200).then(|| message_count_in(body)).flatten();
    let text = || String::from_utf8_lossy(body);
    count.ok_or_else(|| format!("the topic's messages could not be counted: {status} {}", text()).into())
}

/// The messages of all partitions in a topic's description. Offsets do not give the count: they are assigned per topic.
fn message_count_in(description: &[u8]) -> Option<u64> {
    let description: serde_json::Value = serde_json::from_slice(description).ok()?;
    description["partitions"].as_array()?.iter().map(|partition| partition["messages"].as_u64()).sum()
}

/// The status of a GET on a new connection.
pub(crate) async fn get_status(server: impl Into<Endpoint>, target: &str) -> Result<u16> {
    let server = server.into();
    let request = get(server.addr, target);
    let exchange = async { Connection::connect(server).await?.exchange(&request).await };
    Ok(tokio::time::timeout(TIMEOUT, exchange).await??)
}

/// A name that no other run and nothing earlier in this run uses.
pub(crate) fn unused_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    format!("load-{now}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

impl BrokerOptions {
    /// The broker at a URL, over TLS if it says so.
    fn server_at(&self, url: &str) -> Result<Endpoint> {
        let Some(rest) = url.strip_prefix("https://") else { return Ok(Client::from_url(url, TIMEOUT)?.addr().into()) };
        if !self.speaks_tls {
            return Err(format!("{url}: this mode speaks plain HTTP; load produce speaks TLS").into());
        }
        let trust = match (&self.ca, self.insecure) {
            (Some(path), _) => Trust::Roots(path.clone()),
            (None, true) => Trust::Any,
            (None, false) => return Err(format!("{url}: add --ca FILE, the roots of its certificate").into()),
        };
        let (name, _) = rest.trim_end_matches('/').rsplit_once(':').ok_or("expected https://HOST:PORT")?;
        let addr = Client::from_url(&format!("http://{rest}"), TIMEOUT)?.addr();
        let name = name.trim_start_matches('[').trim_end_matches(']');
        Ok(Endpoint { addr, tls: Some(client_of(&trust, name)?) })
    }

    /// Finds the daemon's program, and has cargo build it if cargo runs this program. Called before anything is timed.
    pub(crate) fn find_program(&mut self) -> Result<()> {
        if self.url.is_some() || self.driftqd.is_some() {
            return Ok(());
        }
        self.driftqd = Some(driftqd().map_err(|error| format!("{error}; name one with --driftqd or --url"))?);
        Ok(())
    }

    /// Where temporary folders are created: `--dir`, else beside this program, which is on a disk.
    pub(crate) fn parent_folder(&self) -> Result<PathBuf> {
        if let Some(dir) = &self.dir {
            return Ok(dir.clone());
        }
        let own = std::env::current_exe()?;
        let beside = own.parent().filter(|folder| tempfile::tempfile_in(folder).is_ok());
        Ok(beside.map_or_else(std::env::temp_dir, Path::to_path_buf))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_count_sums_all_partitions() {
        let description = br#"{"name":"t","partitions":[{"partition":0,"messages":3},{"partition":1,"messages":4}]}"#;
        assert_eq!(message_count_in(description), Some(7));
        assert_eq!(message_count_in(br#"{"partitions":[{"partition":0}]}"#), None);
        assert_eq!(message_count_in(b"no json"), None);
    }
}
