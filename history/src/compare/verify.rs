//! Looks up the answers of a history in the log, and the records of the log in the history.

use crate::compare::log::{Change, Log, LogChange, LogMessage};
use crate::parsed::{CallResult, Delivery, EffectOp, ParsedHistory, ProduceRequest, SettleCall, SettleOp, short, text};
use crate::report::{Check, Report};
use driftq_core::types::TenantId;

/// Adds the violations that the log shows.
pub(super) fn verify(history: &ParsedHistory<'_>, log: &Log, report: &mut Report) {
    let mut verifier = Verifier { history, log, report, before_the_log: 0 };
    verifier.messages();
    verifier.deliveries();
    verifier.settles();
    verifier.effects();
    verifier.unrequested_messages();
    verifier.unrequested_changes();
    let before = verifier.before_the_log;
    if log.base > 0 {
        report.note(format!(
            "snapshots have replaced the log up to LSN {}; {before} earlier answers could not be looked up",
            log.base
        ));
    }
}

struct Verifier<'j, 'a> {
    history: &'j ParsedHistory<'a>,
    log: &'j Log,
    report: &'j mut Report,
    /// Answers whose records a snapshot has replaced.
    before_the_log: u64,
}

impl<'j> Verifier<'j, '_> {
    fn message(&self, topic: &str, offset: u64) -> Option<&'j LogMessage> {
        self.log.topics.get(topic)?.messages.get(&offset)
    }

    /// Whether a snapshot may have replaced a record: it is older than the first of its kind.
    fn may_be_replaced(&mut self, token: Option<&str>, first: Option<&String>) -> bool {
        let is_older = token.is_none_or(|token| first.is_none_or(|first| token < first.as_str()));
        let is_replaced = self.log.base > 0 && is_older;
        self.before_the_log += u64::from(is_replaced);
        is_replaced
    }

    /// Every acknowledged message is in the log at its offset.
    fn messages(&mut self) {
        for request in &self.history.requests {
            let Some(at) = request.at else { continue };
            self.report.count(Check::LogMessages, 1);
            let wrong = match self.message(request.topic, at.offset) {
                None => {
                    let first = self.log.topics.get(request.topic).map_or(0, |topic| topic.first_offset);
                    if self.log.base > 0 && at.offset < first {
                        self.before_the_log += 1;
                        continue;
                    }
                    Some("has no record in the log".to_owned())
                }
                Some(found) => difference(request, at.partition, found),
            };
            if let Some(wrong) = wrong {
                self.report.add_violation(Check::LogMessages, request.span.seqs(), || {
                    let value = short(request.value);
                    format!("topic {}, {at}, value \"{value}\", as acknowledged, {wrong}", request.topic)
                });
            }
        }
    }

    /// Every delivery that a client received is in the log.
    fn deliveries(&mut self) {
        for delivery in &self.history.deliveries {
            self.report.count(Check::LogDeliveries, 1);
            let wrong = match self.log.deliveries.get(delivery.token) {
                None if self.may_be_replaced(Some(delivery.token), self.log.first_delivery.as_ref()) => continue,
                None => Some("has no record in the log".to_owned()),
                Some(found) => {
                    let key = (delivery.topic, delivery.group, delivery.at.partition, delivery.at.offset);
                    let lsn = found.lsn;
                    if key != (&*found.topic, &*found.group, found.partition, found.offset) {
                        let (topic, group, offset) = (&found.topic, &found.group, found.offset);
                        Some(format!("is recorded at LSN {lsn} for topic {topic}, offset {offset}, group {group}"))
                    } else if delivery.attempt != found.attempt {
                        Some(format!("is attempt {} at LSN {lsn}", found.attempt))
                    } else if !delivery.owner.is_empty() && delivery.owner != found.owner {
                        Some(format!("was made to {} at LSN {lsn}", found.owner))
                    } else if lsn > 0
                        && found.until.is_some()
                        && delivery.until.is_some()
                        && delivery.until != found.until
                    {
                        Some(format!("has another lease_until at LSN {lsn}"))
                    } else {
                        self.other_value(delivery)
                    }
                }
            };
            if let Some(wrong) = wrong {
                self.report.add_violation(Check::LogDeliveries, [delivery.seq], || {
                    let (name, owner, group) = (delivery.name(), delivery.owner, delivery.group);
                    let (attempt, token) = (delivery.attempt, delivery.token);
                    format!("{name}: attempt {attempt} to {owner} of group {group} with token {token} {wrong}")
                });
            }
        }
    }

    fn other_value(&self, delivery: &Delivery<'_>) -> Option<String> {
        let found = self.message(delivery.topic, delivery.at.offset)?;
        let is_other = found.body.value() != delivery.value.as_bytes();
        is_other
            .then(|| format!("holds \"{}\" at LSN {}", short(&String::from_utf8_lossy(found.body.value())), found.lsn))
    }

    /// Every accepted settling call is in the log.
    fn settles(&mut self) {
        for settle in self.history.settles.iter().filter(|settle| settle.ended_as == CallResult::Ok) {
            self.report.count(Check::LogSettled, 1);
            let (topic, group, offset) = settle.timeline_key();
            let found = self.log.topics.get(topic).and_then(|topic| topic.changes.get(group)?.get(&offset));
            let found = found.map(Vec::as_slice).unwrap_or_default();
            let wrong = if !found.iter().any(|found| may_result_from(found, settle)) {
                if self.may_be_replaced(settle.token, self.log.first_delivery.as_ref()) {
                    continue;
                }
                Some("was accepted and has no record in the log")
            } else if settle.op.is_ack() && self.is_unacked_at_end(settle) {
                Some("was accepted, and the message is not acked at the end of the log")
            } else {
                None
            };
            if let Some(wrong) = wrong {
                self.report.add_violation(Check::LogSettled, settle.span.seqs(), || {
                    let (op, at) = (settle.op.name(), settle.at);
                    format!("the {op} of topic {topic}, {at} by group {group} {wrong}")
                });
            }
        }
    }

    /// Whether the message is not acked in the final state.
    fn is_unacked_at_end(&self, settle: &SettleCall<'_>) -> bool {
        let state = &self.log.state;
        let mut topics = state.topics_of(TenantId::DEFAULT);
        let Some(topic) = topics.find(|topic| topic.name().as_str() == settle.topic) else { return false };
        let group = topic.groups().find(|group| group.name().as_str() == settle.group);
        let partition = topic.partitions().find(|(id, _)| u64::from(id.0) == settle.at.partition);
        let Some((group, (id, partition))) = group.zip(partition) else { return false };
        let Some(progress) = group.progress(id) else { return false };
        // Messages that are no longer stored were acked in every group.
        let stored = partition.find(driftq_core::types::Offset(settle.at.offset));
        stored.is_some_and(|(position, _)| !progress.acked().contains(position))
    }

    fn effects(&mut self) {
        for call in self.history.effects.iter().filter(|call| call.ended_as == CallResult::Ok) {
            let wrong = match call.op {
                EffectOp::Begin if text(call.result, "decision") == "EXECUTE" => {
                    let token = text(call.result, "lease_token");
                    match self.log.grants.get(token) {
                        Some(identity) if *identity == call.identity => None,
                        Some(identity) => Some(format!("was granted with token {token}, which belongs to {identity}")),
                        None if self.may_be_replaced(Some(token), self.log.first_grant.as_ref()) => None,
                        None => Some(format!("was granted with token {token}, which has no record in the log")),
                    }
                }
                EffectOp::Finish => {
                    let status = text(call.args, "status");
                    let token = text(call.args, "lease_token");
                    match self.log.finished.get(&call.identity) {
                        Some(statuses) if statuses.contains(&status) => None,
                        _ if self.may_be_replaced(Some(token), self.log.first_grant.as_ref()) => None,
                        _ => Some(format!("was finished as {status}, which has no record in the log")),
                    }
                }
                EffectOp::Begin | EffectOp::Renew => continue,
            };
            self.report.count(Check::LogEffects, 1);
            if let Some(wrong) = wrong {
                self.report
                    .add_violation(Check::LogEffects, call.span.seqs(), || format!("{}: {wrong}", call.identity));
            }
        }
    }

    /// No message is in the log that no call can have produced.
    fn unrequested_messages(&mut self) {
        let mut topics: Vec<_> = self.log.topics.iter().collect();
        topics.sort_by_key(|(name, _)| name.as_str());
        for (topic, found) in topics {
            for (offset, message) in found.messages.iter().filter(|(_, message)| !message.is_derived) {
                self.report.count(Check::LogFailed, 1);
                let value = String::from_utf8_lossy(message.body.value());
                let requests =
                    self.history.requests_for.get(&(topic.as_str(), &*value)).map(Vec::as_slice).unwrap_or_default();
                let requests = || requests.iter().map(|index| &self.history.requests[*index]);
                if requests().any(ProduceRequest::may_have_stored) {
                    continue;
                }
                let seqs: Vec<u64> = requests().take(1).flat_map(|request| request.span.seqs()).collect();
                let why = if seqs.is_empty() { "which no call produced" } else { "though its call stored nothing" };
                self.report.add_violation(Check::LogFailed, seqs, || {
                    let (lsn, value) = (message.lsn, short(&value));
                    format!("topic {topic}, offset {offset}, value \"{value}\" is in the log at LSN {lsn}, {why}")
                });
            }
        }
    }

    /// No change of a message is in the log that no call can have caused.
    fn unrequested_changes(&mut self) {
        let (history, log) = (self.history, self.log);
        let topics = log.topics.iter().flat_map(|(topic, found)| found.changes.iter().map(move |group| (topic, group)));
        let mut groups: Vec<_> = topics.collect();
        groups.sort_by_key(|(topic, (group, _))| (topic.as_str(), group.as_str()));
        for (topic, (group, messages)) in groups {
            for (offset, changes) in messages {
                let timeline = history.timelines.get(&(topic.as_str(), group.as_str(), *offset));
                let calls: Vec<&SettleCall<'_>> = timeline
                    .iter()
                    .flat_map(|timeline| &timeline.settles)
                    .map(|index| &history.settles[*index])
                    .collect();
                for found in changes {
                    let Some(op) = requested_by(found.change) else { continue };
                    self.report.count(Check::LogFailed, 1);
                    let is_its = |settle: &&&SettleCall<'_>| {
                        settle.op == op && settle.token.is_none_or(|token| found.token.as_deref() == Some(token))
                    };
                    if calls.iter().filter(is_its).any(|settle| settle.ended_as.is_possible()) {
                        continue;
                    }
                    let seqs: Vec<u64> = calls.iter().find(is_its).map_or_else(Vec::new, |settle| settle.span.seqs());
                    let why = if seqs.is_empty() { "no call requested it" } else { "the call for it failed" };
                    self.report.add_violation(Check::LogFailed, seqs, || {
                        let (op, lsn) = (op.name(), found.lsn);
                        format!("topic {topic}, offset {offset}: the log has a {op} by group {group} at LSN {lsn}, and {why}")
                    });
                }
            }
        }
    }
}

