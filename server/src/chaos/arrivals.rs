//! The order in which requests came, and which of them have been carried out.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

/// How long a request waits for a later one.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(50);

/// Numbers requests as they come.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    last: Cell<u64>,
    /// The highest number of a request that has been carried out.
    carried_out_max: Cell<u64>,
    carried_out: Notify,
}

/// The number of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival(u64);

impl Arrivals {
    /// A request has come.
    pub(super) fn arrive(&self) -> Arrival {
        self.last.set(self.last.get() + 1);
        Arrival(self.last.get())
    }

    /// The broker has carried it out.
    pub(super) fn carry_out(&self, arrival: Arrival) {
        self.carried_out_max.set(self.carried_out_max.get().max(arrival.0));
        self.carried_out.notify_waiters();
    }

    /// Waits until a request that came later has been carried out, at most [`WAIT_MAX`].
    pub(super) async fn wait_for_later(&self, arrival: Arrival) {
        let later = async {
            loop {
                let carried_out = self.carried_out.notified();
                if self.carried_out_max.get() > arrival.0 {
                    return;
                }
                carried_out.await;
            }
        };
        // That none came in time is no error.
        let _ = timeout(WAIT_MAX, later).await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn is_ready<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> bool {
        matches!(future.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
    }

    #[tokio::test]
    async fn request_waits_for_a_later_one_and_not_for_ever() {
        let arrivals = Arrivals::default();
        let (first, second, third) = (arrivals.arrive(), arrivals.arrive(), arrivals.arrive());
        let mut waiting = pin!(arrivals.wait_for_later(second));
        assert!(!is_ready(waiting.as_mut()));
        arrivals.carry_out(first);
        assert!(!is_ready(waiting.as_mut()), "it came earlier");
        arrivals.carry_out(third);
        assert!(is_ready(waiting.as_mut()));
        arrivals.wait_for_later(third).await;
    }
}
