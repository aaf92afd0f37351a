//! The observer: it watches what is asked and what comes out, keeps its own books, and asks the laws about each.
//!
//! It shares no code with the core. It reads the core's state only to number topics and groups, and where a promise is
//! about the inside (see [`inside`](super::inside)).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use driftq_core::command::{Command, Produce, SeekTo, StoreCommand, Subscribe, TokenClaim};
use driftq_core::faults::Faults;
use driftq_core::record::GroupStart;
use driftq_core::reply::{Produced, StepOutput, StoreReply};
use driftq_core::state::State;
use driftq_core::state::topic::Topic;
use driftq_core::types::*;
use driftq_core::{Output, Pipeline, Refusal, Reply, idempotency};

use super::completions::{Torn, rightful};
use super::effects::EffectModel;
use super::model::*;
use crate::coverage::Coverage;
use crate::invariants::counts::Counted;
use crate::invariants::fencing::stale_claim_is_noop;
use crate::invariants::limits::{refusal_is_noop, refused_only_when_full};
use crate::invariants::outputs::{Ground, one_reply, refused_after_failure};
use crate::invariants::verdict::Verdict;
use crate::names::Message;

/// What the world outside the broker has seen of it.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    pub(super) limits: Limits,
    pub(super) sent: BTreeMap<u64, Produce>,
    pub(super) pending: BTreeMap<Ticket, Asked>,
    pub(super) streams: BTreeMap<ConsumerId, Stream>,
    pub(super) topics: BTreeMap<TopicId, TopicModel>,
    pub(super) groups: BTreeMap<(TopicId, GroupId), GroupModel>,
    pub(super) identities: BTreeMap<IdentityName, Identity>,
    pub(super) last_token: Option<LeaseToken>,
    pub(super) effects: BTreeMap<idempotency::Identity, EffectModel>,
    /// The newest token of an effect.
    pub(super) last_grant: Option<LeaseToken>,
    /// What completed steps were answered, by the token that won.
    pub(super) steps: BTreeMap<LeaseToken, Arc<[StepOutput]>>,
    /// Steps that were completed without anybody being told.
    pub(super) perhaps: BTreeSet<LeaseToken>,
    /// The numbers of messages that steps were to make.
    pub(super) to_be_made: BTreeSet<u64>,
    pub(super) torn: Vec<Torn>,
    pub(super) boot: Boot,
    /// How many messages were passed over when the inside was last looked at.
    pub(super) skips: u64,
    /// How far the log had got at the last look inside, and whether an answer has come since.
    pub(super) looked_at: Option<Lsn>,
    pub(super) has_heard: bool,
    pub(super) coverage: Coverage,
}

