//! The answers that callers wait for, one list for each batch.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::{Error, ErrorKind};
use crate::transport::{Failure, Repeat};

/// The answers to the lines of a batch, by the position of the line in the batch.
#[derive(Debug)]
pub(super) struct Tickets<A> {
    /// Grows when a line is asked about, so that adding a line does not need the lock.
    slots: Mutex<Vec<Slot<A>>>,
}

#[derive(Debug)]
enum Slot<A> {
    Unanswered(Option<Waker>),
    Answered(Result<A, Failure>),
    /// The answer was taken, or its caller waits no longer.
    Closed,
}

/// The answer to one line. Dropping it says that nothing waits for the answer.
#[derive(Debug)]
pub(crate) struct Ticket<A> {
    tickets: Arc<Tickets<A>>,
    index: usize,
}

/// The failure of a line whose batch will not be answered any more.
pub(crate) fn stopped() -> Error {
    Error::new(ErrorKind::Unknown, "the sender of the batches was stopped before the broker answered")
}

impl<A> Tickets<A> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { slots: Mutex::new(Vec::new()) })
    }

    pub(super) fn ticket(self: &Arc<Self>, index: usize) -> Ticket<A> {
        Ticket { tickets: Arc::clone(self), index }
    }

    /// Answers a line, once.
    pub(super) fn answer(&self, index: usize, result: Result<A, Failure>) {
        let mut slots = self.slots(index);
        let waker = match &mut slots[index] {
            Slot::Unanswered(waker) => waker.take(),
            Slot::Closed => return,
            Slot::Answered(_) => unreachable!("a line is answered once"),
        };
        slots[index] = Slot::Answered(result);
        drop(slots);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Answers a line that has no answer with a failure.
    pub(super) fn fail(&self, index: usize, repeatable: bool) {
        let is_unanswered = matches!(self.slots(index)[index], Slot::Unanswered(_));
        if is_unanswered {
            self.answer(index, Err(Failure::new(stopped().with_repeatable(repeatable), Repeat::Never)));
        }
    }

    /// Whether nothing waits for the answer to a line.
    pub(super) fn is_closed(&self, index: usize) -> bool {
        matches!(self.slots(index)[index], Slot::Closed)
    }

    /// The slots, with one for `index`.
    fn slots(&self, index: usize) -> MutexGuard<'_, Vec<Slot<A>>> {
        // A panic cannot leave a slot half changed.
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() <= index {
            slots.resize_with(index + 1, || Slot::Unanswered(None));
        }
        slots
    }
}

impl<A> Future for Ticket<A> {
    type Output = Result<A, Failure>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let index = self.index;
        let slot = &mut self.tickets.slots(index)[index];
        match slot {
            Slot::Unanswered(waker) => {
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                    *waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
            Slot::Answered(_) => match std::mem::replace(slot, Slot::Closed) {
                Slot::Answered(result) => Poll::Ready(result),
                _ => unreachable!("the slot was answered"),
            },
            Slot::Closed => Poll::Ready(Err(Failure::new(stopped(), Repeat::Never))),
        }
    }
}

impl<A> Drop for Ticket<A> {
    fn drop(&mut self) {
        // The answer is dropped without the lock.
        let _answer = std::mem::replace(&mut self.tickets.slots(self.index)[self.index], Slot::Closed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answer_reaches_a_caller_that_asks_before_and_after_it() {
        let tickets = Tickets::<u32>::new();
        let (early, late) = (tickets.ticket(2), tickets.ticket(0));
        let waiting = tokio::spawn(early);
        tokio::task::yield_now().await;
        tickets.answer(2, Ok(7));
        tickets.answer(0, Ok(8));
        assert_eq!(waiting.await.expect("it ends").expect("an answer"), 7);
        assert_eq!(late.await.expect("an answer"), 8);
    }

    #[tokio::test]
    async fn line_without_a_caller_is_closed_and_its_answer_is_dropped() {
        let tickets = Tickets::<u32>::new();
        drop(tickets.ticket(1));
        assert!(tickets.is_closed(1) && !tickets.is_closed(0));
        tickets.answer(1, Ok(7));
        tickets.fail(1, false);
        assert!(tickets.is_closed(1));
    }
}
