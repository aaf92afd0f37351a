//! The checker: it watches what is asked and what comes out, keeps its own books, and says when a promise is broken.
//!
//! It shares no code with the core. It reads the core's state only to number topics and groups, and where a promise is
//! about the inside (see [`inside`](super::inside)).

use std::collections::BTreeMap;

use driftq_core::command::{Command, OnDisconnect, Produce, SeekTo, TokenClaim};
use driftq_core::faults::Faults;
use driftq_core::record::GroupStart;
use driftq_core::reply::{Overload, Produced, TopicInfo};
use driftq_core::state::State;
use driftq_core::types::*;
use driftq_core::{Body, Output, Pipeline, Refusal, Reply};

use super::ledger::*;
use super::verdict::{Law, Verdict};
use crate::sometimes::{Point, Sometimes};

const ACCEPTED_IS_KEPT: Law = Law(1, "a message whose producer was told of it is stored");
const COUNTS_ARE_TRUE: Law = Law(2, "what a topic says of itself is what is in it, counted one by one");
const ONE_BODY: Law = Law(4, "an offset never names another body");
const STALE_CHANGES_NOTHING: Law = Law(6, "a claim that is not the newest delivery's changes nothing");
const ENDED_IS_ENDED: Law = Law(6, "a lease that has ended is not made longer");
const ONE_OFFSET: Law = Law(11, "one identity has one offset inside its window");
const WINDOW_ENDS: Law = Law(11, "outside its window an identity is new");
const REDRIVE_BOUNDED: Law = Law(14, "a redrive makes no more live than it was asked to");
const REFUSED_IS_NOTHING: Law = Law(16, "a refusal has no effect");
const LOOKING_IS_NOTHING: Law = Law(16, "looking changes nothing");
const ONLY_WITH_ROOM: Law = Law(16, "a message is accepted only where there is room, and there alone");
const REFUSED_WHEN_FULL: Law = Law(16, "a message is refused for want of room only where there is none");
const SYNCED_FIRST: Law = Law(17, "nothing seen by a client lies beyond what the disk has synced");
const FAILED_IS_SILENT: Law = Law(23, "after a failed log nothing is released but what was durable before");
const ANSWERED_ONCE: Law = Law(23, "every command is answered once; after a failed log, only with that");

/// What an output may rest on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground {
    /// How far the log reaches that no power loss can take.
    pub(crate) durable: Lsn,
    /// A write or a sync has failed since the start.
    pub(crate) failed: bool,
}

impl Ground {
    /// Whether something that rests on the log up to `lsn` may be seen.
    pub(crate) fn bears(self, lsn: Lsn, what: impl FnOnce() -> String) -> Verdict {
        let law = if self.failed { FAILED_IS_SILENT } else { SYNCED_FIRST };
        law.holds(lsn <= self.durable, || {
            format!("{}, which rests on {lsn}, where the disk has {}", what(), self.durable)
        })
    }
}

/// What the world outside the broker has seen of it.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    pub(super) limits: Limits,
    pub(super) sent: BTreeMap<u64, Produce>,
    pub(super) pending: BTreeMap<Ticket, Asked>,
    pub(super) streams: BTreeMap<ConsumerId, Stream>,
    pub(super) topics: BTreeMap<TopicId, TopicBook>,
    pub(super) groups: BTreeMap<(TopicId, GroupId), GroupBook>,
    pub(super) identities: BTreeMap<IdentityName, Identity>,
    pub(super) last_token: Option<LeaseToken>,
    pub(super) met: Sometimes,
}

impl Observer {
    pub(crate) fn new(limits: Limits) -> Self {
        let (sent, pending, streams, topics, groups, identities) = Default::default();
        Self { limits, sent, pending, streams, topics, groups, identities, last_token: None, met: Sometimes::default() }
    }

    /// What it has met that nobody else can see.
    pub(crate) fn met(&self) -> &Sometimes {
        &self.met
    }

