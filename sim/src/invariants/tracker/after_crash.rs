//! What the observer still knows after the power went.

use driftq_core::Command;
use driftq_core::command::{Begin, Produce, StoreCommand};
use driftq_core::types::{Lsn, Timestamp};

use super::completions::undoes;
use super::model::*;
use super::observer::{Observer, identity};

impl Observer {
    /// The power went, and the log was found to reach to `last`.
    pub(crate) fn crashed(&mut self, last: Lsn) {
        let pending = std::mem::take(&mut self.pending);
        // What a later one has undone is neither whole nor torn.
        if !pending.values().any(undoes) {
            pending.values().for_each(|asked| self.tear(asked, last));
        }
        for asked in pending.values().filter(|asked| asked.before < last && asked.after > asked.before) {
            self.lost(asked);
        }
        self.skips = 0;
        self.streams.clear();
        self.looked_at = None;
        self.topics.retain(|_, book| book.since <= last);
        let mut undone = Vec::new();
        for (topic, book) in &mut self.topics {
            book.rewind(last);
            for (offset, known) in &mut book.known {
                if known.redriven.is_some_and(|redriven| redriven > last) {
                    known.redriven = None;
                    undone.push((*topic, *offset));
                }
            }
        }
        for ((topic, _), book) in &mut self.groups {
            // A dead letter that was not made live again after all: whoever held it may hold it still.
            for (_, offset) in undone.iter().filter(|(of, _)| of == topic) {
                if let Some(seen) = book.seen.get_mut(offset) {
                    seen.unsure = true;
                }
            }
        }
        self.groups.retain(|_, book| book.since <= last);
        for book in self.groups.values_mut() {
            book.starts.retain(|(before, ..)| *before < last);
            for (_, after, start) in &mut book.starts {
                if *after > last {
                    (*after, *start) = (last, Start::Unknown);
                }
            }
            book.dead.retain(|_, deaths| {
                deaths.retain(|(since, _)| *since <= last);
                !deaths.is_empty()
            });
            book.crashed = true;
            book.seen.values_mut().for_each(|seen| seen.crashed = true);
        }
    }

    /// A command was decided, but nobody was told what became of it.
    fn lost(&mut self, asked: &Asked) {
        match &asked.command {
            Command::Produce(produce) => self.lost_produce(produce, asked.at),
            Command::DeleteTopic { name } => {
                for ((scope, ..), identity) in &mut self.identities {
                    if scope == name.as_str() {
                        *identity = Identity::Maybe;
                    }
                }
                self.doubt_effects(name, None);
            }
            Command::DeleteGroup { topic, group } => self.doubt_effects(topic, Some(group)),
            Command::Store(store) => {
                let (StoreCommand::Begin(Begin { identity, .. })
                | StoreCommand::Finish { identity, .. }
                | StoreCommand::Reacquire { identity, .. }
                | StoreCommand::Renew { identity, .. }
                | StoreCommand::Get { identity }
                | StoreCommand::Forget { identity }) = &**store;
                if let Some(book) = self.effects.get_mut(identity) {
                    book.doubt();
                }
            }
            Command::Unsubscribe { consumer } => {
                for seen in self.groups.values_mut().flat_map(|book| book.seen.values_mut()) {
                    seen.unsure |= seen.consumer == *consumer;
                }
            }
            Command::Seek { .. } => {
                if let Some(book) = self.book_mut(asked) {
                    book.turn_over(asked.after);
                    book.crashed = true;
                }
            }
            command => {
                if let Command::Complete(complete) = command {
                    complete.produce.iter().for_each(|produce| self.lost_produce(produce, asked.at));
                }
                let identity = claim(command).and_then(|claim| self.identity_at(asked, claim.offset));
                if let Some(book) = identity.and_then(|identity| self.effects.get_mut(&identity)) {
                    book.doubt();
                }
                if let (Some(claim), Some(book)) = (claim(command), self.book_mut(asked)) {
                    book.maybe.insert(claim.offset);
                    if let Some(seen) = book.seen.get_mut(&claim.offset) {
                        seen.unsure = true;
                    }
                }
            }
        }
    }

    /// A message may have been accepted, and its producer knows nothing of it.
    fn lost_produce(&mut self, produce: &Produce, at: Timestamp) {
        let Some(name) = identity(produce) else { return };
        let live = matches!(self.identities.get(&name),
            Some(Identity::Accepted { expires_at, .. }) if *expires_at > at);
        if !live {
            self.identities.insert(name, Identity::Maybe);
        }
    }
}
