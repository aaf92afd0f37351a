//! The tracker's model of one effect.

use std::collections::BTreeMap;
use std::sync::Arc;

use driftq_core::types::{EffectStatus, Lifetime, Outcome, *};

/// What is known of one effect.
#[derive(Clone, Debug, Default)]
pub(crate) struct EffectModel {
    /// All known grants since the record was last certain to be absent.
    pub(crate) grants: BTreeMap<LeaseToken, GrantModel>,
    /// Its end by an ack or complete alone.
    pub(crate) acked: Option<EffectEnd>,
    /// The request hash, if one was given.
    pub(crate) request: Option<Text>,
    /// How long its record is kept, if known.
    pub(super) lifetime: Option<Lifetime>,
    /// The record before the next grant is unknown.
    pub(super) is_unknown: bool,
    /// Deliveries that grants were requested for, and where their messages are.
    pub(super) deliveries: Vec<(LeaseToken, MessageLocation)>,
}

pub(super) type MessageLocation = (TopicId, GroupId, PartitionId, Position);

/// One grant.
#[derive(Clone, Debug)]
pub(crate) struct GrantModel {
    pub(crate) at: Timestamp,
    /// The last record of the decision.
    pub(crate) decided: Lsn,
    /// The end that the worker was told.
    pub(crate) until: Timestamp,
    /// The end of the lease, which runs from the release of the grant.
    pub(crate) runs_until: Timestamp,
    /// The delivery on whose behalf it was issued.
    pub(crate) delivery: Option<LeaseToken>,
    /// Its final outcome.
    pub(crate) end: Option<EffectEnd>,
    /// It failed and may be retried.
    pub(crate) failed: bool,
    /// A reply about the effect was lost in a crash, or the effect was forgotten on purpose.
    pub(crate) is_uncertain: bool,
}

impl GrantModel {
    /// Whether its final outcome must be kept at `at`.
    pub(crate) fn is_remembered(&self, at: Timestamp) -> bool {
        !self.is_uncertain && self.end.as_ref().is_some_and(|end| end.is_remembered(at))
    }

    /// Whether it has a final outcome.
    pub(crate) fn is_final(&self) -> bool {
        self.end.is_some()
    }

    /// Whether `next` may be issued after this grant with the token `token`.
    pub(crate) fn yields_to(&self, token: LeaseToken, next: &Self) -> bool {
        let ended = self.failed || self.end.is_some() || self.runs_until <= next.at;
        self.is_uncertain || ended || next.delivery.is_some_and(|delivery| delivery > token)
    }
}

/// The end of an effect.
#[derive(Clone, Debug)]
pub(crate) struct EffectEnd {
    /// The outcome, if known.
    pub(crate) outcome: Option<Outcome>,
    /// When its record expires, if known.
    pub(crate) expires_at: Option<Timestamp>,
    /// A worker recorded it.
    pub(crate) is_recorded: bool,
}

impl EffectEnd {
    /// Whether its record is certain to exist at `at`.
    pub(crate) fn is_remembered(&self, at: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| at < end)
    }
}

impl EffectModel {
    /// The record has become unknown.
    pub(super) fn mark_unknown(&mut self) {
        self.grants.values_mut().for_each(|grant| grant.is_uncertain = true);
        (self.acked, self.request, self.lifetime) = (None, None, None);
        self.is_unknown = true;
    }

    pub(super) fn newest(&mut self) -> Option<&mut GrantModel> {
        self.grants.last_entry().map(std::collections::btree_map::OccupiedEntry::into_mut)
    }

    /// The known end, by a grant or without one.
    pub(super) fn end(&self) -> Option<&EffectEnd> {
        let newest = self.grants.last_key_value().filter(|(_, grant)| !grant.is_uncertain);
        newest.map_or(self.acked.as_ref(), |(_, grant)| grant.end.as_ref())
    }

    /// Whether the record of the newest grant may have expired at `at`.
    pub(super) fn may_be_forgotten(&self, at: Timestamp) -> bool {
        // A record that only its message keeps past its window is not certain.
        let Some((_, grant)) = self.grants.last_key_value() else {
            return self.is_unknown || self.acked.as_ref().is_some_and(|end| !end.is_remembered(at));
        };
        self.is_unknown
            || grant.is_uncertain
            || match &grant.end {
                Some(end) => !end.is_remembered(at),
                None => self.lifetime.is_none_or(|lifetime| expiry(lifetime, grant.until) <= at),
            }
    }

    /// Its message was acked, or completed with a result.
    pub(super) fn commit(&mut self, at: Timestamp, windows: Windows, completed: Option<&Option<Arc<str>>>) {
        if self.may_be_forgotten(at) {
            self.mark_unknown();
            return;
        }
        let lifetime = self.lifetime;
        let succeeded = |result: Option<Arc<str>>| {
            Some(Outcome { status: EffectStatus::Succeeded, response_code: 0, result, last_error: Text::default() })
        };
        let by_ack = self.acked.take().filter(|end| end.is_remembered(at));
        match (self.newest(), completed) {
            (Some(grant), Some(result)) if !grant.end.as_ref().is_some_and(|end| end.is_recorded) => {
                let expires_at = lifetime.map(|lifetime| expiry(lifetime, at));
                grant.end = Some(EffectEnd { outcome: succeeded(result.clone()), expires_at, is_recorded: true });
            }
            (Some(grant), None) if grant.end.is_none() => {
                let expires_at = windows.acked_until.map(|until| until.max(grant.until));
                grant.end = Some(EffectEnd { outcome: None, expires_at, is_recorded: false });
            }
            (Some(_), _) => {}
            (None, completed) => {
                let is_recorded = completed.is_some();
                let expires_at = if is_recorded { Some(at.after(windows.completed)) } else { windows.acked_until };
                let new = EffectEnd { outcome: succeeded(completed.cloned().flatten()), expires_at, is_recorded };
                self.acked = Some(by_ack.filter(|end| end.is_recorded || !is_recorded).unwrap_or(new));
            }
        }
    }
}

/// How long the record of an effect without a grant is kept.
#[derive(Clone, Copy)]
pub(super) struct Windows {
    /// Until when, after an ack alone; `None` if unknown.
    pub(super) acked_until: Option<Timestamp>,
    /// After a complete.
    pub(super) completed: Millis,
}

/// When the record of an effect that ended at `end` expires.
pub(super) fn expiry(lifetime: Lifetime, end: Timestamp) -> Timestamp {
    match lifetime {
        Lifetime::Window(window) => end.after(window),
        Lifetime::Until(time) => time.max(end),
    }
}
