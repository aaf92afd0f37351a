//! The broker under load: one we started or one that was named, and the few requests made before the load begins.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Result;
use crate::cli::BrokerOptions;
use crate::client::{Connection, get, post};
use crate::daemon::Daemon;
use crate::disk::{self, SyncProbe};
use crate::procfs::{self, Memory};

/// No single request made outside of a measurement may take longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A broker that is ready.
#[derive(Debug)]
pub(crate) struct Broker {
    addr: SocketAddr,
    pid: Option<u32>,
    daemon: Option<Daemon>,
}

impl Broker {
    /// Starts a broker, or takes the one the options name, and waits until it is ready.
    pub(crate) async fn open(options: &BrokerOptions, daemon_args: &[&str]) -> Result<Self> {
        if let Some(url) = &options.url {
            let addr = address_of(url)?;
            let status = get_status(addr, "/v1/readyz").await.map_err(|error| format!("{url}: {error}"))?;
            if status != 200 {
                return Err(format!("{url} is not ready: {status}").into());
            }
            return Ok(Self { addr, pid: options.pid, daemon: None });
        }
        let daemon = Daemon::start(options, daemon_args).await?;
        Ok(Self { addr: daemon.addr(), pid: Some(daemon.pid()), daemon: Some(daemon) })
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The daemon, where we started it.
    pub(crate) fn daemon_mut(&mut self) -> Result<&mut Daemon> {
        self.daemon.as_mut().ok_or_else(|| "this mode starts brokers of its own; --url cannot be used".into())
    }

    /// Its CPU time so far, where its process is known.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        procfs::cpu_time(self.pid?)
    }

    /// Its memory, where its process is known.
    pub(crate) fn memory(&self) -> Option<Memory> {
        procfs::memory(self.pid?)
    }

    /// Prints the disk it works on and returns a probe for what a sync costs there, where it is ours.
    pub(crate) fn probe_disk(&self) -> Result<Option<SyncProbe>> {
        let Some(daemon) = &self.daemon else { return Ok(None) };
        disk::print_file_system(daemon.folder());
        SyncProbe::new(daemon.folder()).map(Some)
    }

    /// Says so if the daemon has ended meanwhile, with its last words: they explain the failures that follow.
    pub(crate) fn warn_if_gone(&mut self) {
        if let Some(Err(error)) = self.daemon.as_mut().map(Daemon::check_alive) {
            eprintln!("warning: {error}");
        }
    }

    /// Makes a topic nobody has used before and returns its name.
    pub(crate) async fn new_topic(&self, partitions: u32) -> Result<String> {
        let topic = unused_name();
        let request = post(self.addr, "/v1/topics", &format!(r#"{{"name":"{topic}","partitions":{partitions}}}"#));
        let mut connection = Connection::connect(self.addr).await?;
        let status = tokio::time::timeout(PATIENCE, connection.exchange(&request)).await??;
        if status / 100 != 2 {
            let said = String::from_utf8_lossy(connection.body());
            return Err(format!("the topic could not be made: {status} {said}").into());
        }
        Ok(topic)
    }

    /// How many messages a topic holds that are not done in every group; without a group that is all of them.
    pub(crate) async fn messages_of(&self, topic: &str) -> Result<u64> {
        let mut connection = Connection::connect(self.addr).await?;
        let request = get(self.addr, &format!("/v1/topics/{topic}"));
        let status = tokio::time::timeout(PATIENCE, connection.exchange(&request)).await??;
        let said = String::from_utf8_lossy(connection.body());
        let counted = (status == 200).then(|| messages_in(connection.body())).flatten();
        counted.ok_or_else(|| format!("the topic's messages cannot be told: {status} {said}").into())
    }
}

/// The messages that a topic holds by its description, over all partitions. Offsets do not tell: they count per topic.
fn messages_in(description: &[u8]) -> Option<u64> {
    let description: serde_json::Value = serde_json::from_slice(description).ok()?;
    description["partitions"].as_array()?.iter().map(|partition| partition["messages"].as_u64()).sum()
}

/// The status of a GET on a connection of its own.
pub(crate) async fn get_status(addr: SocketAddr, target: &str) -> Result<u16> {
    let exchange = async { Connection::connect(addr).await?.exchange(&get(addr, target)).await };
    Ok(tokio::time::timeout(PATIENCE, exchange).await??)
}

/// A name that no other run has, and nothing earlier in this run.
pub(crate) fn unused_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    format!("load-{now}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn address_of(url: &str) -> Result<SocketAddr> {
    let host = url.strip_prefix("http://").ok_or_else(|| format!("{url}: only http:// is spoken"))?;
    let mut addresses = host
        .trim_end_matches('/')
        .to_socket_addrs()
        .map_err(|error| format!("{url}: {error}; http://HOST:PORT is meant"))?;
    addresses.next().ok_or_else(|| format!("{url} has no address").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topics_messages_are_those_of_all_its_partitions() {
        let description = br#"{"name":"t","partitions":[{"partition":0,"messages":3},{"partition":1,"messages":4}]}"#;
        assert_eq!(messages_in(description), Some(7));
        assert_eq!(messages_in(br#"{"partitions":[{"partition":0}]}"#), None);
        assert_eq!(messages_in(b"no json"), None);
    }

    #[test]
    fn a_url_is_an_address_and_a_port() {
        assert_eq!(address_of("http://127.0.0.1:80/").expect("an address").port(), 80);
        assert!(address_of("https://127.0.0.1:80").is_err());
        assert!(address_of("http://127.0.0.1").is_err());
    }
}