/// How a message in the log differs from the acknowledged one.
fn difference(request: &ProduceRequest<'_>, partition: u64, found: &LogMessage) -> Option<String> {
    let lsn = found.lsn;
    if found.partition != partition {
        return Some(format!("is in partition {} at LSN {lsn}", found.partition));
    }
    if request.duplicate {
        // It has the offset of the first message of its identity, whose body may differ.
        let is_its = found.body.identity() == request.identity();
        return (!is_its).then(|| format!("is a duplicate of a message with another identity at LSN {lsn}"));
    }
    if found.body.value() != request.value.as_bytes() {
        return Some(format!("holds \"{}\" at LSN {lsn}", short(&String::from_utf8_lossy(found.body.value()))));
    }
    (found.body.key() != request.key.as_bytes()).then(|| format!("has another key at LSN {lsn}"))
}

/// Whether a record may be the result of an accepted call.
fn may_result_from(found: &LogChange, settle: &SettleCall<'_>) -> bool {
    let is_its = settle.token.is_none_or(|token| found.token.as_deref() == Some(token));
    match settle.op {
        SettleOp::Ack => found.change.is_final(),
        SettleOp::Complete => found.change == Change::Completed && is_its,
        SettleOp::Extend => {
            let is_told =
                |until| matches!(found.change, Change::Extended { until: end } if end.is_none_or(|end| end == until));
            settle.until.is_some_and(is_told) && is_its
        }
        // Without a lease, and on an acked message, these change nothing.
        SettleOp::Nack | SettleOp::Release => {
            let frees =
                matches!(found.change, Change::Nacked | Change::ReasonNoted | Change::Expired | Change::Released);
            found.change.is_final() || (frees && is_its)
        }
    }
}

/// The call that a change requires; the broker may release a lease itself.
fn requested_by(change: Change) -> Option<SettleOp> {
    match change {
        Change::Acked => Some(SettleOp::Ack),
        Change::Completed => Some(SettleOp::Complete),
        Change::Nacked | Change::ReasonNoted => Some(SettleOp::Nack),
        Change::Extended { .. } => Some(SettleOp::Extend),
        Change::Skipped | Change::Dead | Change::Expired | Change::Released => None,
    }
}
