//! Idle and head timeout of a connection, with one timer per connection.
//!
//! Hyper requests a new timer whenever it begins to wait for a head, which on a busy connection is after every
//! response, and most never fire. So the timer it gets here only records the deadline. The connection's own timer is
//! set when there is a deadline to watch and, if it fires too early, set again. One timer per connection was measured
//! to be worth it (`docs/performance.md`).

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};

use super::gated_waker::GatedWaker;
use crate::tls::PeerNames;

const NO_DEADLINE: u64 = u64::MAX;

/// State of a connection that hyper's timer, the socket and request bodies share. Hyper requires `Send`, hence atomics;
/// all accesses come from one thread.
#[derive(Debug)]
struct ConnectionState {
    opened_at: Instant,
    /// When the next head must have arrived, in milliseconds since `opened_at`, or [`NO_DEADLINE`].
    deadline_ms: AtomicU64,
    /// The deadline has passed.
    expired: AtomicBool,
    /// A request has arrived, and its response is not complete.
    response_pending: AtomicBool,
    /// The socket looks whether the peer closes its side.
    peer_watched: AtomicBool,
    /// The peer has closed its side.
    peer_closed: AtomicBool,
    /// Requests whose responses are not complete; HTTP/2 only.
    open_requests: AtomicUsize,
    /// Wakes the connection's task.
    waker: GatedWaker,
    peer: Peer,
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) address: IpAddr,
    /// The names in the certificate that the client has shown, which the handshake has verified.
    pub(super) certificate: Option<Arc<PeerNames>>,
}

impl Wake for ConnectionState {
    fn wake(self: Arc<Self>) {
        self.waker.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.waker.wake();
    }
}

/// The timeout of one connection.
#[derive(Debug)]
pub(super) struct HeadTimeout {
    state: Arc<ConnectionState>,
    timer: Pin<Box<tokio::time::Sleep>>,
    /// When the timer fires, or [`NO_DEADLINE`].
    timer_ms: u64,
    /// The timer has the task's waker, which stays the same.
    is_registered: bool,
}

/// A shared handle on the state of a connection; also the timer that hyper waits with.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionHandle(Arc<ConnectionState>);

impl HeadTimeout {
    /// The first head must arrive within `limit`; `task` is the connection's task.
    pub(super) fn start(limit: Duration, task: Waker, peer: Peer) -> Self {
        let deadline_ms = u64::try_from(limit.as_millis()).unwrap_or(NO_DEADLINE - 1);
        let state = ConnectionState {
            opened_at: Instant::now(),
            deadline_ms: AtomicU64::new(deadline_ms),
            expired: AtomicBool::new(false),
            response_pending: AtomicBool::new(false),
            peer_watched: AtomicBool::new(false),
            peer_closed: AtomicBool::new(false),
            open_requests: AtomicUsize::new(0),
            waker: GatedWaker::new(task),
            peer,
        };
        Self {
            state: Arc::new(state),
            timer: Box::pin(tokio::time::sleep(limit)),
            timer_ms: deadline_ms,
            is_registered: false,
        }
    }

    pub(super) fn handle(&self) -> ConnectionHandle {
        ConnectionHandle(Arc::clone(&self.state))
    }

    /// The waker that hyper is polled with.
    pub(super) fn waker(&self) -> Waker {
        Arc::clone(&self.state).into()
    }

    /// Ready once the deadline has passed. To be polled whenever the connection is pending.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let deadline_ms = self.state.deadline_ms.load(Ordering::Relaxed);
        if deadline_ms == NO_DEADLINE && self.timer_ms == NO_DEADLINE {
            return Poll::Pending;
        }
        if deadline_ms < self.timer_ms {
            self.set_timer(deadline_ms);
        }
        if self.is_registered && !self.timer.is_elapsed() {
            return Poll::Pending;
        }
        while self.timer.as_mut().poll(context).is_ready() {
            let deadline_ms = self.state.deadline_ms.load(Ordering::Relaxed);
            if deadline_ms == NO_DEADLINE {
                self.timer_ms = NO_DEADLINE;
                return Poll::Pending;
            }
            if self.state.opened_at + Duration::from_millis(deadline_ms) <= Instant::now() {
                self.state.expired.store(true, Ordering::Relaxed);
                return Poll::Ready(());
            }
            self.set_timer(deadline_ms);
        }
        self.is_registered = true;
        Poll::Pending
    }

    /// Waits once more for as long as `limit`.
    pub(super) fn extend(&mut self, limit: Duration) {
        let handle = self.handle();
        handle.set_deadline(limit);
        self.state.expired.store(false, Ordering::Relaxed);
    }

    fn set_timer(&mut self, at_ms: u64) {
        self.timer_ms = at_ms;
        self.is_registered = false;
        self.timer.as_mut().reset((self.state.opened_at + Duration::from_millis(at_ms)).into());
    }
}

