//! Driving: every connection sends, waits for the answer, and sends again, for a time or a number of messages.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::client::{Connection, MessageShape, ProduceRequest, text_field};
use crate::report::{Failures, Tally};
use crate::{Error, Result};

/// A connection that fails is replaced after this pause.
const RECONNECT_PAUSE: Duration = Duration::from_millis(10);
/// A drive without any answer for so long is broken off: no run hangs for ever.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Numbers of two lanes do not meet before a lane has sent so many.
const NUMBERS_PER_LANE: u64 = 1 << 20;

/// What a lane does over and over.
pub(crate) trait Work: Sized + Send + 'static {
    /// What all lanes are told alike.
    type Shape;

    /// The work of one lane, whose numbers begin at `sequence`.
    fn new(addr: SocketAddr, shape: &Self::Shape, sequence: u64) -> Self;

    /// What one turn counts for if all goes well.
    fn messages(&self) -> u64;

    /// One turn, begun just now: sends, reads the answers and records them. Returns when the last of them was there; an
    /// error is one of the connection.
    fn turn(
        &mut self,
        connection: &mut Connection,
        begun: Instant,
        shared: &Shared,
    ) -> impl Future<Output = io::Result<Instant>> + Send;
}

/// Which messages are produced, and by how many in a request.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    /// What each looks like.
    pub(crate) message: MessageShape,
    /// Messages in a request.
    pub(crate) batch: u32,
    /// What stands in front of the values.
    pub(crate) stamp: Stamp,
}

/// Produces: one request is a turn.
#[derive(Debug)]
pub(crate) struct Produces {
    request: ProduceRequest,
    stamp: Stamp,
    sequence: u64,
}

impl Work for Produces {
    type Shape = Shape;

    fn new(addr: SocketAddr, shape: &Shape, sequence: u64) -> Self {
        Self { request: ProduceRequest::new(addr, &shape.message, shape.batch), stamp: shape.stamp, sequence }
    }

    fn messages(&self) -> u64 {
        self.request.messages()
    }

    async fn turn(&mut self, connection: &mut Connection, begun: Instant, shared: &Shared) -> io::Result<Instant> {
        let messages = self.request.messages();
        let bytes = match self.stamp {
            Stamp::Number => self.request.numbered(self.sequence),
            Stamp::NanosSince(epoch) => {
                let nanos = u64::try_from(begun.duration_since(epoch).as_nanos()).unwrap_or(u64::MAX);
                self.request.stamped(self.sequence, nanos)
            }
        };
        self.sequence += messages;
        let status = connection.exchange(bytes).await?;
        let now = Instant::now();
        let tally = &mut *shared.tally();
        tally.record(now - begun);
        if status != 200 {
            tally.failures.answered(status, connection.body());
        } else if messages == 1 {
            tally.messages += 1;
        } else {
            tally.messages += count_lines(connection.body(), messages, &mut tally.failures);
        }
        Ok(now)
    }
}

/// When a drive ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    /// After this long.
    Elapsed(Duration),
    /// When at least so many messages have been sent.
    Messages(u64),
}

/// What stands in front of a value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stamp {
    /// The message's number.
    Number,
    /// The nanoseconds since this moment at which its request was written.
    NanosSince(Instant),
}

/// How a set of lanes is driven.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drive {
    /// When it ends.
    pub(crate) until: Until,
    /// Messages per second over all lanes at the most. Due messages that are late are sent as soon as they can be.
    pub(crate) rate: Option<f64>,
}

/// A connection and what is done on it over and over.
#[derive(Debug)]
pub(crate) struct Lane<W> {
    addr: SocketAddr,
    connection: Connection,
    work: W,
}

