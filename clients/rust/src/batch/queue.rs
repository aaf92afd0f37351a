//! The batches that wait. A line is written straight to the body of the last one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::flight::{Batch, Line};
use super::ticket::{Ticket, Tickets, stopped};
use crate::error::Error;

/// How large a batch becomes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The most lines of a batch.
    pub(crate) lines: usize,
    /// The most bytes of a batch. A line that is longer is a batch of its own.
    pub(crate) bytes: usize,
}

/// The lines that wait, as the batches that they will be.
#[derive(Debug)]
pub(crate) struct Queue<A> {
    limits: Limits,
    waiting: Mutex<Waiting<A>>,
    /// A batch has begun, or is full, or the queue is closed.
    changed: Notify,
}

#[derive(Debug)]
struct Waiting<A> {
    batches: VecDeque<Open<A>>,
    /// The bytes of the batch that was taken last: the next one has room for as many at once.
    bytes_expected: usize,
    is_closed: bool,
}

/// A batch that waits.
#[derive(Debug)]
struct Open<A> {
    body: Vec<u8>,
    lines: Vec<Line>,
    tickets: Arc<Tickets<A>>,
    since: Instant,
}

impl<A> Open<A> {
    fn new(body: Vec<u8>) -> Self {
        Self { body, lines: Vec::new(), tickets: Tickets::new(), since: Instant::now() }
    }
}

impl<A> Queue<A> {
    pub(crate) fn new(limits: Limits) -> Self {
        let limits = Limits { lines: limits.lines.max(1), ..limits };
        let waiting = Waiting { batches: VecDeque::new(), bytes_expected: 0, is_closed: false };
        Self { limits, waiting: Mutex::new(waiting), changed: Notify::new() }
    }

    /// Adds a line, which `write` writes without its end.
    ///
    /// # Errors
    /// Those of `write`, which then has added nothing; or the queue is closed.
    pub(crate) fn add(
        &self,
        is_repeatable: bool,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), Error>,
    ) -> Result<Ticket<A>, Error> {
        let mut waiting = self.waiting();
        if waiting.is_closed {
            return Err(stopped());
        }
        let Waiting { batches, bytes_expected, .. } = &mut *waiting;
        if batches.back().is_none_or(|last| last.lines.len() >= self.limits.lines) {
            batches.push_back(Open::new(Vec::with_capacity(*bytes_expected)));
        }
        let last = batches.back_mut().expect("there is one");
        let start = last.body.len();
        if let Err(error) = write(&mut last.body) {
            last.body.truncate(start);
            if last.lines.is_empty() {
                batches.pop_back();
            }
            return Err(error);
        }
        last.body.push(b'\n');
        let is_too_long = last.body.len() > self.limits.bytes && !last.lines.is_empty();
        if is_too_long {
            let line = last.body.split_off(start);
            batches.push_back(Open::new(line));
        }
        let last = batches.back_mut().expect("there is one");
        let start = last.lines.last().map_or(0, |line| line.end);
        let index = last.lines.len();
        last.lines.push(Line { index, start, end: last.body.len(), is_repeatable });
        let ticket = last.tickets.ticket(index);
        let has_news = index == 0 || last.lines.len() == self.limits.lines;
        drop(waiting);
        if has_news {
            self.changed.notify_one();
        }
        Ok(ticket)
    }

    /// Takes the next batch: at once if it is full or `linger` is over since its first line. None when the queue is
    /// closed and empty. One task at a time takes batches.
    pub(crate) async fn next(&self, linger: Duration) -> Option<Batch<A>> {
        loop {
            let until = {
                let mut waiting = self.waiting();
                let is_followed = waiting.batches.len() > 1 || waiting.is_closed;
                match waiting.batches.front() {
                    None if waiting.is_closed => return None,
                    None => None,
                    Some(first) => {
                        let until = first.since + linger;
                        let is_full = is_followed || first.lines.len() >= self.limits.lines;
                        if is_full || linger.is_zero() || Instant::now() >= until {
                            let Open { body, lines, tickets, .. } = waiting.batches.pop_front().expect("there is one");
                            waiting.bytes_expected = body.len().min(self.limits.bytes);
                            return Some(Batch::new(body, lines, tickets));
                        }
                        Some(until)
                    }
                }
            };
            match until {
                None => self.changed.notified().await,
                // The time is looked at again either way.
                Some(until) => drop(timeout_at(until, self.changed.notified()).await),
            }
        }
    }

    /// Takes no more lines. What waits is still to be taken.
    pub(crate) fn close(&self) {
        self.waiting().is_closed = true;
        self.changed.notify_one();
    }

    /// Takes no more lines, and fails those that wait.
    pub(crate) fn abort(&self) {
        let mut waiting = self.waiting();
        waiting.is_closed = true;
        let batches = std::mem::take(&mut waiting.batches);
        drop(waiting);
        for Open { body, lines, tickets, .. } in batches {
            drop(Batch::new(body, lines, tickets));
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting<A>> {
        // What writes a line does not panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const NO_LINGER: Duration = Duration::ZERO;

    fn queue(lines: usize, bytes: usize) -> Queue<()> {
        Queue::new(Limits { lines, bytes })
    }

    fn add(queue: &Queue<()>, text: &str) -> Ticket<()> {
        let write = |out: &mut Vec<u8>| {
            out.extend_from_slice(text.as_bytes());
            Ok(())
        };
        queue.add(true, write).expect("added")
    }

    #[tokio::test]
    async fn batches_end_at_their_limits_and_keep_the_order() {
        let queue = queue(3, 10);
        let tickets: Vec<_> =
            ["aa", "bb", "cc", "dd", "eeeeeee", "a line that is too long", "ff"].map(|text| add(&queue, text)).into();
        let mut bodies = Vec::new();
        for _ in 0..4 {
            bodies.push(queue.next(NO_LINGER).await.expect("a batch").text());
        }
        assert_eq!(bodies, ["aa\nbb\ncc\n", "dd\n", "eeeeeee\n", "a line that is too long\n"]);
        queue.close();
        assert_eq!(queue.next(Duration::from_secs(3_600)).await.expect("a batch").text(), "ff\n");
        assert!(queue.next(NO_LINGER).await.is_none());
        drop(tickets);
    }

    #[tokio::test]
    async fn line_that_cannot_be_written_leaves_nothing_behind() {
        let queue = queue(3, 100);
        let fail = |out: &mut Vec<u8>| {
            out.extend_from_slice(b"half of a li");
            Err(Error::misuse("no JSON"))
        };
        assert_eq!(queue.add(true, fail).expect_err("refused").kind(), ErrorKind::Misuse);
        let _first = add(&queue, "aa");
        assert_eq!(queue.add(true, fail).expect_err("refused").kind(), ErrorKind::Misuse);
        let _second = add(&queue, "bb");
        assert_eq!(queue.next(NO_LINGER).await.expect("a batch").text(), "aa\nbb\n");
    }

    #[tokio::test]
    async fn lines_of_a_queue_that_is_aborted_are_answered() {
        let queue = queue(3, 100);
        let ticket = add(&queue, "aa");
        queue.abort();
        assert_eq!(ticket.await.expect_err("stopped").error.kind(), ErrorKind::Unknown);
        assert_eq!(queue.add(true, |_| Ok(())).expect_err("closed").kind(), ErrorKind::Unknown);
        assert!(queue.next(NO_LINGER).await.is_none());
    }
}
