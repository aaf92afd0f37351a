//! Replies that wait for the sync: which consumer of a reply belongs to which ticket.
//!
//! The broker replies in the order of commands, so the waiters are a queue: no lookup and no allocation per request.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Poll, Waker};

use driftq_core::types::{ConsumerId, Ticket, WallClock};
use driftq_core::{Refusal, Reply};
use slab::Slab;

use super::streams::StreamSpec;

/// The reply to a command.
pub(crate) type ReplyResult = Result<Reply, Refusal>;

/// Takes the replies to many commands, in order.
pub(crate) trait ReplySink {
    /// Takes the reply to the oldest command that has none yet; `clock` converts its times to those shown to clients.
    fn reply(&self, result: ReplyResult, clock: &WallClock);
}

/// What takes a reply.
pub(crate) enum Waiter {
    /// A future, by its slot.
    Future(usize),
    /// A future whose reply connects a stream first.
    Stream(usize, Box<StreamSpec>),
    /// A sink that takes many replies.
    Sink(Rc<dyn ReplySink>),
    /// The reply is dropped; after it, no delivery to this disconnected stream can follow.
    StreamClosed(ConsumerId),
    /// The reply is dropped.
    Discard,
}

enum Slot {
    Waiting(Option<Waker>),
    Ready(ReplyResult),
    /// The future was dropped; so will the reply be.
    Abandoned,
}

/// The queue of waiters, and the slots of those that are futures.
#[derive(Default)]
pub(crate) struct PendingReplies {
    first: Ticket,
    queue: VecDeque<Waiter>,
    slots: Slab<Slot>,
}

impl PendingReplies {
    /// A slot for a future to wait in.
    pub(crate) fn open_slot(&mut self) -> usize {
        self.slots.insert(Slot::Waiting(None))
    }

    /// Registers `waiter` for the reply to `ticket`, the newest ticket.
    pub(crate) fn register(&mut self, ticket: Ticket, waiter: Waiter) {
        if self.queue.is_empty() {
            self.first = ticket;
        }
        assert_eq!(ticket.0, self.first.0 + self.queue.len() as u64, "tickets are issued one by one");
        self.queue.push_back(waiter);
    }

    /// The waiter of `ticket`, whose reply is released.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Waiter {
        assert_eq!(ticket, self.first, "replies are released in the order of tickets");
        self.first = ticket.next();
        self.queue.pop_front().expect("every ticket has a waiter")
    }

    /// Stores the reply in its slot and wakes the future. False if the future was dropped.
    pub(crate) fn fill(&mut self, slot: usize, result: ReplyResult) -> bool {
        match std::mem::replace(&mut self.slots[slot], Slot::Ready(result)) {
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
            Slot::Ready(_) => unreachable!("a ticket has one reply"),
        }
    }

    /// The reply in a slot, which is closed then; else registers `waker`.
    pub(crate) fn poll(&mut self, slot: usize, waker: &Waker) -> Poll<ReplyResult> {
        match &mut self.slots[slot] {
            Slot::Ready(_) => match self.slots.remove(slot) {
                Slot::Ready(result) => Poll::Ready(result),
                _ => unreachable!("the slot was ready"),
            },
            Slot::Waiting(registered) => {
                match registered {
                    Some(registered) => registered.clone_from(waker),
                    None => *registered = Some(waker.clone()),
                }
                Poll::Pending
            }
            Slot::Abandoned => unreachable!("the future of an abandoned slot was dropped"),
        }
    }

    /// Closes the slot of a dropped future. Returns a reply that was ready and not taken.
    pub(crate) fn abandon(&mut self, slot: usize) -> Option<ReplyResult> {
        match std::mem::replace(&mut self.slots[slot], Slot::Abandoned) {
            Slot::Ready(result) => {
                self.slots.remove(slot);
                Some(result)
            }
            _ => None,
        }
    }

    /// Number of replies not yet released.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }
}
