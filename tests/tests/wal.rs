//! Reads the log of a real broker that was killed under load: its digests equal those that the broker returned,
//! redelivered messages have complete histories, and points before the oldest snapshot are refused.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use driftq_inspect::{InspectError, LogEnding, LogPoint, LogReader};
use driftq_tests::daemon::{self, Daemon, Launcher, free_addr};
use driftq_tests::http::{Client, Request, Stream};
use serde_json::{Value, json};

const LEASE_MS: u64 = 400;
const TIMEOUT: Duration = Duration::from_secs(120);
const REDELIVERED_MIN: usize = 3;
/// A consumer that settles nothing, so that its leases expire.
const SILENT: &str = "silent";
/// Messages on a stream of [`SILENT`]. One whose leases have expired is asked last, so it opens another.
const SILENT_MAX: usize = 2;

fn driftqd() -> &'static Path {
    static DRIFTQD: OnceLock<PathBuf> = OnceLock::new();
    DRIFTQD.get_or_init(|| daemon::driftqd().expect("the broker"))
}

/// A data folder and the address of the broker on it.
struct TestBroker {
    parent: tempfile::TempDir,
    addr: SocketAddr,
}

/// A delivery whose ack was answered with success.
#[derive(Clone, Debug)]
struct Acked {
    offset: u64,
    attempts: u64,
    owner: String,
    token: String,
}

impl TestBroker {
    fn new() -> Self {
        Self { parent: tempfile::tempdir().expect("a folder"), addr: free_addr().expect("a port") }
    }

    fn data(&self) -> PathBuf {
        self.parent.path().join("data")
    }

    /// Starts the broker with small segments.
    fn start(&self, snapshot_every_bytes: u64) -> Daemon {
        let config = self.parent.path().join("driftqd.toml");
        let text = format!(
            "[storage]\nsegment_bytes = 524288\nreserve_bytes = 65536\nsnapshot_every_bytes = {snapshot_every_bytes}\n\
             [limits]\nmessage_bytes_max = 32768\nresult_bytes_max = 32768\nkey_bytes_max = 1024\nmetadata_bytes_max = 16384\n"
        );
        fs::write(&config, text).expect("the configuration is written");
        let launcher = Launcher::new(driftqd(), &self.data(), &self.parent.path().join("driftqd.log")).addr(self.addr);
        launcher.args(&["--config", config.to_str().expect("a plain name")]).start().expect("the broker starts")
    }

    fn server(&self) -> Client {
        Client::new(self.addr, Duration::from_secs(10))
    }

    fn post(&self, target: &str, body: &Value) -> Option<Value> {
        let reply = self.server().call(&Request::post(target, &body.to_string())).ok()?;
        (reply.status < 300).then(|| reply.json())
    }

    fn produce(&self, value: &str) -> Option<u64> {
        self.post("/v1/produce", &json!({"topic": "orders", "key": value.get(..8), "value": value}))?["offset"].as_u64()
    }

    /// The LSN and the digest that the broker returns.
    fn digest(&self) -> (u64, String) {
        let body = self.server().call(&Request::get("/v1/digest")).expect("a response").json();
        (body["lsn"].as_u64().expect("an LSN"), body["digest"].as_str().expect("a digest").to_owned())
    }

    fn reader(&self) -> LogReader<driftq_files::FileStorage> {
        LogReader::open(&self.data()).expect("the folder can be read")
    }

    /// Opens a stream of a consumer.
    fn stream(&self, owner: &str, more: &str) -> Option<Stream> {
        let query = format!("topic=orders&group=billing&owner={owner}&lease_ms={LEASE_MS}&prefetch=4{more}");
        self.server().consume(&query).ok()
    }

    /// Consumes as [`SILENT`] until the broker is gone.
    fn consume_silently(&self) {
        while let Some(mut stream) = self.stream(SILENT, &format!("&max={SILENT_MAX}")) {
            while let Ok(Some(_)) = stream.item() {}
            thread::sleep(Duration::from_millis(LEASE_MS));
        }
    }

    /// Consumes and acks everything until the broker is gone.
    fn consume(&self, owner: &str, acked: &Mutex<Vec<Acked>>) {
        let Some(mut stream) = self.stream(owner, "") else { return };
        while let Ok(Some(item)) = stream.item() {
            let (offset, token) = (&item["offset"], &item["lease_token"]);
            let claim = json!({"topic": "orders", "group": "billing", "owner": owner, "partition": item["partition"],
                               "offset": offset, "lease_token": token});
            if self.post("/v1/ack", &claim).is_some() {
                let (offset, attempts) =
                    (offset.as_u64().expect("a number"), item["attempts"].as_u64().expect("a number"));
                let (owner, token) = (owner.to_owned(), token.as_str().expect("a token").to_owned());
                acked.lock().expect("no thread panics").push(Acked { offset, attempts, owner, token });
            }
        }
    }
}