impl<W: Work> Lane<W> {
    /// Connects so many lanes.
    pub(crate) async fn connect(addr: SocketAddr, shape: &W::Shape, count: u32) -> Result<Vec<Self>> {
        let mut lanes = Vec::with_capacity(count as usize);
        for index in 0..count {
            let connection = Connection::connect(addr).await?;
            lanes.push(Self { addr, connection, work: W::new(addr, shape, u64::from(index) * NUMBERS_PER_LANE) });
        }
        Ok(lanes)
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
                || !shared.take_turn(drive.until, self.work.messages())
            {
                return self;
            }
            begun = match self.work.turn(&mut self.connection, begun, &shared).await {
                Ok(ended) => ended,
                Err(error) => {
                    shared.tally().failures.named(&format!("connection: {error}"));
                    self.reconnect(&shared).await;
                    Instant::now()
                }
            };
        }
    }

    /// Replaces a broken connection. Where that fails too, the next exchange will say so.
    async fn reconnect(&mut self, shared: &Shared) {
        tokio::time::sleep(RECONNECT_PAUSE).await;
        match Connection::connect(self.addr).await {
            Ok(connection) => self.connection = connection,
            Err(error) => shared.tally().failures.named(&format!("connect: {error}")),
        }
    }
}

/// What the lanes of one drive have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    begun: Instant,
    /// Between two turns of one lane.
    interval: Option<Duration>,
    sent: AtomicU64,
    tally: Mutex<Tally>,
}

impl Shared {
    /// What they have counted.
    pub(crate) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is something left to send.
    fn take_turn(&self, until: Until, messages: u64) -> bool {
        match until {
            Until::Elapsed(_) => true,
            Until::Messages(wanted) => self.sent.fetch_add(messages, Ordering::Relaxed) < wanted,
        }
    }
}

/// Counts the lines of a batch's answer that are successes; the others, missing ones too, are failures.
pub(crate) fn count_lines(body: &[u8], expected: u64, failures: &mut Failures) -> u64 {
    let (mut good, mut lines) = (0, 0);
    for line in body.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        lines += 1;
        // Successes are told by their front alone: a batch has many lines and the client little time.
        if line.starts_with(br#"{"status":20"#) {
            good += 1;
            continue;
        }
        let status = text_field(line, "status").and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        match status {
            Some(200..=299) => good += 1,
            Some(status) => failures.answered(status, line),
            None => failures.named("a line without status"),
        }
    }
    failures.add("lines missing in a batch's answer", expected.saturating_sub(lines));
    good
}

/// Drives the lanes, and returns them with what they counted and how long it took.
pub(crate) async fn drive<W: Work>(lanes: Vec<Lane<W>>, drive: Drive) -> Result<(Vec<Lane<W>>, Tally, Duration)> {
    let count = u32::try_from(lanes.len())?.max(1);
    let per_turn = lanes.first().map_or(1, |lane| lane.work.messages());
    let apart = drive.rate.map(|rate| Duration::from_secs_f64(per_turn as f64 / rate.max(0.001)));
    let shared = Arc::new(Shared {
        begun: Instant::now(),
        interval: apart.map(|apart| apart * count),
        sent: AtomicU64::new(0),
        tally: Mutex::default(),
    });
    let mut tasks = JoinSet::new();
    for (index, lane) in (0u32..).zip(lanes) {
        let first_due = apart.map_or(Duration::ZERO, |apart| apart * index);
        tasks.spawn(lane.drive(drive, Arc::clone(&shared), first_due));
    }
    let mut lanes = Vec::with_capacity(count as usize);
    let mut answers_before = 0;
    loop {
        match tokio::time::timeout(ANSWER_WITHIN, tasks.join_next()).await {
            Ok(Some(lane)) => lanes.push(lane?),
            Ok(None) => break,
            Err(_) => {
                // A long drive is fine as long as answers come in; silence is not.
                let answers = shared.tally().answers();
                if answers == answers_before {
                    return Err(Error::from(format!("no answer within {ANSWER_WITHIN:?}")));
                }
                answers_before = answers;
            }
        }
    }
    let took = shared.begun.elapsed();
    let tally = shared.tally().clone();
    Ok((lanes, tally, took))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_a_batch_is_judged_by_itself() {
        let body =
            b"{\"status\":200,\"offset\":1}\n{\"status\":429,\"error\":\"RESOURCE_EXHAUSTED\"}\n{ \"status\": 204 }\n";
        let mut failures = Failures::default();
        assert_eq!(count_lines(body, 4, &mut failures), 2);
        assert_eq!(failures.to_string(), "1 × 429 RESOURCE_EXHAUSTED, 1 × lines missing in a batch's answer");
    }
}
