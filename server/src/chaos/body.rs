//! Bodies on their way through the gateway.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// Pieces that are under way between two tasks.
const PIECES_MAX: usize = 4;

/// What was written before a cut has so long to leave.
const CUT_DELAY: Duration = Duration::from_millis(5);

/// The connection, or the stream of HTTP/2, is to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cut by --chaos")]
pub(super) struct Cut;

/// A body that is known as a whole, or comes in pieces.
#[derive(Debug)]
pub(super) enum GatewayBody {
    Whole(Option<Bytes>),
    Pieces(mpsc::Receiver<Result<Bytes, Cut>>),
}

impl GatewayBody {
    pub(super) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()).filter(|bytes: &Bytes| !bytes.is_empty()))
    }

    /// A body, and where its pieces come from.
    pub(super) fn pieces() -> (PieceSender, Self) {
        let (sender, pieces) = mpsc::channel(PIECES_MAX);
        (PieceSender(sender), Self::Pieces(pieces))
    }
}

impl Body for GatewayBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let piece = match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(Ok)),
            Self::Pieces(pieces) => pieces.poll_recv(context),
        };
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Pieces(_) => SizeHint::default(),
        }
    }
}

/// Sends the pieces of a body. The body ends when this is dropped.
#[derive(Debug)]
pub(super) struct PieceSender(mpsc::Sender<Result<Bytes, Cut>>);

/// The receiver of a body is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone;

impl PieceSender {
    /// Sends a piece, once there is room.
    pub(super) async fn send(&self, piece: Bytes) -> Result<(), Gone> {
        if piece.is_empty() {
            return Ok(());
        }
        self.0.send(Ok(piece)).await.map_err(|_| Gone)
    }

    /// Resolves when the receiver is gone.
    pub(super) async fn gone(&self) {
        self.0.closed().await;
    }

    /// Cuts the body, after what was sent has left.
    pub(super) async fn cut(self) {
        tokio::time::sleep(CUT_DELAY).await;
        let _ = self.0.send(Err(Cut)).await;
    }
}
