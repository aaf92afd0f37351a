//! Driving producers: every connection sends, waits for the answer, and sends again, for a time or a number of messages.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::client::{Connection, ProduceRequest, text_field};
use crate::report::{Failures, Tally};
use crate::{Error, Result};

/// A connection that fails is replaced after this pause.
const RECONNECT_PAUSE: Duration = Duration::from_millis(10);
/// A drive without any answer for so long is broken off: no run hangs for ever.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Numbers of two lanes do not meet before a lane has sent so many.
const NUMBERS_PER_LANE: u64 = 1 << 20;

/// What the messages look like and how they are spread.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    /// Where they go.
    pub(crate) topic: String,
    /// Bytes of each value.
    pub(crate) size: u32,
    /// Messages in a request.
    pub(crate) batch: u32,
    /// Partitions they are spread over.
    pub(crate) partitions: u32,
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
    /// What stands in front of the values.
    pub(crate) stamp: Stamp,
}

/// A connection and the request it sends over and over.
#[derive(Debug)]
pub(crate) struct Lane {
    addr: SocketAddr,
    connection: Connection,
    request: ProduceRequest,
    sequence: u64,
}

impl Lane {
    /// Connects so many lanes.
    pub(crate) async fn connect(addr: SocketAddr, shape: &Shape, count: u32) -> Result<Vec<Self>> {
        let mut lanes = Vec::with_capacity(count as usize);
        for index in 0..count {
            let connection = Connection::connect(addr).await?;
            let request = ProduceRequest::new(addr, &shape.topic, shape.size, shape.batch, shape.partitions);
            lanes.push(Self { addr, connection, request, sequence: u64::from(index) * NUMBERS_PER_LANE });
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
                || !shared.take_turn(drive.until, self.request.messages())
            {
                return self;
            }
            let bytes = match drive.stamp {
                Stamp::Number => self.request.numbered(self.sequence),
                Stamp::NanosSince(epoch) => {
                    let nanos = u64::try_from(begun.duration_since(epoch).as_nanos()).unwrap_or(u64::MAX);
                    self.request.stamped(self.sequence, nanos)
                }
            };
            let answer = self.connection.exchange(bytes).await;
            let now = Instant::now();
            self.sequence += self.request.messages();
            match answer {
                Ok(status) => shared.answered(status, self.connection.body(), self.request.messages(), now - begun),
                Err(error) => {
                    shared.tally().failures.named(&format!("connection: {error}"));
                    self.reconnect(&shared).await;
                }
            }
            begun = now;
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
struct Shared {
    begun: Instant,
    /// Between two requests of one lane.
    interval: Option<Duration>,
    sent: AtomicU64,
    tally: Mutex<Tally>,
}

impl Shared {
    fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is something left to send.
    fn take_turn(&self, until: Until, messages: u64) -> bool {
        match until {
            Until::Elapsed(_) => true,
            Until::Messages(wanted) => self.sent.fetch_add(messages, Ordering::Relaxed) < wanted,
        }
    }

    fn answered(&self, status: u16, body: &[u8], messages: u64, took: Duration) {
        let tally = &mut *self.tally();
        tally.record(took);
        if status != 200 {
            tally.failures.answered(status, body);
        } else if messages == 1 {
            tally.messages += 1;
        } else {
            tally.messages += count_lines(body, messages, &mut tally.failures);
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
pub(crate) async fn drive(lanes: Vec<Lane>, drive: Drive) -> Result<(Vec<Lane>, Tally, Duration)> {
    let count = u32::try_from(lanes.len())?.max(1);
    let per_request = lanes.first().map_or(1, |lane| lane.request.messages());
    let apart = drive.rate.map(|rate| Duration::from_secs_f64(per_request as f64 / rate.max(0.001)));
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
                let answers = shared.tally().latency.len();
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
