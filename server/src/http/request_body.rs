//! Bodies of requests, received within limits of size and time.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::body_budget::{BodyBudget, BodyBytes};
use super::error::ApiError;
use super::timeouts::ConnectionHandle;
use crate::config::HttpSettings;

/// How much of a refused body is still received and dropped.
const DRAIN_BYTES_MAX: u64 = 64 << 20;
/// The same of a client that is not known.
const UNKNOWN_DRAIN_BYTES_MAX: u64 = 256 << 10;
/// For how long.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);

/// How slow a body may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyTimeouts {
    pause_max: Duration,
    rate_min: u64,
}

impl BodyTimeouts {
    pub(crate) fn of(settings: &HttpSettings) -> Self {
        Self { pause_max: settings.body_timeout, rate_min: settings.body_rate_min }
    }
}

/// The body of a request. Timers are created when it is first waited for; most bodies arrive with their heads.
#[derive(Debug)]
pub(crate) struct RequestBody {
    incoming: Incoming,
    timeouts: BodyTimeouts,
    received: u64,
    /// When the first wait began, and the timer of the current pause.
    wait: Option<(Instant, Pin<Box<Sleep>>)>,
    /// Whether the minimum rate applies.
    has_min_rate: bool,
    connection: ConnectionHandle,
}

impl RequestBody {
    /// A body that must arrive at the minimum rate.
    pub(crate) fn new(incoming: Incoming, timeouts: BodyTimeouts, connection: ConnectionHandle) -> Self {
        Self { incoming, timeouts, received: 0, wait: None, has_min_rate: true, connection }
    }

    /// A body that is sent as its content becomes available, at any rate.
    pub(crate) fn streamed(incoming: Incoming, timeouts: BodyTimeouts, connection: ConnectionHandle) -> Self {
        Self { has_min_rate: false, ..Self::new(incoming, timeouts, connection) }
    }

    /// The next chunk, or the end.
    pub(crate) fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, ApiError>> {
        loop {
            match self.poll_frame(context) {
                Poll::Ready(None) => return Poll::Ready(Ok(None)),
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Err(ApiError::invalid(format!("the body ended early: {error}")).closing()));
                }
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers are ignored.
                    let Ok(data) = frame.into_data() else { continue };
                    self.received += data.len() as u64;
                    self.restart_pause();
                    return Poll::Ready(Ok(Some(data)));
                }
                // Everything the peer sent before it closed its side has been received.
                Poll::Pending if self.connection.is_peer_closed() => {
                    return Poll::Ready(Err(ApiError::invalid("the body ended early").closing()));
                }
                Poll::Pending => return self.poll_timeouts(context),
            }
        }
    }

    /// The next frame. Taking one wakes hyper for more, which is held back at the end of the body.
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let incoming = pin!(&mut self.incoming);
        // In HTTP/2, where no response is ever pending here, the wake-up may also be for flow control and is needed.
        if !self.connection.is_response_pending() {
            return incoming.poll_frame(context);
        }
        self.connection.waker().hold();
        let polled = incoming.poll_frame(context);
        self.connection.waker().release(!self.incoming.is_end_stream());
        polled
    }

    fn poll_timeouts(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, ApiError>> {
        let BodyTimeouts { pause_max, rate_min } = self.timeouts;
        let (began, pause) = self.wait.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(pause_max))));
        let due_s = pause_max.as_secs() + self.received / rate_min.max(1);
        let is_below_rate = self.has_min_rate && began.elapsed().as_secs() > due_s;
        if is_below_rate || pause.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(ApiError::invalid("the body arrives too slowly").closing()));
        }
        Poll::Pending
    }

    /// Restarts the timeout of a pause.
    pub(crate) fn restart_pause(&mut self) {
        if let Some((_, pause)) = &mut self.wait {
            pause.as_mut().reset(Instant::now() + self.timeouts.pause_max);
        }
    }

    /// The whole body, unless longer than `max` or than the memory left for unfinished bodies.
    pub(crate) async fn collect(mut self, max: usize, budget: Arc<BodyBudget>) -> Result<Bytes, ApiError> {
        if self.incoming.size_hint().lower() > max as u64 {
            return Err(self.refuse_too_long(max));
        }
        let Some(first) = self.next_chunk().await? else { return Ok(Bytes::new()) };
        if first.len() > max {
            return Err(self.refuse_too_long(max));
        }
        if self.incoming.is_end_stream() {
            return Ok(first);
        }
        let announced = self.incoming.size_hint().exact().map(|rest| first.len() + rest as usize);
        let longest = announced.unwrap_or(max).min(max);
        let (mut held, mut all) = (BodyBytes::new(&budget), Vec::new());
        let mut next = Some(first);
        while let Some(more) = next {
            if all.len() + more.len() > max {
                return Err(self.refuse_too_long(max));
            }
            if held.make_room(&mut all, more.len(), longest).is_err() {
                return Err(self.refuse(ApiError::no_memory()));
            }
            all.extend_from_slice(&more);
            drop(more);
            next = self.next_chunk().await?;
        }
        Ok(all.into())
    }

    async fn next_chunk(&mut self) -> Result<Option<Bytes>, ApiError> {
        poll_fn(|context| self.poll_chunk(context)).await
    }

    fn refuse_too_long(self, max: usize) -> ApiError {
        self.refuse(ApiError::too_large(format!("the body may have at most {max} bytes")))
    }

    /// Refuses a body of which nothing was read, from a client that is not known: little is received and dropped.
    pub(crate) fn refuse_unread(self, error: ApiError) -> ApiError {
        self.drain(UNKNOWN_DRAIN_BYTES_MAX);
        error.closing()
    }

    /// Refuses a body before its end. Many clients read the response only after they have sent everything, and closing
    /// the connection at once would reset it, so the rest is received and dropped for a while.
    fn refuse(self, error: ApiError) -> ApiError {
        self.drain(DRAIN_BYTES_MAX);
        error.closing()
    }

    fn drain(mut self, bytes_max: u64) {
        tokio::task::spawn_local(async move {
            let drain = async { while self.received < bytes_max && matches!(self.next_chunk().await, Ok(Some(_))) {} };
            let _ = timeout(DRAIN_TIME_MAX, drain).await;
        });
    }
}
