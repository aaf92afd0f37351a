//! Replies that wait for the sync: what takes the reply to which command.
//!
//! The broker replies in the order of commands, except that a reply whose bytes have to be read first (a peek, a
//! stored result) is overtaken by others.

use std::rc::Rc;
use std::task::{Poll, Waker};

use driftq_core::types::{ConsumerId, WallClock};
use driftq_core::{Refusal, Reply};
use slab::Slab;

use super::streams::StreamSpec;
use super::ticket_queue::TicketQueue;

/// Number of a command, counted by the reactor it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommandNumber(pub(super) u64);

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
    waiters: TicketQueue<Waiter>,
    slots: Slab<Slot>,
}

impl PendingReplies {
    /// A slot for a future to wait in.
    pub(crate) fn open_slot(&mut self) -> usize {
        self.slots.insert(Slot::Waiting(None))
    }

    /// Registers `waiter` for the reply to the next command, and returns the number of that.
    pub(crate) fn register(&mut self, waiter: Waiter) -> CommandNumber {
        CommandNumber(self.waiters.push(waiter))
    }

    /// Registers `waiter` for the reply to the next command, which has this number.
    pub(crate) fn register_as(&mut self, number: CommandNumber, waiter: Waiter) {
        self.waiters.push_as(number.0, waiter);
    }

    /// The waiter of a command whose reply is released.
    pub(crate) fn take(&mut self, number: CommandNumber) -> Waiter {
        self.waiters.take(number.0)
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
            Slot::Ready(_) => unreachable!("a command has one reply"),
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
        self.waiters.len()
    }
}
