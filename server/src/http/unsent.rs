//! Bytes of responses that clients have not read yet: counted per connection and over all, bounded, and given up when
//! nothing is read.
//!
//! * A `GET` whose answer does not fit is answered with 429 `memory` instead. Other requests have taken effect when
//!   their answer is known, so that it is kept, whatever it adds.
//! * Streams and batches get nothing more to send while the budget is used up.
//! * A connection that takes nothing of what it is sent for `write_timeout` is closed, unless it has a stream: the
//!   client of a stream may pause for as long as it likes.
//! * While the budget is used up, connections that have taken nothing for [`STALLED`] are closed, streams too, the
//!   longest stalled first.
//!
//! In HTTP/1, hyper copies a body into its own buffer: what it copied counts until the buffer is flushed. In HTTP/2 the
//! chunks themselves wait for the client's flow control window, and count until they are dropped.
//!
//! The budget is one for all reactors. Each looks after its own connections; one whose bodies wait for room learns of
//! what others have freed within [`RELIEF_INTERVAL`].

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use slab::Slab;
use tokio::time::Sleep;

/// Time without progress after which a connection is closed while the budget is used up.
const STALLED: Duration = Duration::from_millis(500);
/// How often stalled connections are looked for meanwhile.
const RELIEF_INTERVAL: Duration = Duration::from_millis(100);
/// The part of the budget that one connection may use with answers to `GET`.
const CONNECTION_SHARE: usize = 8;

/// The memory that the unsent responses of all reactors share.
#[derive(Debug)]
pub(crate) struct UnsentTotals {
    max: usize,
    used: AtomicUsize,
    refused: AtomicU64,
    closed: AtomicU64,
}

impl UnsentTotals {
    /// At most `max` bytes.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, used: AtomicUsize::new(0), refused: AtomicU64::new(0), closed: AtomicU64::new(0) })
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Number of answers that were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Number of connections that were closed because their clients did not read.
    pub(crate) fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    fn is_used_up(&self) -> bool {
        self.used() >= self.max
    }
}

/// The connections of one reactor, which share the budget with those of others.
#[derive(Debug)]
pub(crate) struct UnsentBudget {
    totals: Arc<UnsentTotals>,
    connections: RefCell<Slab<Rc<Counts>>>,
    /// Bodies that wait until the budget is not used up any more.
    waiters: RefCell<Vec<Waker>>,
    is_relieving: Cell<bool>,
}

impl UnsentBudget {
    /// No connections yet.
    pub(crate) fn new(totals: Arc<UnsentTotals>) -> Rc<Self> {
        Rc::new(Self {
            totals,
            connections: RefCell::default(),
            waiters: RefCell::default(),
            is_relieving: Cell::new(false),
        })
    }

    fn release(&self, bytes: usize) {
        self.totals.used.fetch_sub(bytes, Ordering::Relaxed);
        if !self.totals.is_used_up() {
            self.wake_waiters();
        }
    }

    fn wake_waiters(&self) {
        self.waiters.take().into_iter().for_each(Waker::wake);
    }

    /// Closes stalled connections from time to time until the budget is not used up any more.
    fn relieve(self: &Rc<Self>) {
        if self.is_relieving.replace(true) {
            return;
        }
        let budget = Rc::clone(self);
        tokio::task::spawn_local(async move {
            while budget.totals.is_used_up() {
                budget.close_stalled(1);
                tokio::time::sleep(RELIEF_INTERVAL).await;
            }
            budget.is_relieving.set(false);
            budget.wake_waiters();
        });
    }

    /// Closes stalled connections until `wanted` bytes fit, as far as there are any.
    fn close_stalled(&self, wanted: usize) {
        let connections = self.connections.borrow();
        let stalled = |counts: &&Rc<Counts>| counts.bytes.get() > 0 && counts.progress_at.get().elapsed() >= STALLED;
        let mut stalled: Vec<_> = connections.iter().map(|(_, counts)| counts).filter(stalled).collect();
        stalled.sort_by_key(|counts| counts.progress_at.get());
        let mut left = self.totals.used();
        for counts in stalled {
            if left + wanted <= self.totals.max {
                return;
            }
            left = left.saturating_sub(counts.bytes.get());
            counts.is_given_up.set(true);
            counts.task.wake_by_ref();
        }
    }
}

/// What is unsent on one connection.
#[derive(Debug)]
struct Counts {
    bytes: Cell<usize>,
    /// Of these, what is in hyper's buffer; HTTP/1 only.
    buffered: Cell<usize>,
    /// The socket takes nothing.
    is_blocked: Cell<bool>,
    /// When the client last took something, or the first unsent byte appeared.
    progress_at: Cell<Instant>,
    /// Open streams.
    streams: Cell<usize>,
    is_http2: Cell<bool>,
    is_given_up: Cell<bool>,
    /// The connection's task.
    task: Waker,
}

