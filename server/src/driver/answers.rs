//! Who waits for which reply.
//!
//! The broker answers in the order it was asked, so waiting is a queue: no lookup, and no allocation per request.

use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use driftq_core::types::{ConsumerId, Ticket};
use driftq_core::{Refusal, Reply};
use slab::Slab;

use super::Driver;
use super::streams::StreamSeed;

/// What a command comes to.
pub(crate) type Outcome = Result<Reply, Refusal>;

/// Something that takes the replies to many commands, in order.
pub(crate) trait Gather {
    /// The reply to the oldest command not yet replied to.
    fn answered(&self, outcome: Outcome);
}

/// Who takes a reply.
pub(crate) enum Waiter {
    /// A future that was made for it.
    Future(usize),
    /// A future too, and a stream is to be connected first.
    Stream(usize, Box<StreamSeed>),
    /// One of many replies that are gathered.
    Gathered(Rc<dyn Gather>),
    /// Nobody, but nothing more will come for a stream that is gone.
    Left(ConsumerId),
    /// Nobody.
    Nobody,
}

enum Slot {
    Waiting(Option<Waker>),
    Ready(Outcome),
    /// The future is gone; the reply will be dropped when it comes.
    Abandoned,
}

/// All who wait.
#[derive(Default)]
pub(crate) struct Answers {
    first: Ticket,
    queue: VecDeque<Waiter>,
    slots: Slab<Slot>,
}

impl Answers {
    /// A place for a future to wait in.
    pub(crate) fn open_slot(&mut self) -> usize {
        self.slots.insert(Slot::Waiting(None))
    }

    /// `waiter` takes the reply to `ticket`, which has just been given out.
    pub(crate) fn expect(&mut self, ticket: Ticket, waiter: Waiter) {
        if self.queue.is_empty() {
            self.first = ticket;
        }
        assert_eq!(ticket.0, self.first.0 + self.queue.len() as u64, "tickets are given out one by one");
        self.queue.push_back(waiter);
    }

    /// Who takes the reply to `ticket`, which has come.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Waiter {
        assert_eq!(ticket, self.first, "replies come in the order of tickets");
        self.first = ticket.next();
        self.queue.pop_front().expect("every ticket is waited for")
    }

    /// Hands a future its reply. False if it is gone.
    pub(crate) fn fill(&mut self, slot: usize, outcome: Outcome) -> bool {
        match std::mem::replace(&mut self.slots[slot], Slot::Ready(outcome)) {
            Slot::Waiting(waker) => {
                if let Some(waker) = waker {
                    waker.wake();
                }
                true
            }
            Slot::Abandoned => {
                self.slots.remove(slot);
                false
            }
            Slot::Ready(_) => unreachable!("a ticket is replied to once"),
        }
    }

    fn poll(&mut self, slot: usize, waker: &Waker) -> Poll<Outcome> {
        match &mut self.slots[slot] {
            Slot::Ready(_) => match self.slots.remove(slot) {
                Slot::Ready(outcome) => Poll::Ready(outcome),
                _ => unreachable!("just seen"),
            },
            Slot::Waiting(known) => {
                match known {
                    Some(known) => known.clone_from(waker),
                    None => *known = Some(waker.clone()),
                }
                Poll::Pending
            }
            Slot::Abandoned => unreachable!("only a future that is gone abandons"),
        }
    }

    /// The future is gone. Gives back a reply that nobody has taken.
    fn abandon(&mut self, slot: usize) -> Option<Outcome> {
        match std::mem::replace(&mut self.slots[slot], Slot::Abandoned) {
            Slot::Ready(outcome) => {
                self.slots.remove(slot);
                Some(outcome)
            }
            _ => None,
        }
    }

    /// How many replies are still to come.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }
}

/// The reply to one command, once it is safe to give.
pub(crate) struct Answer<'a> {
    driver: &'a Driver,
    slot: Option<usize>,
}

impl<'a> Answer<'a> {
    pub(super) fn new(driver: &'a Driver, slot: usize) -> Self {
        Self { driver, slot: Some(slot) }
    }
}

impl Future for Answer<'_> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let slot = self.slot.expect("an answer is not polled again once given");
        let polled = self.driver.answers().poll(slot, context.waker());
        if polled.is_ready() {
            self.slot = None;
        }
        polled
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        let untaken = self.driver.answers().abandon(slot);
        if let Some(Ok(Reply::Subscribed { consumer })) = untaken {
            self.driver.leave(consumer);
        }
    }
}
