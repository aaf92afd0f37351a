//! Consumers: each reads a stream and acks what it brings on a connection of its own, as fast as answers come.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::Result;
use crate::cli::AckKind;
use crate::client::{Connection, Item, NDJSON, Progress, get, post_into};
use crate::drive::count_lines;
use crate::report::Tally;

const GROUP: &str = "load";
/// Longer than any run keeps a message waiting for its ack, so that a slow machine causes no second delivery.
const LEASE_MS: u32 = 60_000;
const JSON: &str = "application/json";

/// The target that opens a consumer's stream.
pub(crate) fn consume_target(topic: &str, group: &str, owner: &str, prefetch: Option<u32>) -> String {
    let prefetch = prefetch.map_or_else(String::new, |prefetch| format!("&prefetch={prefetch}"));
    format!("/v1/consume?topic={topic}&group={group}&owner={owner}&lease_ms={LEASE_MS}&from=earliest{prefetch}")
}

/// How a set of consumers works.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// What they read.
    pub(crate) topic: String,
    /// How many there are.
    pub(crate) consumers: u32,
    /// How they ack.
    pub(crate) ack: AckKind,
    /// Leases a stream may hold.
    pub(crate) prefetch: Option<u32>,
    /// The moment the values' stamps count from; `None` where they carry no times.
    pub(crate) epoch: Option<Instant>,
}

/// Consumers at work; they end when this is dropped.
#[derive(Debug)]
pub(crate) struct Consumers {
    counts: Arc<Counts>,
    tasks: JoinSet<()>,
}

/// What all consumers have counted.
#[derive(Debug, Default)]
struct Counts {
    delivered: AtomicU64,
    again: AtomicU64,
    acked: AtomicU64,
    /// Deliveries' latencies, and everybody's failures.
    tally: Mutex<Tally>,
}