impl Observer {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            sent: BTreeMap::new(),
            pending: BTreeMap::new(),
            streams: BTreeMap::new(),
            topics: BTreeMap::new(),
            groups: BTreeMap::new(),
            identities: BTreeMap::new(),
            last_token: None,
            effects: BTreeMap::new(),
            last_grant: None,
            steps: BTreeMap::new(),
            perhaps: BTreeSet::new(),
            to_be_made: BTreeSet::new(),
            torn: Vec::new(),
            boot: Boot(0),
            skips: 0,
            looked_at: None,
            has_heard: false,
            coverage: Coverage::default(),
        }
    }

    /// Whether a produce of the message waits for its answer.
    pub(crate) fn is_producing(&self, message: Message) -> bool {
        let is_it = |asked: &Asked| match &asked.command {
            Command::Produce(produce) => number(&produce.value) == Some(u64::from(message.0)),
            _ => false,
        };
        self.pending.values().any(is_it)
    }

    /// Whether a worker's word waits for its answer.
    pub(crate) fn is_claiming(&self, owner: &OwnerName) -> bool {
        self.pending.values().any(|asked| claim(&asked.command).is_some_and(|claim| claim.owner == *owner))
    }

    /// Writes down what is in its books, for [a fingerprint](crate::world::Fingerprint).
    pub(crate) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self {
            limits: _,
            sent,
            pending,
            streams,
            topics,
            groups,
            identities,
            last_token,
            effects,
            last_grant,
            steps,
            perhaps,
            to_be_made,
            torn,
            boot,
            skips,
            looked_at,
            has_heard,
            coverage: _,
        } = self;
        // Of what was sent the names are enough: nobody sends two messages of one name that differ.
        write!(out, "{:?} {pending:?} {streams:?} {topics:?} {groups:?} {identities:?} ", sent.keys())?;
        write!(out, "{last_token:?} {effects:?} {last_grant:?} {steps:?} {perhaps:?} {to_be_made:?} {torn:?} ")?;
        write!(out, "{boot:?} {skips} {looked_at:?} {has_heard} ")
    }

    /// What it has met that nobody else can see.
    pub(crate) fn coverage(&self) -> &Coverage {
        &self.coverage
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
        let rightful = rightful(&command, quiet, worthless);
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
                // What is due and waits for room in the log counts as still to come.
                Command::DescribeTopic { name } if quiet && !pipeline.broker().is_stalled() => {
                    state.topic_named(name).map(|topic| Counted::of(topic, now))
                }
                _ => None,
            },
            rightful,
            undone: self.undone(state, &command),
            skips: pipeline.broker().counters().skipped,
            step: None,
            command,
        }
    }

    /// It has been decided; the answer will come under `ticket`.
    pub(crate) fn asked<F: Faults>(&mut self, pipeline: &Pipeline<F>, mut asked: Asked, ticket: Ticket) -> Verdict {
        asked.after = pipeline.broker().appended();
        asked.at = pipeline.broker().now();
        asked.skips = pipeline.broker().counters().skipped - asked.skips;
        if let Some(before) = asked.untouched {
            stale_claim_is_noop(&asked.command, before, pipeline.state().digest())?;
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
            let book = || GroupModel::new(name, asked.after);
            let book = self.groups.entry((topic, group)).or_insert_with(book);
            book.starts.push((asked.before, asked.after, start));
        }
        self.note_sent(&asked.command);
        self.name_delivery(pipeline.state(), &asked.command);
        if let Command::Seek { topic, group, .. } = &asked.command {
            self.bring_back(topic, group);
        }
        self.note_redriven(pipeline.state(), &asked);
        asked.step = self.traces(pipeline.state(), &asked);
        self.pending.insert(ticket, asked);
        Ok(())
    }

    fn note_sent(&mut self, command: &Command) {
        match command {
            Command::Produce(produce) => {
                if let Some(number) = number(&produce.value) {
                    self.sent.insert(number, (**produce).clone());
                }
            }
            Command::Complete(complete) => {
                for (number, produce) in complete.produce.iter().filter_map(|made| Some((number(&made.value)?, made))) {
                    self.to_be_made.insert(number);
                    self.sent.insert(number, produce.clone());
                }
            }
            _ => {}
        }
    }

    /// Dead letters that were made live again and passed over at once were never seen alive.
    fn note_redriven(&mut self, state: &State, asked: &Asked) {
        let (Command::Redrive { topic, .. }, true) = (&asked.command, asked.skips > 0) else { return };
        let dead = topic.dead_letter().and_then(|name| state.topic_named(&name));
        let Some(dead) = dead else { return };
        let Some(book) = self.topics.get_mut(&dead.id()) else { return };
        let mut revived = Vec::new();
        let here = book.known.iter_mut().filter(|(_, known)| known.gone.is_none() && known.redriven.is_none());
        for (offset, known) in here {
            let kept = dead.partition(known.partition).and_then(|partition| partition.message(known.position));
            if kept.is_none() && known.body.flags().has_identity {
                known.redriven = Some(asked.after);
                revived.push(*offset);
            }
        }
        let of_dead = self.groups.iter_mut().filter(|((of, _), _)| *of == dead.id());
        for (_, book) in of_dead {
            book.seen.iter_mut().filter(|(offset, _)| revived.contains(offset)).for_each(|(_, seen)| seen.open = false);
        }
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
        refused_after_failure(ground, output)?;
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
                one_reply(asked.as_ref(), *ticket, result)?;
                let Some(asked) = asked else { return Ok(()) };
                match result {
                    Err(Refusal::LogFailed) => {
                        // Whether it was done is for the restart to say.
                        self.pending.insert(Ticket(u64::MAX - ticket.0), asked);
                        Ok(())
                    }
                    Err(refusal) => {
                        ground.bears(asked.before, || format!("{:?}", asked.command))?;
                        refusal_is_noop(&asked, refusal)?;
                        if let Command::Complete(complete) = &asked.command {
                            self.step_refused(complete, refusal)?;
                        }
                        refused_only_when_full(&asked, refusal)
                    }
                    Ok(reply) => {
                        let least = if writes(&asked, reply) { asked.before.next() } else { asked.before };
                        ground.bears(least, || format!("{:?}", asked.command))?;
                        self.answered(&asked, reply)
                    }
                }
            }
        }
    }

    pub(super) fn book_mut(&mut self, asked: &Asked) -> Option<&mut GroupModel> {
        self.groups.get_mut(&(asked.topic?, asked.group?))
    }
}

/// Whether the command, so answered, has certainly left a record.
fn writes(asked: &Asked, reply: &Reply) -> bool {
    match (&asked.command, reply) {
        (_, Reply::Produced(Produced { duplicate, .. })) => !duplicate,
        (_, Reply::Store(StoreReply::Execute { idempotent, .. })) => *idempotent,
        (_, Reply::Store(StoreReply::Renewed { .. })) => true,
        (_, Reply::Completed(_)) => asked.rightful == Some(true),
        (Command::Store(store), Reply::Done) => matches!(**store, StoreCommand::Forget { .. }),
        (Command::Seek { .. } | Command::DeleteTopic { .. } | Command::DeleteGroup { .. }, _) => true,
        _ => false,
    }
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
