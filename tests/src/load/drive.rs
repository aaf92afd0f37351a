//! Closed-loop load: every connection sends, waits for the response, and sends the next request, for a time or a number
//! of messages.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::load::client::{Connection, Endpoint, MessageShape, ProduceRequest, text_field};
use crate::load::error::{Error, Result};
use crate::load::report::{Failures, Stats};

/// A connection that fails is replaced after this pause.
const RECONNECT_PAUSE: Duration = Duration::from_millis(10);
/// A run without any response for this long is aborted.
const RESPONSE_WITHIN: Duration = Duration::from_secs(30);
/// A producer of which a message was refused pauses for this long.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);
/// The range of message numbers of each caller.
pub(crate) const NUMBERS_PER_CALLER: u64 = 1 << 24;

/// What a caller does in each iteration.
pub(crate) trait Work: Sized + Send + 'static {
    /// The parameters that all callers share.
    type Shape;

    /// The work of one caller, whose numbers begin at `sequence`.
    fn new(addr: SocketAddr, shape: &Self::Shape, sequence: u64) -> Self;

    /// How many messages a successful iteration counts for.
    fn messages(&self) -> u64;

    /// Sends, reads the responses and records them. Returns when the last response arrived; an error is one of the
    /// connection.
    fn iterate(
        &mut self,
        connection: &mut Connection,
        begun: Instant,
        shared: &Shared,
    ) -> impl Future<Output = io::Result<Instant>> + Send;
}

/// Which messages are produced, and how many per request.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    /// The form of each message.
    pub(crate) message: MessageShape,
    /// Messages per request.
    pub(crate) batch: u32,
    /// What each value begins with.
    pub(crate) stamp: Stamp,
}

/// Produces: an iteration is one request.
#[derive(Debug)]
pub(crate) struct Produces {
    request: ProduceRequest,
    stamp: Stamp,
    sequence: u64,
}

impl Work for Produces {
    type Shape = Shape;

    fn new(addr: SocketAddr, shape: &Shape, sequence: u64) -> Self {
        let first = if let Stamp::Checked { first } = shape.stamp { first } else { 0 };
        let request = ProduceRequest::new(addr, &shape.message, shape.batch);
        Self { request, stamp: shape.stamp, sequence: first + sequence }
    }

    fn messages(&self) -> u64 {
        self.request.messages()
    }

    async fn iterate(&mut self, connection: &mut Connection, begun: Instant, shared: &Shared) -> io::Result<Instant> {
        let messages = self.request.messages();
        let bytes = match self.stamp {
            Stamp::Number => self.request.numbered(self.sequence),
            Stamp::Checked { .. } => self.request.checked(self.sequence),
            Stamp::NanosSince(epoch) => {
                let nanos = u64::try_from(begun.duration_since(epoch).as_nanos()).unwrap_or(u64::MAX);
                self.request.stamped(self.sequence, nanos)
            }
        };
        self.sequence += messages;
        let status = connection.exchange(bytes).await?;
        let now = Instant::now();
        let stored = shared.stats().count_produce(now - begun, status, connection.body(), messages);
        if stored < messages {
            tokio::time::sleep(REFUSED_PAUSE).await;
            return Ok(Instant::now());
        }
        Ok(now)
    }
}

impl Stats {
    /// Counts the answer to a produce, and returns how many of its messages were stored.
    fn count_produce(&mut self, took: Duration, status: u16, body: &[u8], messages: u64) -> u64 {
        self.record(took);
        let stored = match (status, messages) {
            (200, 1) => 1,
            (200, _) => count_lines(body, messages, &mut self.failures),
            _ => {
                self.failures.status(status, body);
                0
            }
        };
        self.messages += stored;
        stored
    }
}

/// When a run ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    /// After this long.
    Elapsed(Duration),
    /// When at least this many messages have been sent.
    Messages(u64),
}

/// What a value begins with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stamp {
    /// The message's number.
    Number,
    /// The same, and all other bytes follow from it. The numbers of the first caller begin here.
    Checked { first: u64 },
    /// The nanoseconds from this instant until its request was written.
    NanosSince(Instant),
}

/// When a set of callers ends, and how fast it may send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drive {
    /// When it ends.
    pub(crate) until: Until,
    /// The most messages per second over all callers. Late messages are sent as soon as possible.
    pub(crate) rate: Option<f64>,
}

/// A connection and its work.
#[derive(Debug)]
pub(crate) struct Caller<W> {
    server: Endpoint,
    connection: Connection,
    work: W,
}

impl<W: Work> Caller<W> {
    /// Connects callers.
    pub(crate) async fn connect(server: impl Into<Endpoint>, shape: &W::Shape, count: u32) -> Result<Vec<Self>> {
        let server = server.into();
        let mut callers = Vec::with_capacity(count as usize);
        for index in 0..count {
            let connection = Connection::connect(server.clone()).await?;
            let work = W::new(server.addr, shape, u64::from(index) * NUMBERS_PER_CALLER);
            callers.push(Self { server: server.clone(), connection, work });
        }
        Ok(callers)
    }

