//! Acks and completes of messages that were delivered before: nothing else is measured with them.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::traffic::{Amount, BATCH, WARM_UP_MESSAGES};
use crate::load::client::{Connection, MessageShape, NDJSON, StepRequest, post_into};
use crate::load::drive::{Shared, Work, count_lines};

const JSON: &str = "application/json";
/// Messages that a step produces.
const OUTPUTS: u32 = 2;
/// How many messages stand for a second: every one of them is delivered first, and its lease must not end before.
const PER_SECOND: f64 = 60_000.0;
/// Lines of batches for each of them.
const LINES_PER_MESSAGE: u64 = 3;

/// How a message is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settling {
    /// By an ack in a request of its own.
    Ack,
    /// By a line of a batch of acks.
    AckLines,
    /// By a complete with two outputs.
    Complete,
}

impl Settling {
    /// Messages in a request.
    fn batch(self) -> u64 {
        if self == Self::AckLines { u64::from(BATCH) } else { 1 }
    }

    /// The amount as a number of messages, so that as many can be delivered first.
    pub(super) fn amount(self, amount: Amount) -> Amount {
        let messages = match amount {
            Amount::Seconds(seconds) => Amount::Messages(((seconds * PER_SECOND) as u64).max(1)),
            Amount::Messages(_) => amount,
        };
        if self == Self::AckLines { messages.times(LINES_PER_MESSAGE) } else { messages }
    }

    /// Messages that are settled at most, with those of the warm-up: each caller may finish a request begun before.
    pub(super) fn needed(self, amount: Amount) -> u64 {
        let Amount::Messages(messages) = amount else { return 0 };
        messages + WARM_UP_MESSAGES.min(messages) + 2 * self.batch()
    }
}

/// Claims of leases, which all callers share, and what they do with them.
#[derive(Debug)]
pub(super) struct Claims {
    left: Arc<Mutex<VecDeque<Vec<u8>>>>,
    settling: Settling,
    output: MessageShape,
}

impl Claims {
    /// Of these leases; a complete produces messages of this form.
    pub(super) fn new(claims: VecDeque<Vec<u8>>, settling: Settling, output: MessageShape) -> Self {
        Self { left: Arc::new(Mutex::new(claims)), settling, output }
    }
}

/// Settles messages.
#[derive(Debug)]
pub(super) struct Settles {
    addr: SocketAddr,
    left: Arc<Mutex<VecDeque<Vec<u8>>>>,
    settling: Settling,
    step: StepRequest,
    sequence: u64,
    body: Vec<u8>,
    request: Vec<u8>,
}

impl Work for Settles {
    type Shape = Claims;

    fn new(addr: SocketAddr, shape: &Claims, sequence: u64) -> Self {
        Self {
            addr,
            left: Arc::clone(&shape.left),
            settling: shape.settling,
            step: StepRequest::new(addr, &shape.output, OUTPUTS),
            sequence,
            body: Vec::new(),
            request: Vec::new(),
        }
    }

    fn messages(&self) -> u64 {
        self.settling.batch()
    }

    async fn iterate(&mut self, connection: &mut Connection, begun: Instant, shared: &Shared) -> io::Result<Instant> {
        let settled = self.take();
        if settled == 0 {
            return Err(io::Error::other("no lease is left"));
        }
        let request = match self.settling {
            Settling::Ack => {
                post_into(&mut self.request, self.addr, "/v1/ack", JSON, self.body.trim_ascii_end());
                &self.request
            }
            Settling::AckLines => {
                post_into(&mut self.request, self.addr, "/v1/ack", NDJSON, &self.body);
                &self.request
            }
            Settling::Complete => self.step.completing(self.body.trim_ascii_end(), self.sequence),
        };
        self.sequence += u64::from(OUTPUTS);
        let status = connection.exchange(request).await?;
        let now = Instant::now();
        let stats = &mut *shared.stats();
        stats.record(now - begun);
        stats.messages += match (self.settling, status) {
            (Settling::AckLines, 200) => count_lines(connection.body(), settled, &mut stats.failures),
            (_, 200..=299) => settled,
            _ => {
                stats.failures.status(status, connection.body());
                0
            }
        };
        Ok(now)
    }
}

impl Settles {
    /// Takes the oldest claims for a request, a line each, and returns how many there are.
    fn take(&mut self) -> u64 {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        self.body.clear();
        let count = left.len().min(self.settling.batch() as usize);
        for claim in left.drain(..count) {
            self.body.extend_from_slice(&claim);
            self.body.push(b'\n');
        }
        count as u64
    }
}