impl Counts {
    fn is_waiting(&self) -> bool {
        self.bytes.get() > 0 || self.is_blocked.get()
    }
}

/// The unsent bytes of one connection, shared by its socket and its responses.
#[derive(Clone, Debug)]
pub(crate) struct Unsent {
    budget: Rc<UnsentBudget>,
    counts: Rc<Counts>,
}

impl Unsent {
    /// Nothing is unsent; `task` is the connection's task.
    pub(crate) fn new(budget: &Rc<UnsentBudget>, task: Waker) -> Self {
        let counts = Counts {
            bytes: Cell::new(0),
            buffered: Cell::new(0),
            is_blocked: Cell::new(false),
            progress_at: Cell::new(Instant::now()),
            streams: Cell::new(0),
            is_http2: Cell::new(false),
            is_given_up: Cell::new(false),
            task,
        };
        Self { budget: Rc::clone(budget), counts: Rc::new(counts) }
    }

    /// The connection speaks HTTP/2.
    pub(crate) fn set_http2(&self) {
        self.counts.is_http2.set(true);
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.counts.is_http2.get()
    }

    /// Whether the answer to a `GET` of so many bytes must be refused. A single answer on an idle connection is refused
    /// by the bound over all only, and not if it is alone.
    pub(crate) fn must_refuse(&self, bytes: usize) -> bool {
        let max = self.budget.totals.max;
        let (own, all) = (self.counts.bytes.get(), self.budget.totals.used());
        let is_beyond_all = all > 0 && all + bytes > max;
        if is_beyond_all {
            self.budget.close_stalled(bytes);
        }
        let is_beyond_share = own > 0 && own + bytes > max / CONNECTION_SHARE;
        if is_beyond_all || is_beyond_share {
            self.budget.totals.refused.fetch_add(1, Ordering::Relaxed);
        }
        is_beyond_all || is_beyond_share
    }

    /// The same for a `GET` whose answer is not known yet and may be large, so that it is not prepared in vain.
    pub(crate) fn must_refuse_large(&self) -> bool {
        self.must_refuse(self.budget.totals.max / CONNECTION_SHARE / 2)
    }

    /// Counts bytes of a response as unsent.
    pub(crate) fn count(&self, bytes: usize) -> UnsentBytes {
        if !self.counts.is_waiting() {
            self.counts.progress_at.set(Instant::now());
        }
        self.counts.bytes.set(self.counts.bytes.get() + bytes);
        self.budget.totals.used.fetch_add(bytes, Ordering::Relaxed);
        if self.budget.totals.is_used_up() {
            self.budget.relieve();
        }
        UnsentBytes { unsent: self.clone(), bytes }
    }

    /// Ready if more may be sent; else the waker is registered.
    pub(crate) fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        if !self.budget.totals.is_used_up() {
            return Poll::Ready(());
        }
        self.budget.relieve();
        self.budget.waiters.borrow_mut().push(context.waker().clone());
        Poll::Pending
    }

    /// A stream is open until the guard is dropped.
    pub(crate) fn open_stream(&self) -> OpenStream {
        self.counts.streams.set(self.counts.streams.get() + 1);
        OpenStream(Rc::clone(&self.counts))
    }

    /// The socket has taken bytes, or takes none.
    pub(crate) fn on_write(&self, is_taken: bool) {
        if is_taken {
            self.counts.is_blocked.set(false);
            // In HTTP/2 the bytes may be of a frame that is none of a response.
            if !self.is_http2() && self.counts.bytes.get() > 0 {
                self.counts.progress_at.set(Instant::now());
            }
        } else if !self.counts.is_blocked.replace(true) && self.counts.bytes.get() == 0 {
            self.counts.progress_at.set(Instant::now());
        }
    }

    /// Hyper's buffer is empty.
    pub(crate) fn on_flush(&self) {
        let buffered = self.counts.buffered.take();
        if buffered > 0 {
            self.release(buffered);
        }
    }

    fn release(&self, bytes: usize) {
        self.counts.bytes.set(self.counts.bytes.get() - bytes);
        self.budget.release(bytes);
    }
}

/// Response bytes that are not sent, until dropped.
#[derive(Debug)]
pub(crate) struct UnsentBytes {
    unsent: Unsent,
    bytes: usize,
}

impl UnsentBytes {
    /// The client has taken a part.
    pub(crate) fn on_progress(&self) {
        self.unsent.counts.progress_at.set(Instant::now());
    }
}

