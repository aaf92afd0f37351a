//! Consumers: each reads a stream and acks or completes its messages on separate connections, as fast as responses
//! arrive.

mod completer;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::load::cli::AckKind;
use crate::load::client::{Checked, Connection, Item, MessageShape, NDJSON, ResponseState, get, post_into, text_field};
use crate::load::drive::count_lines;
use crate::load::error::Result;
use crate::load::report::Stats;
use completer::Completer;

const GROUP: &str = "load";
/// Longer than any message waits for its ack, so that a slow machine causes no redelivery.
const LEASE_MS: u32 = 60_000;
const JSON: &str = "application/json";

/// The target that opens a consumer's stream.
pub(crate) fn consume_target(topic: &str, group: &str, owner: &str, prefetch: Option<u32>) -> String {
    let prefetch = prefetch.map_or_else(String::new, |prefetch| format!("&prefetch={prefetch}"));
    format!("/v1/consume?topic={topic}&group={group}&owner={owner}&lease_ms={LEASE_MS}&from=earliest{prefetch}")
}

/// What consumers do with deliveries.
#[derive(Debug, Clone)]
pub(crate) enum Settle {
    /// Hold their leases, and keep the claims of acks.
    Hold,
    /// Ack them.
    Ack(AckKind),
    /// Complete them as steps with output messages.
    Complete(Steps),
}

/// How steps are completed.
#[derive(Debug, Clone)]
pub(crate) struct Steps {
    /// The form of a step's output messages.
    pub(crate) output: MessageShape,
    /// How many output messages a step has.
    pub(crate) outputs: u32,
    /// Completes a consumer may have in flight, each on its own connection.
    pub(crate) in_flight: u32,
}

/// What a set of consumers does.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The topic.
    pub(crate) topic: String,
    /// How many there are.
    pub(crate) consumers: u32,
    /// What they do with deliveries.
    pub(crate) settle: Settle,
    /// Leases a stream may hold.
    pub(crate) prefetch: Option<u32>,
    /// The instant that stamps are relative to; `None` if they are not times.
    pub(crate) epoch: Option<Instant>,
    /// Checks every byte of the values, if they are made for it.
    pub(crate) check: Option<Arc<Checked>>,
}

/// Running consumers. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Consumers {
    counts: Arc<Counts>,
    queues: Vec<Arc<Acks>>,
    tasks: JoinSet<()>,
    completers: JoinSet<()>,
}

/// Counters of all consumers.
#[derive(Debug, Default)]
struct Counts {
    delivered: AtomicU64,
    redelivered: AtomicU64,
    acked: AtomicU64,
    /// Latencies of deliveries, and all failures.
    stats: Mutex<Stats>,
    /// Latencies of completes.
    completes: Mutex<Stats>,
    /// Set when no further complete is to be sent.
    stopped: AtomicBool,
}

impl Counts {
    fn completes(&self) -> MutexGuard<'_, Stats> {
        self.completes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stats(&self) -> MutexGuard<'_, Stats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Consumers {
    /// Opens all streams and starts to read them.
    pub(crate) async fn start(addr: SocketAddr, plan: &Plan) -> Result<Self> {
        let mut consumers =
            Self { counts: Arc::default(), queues: Vec::new(), tasks: JoinSet::new(), completers: JoinSet::new() };
        for index in 0..plan.consumers {
            consumers.start_one(addr, plan, index).await?;
        }
        Ok(consumers)
    }

