//! How long a connection may keep quiet, watched with one timer per connection.
//!
//! Hyper asks for a new timer whenever it begins to wait for a head, which on a busy connection is after every answer. Most of those are
//! never needed, so what it gets here only notes the moment; the connection's own timer is set when there is something to
//! watch and, when it goes off too early, set again.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};

use super::bell::Bell;

/// Nothing is awaited.
const NOTHING: u64 = u64::MAX;

/// What a connection's sender owes, and until when. Shared with hyper, which wants it to be `Send`; it never leaves its thread.
#[derive(Debug)]
struct Owed {
    began: Instant,
    /// Milliseconds since the beginning, or [`NOTHING`].
    until_ms: AtomicU64,
    /// The moment has passed.
    overdue: AtomicBool,
    /// A request has come, and it is for us to answer.
    our_turn: AtomicBool,
    /// The peer has closed its side.
    closed: AtomicBool,
    /// Wakes the connection's task.
    bell: Bell,
}

impl Wake for Owed {
    fn wake(self: Arc<Self>) {
        self.bell.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.bell.ring();
    }
}

/// The watch over one connection.
#[derive(Debug)]
pub(super) struct Patience {
    owed: Arc<Owed>,
    timer: Pin<Box<tokio::time::Sleep>>,
    /// When the timer goes off, or [`NOTHING`].
    set_to_ms: u64,
    /// The timer knows whom to wake. A task's waker stays the same.
    is_running: bool,
}

/// What hyper is given to wait with.
#[derive(Clone, Debug)]
pub(crate) struct PatienceTimer(Arc<Owed>);

impl Patience {
    /// The first head is owed within `limit`; the connection is `task`'s.
    pub(super) fn begin(limit: Duration, task: Waker) -> Self {
        let until_ms = u64::try_from(limit.as_millis()).unwrap_or(NOTHING - 1);
        let owed = Owed {
            began: Instant::now(),
            until_ms: AtomicU64::new(until_ms),
            overdue: AtomicBool::new(false),
            our_turn: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            bell: Bell::new(task),
        };
        Self {
            owed: Arc::new(owed),
            timer: Box::pin(tokio::time::sleep(limit)),
            set_to_ms: until_ms,
            is_running: false,
        }
    }

    pub(super) fn timer(&self) -> PatienceTimer {
        PatienceTimer(Arc::clone(&self.owed))
    }

    /// What hyper is to wake the connection's task with.
    pub(super) fn waker(&self) -> Waker {
        Arc::clone(&self.owed).into()
    }

    /// To be polled whenever the connection has nothing to do: ready when its sender has kept quiet for too long.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let owed = self.owed.until_ms.load(Ordering::Relaxed);
        if owed == NOTHING && self.set_to_ms == NOTHING {
            return Poll::Pending;
        }
        if owed < self.set_to_ms {
            self.set(owed);
        }
        if self.is_running && !self.timer.is_elapsed() {
            return Poll::Pending;
        }
        while self.timer.as_mut().poll(context).is_ready() {
            let owed = self.owed.until_ms.load(Ordering::Relaxed);
            if owed == NOTHING {
                self.set_to_ms = NOTHING;
                return Poll::Pending;
            }
            if self.owed.began + Duration::from_millis(owed) <= Instant::now() {
                self.owed.overdue.store(true, Ordering::Relaxed);
                return Poll::Ready(());
            }
            self.set(owed);
        }
        self.is_running = true;
        Poll::Pending
    }

    fn set(&mut self, at_ms: u64) {
        self.set_to_ms = at_ms;
        self.is_running = false;
        self.timer.as_mut().reset((self.owed.began + Duration::from_millis(at_ms)).into());
    }
}

impl PatienceTimer {
    /// A request's head has come: nothing is owed until hyper waits for the next.
    pub(super) fn nothing_owed(&self) {
        self.0.until_ms.store(NOTHING, Ordering::Relaxed);
    }

    /// A request of HTTP/1 has come: until hyper waits for the next, its peer may close its side and is answered all the same.
    pub(super) fn take_turn(&self) {
        self.0.our_turn.store(true, Ordering::Relaxed);
    }

    /// The answer is a stream, for which somebody must be there.
    pub(super) fn give_turn(&self) {
        self.0.our_turn.store(false, Ordering::Relaxed);
    }

    /// What hyper rings when it is to look at the connection.
    pub(super) fn bell(&self) -> &Bell {
        &self.0.bell
    }

    /// The peer has closed its side.
    pub(super) fn close(&self) {
        self.0.closed.store(true, Ordering::Relaxed);
    }

    /// Whether it has.
    pub(super) fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Relaxed)
    }

    /// Whether it is for us to answer, and the peer need not be there but to read.
    pub(super) fn is_ours(&self) -> bool {
        self.0.our_turn.load(Ordering::Relaxed)
    }
}

impl Timer for PatienceTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(Instant::now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.0.our_turn.store(false, Ordering::Relaxed);
        let until_ms = deadline.saturating_duration_since(self.0.began).as_millis();
        Box::pin(Wait { owed: Arc::clone(&self.0), until_ms: u64::try_from(until_ms).unwrap_or(NOTHING - 1) })
    }
}

/// Hyper waits for a head until this moment.
struct Wait {
    owed: Arc<Owed>,
    until_ms: u64,
}

impl Sleep for Wait {}

impl Future for Wait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<()> {
        if self.owed.overdue.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        self.owed.until_ms.store(self.until_ms, Ordering::Relaxed);
        Poll::Pending
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.owed.until_ms.store(NOTHING, Ordering::Relaxed);
    }
}
