//! Answers: what a client may believe from now on.

use driftq_core::command::{OnDisconnect, Produce};
use driftq_core::reply::Produced;
use driftq_core::types::*;
use driftq_core::{Command, Reply};

use super::model::*;
use super::observer::{Observer, identity};
use crate::coverage::Point;
use crate::invariants::content::{accepted_is_stored, peek_matches};
use crate::invariants::counts::description_matches;
use crate::invariants::dead_letters::redrive_within_limit;
use crate::invariants::dedupe::{Repeated, deduped_within_window, new_after_window};
use crate::invariants::fencing::expired_not_extended;
use crate::invariants::limits::{accepted_within_limits, query_is_noop};
use crate::invariants::time::least_backoff;
use crate::invariants::verdict::{Verdict, Violation};

impl Observer {
    pub(super) fn answered(&mut self, asked: &Asked, reply: &Reply) -> Verdict {
        match (&asked.command, reply) {
            (Command::Produce(produce), Reply::Produced(produced)) => self.produced(asked, produce, produced)?,
            (Command::Subscribe(subscribe), Reply::Subscribed { consumer }) => {
                let stream = Stream {
                    topic: asked.topic.expect("subscribed to a topic"),
                    group: asked.group.expect("subscribed to a group"),
                    lease: subscribe.lease.filter(|lease| lease.0 > 0).unwrap_or(self.limits.lease_default),
                    prefetch: subscribe.prefetch,
                    asked: subscribe.clone(),
                    given: 0,
                    gone: false,
                };
                self.streams.insert(*consumer, stream);
            }
            (Command::SetPrefetch { consumer, prefetch }, _) => {
                if let Some(stream) = self.streams.get_mut(consumer) {
                    stream.prefetch = *prefetch;
                }
            }
            (Command::Unsubscribe { consumer }, _) => self.unsubscribed(*consumer, asked.at),
            (Command::Finish { consumer }, _) => {
                if let Some(stream) = self.streams.get_mut(consumer) {
                    stream.gone = true;
                }
            }
            (Command::Seek { .. }, _) => {
                if let Some(book) = self.book_mut(asked) {
                    book.turn_over(asked.after);
                }
            }
            (Command::DeleteTopic { name }, _) => {
                self.identities.retain(|(scope, ..), _| scope != name.as_str());
                self.doubt_effects(name, None);
            }
            (Command::DeleteGroup { topic, group }, _) => self.doubt_effects(topic, Some(group)),
            (Command::Complete(complete), reply) => self.step_answered(asked, complete, reply)?,
            (Command::Store(store), reply) => self.store_answered(asked, store, reply)?,
            (Command::Peek { .. }, Reply::Peeked(found)) => {
                let book = asked.topic.and_then(|topic| self.topics.get(&topic));
                for peeked in found {
                    peek_matches(peeked, book.and_then(|book| book.known.get(&peeked.offset)))?;
                }
            }
            (Command::DescribeTopic { .. }, Reply::Topic(info)) => {
                if let Some(counted) = &asked.counted {
                    description_matches(info, counted)?;
                }
            }
            (Command::Redrive { limit, .. }, Reply::Redriven { count }) => redrive_within_limit(*count, *limit)?,
            _ => {}
        }
        query_is_noop(asked)?;
        self.settled_by_word(asked, reply)
    }

    fn produced(&mut self, asked: &Asked, produce: &Produce, produced: &Produced) -> Verdict {
        if !self.accepted(asked.at, produce, produced)? {
            return Ok(());
        }
        accepted_within_limits(asked, produced)?;
        let (topic, number) = (asked.produce.as_ref().map(|place| place.topic), number(&produce.value));
        let book = topic.and_then(|topic| self.topics.get_mut(&topic));
        let stored = book.and_then(|book| book.known.get_mut(&produced.offset));
        let is_skipped = asked.skips > 0 && identity(produce).is_some();
        accepted_is_stored(produced, number, stored.as_deref(), is_skipped)?;
        if let Some(known) = stored {
            known.released = true;
        }
        Ok(())
    }

