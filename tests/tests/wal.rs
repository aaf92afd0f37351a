//! The log of a real broker that was killed under load, read back: the digests it told, the life of a message that was delivered
//! more than once, and what is left when snapshots have replaced the beginning.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use driftq_sim::wal::{At, Ending, Wal, WalError};
use driftq_tests::daemon::{self, Daemon, Launcher, free_addr};
use driftq_tests::http::{Client, Request};
use serde_json::{Value, json};

const LEASE_MS: u64 = 400;
const GIVE_UP: Duration = Duration::from_secs(120);
/// Who takes messages and says nothing more.
const FORGETFUL: &str = "forgetful";

fn driftqd() -> &'static Path {
    static DRIFTQD: OnceLock<PathBuf> = OnceLock::new();
    DRIFTQD.get_or_init(|| daemon::driftqd().expect("the broker"))
}

/// A folder, and a broker on it.
struct Rig {
    above: tempfile::TempDir,
    addr: SocketAddr,
}

/// A delivery that was acked, and the broker said so.
#[derive(Clone, Debug)]
struct Acked {
    offset: u64,
    attempts: u64,
    owner: String,
    token: String,
}

impl Rig {
    fn new() -> Self {
        Self { above: tempfile::tempdir().expect("a folder"), addr: free_addr().expect("a port") }
    }

    fn data(&self) -> PathBuf {
        self.above.path().join("data")
    }