    /// What is true just before a command is decided.
    ///
    /// Where timers are due, the command will be decided against another state than this one, and less can be said.
    pub(crate) fn asking<F: Faults>(&self, pipeline: &Pipeline<F>, command: Command, now: Timestamp) -> Asked {
        let state = pipeline.state();
        let before = pipeline.broker().appended();
        let (topic, group) = numbers(state, &command);
        let now = now.max(pipeline.broker().now());
        let quiet = pipeline.poll_timeout().is_none_or(|at| at > now);
        let worthless = quiet && is_worthless(state, &command);
        Asked {
            at: pipeline.broker().now(),
            before,
            after: before,
            topic,
            group,
            quiet,
            untouched: worthless.then(|| state.digest()),
            produce: match &command {
                Command::Produce(asked) => destination(state, &self.limits, asked),
                _ => None,
            },
            counted: match &command {
                Command::DescribeTopic { name } if quiet => state.topic_named(name).map(count),
                _ => None,
            },
            command,
        }
    }

    /// It has been decided; the answer will come under `ticket`.
    pub(crate) fn asked<F: Faults>(&mut self, pipeline: &Pipeline<F>, mut asked: Asked, ticket: Ticket) -> Verdict {
        asked.after = pipeline.broker().appended();
        asked.at = pipeline.broker().now();
        if let Some(before) = asked.untouched {
            STALE_CHANGES_NOTHING.holds(before == pipeline.state().digest(), || format!("{:?}", asked.command))?;
        }
        let there_before = asked.group;
        (asked.topic, asked.group) = match (asked.topic, asked.group) {
            (Some(topic), Some(group)) => (Some(topic), Some(group)),
            _ => numbers(pipeline.state(), &asked.command),
        };
        if let (Some(topic), Some(group)) = (asked.topic, asked.group)
            && let Some(start) = self.start(pipeline.state(), &asked, there_before.is_none())
        {
            let (_, name) = names(&asked.command);
            let name = name.expect("a command about a group names it").clone();
            let book = || GroupBook::new(name, asked.after);
            let book = self.groups.entry((topic, group)).or_insert_with(book);
            book.starts.push((asked.before, asked.after, start));
        }
        if let Command::Produce(produce) = &asked.command {
            let body = Body::pack(&Metadata::default(), &produce.key, &produce.value);
            if let Some(number) = number(&body) {
                self.sent.insert(number, (**produce).clone());
            }
        }
        self.pending.insert(ticket, asked);
        Ok(())
    }

    /// From where on the group was just made to be handed messages.
    fn start(&self, state: &State, asked: &Asked, is_new: bool) -> Option<Start> {
        let topic = state.topic(asked.topic?)?;
        let end = Start::Below(topic.next_offset());
        let moved = asked.after > asked.before;
        match &asked.command {
            Command::Subscribe(_) | Command::CreateGroup { .. } if !is_new || !moved => None,
            Command::Subscribe(driftq_core::command::Subscribe { start, .. }) | Command::CreateGroup { start, .. } => {
                Some(if *start == GroupStart::Latest { end } else { Start::Below(Offset(0)) })
            }
            Command::Seek { to, .. } if moved => Some(match to {
                SeekTo::Earliest => Start::Below(Offset(0)),
                SeekTo::Latest => end,
                SeekTo::Offset(offset) => Start::Below(*offset),
                SeekTo::Time(moment) => {
                    let book = self.topics.get(&asked.topic?)?;
                    let late = book.known.iter().find(|(_, known)| known.produced_at >= *moment);
                    late.map_or(end, |(offset, _)| Start::Below(*offset))
                }
            }),
            _ => None,
        }
    }

    /// Something has come out.
    pub(crate) fn said(&mut self, output: &Output, ground: Ground) -> Verdict {
        match output {
            Output::Deliver { consumer, delivery } => self.delivered(*consumer, delivery),
            Output::Closed { consumer, .. } => {
                if let Some(stream) = self.streams.get_mut(consumer) {
                    stream.gone = true;
                }
                Ok(())
            }
            Output::Reply { ticket, result } => {
                let asked = self.pending.remove(ticket);
                ANSWERED_ONCE.holds(asked.is_some(), || format!("{ticket}: {result:?}"))?;
                let Some(asked) = asked else { return Ok(()) };
                match result {
                    Err(Refusal::LogFailed) => {
                        // Whether it was done is for the restart to say.
                        self.pending.insert(Ticket(u64::MAX - ticket.0), asked);
                        Ok(())
                    }
                    Err(refusal) => {
                        ground.bears(asked.before, || format!("{:?}", asked.command))?;
                        self.refused(&asked, refusal)
                    }
                    Ok(reply) => {
                        let least = if writes(&asked.command, reply) { asked.before.next() } else { asked.before };
                        ground.bears(least, || format!("{:?}", asked.command))?;
                        self.answered(&asked, reply)
                    }
                }
            }
        }
    }