    /// A producer was told where its message is. Says whether it is new.
    pub(super) fn accepted(
        &mut self,
        at: Timestamp,
        produce: &Produce,
        produced: &Produced,
    ) -> Result<bool, Violation> {
        let Some(name) = identity(produce) else { return Ok(true) };
        let known = self.identities.get(&name).copied();
        let repeated = Repeated { name: Some(&name), known, at, produced };
        deduped_within_window(repeated)?;
        new_after_window(repeated)?;
        match known {
            Some(Identity::Accepted { expires_at, .. }) if expires_at > at => return Ok(false),
            Some(Identity::Accepted { .. }) => self.coverage.hit(Point::IdentityExpired),
            Some(Identity::Maybe) if produced.duplicate => return Ok(false),
            Some(Identity::Maybe) | None => {}
        }
        let Produced { partition, offset, .. } = *produced;
        let expires_at = at.after(self.limits.dedupe_ttl);
        self.identities.insert(name, Identity::Accepted { partition, offset, expires_at });
        Ok(true)
    }

    fn unsubscribed(&mut self, consumer: ConsumerId, at: Timestamp) {
        let Some(stream) = self.streams.get_mut(&consumer) else { return };
        stream.gone = true;
        if stream.asked.on_disconnect == OnDisconnect::Release
            && let Some(book) = self.groups.get_mut(&(stream.topic, stream.group))
        {
            for seen in book.seen.values_mut().filter(|seen| seen.consumer == consumer && seen.open) {
                // Where the log was full the lease may still be running; it ends as it would have.
                seen.unsure = true;
                seen.not_before = seen.not_before.max(at);
            }
        }
    }

    /// A worker's word was taken.
    fn settled_by_word(&mut self, asked: &Asked, reply: &Reply) -> Verdict {
        let Some(claim) = claim(&asked.command) else { return Ok(()) };
        // A step that is answered once more says that it was done; a seek may have brought its message back since.
        let is_repeated = matches!(asked.command, Command::Complete(_)) && asked.rightful == Some(false);
        if is_repeated && !asked.step.is_some_and(|traces| traces.done) {
            return Ok(());
        }
        if let Command::Ack(_) | Command::Complete(_) = asked.command {
            self.committed(asked, claim.offset);
        }
        let topic = asked.topic.and_then(|topic| self.topics.get(&topic));
        let known = topic.and_then(|topic| topic.known.get(&claim.offset));
        // It may have been made live again since this was decided, and before it was told.
        let redriven = known.is_some_and(|known| known.redriven.is_some());
        let body = known.map(|known| known.body.metadata());
        let policy = body.and_then(|body| body.envelope.retry_policy);
        let offset = claim.offset;
        let Some(book) = self.book_mut(asked) else { return Ok(()) };
        if let Command::Ack(_) | Command::Complete(_) = asked.command {
            book.acked.insert(offset);
        }
        let Some(seen) = book.seen.get_mut(&offset) else { return Ok(()) };
        match &asked.command {
            Command::Extend { .. } => {
                if !redriven {
                    expired_not_extended(claim, asked.at, seen)?;
                }
                if let Reply::Extended { lease_until } = reply {
                    seen.lease_until = *lease_until;
                }
            }
            Command::Nack { reason, delay, .. } => {
                let wait = delay.unwrap_or_else(|| least_backoff(policy, seen.failures + 1));
                if !reason.is_empty() {
                    seen.reasons.insert(reason.to_string());
                }
                if seen.open {
                    let ended = seen.lease_until <= asked.at;
                    let expiry = seen.lease_until.after(least_backoff(policy, seen.failures + 1));
                    let nacked = asked.at.after(wait);
                    seen.not_before = if ended { nacked.min(expiry) } else { nacked };
                }
                seen.open = false;
            }
            Command::Release(_) if seen.open => {
                let ended = seen.lease_until <= asked.at;
                seen.not_before = if ended { seen.lease_until } else { asked.at };
                seen.open = false;
            }
            _ => seen.open = false,
        }
        Ok(())
    }
}
