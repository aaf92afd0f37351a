//! Completes steps: ack, result and output messages in one request each.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Acks, Counts, Steps};
use crate::load::client::{Connection, StepRequest};

/// The range of message numbers of each completer.
const NUMBERS_PER_COMPLETER: u64 = 1 << 24;

/// One connection of a worker, on which it completes steps one after the other.
pub(super) struct Completer {
    connection: Connection,
    request: StepRequest,
    sequence: u64,
    acks: Arc<Acks>,
    counts: Arc<Counts>,
}

impl Completer {
    /// Connects; `number` is unique among all completers.
    pub(super) async fn connect(
        addr: SocketAddr,
        steps: &Steps,
        number: u64,
        acks: Arc<Acks>,
        counts: Arc<Counts>,
    ) -> io::Result<Self> {
        let request = StepRequest::new(addr, &steps.output, steps.outputs);
        let sequence = number * NUMBERS_PER_COMPLETER;
        Ok(Self { connection: Connection::connect(addr).await?, request, sequence, acks, counts })
    }

    /// Completes until stopped.
    pub(super) async fn run(mut self) {
        let mut claim = Vec::new();
        while !self.counts.stopped.load(Ordering::Relaxed) {
            if !self.take(&mut claim) {
                self.acks.wake.notified().await;
                continue;
            }
            if let Err(error) = self.complete(&claim).await {
                self.counts.stats().failures.named(&format!("complete connection: {error}"));
                break;
            }
        }
        // Wakes the worker's next completer.
        self.acks.wake.notify_one();
    }

    /// Takes the oldest claim, and wakes another completer of this worker if there are more.
    fn take(&self, claim: &mut Vec<u8>) -> bool {
        let mut lines = self.acks.lines();
        let taken = lines.take_one(claim);
        if taken && !lines.is_empty() {
            self.acks.wake.notify_one();
        }
        taken
    }

    async fn complete(&mut self, claim: &[u8]) -> io::Result<()> {
        let request = self.request.completing(claim, self.sequence);
        let begun = Instant::now();
        let status = self.connection.exchange(request).await?;
        self.counts.completes().record(begun.elapsed());
        self.sequence += self.request.outputs();
        match status {
            200 => _ = self.counts.acked.fetch_add(1, Ordering::Relaxed),
            status => self.counts.stats().failures.status(status, self.connection.body()),
        }
        Ok(())
    }
}