    fn refused(&mut self, asked: &Asked, refusal: &Refusal) -> Verdict {
        REFUSED_IS_NOTHING
            .holds(!asked.quiet || asked.before == asked.after, || format!("{refusal:?} to {:?}", asked.command))?;
        if let Refusal::Overloaded { reason: Overload::Backlog, .. } = refusal
            && asked.quiet
            && let Some(place) = &asked.produce
        {
            REFUSED_WHEN_FULL.holds(!place.fits, || format!("{place:?}"))?;
        }
        Ok(())
    }

    fn answered(&mut self, asked: &Asked, reply: &Reply) -> Verdict {
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
            (Command::Seek { .. }, _) => {
                if let Some(book) = self.book_mut(asked) {
                    book.turn_over(asked.after);
                }
            }
            (Command::DeleteTopic { name }, _) => {
                self.identities.retain(|(scope, ..), _| scope != name.as_str());
            }
            (Command::Peek { .. }, Reply::Peeked(found)) => {
                let book = asked.topic.and_then(|topic| self.topics.get(&topic));
                for peeked in found {
                    let known = book.and_then(|book| book.known.get(&peeked.offset));
                    let same = known.is_some_and(|known| known.body == peeked.body);
                    ONE_BODY.holds(same, || format!("peeked {peeked:?}, known {known:?}"))?;
                }
            }
            (Command::DescribeTopic { .. }, Reply::Topic(info)) => described(asked, info)?,
            (Command::Redrive { limit, .. }, Reply::Redriven { count }) => {
                REDRIVE_BOUNDED.holds(count <= limit, || format!("{count} of {limit}"))?;
            }
            _ => {}
        }
        let looks = matches!(
            asked.command,
            Command::Peek { .. } | Command::DescribeTopic { .. } | Command::ListTopics | Command::ListGroups { .. }
        );
        let untouched = !asked.quiet || asked.before == asked.after;
        LOOKING_IS_NOTHING.holds(!looks || untouched, || format!("{:?}", asked.command))?;
        self.settled_by_word(asked, reply)
    }

    fn produced(&mut self, asked: &Asked, produce: &Produce, produced: &Produced) -> Verdict {
        let name = identity(produce);
        let known = name.as_ref().and_then(|name| self.identities.get(name)).copied();
        let window = match known {
            Some(Identity::Accepted { expires_at, .. }) if expires_at <= asked.at => {
                self.met.hit(Point::IdentityExpired);
                None
            }
            known => known,
        };
        match window {
            Some(Identity::Accepted { partition, offset, .. }) => {
                let same = produced.duplicate && (produced.partition, produced.offset) == (partition, offset);
                return ONE_OFFSET.holds(same, || format!("{name:?} at {} was {known:?}, is {produced:?}", asked.at));
            }
            Some(Identity::Maybe) if produced.duplicate => return Ok(()),
            Some(Identity::Maybe) => {}
            None => WINDOW_ENDS.holds(!produced.duplicate, || format!("{name:?} at {} was {known:?}", asked.at))?,
        }
        let place = asked.produce.as_ref();
        let fits = |place: &Destination| place.fits || !asked.quiet;
        let good = place.is_some_and(|place| fits(place) && place.partition == produced.partition);
        ONLY_WITH_ROOM.holds(good, || format!("{produced:?}, to be {place:?}"))?;
        let (topic, number) = (place.map(|place| place.topic), self.number_of(produce));
        let book = topic.and_then(|topic| self.topics.get_mut(&topic));
        let stored = book.and_then(|book| book.known.get_mut(&produced.offset));
        let good = stored.as_ref().is_some_and(|known| Some(known.number) == number);
        ACCEPTED_IS_KEPT.holds(good, || format!("{produced:?} of produce {number:?} is {stored:?}"))?;
        if let Some(known) = stored {
            known.released = true;
        }
        if let Some(name) = name {
            let Produced { partition, offset, .. } = *produced;
            let expires_at = asked.at.after(self.limits.dedupe_ttl);
            self.identities.insert(name, Identity::Accepted { partition, offset, expires_at });
        }
        Ok(())
    }

    fn number_of(&self, produce: &Produce) -> Option<u64> {
        number(&Body::pack(&Metadata::default(), &produce.key, &produce.value))
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
        let topic = asked.topic.and_then(|topic| self.topics.get(&topic));
        let known = topic.and_then(|topic| topic.known.get(&claim.offset));
        // It may have been made live again since this was decided, and before it was told.
        let redriven = known.is_some_and(|known| known.redriven.is_some());
        let body = known.map(|known| known.body.metadata());
        let policy = body.and_then(|body| body.envelope.retry_policy);
        let offset = claim.offset;
        let Some(book) = self.book_mut(asked) else { return Ok(()) };
        if let Command::Ack(_) = asked.command {
            book.acked.insert(offset);
        }
        let Some(seen) = book.seen.get_mut(&offset) else { return Ok(()) };
        match &asked.command {
            Command::Extend { .. } => {
                // Without a token it may be a newer delivery that nobody has seen.
                let unseen = seen.crashed && claim.token == TokenClaim::Absent;
                let held = seen.open && seen.lease_until > asked.at;
                ENDED_IS_ENDED.holds(seen.unsure || unseen || redriven || held, || {
                    format!("extended at {}: {seen:?}", asked.at)
                })?;
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

    pub(super) fn book_mut(&mut self, asked: &Asked) -> Option<&mut GroupBook> {
        self.groups.get_mut(&(asked.topic?, asked.group?))
    }
}

/// Whether the command, so answered, has certainly left a record.
fn writes(command: &Command, reply: &Reply) -> bool {
    matches!(reply, Reply::Produced(Produced { duplicate: false, .. }))
        || matches!(command, Command::Seek { .. } | Command::DeleteTopic { .. } | Command::DeleteGroup { .. })
}

fn described(asked: &Asked, info: &TopicInfo) -> Verdict {
    let said = Counted {
        partitions: info.partitions.iter().map(|info| (info.next_offset, info.messages, info.bytes)).collect(),
        groups: info
            .groups
            .iter()
            .map(|info| CountedGroup {
                name: info.group.to_string(),
                partitions: info.partitions.iter().map(|info| (info.lag, info.in_flight, info.waiting)).collect(),
            })
            .collect(),
    };
    COUNTS_ARE_TRUE.holds(!asked.quiet || asked.counted.as_ref() == Some(&said), || {
        format!("{said:?}, counted {:?}", asked.counted)
    })
}

fn numbers(state: &State, command: &Command) -> (Option<TopicId>, Option<GroupId>) {
    let (topic, group) = names(command);
    let topic = topic.and_then(|name| state.topic_named(name));
    let group = topic.and_then(|topic| Some(topic.group_named(group?)?.id()));
    (topic.map(driftq_core::state::topic::Topic::id), group)
}

fn is_worthless(state: &State, command: &Command) -> bool {
    let Some(claim) = claim(command) else { return false };
    let progress =
        state.topic_named(&claim.topic).and_then(|topic| topic.group_named(&claim.group)?.progress(claim.partition));
    let newest = progress.and_then(|progress| progress.entries().find(|(_, entry)| entry.offset == claim.offset));
    newest.is_none_or(|(_, entry)| {
        let token = match claim.token {
            TokenClaim::Absent => true,
            TokenClaim::Unreadable => false,
            TokenClaim::Shown(token) => token == entry.token,
        };
        !token || claim.owner != entry.owner
    })
}

/// Scope, tenant and key of a produce, where it has an identity.
pub(super) fn identity(produce: &Produce) -> Option<IdentityName> {
    let envelope = &produce.envelope;
    let key = envelope.idempotency_key.as_ref().filter(|key| !key.is_empty())?;
    let scope = envelope.target_topic.as_ref().unwrap_or(&produce.topic);
    let tenant = envelope.tenant_id.as_ref().filter(|tenant| !tenant.is_empty());
    Some((scope.to_string(), tenant.map_or("default".to_owned(), ToString::to_string), key.to_string()))
}
