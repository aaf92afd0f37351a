//! What a reactor has under way, for metrics and for a stop.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::request_figures::RequestFigures;

/// Written by one reactor, read by all.
#[derive(Debug, Default)]
pub(crate) struct ReactorFigures {
    pending_replies: AtomicUsize,
    streams: AtomicUsize,
    stream_bytes: AtomicUsize,
    deliveries_refused: AtomicU64,
    /// The requests that it has answered.
    pub(crate) requests: RequestFigures,
}

/// The figures of all reactors together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReactorTotals {
    /// Replies not yet released.
    pub(crate) pending_replies: usize,
    /// Connected streams.
    pub(crate) streams: usize,
    /// Bytes of deliveries that streams have not taken yet.
    pub(crate) stream_bytes: usize,
    /// Deliveries that were withdrawn for want of room.
    pub(crate) deliveries_refused: u64,
}

impl ReactorFigures {
    pub(crate) fn set(&self, figures: ReactorTotals) {
        self.pending_replies.store(figures.pending_replies, Ordering::Relaxed);
        self.streams.store(figures.streams, Ordering::Relaxed);
        self.stream_bytes.store(figures.stream_bytes, Ordering::Relaxed);
        self.deliveries_refused.store(figures.deliveries_refused, Ordering::Relaxed);
    }

    pub(crate) fn set_pending_replies(&self, pending_replies: usize) {
        self.pending_replies.store(pending_replies, Ordering::Relaxed);
    }
}

impl ReactorTotals {
    /// The sums over `reactors`.
    pub(crate) fn sum<'a>(reactors: impl IntoIterator<Item = &'a ReactorFigures>) -> Self {
        reactors.into_iter().fold(Self::default(), |sum, reactor| Self {
            pending_replies: sum.pending_replies + reactor.pending_replies.load(Ordering::Relaxed),
            streams: sum.streams + reactor.streams.load(Ordering::Relaxed),
            stream_bytes: sum.stream_bytes + reactor.stream_bytes.load(Ordering::Relaxed),
            deliveries_refused: sum.deliveries_refused + reactor.deliveries_refused.load(Ordering::Relaxed),
        })
    }
}
