//! A worker of a steady backlog: for each batch that it produces it acks as many messages, in random order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::load::client::{Checked, Connection, Item, MessageShape, NDJSON, ProduceRequest, ResponseState};
use crate::load::client::{get, post_into};
use crate::load::drive::{NUMBERS_PER_CALLER, count_lines};
use crate::load::error::Result;
use crate::load::modes::consumers::consume_target;
use crate::load::report::Failures;

const GROUP: &str = "steady";
/// Messages of a request.
const BATCH: u32 = 100;
/// Delivered messages from which those to be acked are drawn.
const POOL: usize = 150;
/// Leases that a stream may hold: the pool is always filled again by what an ack makes room for. All workers of a topic
/// together must stay below the broker's limit of 1,000 for each partition.
const PREFETCH: u32 = 230;
/// A stream without a delivery for this long has failed.
const DELIVERY_WITHIN: Duration = Duration::from_secs(20);

/// What a worker does.
#[derive(Debug)]
pub(super) struct WorkerPlan {
    /// The form of its messages.
    pub(super) message: MessageShape,
    /// Its number in the topic, beyond those of the callers that filled it.
    pub(super) number: u32,
    /// Messages per second, produced and acked.
    pub(super) rate: f64,
    /// When it begins, as a part of the interval between its batches: workers in step would be one burst.
    pub(super) phase: f64,
    /// When it ends.
    pub(super) end: Instant,
    /// Checks what is delivered.
    pub(super) check: Arc<Checked>,
}

/// What a worker did.
#[derive(Debug, Default)]
pub(super) struct Worked {
    /// Messages acked; as many were produced.
    pub(super) messages: u64,
    /// All failures.
    pub(super) failures: Failures,
}

/// A worker with its three connections.
#[derive(Debug)]
pub(super) struct Worker {
    addr: SocketAddr,
    produces: Connection,
    request: ProduceRequest,
    next: u64,
    stream: Connection,
    acks: Connection,
    ack_front: String,
    /// Acks that may be sent, a line each.
    pool: Vec<Vec<u8>>,
    random: u64,
    check: Arc<Checked>,
    interval: Duration,
    begins_after: Duration,
    end: Instant,
    worked: Worked,
}

impl Worker {
    /// Connects and opens the stream.
    pub(super) async fn connect(addr: SocketAddr, plan: &WorkerPlan) -> Result<Self> {
        let (owner, topic) = (format!("w{}", plan.number), &plan.message.topic);
        let interval = Duration::from_secs_f64(f64::from(BATCH) / plan.rate.max(0.1));
        let mut stream = Connection::connect_for_stream(addr).await?;
        let status = stream.open_stream(&get(addr, &consume_target(topic, GROUP, &owner, Some(PREFETCH)))).await?;
        if status != 200 {
            return Err(format!("a stream was refused: {status} {}", String::from_utf8_lossy(stream.body())).into());
        }
        Ok(Self {
            addr,
            produces: Connection::connect(addr).await?,
            request: ProduceRequest::new(addr, &plan.message, BATCH),
            next: u64::from(plan.number) * NUMBERS_PER_CALLER,
            stream,
            acks: Connection::connect(addr).await?,
            ack_front: format!(r#"{{"topic":"{topic}","group":"{GROUP}","owner":"{owner}","partition":"#),
            pool: Vec::new(),
            random: u64::from(plan.number) + 1,
            check: Arc::clone(&plan.check),
            interval,
            begins_after: interval.mul_f64(plan.phase),
            end: plan.end,
            worked: Worked::default(),
        })
    }

    /// Works until the end. What is late is done as soon as possible.
    pub(super) async fn run(mut self) -> Result<Worked> {
        let (mut due, mut body, mut request) = (Instant::now() + self.begins_after, Vec::new(), Vec::new());
        while Instant::now() < self.end {
            tokio::time::sleep_until(due.min(self.end).into()).await;
            due += self.interval;
            while self.pool.len() < POOL {
                self.read_deliveries().await?;
            }
            body.clear();
            for _ in 0..BATCH {
                let drawn = self.draw();
                body.extend_from_slice(&self.pool.swap_remove(drawn));
            }
            post_into(&mut request, self.addr, "/v1/ack", NDJSON, &body);
            let produce = self.request.checked(self.next);
            self.next += u64::from(BATCH);
            let (produced, acked) = tokio::join!(self.produces.exchange(produce), self.acks.exchange(&request));
            let produced = produced.map_err(|error| format!("a produce: {error}"))?;
            let acked = acked.map_err(|error| format!("an ack: {error}"))?;
            let Worked { messages, failures } = &mut self.worked;
            for (status, answer, acks) in [(produced, self.produces.body(), false), (acked, self.acks.body(), true)] {
                if status != 200 {
                    failures.status(status, answer);
                    continue;
                }
                let good = count_lines(answer, u64::from(BATCH), failures);
                *messages += if acks { good } else { 0 };
            }
        }
        Ok(self.worked)
    }

    /// The place of a random ack in the pool.
    fn draw(&mut self) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % self.pool.len().max(1)
    }

    /// Reads once from the stream, and takes the complete lines.
    async fn read_deliveries(&mut self) -> Result<()> {
        let read = tokio::time::timeout(DELIVERY_WITHIN, self.stream.read_more()).await;
        let read = read.map_err(|_| "no delivery, although there is a backlog")?;
        if read.map_err(|error| format!("a stream: {error}"))? == ResponseState::Complete {
            return Err("a stream ended".into());
        }
        let body = self.stream.body();
        let Some(end) = body.iter().rposition(|&byte| byte == b'\n') else { return Ok(()) };
        for line in body[..end].split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
            let Some(item) = Item::scan(line) else {
                self.worked.failures.named("line that is not an item");
                continue;
            };
            if self.check.note(item.value).is_none() {
                self.worked.failures.named("value that is not what was produced");
            }
            let mut ack = Vec::with_capacity(self.ack_front.len() + 64);
            ack.extend_from_slice(self.ack_front.as_bytes());
            for part in [item.partition, br#","offset":"#, item.offset, br#","lease_token":""#, item.lease_token] {
                ack.extend_from_slice(part);
            }
            ack.extend_from_slice(b"\"}\n");
            self.pool.push(ack);
        }
        self.stream.consume_body(end + 1);
        Ok(())
    }
}