impl Drop for UnsentBytes {
    fn drop(&mut self) {
        let counts = &self.unsent.counts;
        match counts.is_http2.get() {
            true => self.unsent.release(self.bytes),
            false => counts.buffered.set(counts.buffered.get() + self.bytes),
        }
    }
}

/// An open stream.
#[derive(Debug)]
pub(crate) struct OpenStream(Rc<Counts>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get() - 1);
    }
}

/// The write timeout of a connection, which is registered with the budget as long as this exists.
#[derive(Debug)]
pub(crate) struct WriteTimeout {
    unsent: Unsent,
    key: usize,
    limit: Duration,
    /// Created when a response first has to wait: most never do.
    timer: Option<Pin<Box<Sleep>>>,
}

impl WriteTimeout {
    pub(crate) fn new(unsent: Unsent, limit: Duration) -> Self {
        let key = unsent.budget.connections.borrow_mut().insert(Rc::clone(&unsent.counts));
        Self { unsent, key, limit, timer: None }
    }

    /// Ready once the connection is to be closed. To be polled whenever the connection is pending.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.unsent.counts.is_given_up.get() {
            ready!(self.poll_timer(context));
        }
        self.unsent.budget.totals.closed.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(())
    }

    /// Ready once the client has taken nothing for the limit. If the timer fires too early, it is set again.
    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let counts = &self.unsent.counts;
        if !counts.is_waiting() || counts.streams.get() > 0 {
            return Poll::Pending;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.limit)));
        loop {
            ready!(timer.as_mut().poll(context));
            let deadline = counts.progress_at.get() + self.limit;
            if deadline <= Instant::now() {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline.into());
        }
    }
}

impl Drop for WriteTimeout {
    fn drop(&mut self) {
        self.unsent.budget.connections.borrow_mut().remove(self.key);
        self.unsent.on_flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 8_000;

    fn connection(budget: &Rc<UnsentBudget>) -> Unsent {
        Unsent::new(budget, Waker::noop().clone())
    }

    #[test]
    fn bytes_count_until_buffer_is_flushed_or_chunk_is_sent() {
        let budget = UnsentBudget::new(UnsentTotals::new(MAX));
        let (http1, http2) = (connection(&budget), connection(&budget));
        http2.set_http2();
        drop((http1.count(100), http2.count(10)));
        assert_eq!(budget.totals.used(), 100, "hyper has a copy for HTTP/1");
        http1.on_flush();
        assert_eq!(budget.totals.used(), 0);
    }

    #[test]
    fn answer_beyond_a_bound_is_refused_and_a_single_one_is_not() {
        let budget = UnsentBudget::new(UnsentTotals::new(MAX));
        let (first, second) = (connection(&budget), connection(&budget));
        first.set_http2();
        assert!(!first.must_refuse(MAX), "nothing else is unsent");
        let answer = first.count(700);
        assert!(!first.must_refuse(300) && first.must_refuse(301), "an eighth per connection");
        assert!(first.must_refuse_large() && !second.must_refuse_large());
        assert!(!second.must_refuse(MAX - 700));
        assert!(second.must_refuse(MAX), "all together");
        drop(answer);
        assert!(!second.must_refuse(MAX));
        assert!(budget.totals.refused() >= 2);
    }

    #[test]
    fn body_waits_while_budget_is_used_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let budget = UnsentBudget::new(UnsentTotals::new(MAX));
            let connection = connection(&budget);
            connection.set_http2();
            let context = Context::from_waker(Waker::noop());
            assert!(connection.poll_room(&context).is_ready());
            let bytes = connection.count(MAX);
            assert!(connection.poll_room(&context).is_pending());
            drop(bytes);
            assert!(connection.poll_room(&context).is_ready());
        });
    }

    #[test]
    fn stalled_connection_is_closed_under_pressure_even_with_a_stream() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let budget = UnsentBudget::new(UnsentTotals::new(MAX));
            let (stalled, reading) = (connection(&budget), connection(&budget));
            let mut closing = WriteTimeout::new(stalled.clone(), Duration::from_secs(3_600));
            let mut other = WriteTimeout::new(reading.clone(), Duration::from_secs(3_600));
            let _stream = stalled.open_stream();
            let (_first, second) = (stalled.count(MAX / 2), reading.count(MAX / 2));
            let context = &mut Context::from_waker(Waker::noop());
            assert!(closing.poll(context).is_pending());
            let began = Instant::now();
            while closing.poll(context).is_pending() {
                assert!(began.elapsed() < Duration::from_secs(30), "it is never closed");
                second.on_progress();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert!(other.poll(context).is_pending());
            assert_eq!(budget.totals.closed(), 1);
        });
    }
}
