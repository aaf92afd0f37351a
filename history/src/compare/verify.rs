//! What clients were told against what the log says, both ways.

use super::records::{Happened, Log, LogMessage, Settled};
use crate::parsed::{Ask, Delivery, EffectOp, Facts, Fate, Settle, SettleOp, short, text};
use crate::report::{Check, Report};

pub(super) fn judge(facts: &Facts<'_>, log: &Log, report: &mut Report) {
    let mut judge = Judge { facts, log, report, before_the_log: 0 };
    judge.messages();
    judge.deliveries();
    judge.settled();
    judge.effects();
    judge.unasked_messages();
    judge.unasked_settlements();
    let before = judge.before_the_log;
    if log.base > 0 {
        report.note(format!(
            "snapshots have replaced the log up to LSN {}; {before} answers from before it could not be looked up",
            log.base
        ));
    }
}

struct Judge<'j, 'a> {
    facts: &'j Facts<'a>,
    log: &'j Log,
    report: &'j mut Report,
    /// Answers whose records are gone with the beginning of the log.
    before_the_log: u64,
}

impl<'j> Judge<'j, '_> {
    fn message(&self, topic: &str, offset: u64) -> Option<&'j LogMessage> {
        self.log.topics.get(topic)?.messages.get(&offset)
    }

    /// Whether a record may be gone with the beginning of the log: whatever is older than the first of its kind that is left.
    fn may_be_gone(&mut self, token: Option<&str>, first: Option<&String>) -> bool {
        let is_older = token.is_none_or(|token| first.is_none_or(|first| token < first.as_str()));
        let is_gone = self.log.base > 0 && is_older;
        self.before_the_log += u64::from(is_gone);
        is_gone
    }

    /// Every message that was acknowledged is where its producer was told.
    fn messages(&mut self) {
        for ask in &self.facts.asks {
            let Some(place) = ask.place else { continue };
            self.report.looked_at(Check::LogMessages, 1);
            let wrong = match self.message(ask.topic, place.offset) {
                None => {
                    let first = self.log.topics.get(ask.topic).map_or(0, |topic| topic.first_offset);
                    if self.log.base > 0 && place.offset < first {
                        self.before_the_log += 1;
                        continue;
                    }
                    Some("has no record in the log".to_owned())
                }
                Some(found) => difference(ask, place.partition, found),
            };
            if let Some(wrong) = wrong {
                self.report.accuse(Check::LogMessages, ask.span.seqs(), || {
                    let value = short(ask.value);
                    format!("topic {}, {place}, value \"{value}\", as its producer was told, {wrong}", ask.topic)
                });
            }
        }
    }

    /// Every delivery that a client saw was made.
    fn deliveries(&mut self) {
        for delivery in &self.facts.deliveries {
            self.report.looked_at(Check::LogDeliveries, 1);
            let wrong = match self.log.deliveries.get(delivery.token) {
                None if self.may_be_gone(Some(delivery.token), self.log.first_delivery.as_ref()) => continue,
                None => Some("has no record in the log".to_owned()),
                Some(found) => {
                    let here = (delivery.topic, delivery.group, delivery.place.partition, delivery.place.offset);
                    let lsn = found.lsn;
                    if here != (&*found.topic, &*found.group, found.partition, found.offset) {
                        let (topic, group, offset) = (&found.topic, &found.group, found.offset);
                        Some(format!("is at LSN {lsn} one of topic {topic}, offset {offset} to group {group}"))
                    } else if delivery.attempt != found.attempt {
                        Some(format!("is attempt {} at LSN {lsn}", found.attempt))
                    } else if !delivery.owner.is_empty() && delivery.owner != found.owner {
                        Some(format!("was made to {} at LSN {lsn}", found.owner))
                    } else if lsn > 0 && delivery.until.is_some() && delivery.until != found.until {
                        Some(format!("has another lease_until at LSN {lsn}"))
                    } else {
                        self.other_value(delivery)
                    }
                }
            };
            if let Some(wrong) = wrong {
                self.report.accuse(Check::LogDeliveries, [delivery.seq], || {
                    let (name, owner, group) = (delivery.name(), delivery.owner, delivery.group);
                    let (attempt, token) = (delivery.attempt, delivery.token);
                    format!("{name}: attempt {attempt} to {owner} of group {group} with token {token} {wrong}")
                });
            }
        }
    }

    fn other_value(&self, delivery: &Delivery<'_>) -> Option<String> {
        let found = self.message(delivery.topic, delivery.place.offset)?;
        let is_other = found.body.value() != delivery.value.as_bytes();
        is_other
            .then(|| format!("holds \"{}\" at LSN {}", short(&String::from_utf8_lossy(found.body.value())), found.lsn))
    }

    /// Every word that was taken has left its mark.
    fn settled(&mut self) {
        for settle in self.facts.settles.iter().filter(|settle| settle.fate == Fate::Ok) {
            self.report.looked_at(Check::LogSettled, 1);
            let (topic, group, offset) = settle.story();
            let found = self.log.topics.get(topic).and_then(|topic| topic.groups.get(group)?.get(&offset));
            let found = found.map(Vec::as_slice).unwrap_or_default();
            let wrong = if !found.iter().any(|found| is_mark_of(found, settle)) {
                if self.may_be_gone(settle.token, self.log.first_delivery.as_ref()) {
                    continue;
                }
                Some("was taken and has no record in the log")
            } else if settle.op.finishes() && self.is_undone(settle) {
                Some("was taken, and in the end the log has the message as not done")
            } else {
                None
            };
            if let Some(wrong) = wrong {
                self.report.accuse(Check::LogSettled, settle.span.seqs(), || {
                    let (op, place) = (settle.op.word(), settle.place);
                    format!("the {op} of topic {topic}, {place} by group {group} {wrong}")
                });
            }
        }
    }

    /// Whether the state at the end has the message as one that is still to be done.
    fn is_undone(&self, settle: &Settle<'_>) -> bool {
        let state = &self.log.state;
        let Some(topic) = state.topics().find(|topic| topic.name().as_str() == settle.topic) else { return false };
        let group = topic.groups().find(|group| group.name().as_str() == settle.group);
        let partition = topic.partitions().find(|(id, _)| u64::from(id.0) == settle.place.partition);
        let Some((group, (id, partition))) = group.zip(partition) else { return false };
        let Some(progress) = group.progress(id) else { return false };
        // What is not kept any more was done in every group.
        let kept = partition.find(driftq_core::types::Offset(settle.place.offset));
        kept.is_some_and(|(position, _)| !progress.done().contains(position))
    }

    fn effects(&mut self) {
        for call in self.facts.effects.iter().filter(|call| call.fate == Fate::Ok) {
            let wrong = match call.op {
                EffectOp::Begin if text(call.result, "decision") == "EXECUTE" => {
                    let token = text(call.result, "lease_token");
                    match self.log.begun.get(token) {
                        Some(identity) if *identity == call.identity => None,
                        Some(identity) => Some(format!("was granted with token {token}, which is that of {identity}")),
                        None if self.may_be_gone(Some(token), self.log.first_grant.as_ref()) => None,
                        None => Some(format!("was granted with token {token}, which has no record in the log")),
                    }
                }
                EffectOp::Finish => {
                    let status = text(call.args, "status");
                    let token = text(call.args, "lease_token");
                    match self.log.finished.get(&call.identity) {
                        Some(ends) if ends.contains(&status) => None,
                        _ if self.may_be_gone(Some(token), self.log.first_grant.as_ref()) => None,
                        _ => Some(format!("was finished as {status}, which has no record in the log")),
                    }
                }
                EffectOp::Begin | EffectOp::Renew => continue,
            };
            self.report.looked_at(Check::LogEffects, 1);
            if let Some(wrong) = wrong {
                self.report.accuse(Check::LogEffects, call.span.seqs(), || format!("{}: {wrong}", call.identity));
            }
        }
    }

    /// No message stands in the log that nobody can have produced.
    fn unasked_messages(&mut self) {
        let mut topics: Vec<_> = self.log.topics.iter().collect();
        topics.sort_by_key(|(name, _)| name.as_str());
        for (topic, found) in topics {
            for (offset, message) in found.messages.iter().filter(|(_, message)| !message.is_made) {
                self.report.looked_at(Check::LogFailed, 1);
                let value = String::from_utf8_lossy(message.body.value());
                let asks = self.facts.asks_of.get(&(topic.as_str(), &*value)).map(Vec::as_slice).unwrap_or_default();
                let asks = || asks.iter().map(|index| &self.facts.asks[*index]);
                if asks().any(Ask::may_have_stored) {
                    continue;
                }
                let seqs: Vec<u64> = asks().take(1).flat_map(|ask| ask.span.seqs()).collect();
                let why =
                    if seqs.is_empty() { "which nobody asked for" } else { "though what asked for it stored nothing" };
                self.report.accuse(Check::LogFailed, seqs, || {
                    let (lsn, value) = (message.lsn, short(&value));
                    format!("topic {topic}, offset {offset}, value \"{value}\" stands in the log at LSN {lsn}, {why}")
                });
            }
        }
    }

    /// No word about a message stands in the log that nobody can have said.
    fn unasked_settlements(&mut self) {
        let (facts, log) = (self.facts, self.log);
        let topics = log.topics.iter().flat_map(|(topic, found)| found.groups.iter().map(move |group| (topic, group)));
        let mut groups: Vec<_> = topics.collect();
        groups.sort_by_key(|(topic, (group, _))| (topic.as_str(), group.as_str()));
        for (topic, (group, messages)) in groups {
            for (offset, settled) in messages {
                let story = facts.stories.get(&(topic.as_str(), group.as_str(), *offset));
                let said: Vec<&Settle<'_>> =
                    story.iter().flat_map(|story| &story.settles).map(|index| &facts.settles[*index]).collect();
                for found in settled {
                    let Some(op) = asked_by(found.what) else { continue };
                    self.report.looked_at(Check::LogFailed, 1);
                    let is_its = |settle: &&&Settle<'_>| {
                        settle.op == op && settle.token.is_none_or(|token| found.token.as_deref() == Some(token))
                    };
                    if said.iter().filter(is_its).any(|settle| settle.fate.is_possible()) {
                        continue;
                    }
                    let seqs: Vec<u64> = said.iter().find(is_its).map_or_else(Vec::new, |settle| settle.span.seqs());
                    let why = if seqs.is_empty() { "nobody asked for it" } else { "the call for it failed" };
                    self.report.accuse(Check::LogFailed, seqs, || {
                        let (op, lsn) = (op.word(), found.lsn);
                        format!("topic {topic}, offset {offset}: the log has a {op} by group {group} at LSN {lsn}, and {why}")
                    });
                }
            }
        }
    }
}

