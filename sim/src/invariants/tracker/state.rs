//! The tracker: it observes commands, outputs and state, keeps its own model of them, and calls the checks.
//!
//! It shares no code with the core. It reads the core's state only for the ids of topics and groups and in
//! [`white_box`](super::white_box) checks. It decides nothing itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use driftq_core::command::{Command, Produce};
use driftq_core::reply::StepOutput;
use driftq_core::types;
use driftq_core::types::*;

use super::effect_model::EffectModel;
use super::fairness::PartitionTurns;
use super::model::*;
use super::names::claim;
use super::wall_model::WallModel;
use crate::coverage::Coverage;
use crate::invariants::counters::CounterRecount;
use crate::names::Message;

/// What clients have requested and observed, and what follows from it.
#[derive(Clone, Debug)]
pub(crate) struct Tracker {
    pub(super) limits: Limits,
    /// The shortest time for which winners were remembered since the world began.
    pub(super) winner_ttl: Millis,
    /// Credit was adaptive at some time, so that expiries were counted which killed no message.
    pub(super) was_adaptive: bool,
    pub(super) produced_messages: BTreeMap<u64, Produce>,
    /// The payloads of messages as they were written.
    pub(super) payloads: BTreeMap<PayloadId, Body>,
    pub(super) pending: BTreeMap<Ticket, PendingCommand>,
    pub(super) streams: BTreeMap<ConsumerId, StreamModel>,
    pub(super) topics: BTreeMap<TopicId, TopicModel>,
    pub(super) groups: BTreeMap<(TopicId, GroupId), GroupModel>,
    /// The groups at the last observation.
    pub(super) present_groups: BTreeSet<(TopicId, GroupId)>,
    /// The topics with another set of groups at the last observation than at the one before.
    pub(super) regrouped: BTreeSet<TopicId>,
    /// Groups found to be deleted at an LSN, until a reply of a later decision: replies of earlier decisions do not
    /// know of the deletion.
    pub(super) deleted_groups: Vec<(Lsn, TopicName, GroupName)>,
    pub(super) identities: BTreeMap<DedupeKey, DedupeEntry>,
    pub(super) last_token: Option<LeaseToken>,
    /// The newest token before the last start.
    pub(super) earlier_token: Option<LeaseToken>,
    /// Some output waits for bytes, or did at the last call: others may leave before it.
    pub(super) is_reading: bool,
    pub(super) effects: BTreeMap<types::Identity, EffectModel>,
    /// The newest token of a grant.
    pub(super) last_grant: Option<LeaseToken>,
    /// The replies to completed steps, by token.
    pub(super) steps: BTreeMap<LeaseToken, Arc<[StepOutput]>>,
    /// Steps that were completed without a reply.
    pub(super) maybe_completed: BTreeSet<LeaseToken>,
    /// The numbers of messages that steps produce.
    pub(super) expected_outputs: BTreeSet<u64>,
    pub(super) torn: Vec<TornStep>,
    /// The messages that workers asked to dead-letter.
    pub(super) dead_letter_requests: BTreeSet<(TopicName, GroupName, Offset)>,
    /// As many winners have been remembered as the limit allows, so some may have been forgotten early.
    pub(super) winners_full: bool,
    /// The next offset of each dead-letter topic when the last redrive of all was asked for that named a rest.
    pub(super) redrive_ends: BTreeMap<TopicId, Offset>,
    pub(super) boot: Boot,
    /// The retention of each topic and the number of its groups at the last observation.
    pub(super) retention: BTreeMap<TopicId, (Retention, usize)>,
    /// The broker's count of skipped messages at the last observation.
    pub(super) skips: u64,
    /// Records that removed retained messages on a full disk, since the start.
    pub(super) reclaimed: u64,
    /// The LSN of the last observation, and whether a reply was released since.
    pub(super) observed_at: Option<Lsn>,
    /// Whether the state was last observed between calls.
    pub(super) retention_is_unchecked: bool,
    pub(super) has_new_reply: bool,
    pub(super) wall: WallModel,
    pub(super) recount: CounterRecount,
    /// The tokens of deliveries released since the start.
    pub(super) released: BTreeSet<LeaseToken>,
    /// Which partitions of a group wait for their turn, and which were delivered from meanwhile.
    pub(super) turns: BTreeMap<(TopicId, GroupId), PartitionTurns>,
    /// The last decision that made the credit of all streams uncertain.
    pub(super) uncertain_at: Option<Lsn>,
    /// The newest token in the state at the last observation.
    pub(super) observed_token: Option<LeaseToken>,
    pub(super) coverage: Coverage,
}

