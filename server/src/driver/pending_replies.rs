//! Replies that wait for the sync: which consumer of a reply belongs to which ticket.
//!
//! The broker replies in the order of commands, except that a reply whose bytes have to be read first (a peek, a
//! stored result) is overtaken by others. So the waiters are a queue with gaps: no lookup and no allocation per
//! request.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Poll, Waker};

use driftq_core::types::{ConsumerId, Ticket, WallClock};
use driftq_core::{Refusal, Reply};
use slab::Slab;

use super::streams::StreamSpec;

/// The reply to a command.
pub(crate) type ReplyResult = Result<Reply, Refusal>;

/// Takes the replies to many commands.
pub(crate) trait ReplySink {
    /// Takes the reply to the command that was submitted with this number; `clock` converts its times to those shown
    /// to clients. Replies come in the order of the commands, unless their bytes have to be read.
    fn reply(&self, number: u64, result: ReplyResult, clock: &WallClock);
}

/// What takes a reply.
pub(crate) enum Waiter {
    /// A future, by its slot.
    Future(usize),
    /// A future whose reply connects a stream first.
    Stream(usize, Box<StreamSpec>),
    /// A sink that takes many replies, and the number of this one.
    Sink(Rc<dyn ReplySink>, u64),
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
    /// The ticket of the oldest waiter.
    first: Ticket,
    /// The waiters in the order of tickets; `None` where the reply was released before an older one.
    queue: VecDeque<Option<Waiter>>,
    /// The waiters in the queue.
    waiting: usize,
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
        self.queue.push_back(Some(waiter));
        self.waiting += 1;
    }

    /// The waiter of `ticket`, whose reply is released.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Waiter {
        let at = ticket.0.checked_sub(self.first.0).and_then(|at| usize::try_from(at).ok());
        let waiter = at.and_then(|at| self.queue.get_mut(at)).and_then(Option::take);
        let waiter = waiter.expect("every ticket has one waiter and one reply");
        self.waiting -= 1;
        while let Some(None) = self.queue.front() {
            self.queue.pop_front();
            self.first = self.first.next();
        }
        waiter
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
        self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(pending: &mut PendingReplies, ticket: u64) -> usize {
        match pending.take(Ticket(ticket)) {
            Waiter::Future(slot) => slot,
            _ => panic!("not the waiter"),
        }
    }

    #[test]
    fn reply_that_waits_for_its_bytes_is_overtaken() {
        let mut pending = PendingReplies::default();
        (5..9).for_each(|ticket| pending.register(Ticket(ticket), Waiter::Future(ticket as usize)));
        assert_eq!((taken(&mut pending, 6), taken(&mut pending, 7), pending.len()), (6, 7, 2));
        pending.register(Ticket(9), Waiter::Future(9));
        assert_eq!((taken(&mut pending, 5), pending.len()), (5, 2));
        assert_eq!((pending.queue.len(), pending.first), (2, Ticket(8)), "gaps are gone with what was before them");
        assert_eq!((taken(&mut pending, 9), taken(&mut pending, 8), pending.len()), (9, 8, 0));
        assert!(pending.queue.is_empty());
        pending.register(Ticket(10), Waiter::Future(10));
        assert_eq!(taken(&mut pending, 10), 10);
    }
}