    async fn drive(mut self, drive: Drive, shared: Arc<Shared>, first_due: Duration) -> Self {
        let deadline = match drive.until {
            Until::Elapsed(after) => Some(shared.begun + after),
            Until::Messages(_) => None,
        };
        let mut due = shared.begun + first_due;
        let mut begun = Instant::now();
        loop {
            if let Some(interval) = shared.interval {
                if due > begun {
                    tokio::time::sleep_until(due.min(deadline.unwrap_or(due)).into()).await;
                    begun = Instant::now();
                }
                due += interval;
            }
            if deadline.is_some_and(|deadline| begun >= deadline)
                || !shared.take_iteration(drive.until, self.work.messages())
            {
                return self;
            }
            begun = match self.work.iterate(&mut self.connection, begun, &shared).await {
                Ok(ended) => ended,
                Err(error) => {
                    shared.stats().failures.named(&format!("connection: {error}"));
                    self.reconnect(&shared).await;
                    Instant::now()
                }
            };
        }
    }

    /// Replaces a broken connection. If that fails too, the next exchange reports it.
    async fn reconnect(&mut self, shared: &Shared) {
        tokio::time::sleep(RECONNECT_PAUSE).await;
        match Connection::connect(self.server.clone()).await {
            Ok(connection) => self.connection = connection,
            Err(error) => shared.stats().failures.named(&format!("connect: {error}")),
        }
    }
}

/// State shared by the callers of one run.
#[derive(Debug)]
pub(crate) struct Shared {
    begun: Instant,
    /// Between two iterations of one caller.
    interval: Option<Duration>,
    sent: AtomicU64,
    stats: Mutex<Stats>,
}

impl Shared {
    /// What was counted so far.
    pub(crate) fn stats(&self) -> MutexGuard<'_, Stats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another iteration is due.
    fn take_iteration(&self, until: Until, messages: u64) -> bool {
        match until {
            Until::Elapsed(_) => true,
            Until::Messages(wanted) => self.sent.fetch_add(messages, Ordering::Relaxed) < wanted,
        }
    }
}

/// Counts the successful lines of a batch response. All others, missing ones included, are failures.
pub(crate) fn count_lines(body: &[u8], expected: u64, failures: &mut Failures) -> u64 {
    let (mut good, mut lines) = (0, 0);
    for line in body.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        lines += 1;
        // A prefix test is enough for successes, and cheap.
        if line.starts_with(br#"{"status":20"#) {
            good += 1;
            continue;
        }
        let status = text_field(line, "status").and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        match status {
            Some(200..=299) => good += 1,
            Some(status) => failures.status(status, line),
            None => failures.named("line without a status"),
        }
    }
    failures.add("lines missing in a batch response", expected.saturating_sub(lines));
    good
}

/// Runs the callers, and returns them with their statistics and the elapsed time.
pub(crate) async fn drive<W: Work>(callers: Vec<Caller<W>>, drive: Drive) -> Result<(Vec<Caller<W>>, Stats, Duration)> {
    let count = u32::try_from(callers.len())?.max(1);
    let per_iteration = callers.first().map_or(1, |caller| caller.work.messages());
    let apart = drive.rate.map(|rate| Duration::from_secs_f64(per_iteration as f64 / rate.max(0.001)));
    let shared = Arc::new(Shared {
        begun: Instant::now(),
        interval: apart.map(|apart| apart * count),
        sent: AtomicU64::new(0),
        stats: Mutex::default(),
    });
    let mut tasks = JoinSet::new();
    for (index, caller) in (0u32..).zip(callers) {
        let first_due = apart.map_or(Duration::ZERO, |apart| apart * index);
        tasks.spawn(caller.drive(drive, Arc::clone(&shared), first_due));
    }
    let mut callers = Vec::with_capacity(count as usize);
    let mut responses_before = 0;
    loop {
        match tokio::time::timeout(RESPONSE_WITHIN, tasks.join_next()).await {
            Ok(Some(caller)) => callers.push(caller?),
            Ok(None) => break,
            Err(_) => {
                // A long run is fine as long as responses arrive.
                let responses = shared.stats().responses();
                if responses == responses_before {
                    return Err(Error::from(format!("no response within {RESPONSE_WITHIN:?}")));
                }
                responses_before = responses;
            }
        }
    }
    let took = shared.begun.elapsed();
    let stats = shared.stats().clone();
    Ok((callers, stats, took))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_lines_are_counted_individually() {
        let body =
            b"{\"status\":200,\"offset\":1}\n{\"status\":429,\"error\":\"RESOURCE_EXHAUSTED\"}\n{ \"status\": 204 }\n";
        let mut failures = Failures::default();
        assert_eq!(count_lines(body, 4, &mut failures), 2);
        assert_eq!(failures.to_string(), "1 × 429 RESOURCE_EXHAUSTED, 1 × lines missing in a batch response");
    }
}