/// How a message in the log is not what its producer was told of.
fn difference(ask: &Ask<'_>, partition: u64, found: &LogMessage) -> Option<String> {
    let lsn = found.lsn;
    if found.partition != partition {
        return Some(format!("stands in partition {} at LSN {lsn}", found.partition));
    }
    if ask.duplicate {
        // Its place is that of the first message of its identity, whose body may be another.
        let is_its = found.body.identity() == ask.identity();
        return (!is_its).then(|| format!("is a duplicate of a message with another identity at LSN {lsn}"));
    }
    if found.body.value() != ask.value.as_bytes() {
        return Some(format!("holds \"{}\" at LSN {lsn}", short(&String::from_utf8_lossy(found.body.value()))));
    }
    (found.body.key() != ask.key.as_bytes()).then(|| format!("has another key at LSN {lsn}"))
}

/// Whether a word that was taken may have left this behind.
fn is_mark_of(found: &Settled, settle: &Settle<'_>) -> bool {
    let is_its = settle.token.is_none_or(|token| found.token.as_deref() == Some(token));
    match settle.op {
        SettleOp::Ack => found.what.is_end(),
        SettleOp::Complete => found.what == Happened::Completed && is_its,
        SettleOp::Extend => settle.until.is_some_and(|until| found.what == Happened::Extended { until }) && is_its,
        // On a message that nobody holds, or that is done, these change nothing.
        SettleOp::Nack | SettleOp::Release => {
            let frees =
                matches!(found.what, Happened::Nacked | Happened::Noted | Happened::Expired | Happened::Released);
            found.what.is_end() || (frees && is_its)
        }
    }
}

/// The call without which this cannot stand in the log; a release may be the server's own.
fn asked_by(what: Happened) -> Option<SettleOp> {
    match what {
        Happened::Acked => Some(SettleOp::Ack),
        Happened::Completed => Some(SettleOp::Complete),
        Happened::Nacked | Happened::Noted => Some(SettleOp::Nack),
        Happened::Extended { .. } => Some(SettleOp::Extend),
        Happened::Skipped | Happened::Dead | Happened::Expired | Happened::Released => None,
    }
}