#[test]
fn log_of_killed_broker_has_its_digests_and_histories_of_redelivered_messages() {
    let broker = TestBroker::new();
    let mut daemon = broker.start(1 << 40);
    // Nothing is retained: what is acked is removed.
    let topic = json!({"name": "orders", "partitions": 2, "retention_ms": 0, "retention_bytes": 0});
    broker.post("/v1/topics", &topic).expect("the topic is created");
    let acked = Mutex::new(Vec::new());
    let stop = AtomicBool::new(false);
    let produced = AtomicU64::new(0);
    let mut digests = Vec::new();
    thread::scope(|scope| {
        for owner in ["steady-1", "steady-2"] {
            let (broker, acked) = (&broker, &acked);
            scope.spawn(move || broker.consume(owner, acked));
        }
        scope.spawn(|| broker.consume_silently());
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let nth = produced.fetch_add(1, Ordering::Relaxed);
                if broker.produce(&format!("value {nth}")).is_none() {
                    break;
                }
            }
        });
        let deadline = Instant::now() + TIMEOUT;
        let redelivered = || acked.lock().expect("no thread panics").iter().filter(|acked| acked.attempts >= 2).count();
        while Instant::now() < deadline && (digests.len() < 6 || redelivered() < REDELIVERED_MIN) {
            thread::sleep(Duration::from_millis(150));
            digests.push(broker.digest());
        }
        daemon.kill();
        stop.store(true, Ordering::Relaxed);
    });
    let acked = acked.into_inner().expect("no thread panics");
    let redelivered: Vec<_> = acked.iter().filter(|acked| acked.attempts >= 2).collect();
    assert!(
        redelivered.len() >= REDELIVERED_MIN && digests.len() >= 6,
        "{} redelivered, {} digests",
        redelivered.len(),
        digests.len()
    );

    let mut reader = broker.reader();
    let overview = reader.overview(None).expect("the log can be read");
    assert_ne!(overview.ending, LogEnding::Clean);
    assert_eq!(overview.base, 0);
    for (lsn, digest) in &digests {
        let overview = reader.overview(Some(LogPoint::Lsn(*lsn))).expect("durable before it was returned");
        assert_eq!(&overview.digest, digest, "at LSN {lsn}");
    }
    for acked in &redelivered {
        let message = format!("orders/{}", acked.offset).parse().expect("a message");
        let history = reader.trace_message(&message, None, None).expect("the log has the message");
        let deliveries = &history.deliveries;
        assert_eq!(deliveries.len() as u64, acked.attempts, "{history}");
        let (last, before) = deliveries.split_last().expect("at least two");
        assert_eq!(
            (last.owner.as_str(), last.token.as_str()),
            (acked.owner.as_str(), acked.token.as_str()),
            "{history}"
        );
        assert_eq!(last.end.as_deref(), Some("acked"), "{history}");
        for ended in before {
            let end = ended.end.as_deref().expect("it has ended");
            assert!(end == "lease expired" || end == "released", "{history}");
        }
        assert!(before.iter().any(|ended| ended.owner == SILENT), "{history}");
        assert_eq!(history.events.first().map(|event| event.kind), Some("produced"), "{history}");
        assert_eq!(history.events.last().map(|event| event.kind), Some("gone"), "{history}");
    }
    drop(reader);

    check_shortened_log(&broker, redelivered[0].offset, digests[0].0);
}

/// Restarts the broker until its snapshots have replaced the beginning of the log, and reads the log again.
fn check_shortened_log(broker: &TestBroker, offset: u64, lsn: u64) {
    let mut daemon = broker.start(1 << 19);
    // A segment stays as long as a message refers to it.
    broker.post("/v1/topics/orders/purge", &json!({})).expect("the topic is purged");
    let value = "x".repeat(16_000);
    for _ in 0..200 {
        // 429 while the next segment is being created.
        let deadline = Instant::now() + TIMEOUT;
        while broker.produce(&value).is_none() {
            assert!(Instant::now() < deadline, "never accepted");
            thread::sleep(Duration::from_millis(5));
        }
    }
    let (digest_lsn, digest) = broker.digest();
    daemon.kill();
    let mut reader = broker.reader();
    let overview = reader.overview(None).expect("the log can be read");
    assert!(overview.base > lsn, "{overview}");
    assert_eq!(reader.overview(Some(LogPoint::Lsn(digest_lsn))).expect("in the log").digest, digest);
    let refused = reader.overview(Some(LogPoint::Lsn(lsn))).expect_err("replaced by a snapshot");
    assert!(matches!(refused, InspectError::NoSuchLsn { base, .. } if base == overview.base), "{refused}");
    let message = format!("orders/{offset}").parse().expect("a message");
    let history = reader.trace_message(&message, None, None).expect("the snapshot covers the message");
    assert!(
        history.deliveries.is_empty() && history.events[0].text.starts_with("removed before this snapshot"),
        "{history}"
    );
}
