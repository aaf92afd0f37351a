//! Bodies of responses: whole, or lines as they become available.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt::Debug;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use hyper::body::{Body, Frame, SizeHint};

use super::timeouts::OpenRequest;
use super::unsent::{OpenStream, Unsent, UnsentBytes};

/// A chunk of a body. Unlike `Bytes` it is not reference counted: it has one owner.
#[derive(Debug)]
pub(crate) struct Chunk {
    bytes: Cow<'static, [u8]>,
    /// Bytes that were taken.
    taken: usize,
    /// Counts it as unsent.
    unsent: Option<UnsentBytes>,
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        self.bytes.len() - self.taken
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    fn advance(&mut self, count: usize) {
        assert!(count <= self.remaining(), "a chunk is not taken beyond its end");
        self.taken += count;
        if let Some(unsent) = &self.unsent {
            unsent.on_progress();
        }
    }
}

/// A source of lines, such as a stream of deliveries.
pub(crate) trait PollLines: Debug {
    /// The next lines, or the end.
    fn poll_lines(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>>;

    /// Whether its client may stop to read for as long as it likes.
    fn may_pause(&self) -> bool {
        false
    }
}

/// The body of a response.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    Empty,
    /// Known as a whole: head and body leave in one write.
    Whole(Cow<'static, [u8]>),
    /// Lines as they become available.
    Lines(Box<dyn PollLines>),
}

impl ResponseBody {
    /// Bytes of memory that a body known as a whole uses.
    pub(crate) fn owned_bytes(&self) -> usize {
        match self {
            Self::Whole(Cow::Owned(bytes)) => bytes.len(),
            _ => 0,
        }
    }
}

/// A whole body of HTTP/1 up to this many bytes is not counted as unsent: a connection has one at a time.
const UNCOUNTED_BYTES_MAX: usize = 16 << 10;

/// The body of a response on its way to the client, counted as unsent.
#[derive(Debug)]
pub(crate) struct SentBody {
    body: ResponseBody,
    /// `None` for small bodies that are not counted.
    tracking: Option<Tracking>,
}

#[derive(Debug)]
struct Tracking {
    unsent: Unsent,
    /// A body that is known as a whole is unsent from the beginning.
    whole: Option<UnsentBytes>,
    _stream: Option<OpenStream>,
    /// The request, if its connection does not know by itself when its last one is complete.
    _request: Option<OpenRequest>,
}

impl SentBody {
    /// A body to be sent over the connection of `unsent`. HTTP/2 requests come with `request`.
    pub(super) fn new(body: ResponseBody, unsent: &Unsent, request: Option<OpenRequest>) -> Self {
        let bytes = body.owned_bytes();
        let stream = match &body {
            ResponseBody::Lines(lines) => lines.may_pause().then(|| unsent.open_stream()),
            _ if bytes <= UNCOUNTED_BYTES_MAX && request.is_none() => return Self { body, tracking: None },
            _ => None,
        };
        let whole = (bytes > 0).then(|| unsent.count(bytes));
        let tracking = Tracking { unsent: unsent.clone(), whole, _stream: stream, _request: request };
        Self { body, tracking: Some(tracking) }
    }
}

impl Body for SentBody {
    type Data = Chunk;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Chunk>, Infallible>>> {
        let Self { body, tracking } = self.get_mut();
        let (bytes, unsent) = match body {
            ResponseBody::Empty => return Poll::Ready(None),
            ResponseBody::Whole(_) => match std::mem::replace(body, ResponseBody::Empty) {
                ResponseBody::Whole(bytes) if !bytes.is_empty() => {
                    (bytes, tracking.as_mut().and_then(|tracking| tracking.whole.take()))
                }
                _ => return Poll::Ready(None),
            },
            ResponseBody::Lines(lines) => {
                if let Some(tracking) = tracking {
                    ready!(tracking.unsent.poll_room(context));
                }
                let Some(bytes) = ready!(lines.poll_lines(context)) else { return Poll::Ready(None) };
                let unsent = tracking.as_ref().map(|tracking| tracking.unsent.count(bytes.len()));
                (Cow::Owned(bytes), unsent)
            }
        };
        Poll::Ready(Some(Ok(Frame::data(Chunk { bytes, taken: 0, unsent }))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            ResponseBody::Empty => true,
            ResponseBody::Whole(bytes) => bytes.is_empty(),
            ResponseBody::Lines(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            ResponseBody::Empty => SizeHint::with_exact(0),
            ResponseBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            ResponseBody::Lines(_) => SizeHint::default(),
        }
    }
}
