//! Outputs that may lack the bytes of messages and results, and how these come into them.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::reply::{Output, Peeked, Reply, StoreReply};
use crate::state::Message;
use crate::types::{Body, Lsn, MessageRef, Millis, PayloadId, PayloadRef, Text, Ticket};

/// An output that may lack bytes.
#[derive(Clone, Debug)]
pub(in crate::broker) struct Unfilled {
    /// The last record when it was decided.
    pub(super) decided_at: Lsn,
    /// If it lacked a payload that was lost: the record that says so.
    pub(super) waits_for: Lsn,
    /// The bodies in it are empty until they are read.
    pub(super) output: Output,
    /// Of a delivery.
    pub(super) leased: Option<Leased>,
    /// What it lacks.
    pub(super) unread: Vec<Unread>,
}

/// The lease of a held delivery.
#[derive(Clone, Copy, Debug)]
pub(in crate::broker) struct Leased {
    pub(in crate::broker) message_ref: MessageRef,
    pub(in crate::broker) lease: Millis,
}

/// Bytes that an output lacks.
#[derive(Clone, Debug)]
pub(super) struct Unread {
    of: Source,
    /// Their place in the output.
    pub(super) slot: usize,
}

/// What bytes belong to.
#[derive(Clone, Debug)]
enum Source {
    Message(Message),
    Result(PayloadRef),
}

impl Unread {
    pub(super) fn payload(&self) -> PayloadId {
        self.of.payload()
    }
}

impl Source {
    fn payload(&self) -> PayloadId {
        match self {
            Self::Message(message) => message.payload.id,
            Self::Result(payload) => payload.id,
        }
    }
}

impl Unfilled {
    /// An output that contains all its bytes.
    pub(super) fn complete(decided_at: Lsn, output: Output) -> Self {
        Self { decided_at, waits_for: Lsn(0), output, leased: None, unread: Vec::new() }
    }

    /// A delivery; if its message is `unread`, it lacks the bytes.
    pub(in crate::broker) fn delivery(
        decided_at: Lsn,
        output: Output,
        leased: Leased,
        unread: Option<Message>,
    ) -> Self {
        let unread = unread.map(|message| Unread { of: Source::Message(message), slot: 0 }).into_iter().collect();
        Self { leased: Some(leased), unread, ..Self::complete(decided_at, output) }
    }

    /// A peek at `messages`, with the bytes that `find` has in memory.
    pub(in crate::broker) fn peek(
        decided_at: Lsn,
        ticket: Ticket,
        messages: Vec<Message>,
        mut find: impl FnMut(PayloadId) -> Option<Body>,
    ) -> Self {
        let peeked = |message: &Message| Peeked {
            offset: message.offset,
            produced_at: message.produced_at,
            body: Body::bare(&[], &[]),
        };
        let output = Output::Reply { ticket, result: Ok(Reply::Peeked(messages.iter().map(peeked).collect())) };
        let mut peek = Self::complete(decided_at, output);
        for (slot, message) in messages.into_iter().enumerate() {
            peek.add(Source::Message(message), slot, &mut find);
        }
        peek
    }

    /// A reply of the idempotency store that repeats `results`, each with its place in the reply; with the bytes that
    /// `find` has in memory.
    pub(in crate::broker) fn replay(
        decided_at: Lsn,
        output: Output,
        results: Vec<(usize, PayloadRef)>,
        mut find: impl FnMut(PayloadId) -> Option<Body>,
    ) -> Self {
        let mut replay = Self::complete(decided_at, output);
        for (slot, payload) in results {
            replay.add(Source::Result(payload), slot, &mut find);
        }
        replay
    }

    /// Adds bytes, or notes that they are lacking.
    fn add(&mut self, of: Source, slot: usize, mut find: impl FnMut(PayloadId) -> Option<Body>) {
        if put_lost(&mut self.output, slot, &of) {
            return;
        }
        match find(of.payload()) {
            Some(stored) => put(&mut self.output, slot, &of, &stored),
            None => self.unread.push(Unread { of, slot }),
        }
    }

    /// Whether it lacks bytes.
    pub(in crate::broker) fn is_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Fills in what is left of the payloads of the records `lsns`.
    pub(super) fn lose(&mut self, lsns: &RangeInclusive<Lsn>, damage: &Text) {
        let output = &mut self.output;
        self.unread.retain_mut(|Unread { of, slot }| {
            if !lsns.contains(&of.payload().lsn) {
                return true;
            }
            match (of, &mut *output) {
                (Source::Result(_), Output::Reply { result: Ok(Reply::Store(reply)), .. }) => {
                    put_result(reply, *slot, None);
                }
                (Source::Result(_), output) => unreachable!("it repeats no result: {output:?}"),
                (of @ Source::Message(_), output) => {
                    if let Source::Message(message) = of {
                        message.lose(damage);
                    }
                    put_lost(output, *slot, of);
                }
            }
            false
        });
    }

    /// Adds the bytes that are found.
    pub(super) fn fill(&mut self, mut find: impl FnMut(PayloadId) -> Option<Body>) {
        let output = &mut self.output;
        self.unread.retain(|Unread { of, slot }| match find(of.payload()) {
            Some(stored) => {
                put(output, *slot, of, &stored);
                false
            }
            None => true,
        });
    }
}

/// Puts bytes into their place in an output.
fn put(output: &mut Output, slot: usize, of: &Source, stored: &Body) {
    match (output, of) {
        (Output::Deliver { delivery, .. }, Source::Message(message)) => delivery.body = message.body(stored),
        (Output::Reply { result: Ok(Reply::Peeked(peeked)), .. }, Source::Message(message)) => {
            peeked[slot].body = message.body(stored);
        }
        (Output::Reply { result: Ok(Reply::Store(reply)), .. }, Source::Result(payload)) => {
            let text = payload.fits(stored).then(|| String::from_utf8_lossy(stored.value()).into());
            put_result(reply, slot, text);
        }
        (output, _) => unreachable!("it has no such bytes: {output:?}"),
    }
}

/// Puts what is left of a message into its place in an output; false if its payload is not lost.
fn put_lost(output: &mut Output, slot: usize, of: &Source) -> bool {
    let Source::Message(message) = of else { return false };
    let Some(body) = message.body_without_payload() else { return false };
    match output {
        Output::Deliver { delivery, .. } => delivery.body = body,
        Output::Reply { result: Ok(Reply::Peeked(peeked)), .. } => peeked[slot].body = body,
        output => unreachable!("it has no message: {output:?}"),
    }
    true
}

/// Puts a result into its place in a reply; without a `text` it is lost.
pub(super) fn put_result(reply: &mut StoreReply, slot: usize, text: Option<Arc<str>>) {
    let (result, result_lost) = match reply {
        StoreReply::Replay { outcome, result_lost } => (&mut outcome.result, result_lost),
        StoreReply::Effect(found) => (&mut found.result, &mut found.result_lost),
        StoreReply::Listed(page) => {
            let (_, found) = &mut page.effects[slot];
            (&mut found.result, &mut found.result_lost)
        }
        StoreReply::Execute { .. } | StoreReply::Retryable { .. } | StoreReply::Renewed { .. } => {
            unreachable!("it repeats no result: {reply:?}")
        }
    };
    (*result_lost, *result) = (text.is_none(), text);
}