impl Counts {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Consumers {
    /// Opens all streams and starts to read them.
    pub(crate) async fn start(addr: SocketAddr, plan: &Plan) -> Result<Self> {
        let counts = Arc::new(Counts::default());
        let mut tasks = JoinSet::new();
        for index in 0..plan.consumers {
            let owner = format!("c{index}");
            let mut stream = Connection::connect_for_stream(addr).await?;
            let target = consume_target(&plan.topic, GROUP, &owner, plan.prefetch);
            let status = stream.open_stream(&get(addr, &target)).await?;
            if status != 200 {
                let said = String::from_utf8_lossy(stream.body());
                return Err(format!("a stream was refused: {status} {said}").into());
            }
            let acks = Arc::new(Acks::default());
            let reader = Reader {
                stream,
                ack_front: format!(r#"{{"topic":"{}","group":"{GROUP}","owner":"{owner}","partition":"#, plan.topic),
                epoch: plan.epoch,
                acks: Arc::clone(&acks),
                counts: Arc::clone(&counts),
            };
            let connection = Connection::connect(addr).await?;
            let acker = Acker { addr, connection, kind: plan.ack, acks, counts: Arc::clone(&counts) };
            tasks.spawn(reader.run());
            tasks.spawn(acker.run());
        }
        Ok(Self { counts, tasks })
    }

    /// Messages acked with success so far.
    pub(crate) fn acked(&self) -> u64 {
        self.counts.acked.load(Ordering::Relaxed)
    }

    /// Waits until so many messages are acked, but not longer than the limit; whether they were.
    pub(crate) async fn wait_for_acks(&self, wanted: u64, limit: Duration) -> bool {
        let give_up = Instant::now() + limit;
        while self.acked() < wanted {
            if Instant::now() > give_up {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        true
    }

    /// Ends the consumers and returns what they counted: the messages of the tally are those delivered. The second
    /// number is how many of these were not a message's first delivery.
    pub(crate) async fn finish(mut self) -> (Tally, u64) {
        self.tasks.shutdown().await;
        let mut tally = self.counts.tally().clone();
        tally.messages = self.counts.delivered.load(Ordering::Relaxed);
        (tally, self.counts.again.load(Ordering::Relaxed))
    }
}

/// Acks on their way from a reader to its acker: bodies, a line each.
#[derive(Debug, Default)]
struct Acks {
    lines: Mutex<Vec<u8>>,
    wake: Notify,
}

impl Acks {
    fn lines(&self) -> MutexGuard<'_, Vec<u8>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a stream.
struct Reader {
    stream: Connection,
    /// The part of an ack that is the same for all messages.
    ack_front: String,
    epoch: Option<Instant>,
    acks: Arc<Acks>,
    counts: Arc<Counts>,
}

impl Reader {
    async fn run(mut self) {
        loop {
            self.take_lines();
            match self.stream.read_more().await {
                Ok(Progress::Done) => {
                    self.take_lines();
                    return self.counts.tally().failures.named("a stream ended");
                }
                Ok(_) => {}
                Err(error) => return self.counts.tally().failures.named(&format!("stream: {error}")),
            }
        }
    }

    /// Takes the complete lines that have arrived.
    fn take_lines(&mut self) {
        let body = self.stream.body();
        let Some(end) = body.iter().rposition(|&byte| byte == b'\n') else { return };
        let now = Instant::now();
        let mut tally = self.counts.tally();
        let mut acks = self.acks.lines();
        let (mut delivered, mut again) = (0, 0);
        for line in body[..end].split(|&byte| byte == b'\n') {
            // A blank line says that the stream is alive.
            if line.trim_ascii().is_empty() {
                continue;
            }
            let Some(item) = Item::scan(line) else {
                tally.failures.named("a line that is no item");
                continue;
            };
            delivered += 1;
            again += u64::from(item.attempts > 1);
            if let Some(epoch) = self.epoch {
                match item.stamp() {
                    Some(nanos) => tally.record(now.saturating_duration_since(epoch + Duration::from_nanos(nanos))),
                    None => tally.failures.named("a value without its stamp"),
                }
            }
            acks.extend_from_slice(self.ack_front.as_bytes());
            acks.extend_from_slice(item.partition);
            acks.extend_from_slice(br#","offset":"#);
            acks.extend_from_slice(item.offset);
            if !item.lease_token.is_empty() {
                acks.extend_from_slice(br#","lease_token":""#);
                acks.extend_from_slice(item.lease_token);
                acks.push(b'"');
            }
            acks.extend_from_slice(b"}\n");
        }
        drop((tally, acks));
        self.stream.consume_body(end + 1);
        self.counts.delivered.fetch_add(delivered, Ordering::Relaxed);
        self.counts.again.fetch_add(again, Ordering::Relaxed);
        if delivered > 0 {
            self.acks.wake.notify_one();
        }
    }
}

/// Sends acks.
struct Acker {
    addr: SocketAddr,
    connection: Connection,
    kind: AckKind,
    acks: Arc<Acks>,
    counts: Arc<Counts>,
}

impl Acker {
    async fn run(mut self) {
        let (mut lines, mut request) = (Vec::new(), Vec::new());
        loop {
            std::mem::swap(&mut *self.acks.lines(), &mut lines);
            if lines.is_empty() {
                self.acks.wake.notified().await;
                continue;
            }
            let sent = match self.kind {
                AckKind::Ndjson => self.send_batch(&lines, &mut request).await,
                AckKind::Single => self.send_each(&lines, &mut request).await,
            };
            if let Err(error) = sent {
                return self.counts.tally().failures.named(&format!("ack connection: {error}"));
            }
            lines.clear();
        }
    }

    async fn send_each(&mut self, lines: &[u8], request: &mut Vec<u8>) -> std::io::Result<()> {
        for line in lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            post_into(request, self.addr, "/v1/ack", JSON, line);
            match self.connection.exchange(request).await? {
                200..=299 => _ = self.counts.acked.fetch_add(1, Ordering::Relaxed),
                status => self.counts.tally().failures.answered(status, self.connection.body()),
            }
        }
        Ok(())
    }

    async fn send_batch(&mut self, lines: &[u8], request: &mut Vec<u8>) -> std::io::Result<()> {
        post_into(request, self.addr, "/v1/ack", NDJSON, lines);
        let status = self.connection.exchange(request).await?;
        let body = self.connection.body();
        if status == 200 {
            let expected = lines.iter().filter(|&&byte| byte == b'\n').count() as u64;
            let acked = count_lines(body, expected, &mut self.counts.tally().failures);
            self.counts.acked.fetch_add(acked, Ordering::Relaxed);
        } else {
            self.counts.tally().failures.answered(status, body);
        }
        Ok(())
    }
}
