//! Bounds the handshakes in progress, over all reactors.
//!
//! A client that begins a handshake and does not go on with it takes a place. When all are taken, a new connection
//! takes that of the oldest handshake if it has lasted for [`STALLED`], and waits for a place otherwise: clients that
//! stall keep others out for no longer than that.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// A handshake that takes longer loses its place when others wait. A client that answers needs two round trips.
const STALLED: Duration = Duration::from_secs(1);

/// The handshakes of all reactors.
#[derive(Debug)]
pub(crate) struct Handshakes {
    max: usize,
    in_progress: Mutex<InProgress>,
    /// A place is free.
    freed: Notify,
}

#[derive(Debug, Default)]
struct InProgress {
    next: u64,
    /// By the order in which they began.
    places: BTreeMap<u64, Place>,
}

#[derive(Debug)]
struct Place {
    begun: Instant,
    /// Ends the handshake.
    taken: Arc<Notify>,
}

/// The place of a handshake, until dropped.
#[derive(Debug)]
pub(crate) struct HandshakePlace {
    handshakes: Arc<Handshakes>,
    number: u64,
    taken: Arc<Notify>,
}

impl Handshakes {
    /// At most `max` in progress.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, in_progress: Mutex::default(), freed: Notify::new() })
    }

    /// Number of handshakes in progress.
    pub(crate) fn count(&self) -> usize {
        self.lock().places.len()
    }

    /// Waits for a place.
    pub(crate) async fn begin(self: &Arc<Self>) -> HandshakePlace {
        loop {
            let freed = self.freed.notified();
            let wait = match self.try_begin(Instant::now()) {
                Ok(place) => return place,
                Err(wait) => wait,
            };
            tokio::select! {
                () = freed => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// A place, or when to try again at the latest.
    fn try_begin(self: &Arc<Self>, now: Instant) -> Result<HandshakePlace, Duration> {
        let mut in_progress = self.lock();
        if in_progress.places.len() >= self.max
            && let Some(oldest) = in_progress.places.first_entry()
        {
            let lasted = now.saturating_duration_since(oldest.get().begun);
            if lasted < STALLED {
                return Err(STALLED - lasted);
            }
            oldest.remove().taken.notify_one();
        }
        let (number, taken) = (in_progress.next, Arc::new(Notify::new()));
        in_progress.next += 1;
        in_progress.places.insert(number, Place { begun: now, taken: Arc::clone(&taken) });
        Ok(HandshakePlace { handshakes: Arc::clone(self), number, taken })
    }

    fn lock(&self) -> MutexGuard<'_, InProgress> {
        self.in_progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HandshakePlace {
    /// Resolves when the place is given to another handshake.
    pub(crate) async fn taken(&self) {
        self.taken.notified().await;
    }
}

impl Drop for HandshakePlace {
    fn drop(&mut self) {
        if self.handshakes.lock().places.remove(&self.number).is_some() {
            self.handshakes.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn is_taken(place: &HandshakePlace) -> bool {
        pin!(place.taken()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn oldest_stalled_handshake_loses_its_place_and_a_young_one_does_not() {
        let handshakes = Handshakes::new(2);
        let begun = Instant::now();
        let first = handshakes.try_begin(begun).expect("a place");
        let second = handshakes.try_begin(begun + STALLED / 2).expect("a place");
        let wait = handshakes.try_begin(begun + STALLED * 3 / 4).expect_err("none is free");
        assert_eq!(wait, STALLED / 4);
        assert!(!is_taken(&first) && !is_taken(&second));
        let third = handshakes.try_begin(begun + STALLED).expect("the place of the first");
        assert!(is_taken(&first) && !is_taken(&second) && !is_taken(&third));
        assert_eq!(handshakes.count(), 2);
        drop(first);
        assert_eq!(handshakes.count(), 2, "its place is another's");
        drop((second, third));
        assert_eq!(handshakes.count(), 0);
    }

    #[test]
    fn waiting_handshake_gets_the_place_that_is_freed() {
        let handshakes = Handshakes::new(1);
        let first = handshakes.try_begin(Instant::now()).expect("a place");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut second = pin!(handshakes.begin());
            let polled = std::future::poll_fn(|context| std::task::Poll::Ready(second.as_mut().poll(context))).await;
            assert!(polled.is_pending());
            drop(first);
            let place = second.await;
            assert_eq!((handshakes.count(), is_taken(&place)), (1, false));
        });
    }
}
