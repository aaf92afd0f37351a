//! Bodies of responses: whole, or lines as they become available.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt::Debug;
use std::io::Cursor;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Frame, SizeHint};

/// A chunk of a body. Unlike `Bytes` it is not reference counted: it has one owner.
pub(crate) type Chunk = Cursor<Cow<'static, [u8]>>;

/// A source of lines, such as a stream of deliveries.
pub(crate) trait PollLines: Debug {
    /// The next lines, or the end.
    fn poll_lines(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>>;
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

impl Body for ResponseBody {
    type Data = Chunk;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Chunk>, Infallible>>> {
        let this = self.get_mut();
        let data = match this {
            Self::Empty => None,
            Self::Whole(_) => match std::mem::replace(this, Self::Empty) {
                Self::Whole(bytes) if !bytes.is_empty() => Some(bytes),
                _ => None,
            },
            Self::Lines(lines) => ready!(lines.poll_lines(context)).map(Cow::Owned),
        };
        Poll::Ready(data.map(|data| Ok(Frame::data(Cursor::new(data)))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Lines(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Lines(_) => SizeHint::default(),
        }
    }
}