    async fn start_one(&mut self, addr: SocketAddr, plan: &Plan, index: u32) -> Result<()> {
        let owner = format!("c{index}");
        let mut stream = Connection::connect_for_stream(addr).await?;
        let target = consume_target(&plan.topic, GROUP, &owner, plan.prefetch);
        let status = stream.open_stream(&get(addr, &target)).await?;
        if status != 200 {
            let body = String::from_utf8_lossy(stream.body());
            return Err(format!("a stream was refused: {status} {body}").into());
        }
        let acks = Arc::new(Acks::default());
        match &plan.settle {
            Settle::Hold => {}
            Settle::Ack(kind) => {
                let connection = Connection::connect(addr).await?;
                let (acks, counts) = (Arc::clone(&acks), Arc::clone(&self.counts));
                self.tasks.spawn(Acker { addr, connection, kind: *kind, acks, counts }.run());
            }
            Settle::Complete(steps) => {
                for index_in_consumer in 0..steps.in_flight {
                    let number = u64::from(index * steps.in_flight + index_in_consumer);
                    let (acks, counts) = (Arc::clone(&acks), Arc::clone(&self.counts));
                    self.completers.spawn(Completer::connect(addr, steps, number, acks, counts).await?.run());
                }
            }
        }
        self.queues.push(Arc::clone(&acks));
        let reader = Reader {
            stream,
            ack_front: format!(r#"{{"topic":"{}","group":"{GROUP}","owner":"{owner}","partition":"#, plan.topic),
            epoch: plan.epoch,
            check: plan.check.clone(),
            acks,
            counts: Arc::clone(&self.counts),
        };
        self.tasks.spawn(reader.run());
        Ok(())
    }

    /// Messages delivered so far.
    pub(crate) fn delivered(&self) -> u64 {
        self.counts.delivered.load(Ordering::Relaxed)
    }

    /// Takes the claims of the leases that are held, JSON objects, in the order of the messages' offsets.
    pub(crate) fn take_claims(&self) -> VecDeque<Vec<u8>> {
        let mut claims = Vec::new();
        for queue in &self.queues {
            let (mut lines, mut claim) = (std::mem::take(&mut *queue.lines()), Vec::new());
            while lines.take_one(&mut claim) {
                claims.push(claim.clone());
            }
        }
        claims.sort_by_cached_key(|claim| {
            let offset = text_field(claim, "offset").and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
            offset.unwrap_or(u64::MAX)
        });
        claims.into()
    }

    /// Messages acked or completed so far.
    pub(crate) fn acked(&self) -> u64 {
        self.counts.acked.load(Ordering::Relaxed)
    }

    /// Waits until this many messages are acked or completed; false if that takes longer than the limit.
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

    /// Starts no further complete and waits for those in flight; false if that takes longer than the limit.
    pub(crate) async fn stop_completing(&mut self, limit: Duration) -> bool {
        self.counts.stopped.store(true, Ordering::Relaxed);
        for queue in &self.queues {
            queue.wake.notify_one();
        }
        let all = async { while self.completers.join_next().await.is_some() {} };
        tokio::time::timeout(limit, all).await.is_ok()
    }

    /// Statistics of the completes so far.
    pub(crate) fn completes(&self) -> Stats {
        self.counts.completes().clone()
    }

    /// Ends the consumers and returns the statistics of deliveries, and how many of them were redeliveries.
    pub(crate) async fn finish(mut self) -> (Stats, u64) {
        self.tasks.shutdown().await;
        self.completers.shutdown().await;
        let mut stats = self.counts.stats().clone();
        stats.messages = self.counts.delivered.load(Ordering::Relaxed);
        (stats, self.counts.redelivered.load(Ordering::Relaxed))
    }
}

/// Acks on their way from a reader to its sender.
#[derive(Debug, Default)]
struct Acks {
    lines: Mutex<Lines>,
    wake: Notify,
}

impl Acks {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bodies of acks, a line each, oldest first.
#[derive(Debug, Default)]
struct Lines {
    bytes: Vec<u8>,
    /// Bytes at the front that were taken.
    taken: usize,
}

impl Lines {
    /// The buffer to append lines to.
    fn end(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        &mut self.bytes
    }

    /// Takes all lines in exchange for an empty buffer.
    fn take_all(&mut self, empty: &mut Vec<u8>) {
        std::mem::swap(self.end(), empty);
    }

    /// Takes the oldest line, without its end; false if there is none.
    fn take_one(&mut self, line: &mut Vec<u8>) -> bool {
        line.clear();
        let waiting = &self.bytes[self.taken..];
        let Some(end) = waiting.iter().position(|&byte| byte == b'\n') else { return false };
        line.extend_from_slice(&waiting[..end]);
        self.taken += end + 1;
        true
    }

