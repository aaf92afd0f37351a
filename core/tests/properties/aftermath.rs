//! What the observer still knows after the power went.

use driftq_core::Command;
use driftq_core::types::Lsn;

use super::ledger::*;
use super::observer::{Observer, identity};

impl Observer {
    /// The power went, and the log was found to reach to `last`.
    pub fn crashed(&mut self, last: Lsn) {
        let pending = std::mem::take(&mut self.pending);
        for asked in pending.values().filter(|asked| asked.before.lsn < last && asked.after.lsn > asked.before.lsn) {
            self.lost(asked);
        }
        self.streams.clear();
        self.topics.retain(|_, book| book.since <= last);
        for book in self.topics.values_mut() {
            book.known.retain(|_, known| known.since <= last || known.released);
            for known in book.known.values_mut() {
                known.gone = known.gone.filter(|gone| *gone <= last);
                known.redriven = known.redriven.filter(|redriven| *redriven <= last);
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
            book.dead.retain(|_, (since, _)| *since <= last);
            book.crashed = true;
            book.seen.values_mut().for_each(|seen| seen.crashed = true);
        }
    }

    /// A command was decided, but nobody was told what became of it.
    fn lost(&mut self, asked: &Asked) {
        match &asked.command {
            Command::Produce(produce) => {
                if let Some(name) = identity(produce) {
                    let live = matches!(self.identities.get(&name),
                        Some(Identity::Accepted { expires_at, .. }) if *expires_at > asked.at);
                    if !live {
                        self.identities.insert(name, Identity::Maybe);
                    }
                }
            }
            Command::DeleteTopic { name } => {
                for ((scope, ..), identity) in &mut self.identities {
                    if scope == name.as_str() {
                        *identity = Identity::Maybe;
                    }
                }
            }
            Command::Unsubscribe { consumer } => {
                for seen in self.groups.values_mut().flat_map(|book| book.seen.values_mut()) {
                    seen.unsure |= seen.consumer == *consumer;
                }
            }
            Command::Seek { .. } => {
                if let Some(book) = self.book_mut(asked) {
                    book.turn_over(asked.after.lsn);
                    book.crashed = true;
                }
            }
            command => {
                if let (Some(claim), Some(book)) = (claim(command), self.book_mut(asked)) {
                    book.maybe.insert(claim.offset);
                    if let Some(seen) = book.seen.get_mut(&claim.offset) {
                        seen.unsure = true;
                    }
                }
            }
        }
    }
}