    /// Small segments, and a snapshot after so many bytes of the log.
    fn start(&self, snapshot_every_bytes: u64) -> Daemon {
        let config = self.above.path().join("driftqd.toml");
        let text = format!(
            "[storage]\nsegment_bytes = 524288\nreserve_bytes = 65536\nsnapshot_every_bytes = {snapshot_every_bytes}\n\
             [limits]\nmessage_bytes_max = 32768\nresult_bytes_max = 32768\nkey_bytes_max = 1024\nmetadata_bytes_max = 16384\n"
        );
        fs::write(&config, text).expect("the configuration is written");
        let launcher = Launcher::new(driftqd(), &self.data(), &self.above.path().join("log")).addr(self.addr);
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

    /// What the broker says its state hashes to, and at which LSN.
    fn digest(&self) -> (u64, String) {
        let told = self.server().call(&Request::get("/v1/digest")).expect("an answer").json();
        (told["lsn"].as_u64().expect("an LSN"), told["digest"].as_str().expect("a digest").to_owned())
    }

    fn wal(&self) -> Wal<driftq_files::FileStorage> {
        Wal::open(&self.data()).expect("the folder can be read")
    }

    /// Takes messages until the broker is gone; acks them or says nothing.
    fn work(&self, owner: &str, acked: &Mutex<Vec<Acked>>) {
        let query = format!("topic=orders&group=billing&owner={owner}&lease_ms={LEASE_MS}&prefetch=4");
        let Ok(mut stream) = self.server().consume(&query) else { return };
        while let Ok(Some(item)) = stream.item() {
            if owner == FORGETFUL {
                continue;
            }
            let (offset, token) = (&item["offset"], &item["lease_token"]);
            let claim = json!({"topic": "orders", "group": "billing", "owner": owner, "partition": item["partition"],
                               "offset": offset, "lease_token": token});
            if self.post("/v1/ack", &claim).is_some() {
                let (offset, attempts) =
                    (offset.as_u64().expect("a number"), item["attempts"].as_u64().expect("a number"));
                let (owner, token) = (owner.to_owned(), token.as_str().expect("a token").to_owned());
                acked.lock().expect("nobody panics").push(Acked { offset, attempts, owner, token });
            }
        }
    }
}

#[test]
fn the_log_of_a_broker_killed_under_load_tells_what_the_broker_told_and_the_life_of_a_redelivered_message() {
    let rig = Rig::new();
    let mut daemon = rig.start(1 << 40);
    rig.post("/v1/topics", &json!({"name": "orders", "partitions": 2})).expect("the topic is made");
    let acked = Mutex::new(Vec::new());
    let is_over = AtomicBool::new(false);
    let produced = AtomicU64::new(0);
    let mut digests = Vec::new();
    thread::scope(|scope| {
        for owner in ["steady-1", "steady-2", FORGETFUL] {
            let (rig, acked) = (&rig, &acked);
            scope.spawn(move || rig.work(owner, acked));
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let nth = produced.fetch_add(1, Ordering::Relaxed);
                if rig.produce(&format!("value {nth}")).is_none() {
                    break;
                }
            }
        });
        let give_up = Instant::now() + GIVE_UP;
        let redelivered = || acked.lock().expect("nobody panics").iter().filter(|acked| acked.attempts >= 2).count();
        while Instant::now() < give_up && (digests.len() < 6 || redelivered() < 5) {
            thread::sleep(Duration::from_millis(150));
            digests.push(rig.digest());
        }
        daemon.kill();
        is_over.store(true, Ordering::Relaxed);
    });
    let acked = acked.into_inner().expect("nobody panics");
    let again: Vec<_> = acked.iter().filter(|acked| acked.attempts >= 2).collect();
    assert!(again.len() >= 5 && digests.len() >= 6, "{} redelivered, {} digests", again.len(), digests.len());

    let mut wal = rig.wal();
    let overview = wal.overview(None).expect("it can be told");
    assert_ne!(overview.ending, Ending::Clean);
    assert_eq!(overview.base, 0);
    for (lsn, told) in &digests {
        let there = wal.overview(Some(At::Lsn(*lsn))).expect("it was durable when it was told");
        assert_eq!(&there.digest, told, "at LSN {lsn}");
    }
    for acked in &again {
        let life =
            wal.life(&format!("orders/{}", acked.offset).parse().expect("a message"), None, None).expect("a life");
        let deliveries = &life.deliveries;
        assert_eq!(deliveries.len() as u64, acked.attempts, "{life}");
        let (last, before) = deliveries.split_last().expect("two at least");
        assert_eq!((last.owner.as_str(), last.token.as_str()), (acked.owner.as_str(), acked.token.as_str()), "{life}");
        assert_eq!(last.outcome.as_deref(), Some("acked"), "{life}");
        for ended in before {
            let outcome = ended.outcome.as_deref().expect("it has ended");
            assert!(outcome == "lease ended" || outcome == "given back", "{life}");
        }
        assert!(before.iter().any(|ended| ended.owner == FORGETFUL), "{life}");
        assert_eq!(life.events.first().map(|event| event.kind), Some("produced"), "{life}");
        assert_eq!(life.events.last().map(|event| event.kind), Some("gone"), "{life}");
    }
    drop(wal);

    older_than_the_log(&rig, again[0].offset, digests[0].0);
}

/// The broker is started again and takes snapshots, until the beginning of its log is gone.
fn older_than_the_log(rig: &Rig, offset: u64, lsn: u64) {
    let mut daemon = rig.start(1 << 19);
    let value = "x".repeat(16_000);
    for _ in 0..200 {
        rig.produce(&value).expect("it is taken");
    }
    let (told_lsn, told) = rig.digest();
    daemon.kill();
    let mut wal = rig.wal();
    let overview = wal.overview(None).expect("it can be told");
    assert!(overview.base > lsn, "{overview}");
    assert_eq!(wal.overview(Some(At::Lsn(told_lsn))).expect("it is there").digest, told);
    let refused = wal.overview(Some(At::Lsn(lsn))).expect_err("it is gone");
    assert!(matches!(refused, WalError::NoSuchLsn { base, .. } if base == overview.base), "{refused}");
    let life = wal.life(&format!("orders/{offset}").parse().expect("a message"), None, None).expect("a life");
    assert!(life.deliveries.is_empty() && life.events[0].text.starts_with("gone before this snapshot"), "{life}");
}