impl ConnectionHandle {
    /// A head has arrived: there is no deadline until hyper waits for the next.
    pub(super) fn clear_deadline(&self) {
        self.0.deadline_ms.store(NO_DEADLINE, Ordering::Relaxed);
    }

    /// The next head must arrive within `limit`.
    fn set_deadline(&self, limit: Duration) {
        let deadline = (self.0.opened_at.elapsed() + limit).as_millis();
        self.0.deadline_ms.store(u64::try_from(deadline).unwrap_or(NO_DEADLINE - 1), Ordering::Relaxed);
    }

    /// Counts an HTTP/2 request until its response is complete. Hyper does not tell when such a connection is idle:
    /// after the last one, the next must arrive within `idle_max`.
    pub(super) fn open_request(&self, idle_max: Duration) -> OpenRequest {
        self.0.open_requests.fetch_add(1, Ordering::Relaxed);
        OpenRequest { connection: self.clone(), idle_max }
    }

    /// While a response is pending the peer may close its side and still gets the response. Set for each HTTP/1
    /// request, cleared for a stream, which ends with its peer.
    pub(super) fn set_response_pending(&self, pending: bool) {
        self.0.response_pending.store(pending, Ordering::Relaxed);
    }

    /// Whether a response is pending.
    pub(super) fn is_response_pending(&self) -> bool {
        self.0.response_pending.load(Ordering::Relaxed)
    }

    /// Has the socket look whether the peer closes its side while the response to this HTTP/1 request is pending or
    /// sent. Hyper itself reads nothing after the request before the response is complete.
    pub(super) fn watch_peer(&self) {
        if self.is_response_pending() {
            self.0.peer_watched.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the socket looks for that.
    pub(super) fn is_peer_watched(&self) -> bool {
        self.0.peer_watched.load(Ordering::Relaxed)
    }

    /// The socket need not look any more.
    pub(super) fn unwatch_peer(&self) {
        self.0.peer_watched.store(false, Ordering::Relaxed);
    }

    /// The other end.
    pub(super) fn peer(&self) -> &Peer {
        &self.0.peer
    }

    /// The waker that hyper is polled with.
    pub(super) fn waker(&self) -> &GatedWaker {
        &self.0.waker
    }

    /// The peer has closed its side.
    pub(super) fn set_peer_closed(&self) {
        self.0.peer_closed.store(true, Ordering::Relaxed);
    }

    /// Whether the peer has closed its side.
    pub(super) fn is_peer_closed(&self) -> bool {
        self.0.peer_closed.load(Ordering::Relaxed)
    }
}

/// An HTTP/2 request whose response is not complete.
#[derive(Debug)]
pub(super) struct OpenRequest {
    connection: ConnectionHandle,
    idle_max: Duration,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        if self.connection.0.open_requests.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.connection.set_deadline(self.idle_max);
            self.connection.0.waker.wake();
        }
    }
}

impl Timer for ConnectionHandle {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(Instant::now() + duration)
    }

    /// Called when hyper begins to wait for a head, so the response before is complete.
    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.set_response_pending(false);
        self.unwatch_peer();
        let deadline_ms = deadline.saturating_duration_since(self.0.opened_at).as_millis();
        let deadline_ms = u64::try_from(deadline_ms).unwrap_or(NO_DEADLINE - 1);
        Box::pin(HeadDeadline { state: Arc::clone(&self.0), deadline_ms })
    }
}

/// Hyper's wait for a head: records the deadline when polled, resolves once it has expired.
struct HeadDeadline {
    state: Arc<ConnectionState>,
    deadline_ms: u64,
}

impl Sleep for HeadDeadline {}

impl Future for HeadDeadline {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<()> {
        if self.state.expired.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        self.state.deadline_ms.store(self.deadline_ms, Ordering::Relaxed);
        Poll::Pending
    }
}

impl Drop for HeadDeadline {
    fn drop(&mut self) {
        self.state.deadline_ms.store(NO_DEADLINE, Ordering::Relaxed);
    }
}
