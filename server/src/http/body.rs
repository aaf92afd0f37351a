//! Bodies: those that are read, within limits of size and time, and those that are sent.

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io::Cursor;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::batch::BatchBody;
use super::consume::StreamBody;
use super::error::ApiError;
use super::patience::PatienceTimer;
use crate::config::HttpSettings;

/// How much of a body that was refused for its length is still taken, to be thrown away,
const REST_BYTES_MAX: u64 = 64 << 20;
/// and for how long.
const REST_TIME_MAX: Duration = Duration::from_secs(2);

/// A piece of what is sent. Nobody shares it, so it need not be counted who does.
pub(crate) type Piece = Cursor<Cow<'static, [u8]>>;

/// What a response carries.
#[derive(Debug)]
pub(crate) enum ReplyBody {
    /// Nothing.
    Empty,
    /// All of it, at once: head and body leave in one write.
    Whole(Cow<'static, [u8]>),
    /// Messages as they come.
    Stream(Box<StreamBody>),
    /// The answers to a batch as they come.
    Batch(Box<BatchBody>),
}

impl Body for ReplyBody {
    type Data = Piece;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, Infallible>>> {
        let this = self.get_mut();
        let data = match this {
            Self::Empty => None,
            Self::Whole(_) => match std::mem::replace(this, Self::Empty) {
                Self::Whole(bytes) if !bytes.is_empty() => Some(bytes),
                _ => None,
            },
            Self::Stream(stream) => std::task::ready!(stream.poll_lines(context)).map(Cow::Owned),
            Self::Batch(batch) => std::task::ready!(batch.poll_lines(context)).map(Cow::Owned),
        };
        Poll::Ready(data.map(|data| Ok(Frame::data(Cursor::new(data)))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Stream(_) | Self::Batch(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Stream(_) | Self::Batch(_) => SizeHint::default(),
        }
    }
}

/// How slow a body may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pause_max: Duration,
    rate_min: u64,
}

impl Pace {
    pub(crate) fn of(settings: &HttpSettings) -> Self {
        Self { pause_max: settings.body_timeout, rate_min: settings.body_rate_min }
    }
}

/// A body on its way in. Nothing is timed until it first keeps us waiting, as most never do.
#[derive(Debug)]
pub(crate) struct Inflow {
    incoming: Incoming,
    pace: Pace,
    received: u64,
    clock: Option<(Instant, Pin<Box<Sleep>>)>,
    /// Whether it must come at a rate, or may trickle as long as it does not pause.
    rated: bool,
    /// Whether its sender has closed its side.
    turn: PatienceTimer,
}

impl Inflow {
    /// A body that must come swiftly.
    pub(crate) fn swift(incoming: Incoming, pace: Pace, turn: PatienceTimer) -> Self {
        Self { incoming, pace, received: 0, clock: None, rated: true, turn }
    }

    /// A body that comes as its sender has something to say.
    pub(crate) fn steady(incoming: Incoming, pace: Pace, turn: PatienceTimer) -> Self {
        Self { rated: false, ..Self::swift(incoming, pace, turn) }
    }

    /// The next piece of it, or its end.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, ApiError>> {
        loop {
            match self.poll_frame(context) {
                Poll::Ready(None) => return Poll::Ready(Ok(None)),
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Err(ApiError::invalid(format!("the body ended early: {error}")).closing()));
                }
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers say nothing here.
                    let Ok(data) = frame.into_data() else { continue };
                    self.received += data.len() as u64;
                    self.excuse();
                    return Poll::Ready(Ok(Some(data)));
                }
                // Everything that came before the end has been handed on by now.
                Poll::Pending if self.turn.is_closed() => {
                    return Poll::Ready(Err(ApiError::invalid("the body ended early").closing()));
                }
                Poll::Pending => return self.wait(context),
            }
        }
    }

    /// The next frame. To take one rings for hyper to hand on more; of a body that is complete there is no more.
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let incoming = pin!(&mut self.incoming);
        // In HTTP/2, where no connection has a turn, it may also ring for room to be given back.
        if !self.turn.is_ours() {
            return incoming.poll_frame(context);
        }
        self.turn.bell().hold();
        let polled = incoming.poll_frame(context);
        self.turn.bell().release(!self.incoming.is_end_stream());
        polled
    }

    fn wait(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, ApiError>> {
        let pause_max = self.pace.pause_max;
        let (began, pause) = self.clock.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(pause_max))));
        let due = self.pace.pause_max.as_secs() + self.received / self.pace.rate_min.max(1);
        let too_slow = self.rated && began.elapsed().as_secs() > due;
        if too_slow || pause.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(ApiError::invalid("the body comes too slowly").closing()));
        }
        Poll::Pending
    }

    /// Whatever pause there was is forgotten; the next begins now.
    pub(crate) fn excuse(&mut self) {
        if let Some((_, pause)) = &mut self.clock {
            pause.as_mut().reset(Instant::now() + self.pace.pause_max);
        }
    }

    /// All of it, if it is not longer than `max`.
    pub(crate) async fn whole(mut self, max: usize) -> Result<Bytes, ApiError> {
        if self.incoming.size_hint().lower() > max as u64 {
            return Err(self.too_long(max));
        }
        let Some(first) = self.next().await? else { return Ok(Bytes::new()) };
        if first.len() > max {
            return Err(self.too_long(max));
        }
        if self.incoming.is_end_stream() {
            return Ok(first);
        }
        let mut all = BytesMut::from(first);
        while let Some(more) = self.next().await? {
            if all.len() + more.len() > max {
                return Err(self.too_long(max));
            }
            all.extend_from_slice(&more);
        }
        Ok(all.freeze())
    }

    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        poll_fn(|context| self.poll(context)).await
    }

    /// The refusal of a body that is too long. It is answered now; but many a sender listens only when it has said all, and a
    /// connection closed in its face would be all it learns. So for a while the rest is taken and thrown away.
    fn too_long(mut self, max: usize) -> ApiError {
        tokio::task::spawn_local(async move {
            let rest = async { while self.received < REST_BYTES_MAX && matches!(self.next().await, Ok(Some(_))) {} };
            let _ = timeout(REST_TIME_MAX, rest).await;
        });
        ApiError::too_large(format!("the body may have at most {max} bytes")).closing()
    }
}
