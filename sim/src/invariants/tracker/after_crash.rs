//! The tracker's model after a crash: unknown or uncertain where a reply was lost.

use driftq_core::Command;
use driftq_core::command::{
    Begin, DeleteGroup, DeleteTopic, Finish, Forget, Lookup, Produce, Reacquire, Renew, Seek, StoreCommand, Unsubscribe,
};
use driftq_core::types::{Lsn, Timestamp};

use super::completions::may_undo_step;
use super::model::*;
use super::names::{claim, dead_lettered_by};
use super::state::Tracker;

impl Tracker {
    /// The broker crashed, and recovery found the log to end at `last`.
    pub(crate) fn crashed(&mut self, last: Lsn) {
        let mut commands: Vec<_> = std::mem::take(&mut self.pending).into_values().collect();
        // Those that a failed log refused are not in the order of their decisions.
        commands.sort_by_key(|pending| (pending.before, pending.after));
        // A step that a later command or the deletion of its group undid is neither complete nor torn.
        if !commands.iter().any(may_undo_step) && self.deleted_groups.is_empty() {
            commands.iter().for_each(|pending| self.note_torn(pending, last));
        }
        for pending in commands.iter().filter(|pending| pending.before < last && pending.after > pending.before) {
            self.reply_lost(pending);
        }
        self.forget_deleted_groups(None);
        self.present_groups.clear();
        self.skips = 0;
        self.reclaimed = 0;
        self.streams.clear();
        (self.earlier_token, self.is_reading) = (self.last_token, false);
        self.observed_at = None;
        self.retention.clear();
        self.topics.retain(|_, model| model.first_seen <= last);
        let mut undone = Vec::new();
        for (topic, model) in &mut self.topics {
            model.rewind(last);
            for (offset, known) in &mut model.messages {
                if known.redriven.is_some_and(|redriven| redriven > last) {
                    known.redriven = None;
                    undone.push((*topic, *offset));
                }
                if known.purged.is_some_and(|(purged, _)| purged > last) {
                    known.purged = None;
                    undone.push((*topic, *offset));
                }
            }
        }
        for ((topic, _), model) in &mut self.groups {
            // A redrive or a purge that was lost: the lease on the message may still be held.
            for (_, offset) in undone.iter().filter(|(of, _)| of == topic) {
                if let Some(seen) = model.seen.get_mut(offset) {
                    seen.is_uncertain = true;
                }
            }
        }
        for grant in self.effects.values_mut().flat_map(|model| model.grants.values_mut()) {
            grant.runs_until = grant.until;
        }
        self.groups.retain(|_, model| model.first_seen <= last);
        for model in self.groups.values_mut() {
            model.starts.retain(|(before, ..)| *before < last);
            for (_, after, start) in &mut model.starts {
                if *after > last {
                    (*after, *start) = (last, StartPoint::Unknown);
                }
            }
            model.dead.retain(|_, records| {
                records.retain(|(since, _)| *since <= last);
                !records.is_empty()
            });
            model.crashed = true;
            for seen in model.seen.values_mut() {
                seen.crashed = true;
                seen.runs_until = seen.lease_until;
            }
        }
    }

    /// A command was decided and its reply was lost.
    fn reply_lost(&mut self, pending: &PendingCommand) {
        match &pending.command {
            Command::Produce(produce) => self.produce_reply_lost(produce, pending.at),
            Command::DeleteTopic(DeleteTopic { name }) => {
                for (((topic, destination), ..), identity) in &mut self.identities {
                    if [topic, destination].contains(&name) {
                        *identity = DedupeEntry::Unknown;
                    }
                }
                self.mark_effects_unknown(name, None);
            }
            Command::DeleteGroup(DeleteGroup { topic, group }) => self.mark_effects_unknown(topic, Some(group)),
            Command::Store(store) => {
                let (StoreCommand::Begin(Begin { identity, .. })
                | StoreCommand::Finish(Finish { identity, .. })
                | StoreCommand::Reacquire(Reacquire { identity, .. })
                | StoreCommand::Renew(Renew { identity, .. })
                | StoreCommand::Lookup(Lookup { identity })
                | StoreCommand::Forget(Forget { identity })) = &**store
                else {
                    return;
                };
                if let Some((_, _, delivery)) = dead_lettered_by(store) {
                    self.maybe_acked(pending, delivery.offset);
                }
                // Also one without a known grant: the lost reply may be of its first.
                self.effects.entry(identity.clone()).or_default().mark_unknown();
            }
            Command::Unsubscribe(Unsubscribe { consumer }) => {
                for seen in self.groups.values_mut().flat_map(|model| model.seen.values_mut()) {
                    seen.is_uncertain |= seen.consumer == *consumer;
                }
            }
            Command::Seek(Seek { .. }) => {
                if let Some(model) = self.group_model_mut(pending) {
                    model.on_seek(pending.after);
                    model.crashed = true;
                }
            }
            Command::AckCumulative(_) => {
                pending.cumulative.iter().for_each(|offset| self.maybe_acked(pending, *offset));
            }
            Command::ExpireLease(expire) => {
                let model = self.group_model_mut(pending);
                if let Some(seen) = model.and_then(|model| model.seen.get_mut(&expire.offset)) {
                    seen.is_uncertain = true;
                }
            }
            command => {
                if let Command::Complete(complete) = command {
                    complete.produce.iter().for_each(|produce| self.produce_reply_lost(produce, pending.at));
                }
                let identity = claim(command).and_then(|claim| self.identity_at(pending, claim.offset));
                if let Some(identity) = identity {
                    // Also one that no worker began: the lost reply may be of its end.
                    self.effects.entry(identity).or_default().mark_unknown();
                }
                if let (Some(claim), Some(model)) = (claim(command), self.group_model_mut(pending)) {
                    model.maybe_acked.insert(claim.offset);
                    if let Some(seen) = model.seen.get_mut(&claim.offset) {
                        seen.is_uncertain = true;
                        seen.may_be_withdrawn |= matches!(command, Command::Withdraw(_));
                    }
                }
            }
        }
    }

    /// A message may have been accepted without the producer's knowledge.
    fn produce_reply_lost(&mut self, produce: &Produce, at: Timestamp) {
        let Some(key) = dedupe_key(produce) else { return };
        let is_live = matches!(self.identities.get(&key),
            Some(DedupeEntry::Accepted { expires_at, .. }) if *expires_at > at);
        if !is_live {
            self.identities.insert(key, DedupeEntry::Unknown);
        }
    }
}
