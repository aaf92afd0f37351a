//! The observer: it watches what is asked and what comes out, keeps its own books, and asks the laws about each.
//!
//! It shares no code with the core. It reads the core's state only to number topics and groups, and where a promise is
//! about the inside (see [`inside`](super::inside)).

use std::collections::BTreeMap;

use driftq_core::command::{Command, Produce, SeekTo, Subscribe, TokenClaim};
use driftq_core::faults::Faults;
use driftq_core::record::GroupStart;
use driftq_core::reply::Produced;
use driftq_core::state::State;
use driftq_core::state::topic::Topic;
use driftq_core::types::*;
use driftq_core::{Output, Pipeline, Refusal, Reply};

use super::ledger::*;
use crate::invariants::counting::Counted;
use crate::invariants::fencing::stale_changes_nothing;
use crate::invariants::room::{refused_is_nothing, refused_when_full};
use crate::invariants::silence::{Ground, answered_once, failed_refuses};
use crate::invariants::verdict::Verdict;
use crate::sometimes::Sometimes;

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
    /// How far the log had got at the last look inside, and whether an answer has come since.
    pub(super) looked_at: Option<Lsn>,
    pub(super) has_heard: bool,
    pub(super) met: Sometimes,
}

impl Observer {
    pub(crate) fn new(limits: Limits) -> Self {
        let (sent, pending, streams, topics, groups, identities) = Default::default();
        let (last_token, looked_at, has_heard, met) = Default::default();
        Self { limits, sent, pending, streams, topics, groups, identities, last_token, looked_at, has_heard, met }
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
                Command::DescribeTopic { name } if quiet => {
                    state.topic_named(name).map(|topic| Counted::of(topic, now))
                }
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
            stale_changes_nothing(&asked.command, before, pipeline.state().digest())?;
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
        if let Command::Produce(produce) = &asked.command
            && let Some(number) = number(&produce.value)
        {
            self.sent.insert(number, (**produce).clone());
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
            Command::Subscribe(Subscribe { start, .. }) | Command::CreateGroup { start, .. } => {
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
        failed_refuses(ground, output)?;
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
                self.has_heard = true;
                answered_once(asked.as_ref(), *ticket, result)?;
                let Some(asked) = asked else { return Ok(()) };
                match result {
                    Err(Refusal::LogFailed) => {
                        // Whether it was done is for the restart to say.
                        self.pending.insert(Ticket(u64::MAX - ticket.0), asked);
                        Ok(())
                    }
                    Err(refusal) => {
                        ground.bears(asked.before, || format!("{:?}", asked.command))?;
                        refused_is_nothing(&asked, refusal)?;
                        refused_when_full(&asked, refusal)
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

    pub(super) fn book_mut(&mut self, asked: &Asked) -> Option<&mut GroupBook> {
        self.groups.get_mut(&(asked.topic?, asked.group?))
    }
}

/// Whether the command, so answered, has certainly left a record.
fn writes(command: &Command, reply: &Reply) -> bool {
    matches!(reply, Reply::Produced(Produced { duplicate: false, .. }))
        || matches!(command, Command::Seek { .. } | Command::DeleteTopic { .. } | Command::DeleteGroup { .. })
}

fn numbers(state: &State, command: &Command) -> (Option<TopicId>, Option<GroupId>) {
    let (topic, group) = names(command);
    let topic = topic.and_then(|name| state.topic_named(name));
    let group = topic.and_then(|topic| Some(topic.group_named(group?)?.id()));
    (topic.map(Topic::id), group)
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