    fn is_empty(&self) -> bool {
        self.taken == self.bytes.len()
    }
}

/// Reads a stream.
struct Reader {
    stream: Connection,
    /// The part of an ack that all messages share.
    ack_front: String,
    epoch: Option<Instant>,
    check: Option<Arc<Checked>>,
    acks: Arc<Acks>,
    counts: Arc<Counts>,
}

impl Reader {
    async fn run(mut self) {
        loop {
            self.take_lines();
            match self.stream.read_more().await {
                Ok(ResponseState::Complete) => {
                    self.take_lines();
                    return self.counts.stats().failures.named("stream ended");
                }
                Ok(_) => {}
                Err(error) => return self.counts.stats().failures.named(&format!("stream: {error}")),
            }
        }
    }

    /// Takes the complete lines that have arrived.
    fn take_lines(&mut self) {
        let body = self.stream.body();
        let Some(end) = body.iter().rposition(|&byte| byte == b'\n') else { return };
        let now = Instant::now();
        let mut stats = self.counts.stats();
        let mut lines = self.acks.lines();
        let acks = lines.end();
        let (mut delivered, mut redelivered) = (0, 0);
        for line in body[..end].split(|&byte| byte == b'\n') {
            // A blank line is a keep-alive.
            if line.trim_ascii().is_empty() {
                continue;
            }
            let Some(item) = Item::scan(line) else {
                stats.failures.named("line that is not an item");
                continue;
            };
            delivered += 1;
            redelivered += u64::from(item.attempts > 1);
            if let Some(epoch) = self.epoch {
                match item.stamp() {
                    Some(nanos) => stats.record(now.saturating_duration_since(epoch + Duration::from_nanos(nanos))),
                    None => stats.failures.named("value without a stamp"),
                }
            }
            if self.check.as_ref().is_some_and(|check| check.note(item.value).is_none()) {
                stats.failures.named("value that is not what was produced");
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
        drop((stats, lines));
        self.stream.consume_body(end + 1);
        self.counts.delivered.fetch_add(delivered, Ordering::Relaxed);
        self.counts.redelivered.fetch_add(redelivered, Ordering::Relaxed);
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
            self.acks.lines().take_all(&mut lines);
            if lines.is_empty() {
                self.acks.wake.notified().await;
                continue;
            }
            let sent = match self.kind {
                AckKind::Ndjson => self.send_batch(&lines, &mut request).await,
                AckKind::Single => self.send_each(&lines, &mut request).await,
            };
            if let Err(error) = sent {
                return self.counts.stats().failures.named(&format!("ack connection: {error}"));
            }
            lines.clear();
        }
    }

    async fn send_each(&mut self, lines: &[u8], request: &mut Vec<u8>) -> std::io::Result<()> {
        for line in lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            post_into(request, self.addr, "/v1/ack", JSON, line);
            match self.connection.exchange(request).await? {
                200..=299 => _ = self.counts.acked.fetch_add(1, Ordering::Relaxed),
                status => self.counts.stats().failures.status(status, self.connection.body()),
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
            let acked = count_lines(body, expected, &mut self.counts.stats().failures);
            self.counts.acked.fetch_add(acked, Ordering::Relaxed);
        } else {
            self.counts.stats().failures.status(status, body);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_in_order_one_by_one_or_all() {
        let (mut lines, mut taken) = (Lines::default(), Vec::new());
        assert!(!lines.take_one(&mut taken));
        lines.end().extend_from_slice(b"one\ntwo\n");
        assert!(lines.take_one(&mut taken) && taken == b"one");
        lines.end().extend_from_slice(b"three\n");
        assert!(lines.take_one(&mut taken) && taken == b"two");
        assert!(!lines.is_empty());
        taken.clear();
        lines.take_all(&mut taken);
        assert_eq!(taken, b"three\n");
        assert!(lines.is_empty());
    }
}