impl Tracker {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            winner_ttl: limits.completion_ttl,
            was_adaptive: limits.adaptive_credit,
            limits,
            produced_messages: BTreeMap::new(),
            payloads: BTreeMap::new(),
            pending: BTreeMap::new(),
            streams: BTreeMap::new(),
            topics: BTreeMap::new(),
            groups: BTreeMap::new(),
            present_groups: BTreeSet::new(),
            regrouped: BTreeSet::new(),
            deleted_groups: Vec::new(),
            identities: BTreeMap::new(),
            last_token: None,
            earlier_token: None,
            is_reading: false,
            effects: BTreeMap::new(),
            last_grant: None,
            steps: BTreeMap::new(),
            maybe_completed: BTreeSet::new(),
            expected_outputs: BTreeSet::new(),
            torn: Vec::new(),
            dead_letter_requests: BTreeSet::new(),
            winners_full: false,
            redrive_ends: BTreeMap::new(),
            boot: Boot(0),
            retention: BTreeMap::new(),
            skips: 0,
            reclaimed: 0,
            observed_at: None,
            retention_is_unchecked: false,
            has_new_reply: false,
            wall: WallModel::default(),
            recount: CounterRecount::default(),
            released: BTreeSet::new(),
            turns: BTreeMap::new(),
            uncertain_at: None,
            observed_token: None,
            coverage: Coverage::default(),
        }
    }

    /// The next start has these limits. What was given or stored before stays as it is.
    pub(crate) fn configure(&mut self, limits: Limits) {
        self.winner_ttl = self.winner_ttl.min(limits.completion_ttl);
        self.was_adaptive |= limits.adaptive_credit;
        // More winners may be remembered than the new limit allows.
        self.winners_full |= limits.completions_max < self.limits.completions_max;
        self.limits = limits;
    }

    /// Whether a produce of the message is pending.
    pub(crate) fn is_producing(&self, message: Message) -> bool {
        let is_match = |pending: &PendingCommand| match &pending.command {
            Command::Produce(produce) => number(produce.value()) == Some(u64::from(message.0)),
            _ => false,
        };
        self.pending.values().any(is_match)
    }

    /// Whether a claim of the owner is pending.
    pub(crate) fn is_claiming(&self, owner: &OwnerName) -> bool {
        self.pending.values().any(|pending| claim(&pending.command).is_some_and(|claim| claim.owner == *owner))
    }

    /// Writes its model for [a fingerprint](crate::world::Fingerprint).
    pub(crate) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self {
            limits: _,
            winner_ttl: _,
            was_adaptive: _,
            produced_messages,
            payloads: _,
            pending,
            streams,
            topics,
            groups,
            present_groups,
            regrouped: _,
            deleted_groups,
            identities,
            last_token,
            earlier_token,
            is_reading,
            effects,
            last_grant,
            steps,
            maybe_completed,
            expected_outputs,
            torn,
            dead_letter_requests,
            winners_full,
            redrive_ends,
            boot,
            retention,
            skips,
            reclaimed,
            observed_at,
            retention_is_unchecked,
            has_new_reply,
            wall,
            recount: _,
            released: _,
            // Which turns were taken decides nothing but the check of turns.
            turns: _,
            uncertain_at: _,
            observed_token: _,
            coverage: _,
        } = self;
        // For produced messages the numbers suffice: messages with the same number are equal.
        write!(out, "{:?} {pending:?} {streams:?} {topics:?} {groups:?} {identities:?} ", produced_messages.keys())?;
        write!(out, "{present_groups:?} {deleted_groups:?} {earlier_token:?} {is_reading} ")?;
        write!(
            out,
            "{last_token:?} {effects:?} {last_grant:?} {steps:?} {maybe_completed:?} {expected_outputs:?} {torn:?} "
        )?;
        write!(
            out,
            "{dead_letter_requests:?} {winners_full} {redrive_ends:?} {boot:?} {retention:?} {skips} {reclaimed} \
             {observed_at:?} {retention_is_unchecked} {has_new_reply} {wall:?} "
        )
    }

    /// Coverage points that only the tracker can detect.
    pub(crate) fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    pub(super) fn group_model_mut(&mut self, pending: &PendingCommand) -> Option<&mut GroupModel> {
        self.groups.get_mut(&(pending.topic?, pending.group?))
    }
}
