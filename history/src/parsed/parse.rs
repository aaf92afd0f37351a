//! Parses a history in one pass over its lines.

use std::collections::{BTreeMap, HashMap, btree_map};

use serde_json::Value;

use crate::entry::{Entry, Phase};
use crate::parsed::fields::{
    flag, has_dead_letter_policy, identity, is_dead_letter_topic, millis, number, out_of_order, required, text,
};
use crate::parsed::history::{MessageKey, ParsedHistory};
use crate::parsed::model::{
    CallResult, CallSpan, Delivery, EffectCall, EffectOp, KnownMessage, Origin, PartitionOffset, ProduceRequest,
    SettleCall, SettleOp, Setup, Step,
};

/// Open calls, by client, incarnation and operation.
type Open<'a> = HashMap<(&'a str, u64, &'a str), &'a Entry>;

/// Parses the lines of a history.
pub(crate) fn parse(entries: &[Entry]) -> ParsedHistory<'_> {
    let mut parser = Parser::default();
    parser.history.counts.entries = entries.len() as u64;
    let mut open: Open<'_> = HashMap::new();
    for entry in entries {
        let call = (entry.client.as_str(), entry.incarnation, entry.op.as_str());
        match (entry.op.as_str(), entry.phase) {
            ("deliver", _) => {
                let consume = open.get(&(call.0, call.1, "consume")).copied();
                parser.deliver(entry, &entry.result, consume);
            }
            _ if entry.is_driver_action() => parser.driver_action(entry),
            (_, Phase::Invoke) => {
                if let Some(before) = open.insert(call, entry) {
                    parser.call(before, None);
                }
            }
            (..) => {
                let invoke = open.remove(&call).unwrap_or(entry);
                // A driver that polls may record the messages it received in the answer to a consume.
                for item in polled_messages(entry) {
                    parser.deliver(entry, item, Some(invoke));
                }
                parser.call(invoke, Some(entry));
            }
        }
    }
    let mut unanswered: Vec<&Entry> = open.into_values().collect();
    unanswered.sort_by_key(|entry| entry.seq);
    for entry in unanswered {
        parser.call(entry, None);
    }
    parser.finish()
}

#[derive(Default)]
struct Parser<'a> {
    history: ParsedHistory<'a>,
    /// The outputs of the first complete with each token.
    outputs_by_token: HashMap<(&'a str, &'a str, u64, &'a str), &'a Value>,
}

impl<'a> Parser<'a> {
    fn driver_action(&mut self, entry: &'a Entry) {
        let history = &mut self.history;
        match (entry.op.as_str(), entry.phase) {
            ("setup", Phase::Ok) => {
                let groups = entry.args.get("groups").and_then(Value::as_array).into_iter().flatten();
                history.setup = Setup {
                    max_in_flight: number(&entry.args, "max_in_flight"),
                    lease_ms: number(&entry.args, "lease_ms").filter(|lease| *lease > 0),
                    dedupe_ms: number(&entry.args, "dedupe_ms"),
                    groups: groups.map(|group| (text(group, "topic"), text(group, "group"))).collect(),
                };
                history.setup.groups.sort_unstable();
                history.setup.groups.dedup();
            }
            ("kill" | "power", Phase::Ok) => history.counts.kills += 1,
            ("start", Phase::Ok) => history.counts.starts += 1,
            ("clock", _) => match (entry.args.get("settled"), history.clock_changes.last_mut()) {
                (Some(Value::Bool(true)), Some(change)) => *change = *change.start()..=entry.seq,
                _ => history.clock_changes.push(entry.seq..=entry.seq),
            },
            ("drain", phase) => {
                let round = match number(&entry.args, "round") {
                    Some(1) => &mut history.drains[0],
                    Some(2) => &mut history.drains[1],
                    _ => return history.malformed.push((entry.seq, "the round of a drain must be 1 or 2".to_owned())),
                };
                round.began.get_or_insert(entry.seq);
                if phase == Phase::Ok {
                    round.ended = Some(entry.seq);
                }
            }
            _ => {}
        }
    }

    fn deliver(&mut self, entry: &'a Entry, item: &'a Value, consume: Option<&'a Entry>) {
        self.history.counts.deliveries += 1;
        match self.delivery(entry, item, consume) {
            Ok(delivery) => self.history.deliveries.push(delivery),
            Err(field) => self.history.malformed.push((entry.seq, format!("a delivery must have its {field}"))),
        }
    }

    fn delivery(
        &self,
        entry: &'a Entry,
        item: &'a Value,
        consume: Option<&'a Entry>,
    ) -> Result<Delivery<'a>, &'static str> {
        let args = &entry.args;
        let envelope = item.get("envelope").unwrap_or(&Value::Null);
        let dlq = envelope.get("dlq").filter(|dlq| dlq.is_object());
        let origin = dlq.map(|dlq| {
            let partition = number(dlq, "original_partition").ok_or("original_partition")?;
            let offset = number(dlq, "original_offset").ok_or("original_offset")?;
            let (topic, group) = (text(dlq, "original_topic"), text(dlq, "group"));
            Ok::<_, &'static str>(Origin { topic, group, at: PartitionOffset { partition, offset } })
        });
        let consume_args = consume.map_or(args, |consume| &consume.args);
        Ok(Delivery {
            seq: entry.seq,
            topic: required(args, "topic")?,
            group: required(args, "group")?,
            owner: text(args, "owner"),
            at: partition_offset(item)?,
            attempt: number(item, "attempts").ok_or("attempts")?,
            token: required(item, "lease_token")?,
            until: millis(item, "lease_until"),
            lease_ms: number(consume_args, "lease_ms").filter(|lease| *lease > 0).or(self.history.setup.lease_ms),
            value: required(item, "value")?,
            key: text(item, "key"),
            envelope,
            origin: origin.transpose()?,
            redriven: number(item, "redrives").unwrap_or(0) > 0,
            consume: consume.map(|consume| consume.seq),
            ends_with_stream: flag(consume_args, "release_on_disconnect"),
        })
    }

    /// A call and its answer, if it has one.
    fn call(&mut self, invoke: &'a Entry, answer: Option<&'a Entry>) {
        let span = CallSpan { invoked: invoke.seq, ended: answer.map(|answer| answer.seq), t: invoke.t };
        let ended_as = match answer.map(|answer| answer.phase) {
            Some(Phase::Ok) => CallResult::Ok,
            Some(Phase::Fail) => CallResult::Fail,
            Some(Phase::Info | Phase::Invoke) | None => CallResult::Info,
        };
        let counts = &mut self.history.counts;
        counts.calls += 1;
        *match ended_as {
            CallResult::Ok => &mut counts.ok,
            CallResult::Fail => &mut counts.fail,
            CallResult::Info => &mut counts.info,
        } += 1;
        let result = answer.map_or(&Value::Null, |answer| &answer.result);
        let call = (span, ended_as);
        let parsed = match invoke.op.as_str() {
            "produce" => self.produce(&invoke.args, result, call),
            "ack" => self.settle(SettleOp::Ack, &invoke.args, result, call),
            "nack" => self.settle(SettleOp::Nack, &invoke.args, result, call),
            "extend" => self.settle(SettleOp::Extend, &invoke.args, result, call),
            "release" => self.settle(SettleOp::Release, &invoke.args, result, call),
            "complete" => self.complete(&invoke.args, result, call),
            "begin" | "reacquire" => self.effect(EffectOp::Begin, invoke, result, call),
            "finish" => self.effect(EffectOp::Finish, invoke, result, call),
            "renew" => self.effect(EffectOp::Renew, invoke, result, call),
            "consume" => {
                if self.history.drains[0].began.is_some_and(|began| began < invoke.seq) {
                    self.history.drained_topics.insert(text(&invoke.args, "topic"));
                }
                let stream = (text(&invoke.args, "topic"), text(&invoke.args, "group"));
                self.history.stream_ends.entry(stream).or_default().extend(answer.map(|answer| answer.seq));
                Ok(())
            }
            // No check covers other routes.
            _ => Ok(()),
        };
        if let (Err(field), true) = (parsed, ended_as != CallResult::Fail) {
            self.history.malformed.push((span.last(), format!("a {} must have its {field}", invoke.op)));
        }
    }

    fn produce(
        &mut self,
        args: &'a Value,
        result: &'a Value,
        (span, ended_as): (CallSpan, CallResult),
    ) -> Result<(), &'static str> {
        let mut request = produce_request(args, (span, ended_as))?;
        if ended_as == CallResult::Ok {
            request.at = Some(partition_offset(result)?);
            request.duplicate = flag(result, "duplicate");
            request.already_done = flag(result, "already_done");
        }
        self.history.requests.push(request);
        Ok(())
    }

    fn settle(
        &mut self,
        op: SettleOp,
        args: &'a Value,
        result: &'a Value,
        (span, ended_as): (CallSpan, CallResult),
    ) -> Result<(), &'static str> {
        let token = Some(text(args, "lease_token")).filter(|token| !token.is_empty());
        let until = millis(result, "lease_until").filter(|_| ended_as == CallResult::Ok);
        if op == SettleOp::Extend && ended_as == CallResult::Ok && until.is_none() {
            return Err("lease_until");
        }
        let (topic, group, at) = (required(args, "topic")?, required(args, "group")?, partition_offset(args)?);
        self.history.settles.push(SettleCall { op, topic, group, at, token, span, ended_as, until });
        Ok(())
    }

    fn complete(
        &mut self,
        args: &'a Value,
        result: &'a Value,
        (span, ended_as): (CallSpan, CallResult),
    ) -> Result<(), &'static str> {
        let settle = self.history.settles.len();
        self.settle(SettleOp::Complete, args, result, (span, ended_as))?;
        let (topic, group, offset) = self.history.settles[settle].timeline_key();
        let requested = args.get("produce").unwrap_or(&Value::Null);
        // A repeated complete with the same token gets the answer of the first, whatever it requests itself.
        let token = text(args, "lease_token");
        let first_requested = self.outputs_by_token.entry((topic, group, offset, token)).or_insert(requested);
        let is_same = **first_requested == *requested;
        let outputs = requested.as_array().map(Vec::as_slice).unwrap_or_default();
        let produced = result.get("produced").and_then(Value::as_array).filter(|_| ended_as == CallResult::Ok);
        let first = self.history.requests.len();
        for (index, output) in outputs.iter().enumerate() {
            let mut request = produce_request(output, (span, ended_as))?;
            request.step = Some((topic, group, offset));
            if let Some(stored) = produced.and_then(|produced| produced.get(index)).filter(|_| is_same) {
                request.at = Some(partition_offset(stored)?);
                request.duplicate = flag(stored, "duplicate");
                request.already_done = flag(stored, "already_done");
            }
            self.history.requests.push(request);
        }
        let answered = match ended_as {
            CallResult::Ok if is_same => Some(produced.map_or(0, Vec::len)),
            _ => None,
        };
        self.history.steps.push(Step { settle, requests: first..self.history.requests.len(), answered });
        Ok(())
    }

    fn effect(
        &mut self,
        op: EffectOp,
        invoke: &'a Entry,
        result: &'a Value,
        (span, ended_as): (CallSpan, CallResult),
    ) -> Result<(), &'static str> {
        let args = &invoke.args;
        let key = text(args, "key");
        if key.is_empty() {
            // Without a key the store does nothing.
            return Ok(());
        }
        let tenant = Some(text(args, "tenant_id")).filter(|tenant| !tenant.is_empty()).unwrap_or("default");
        let scope = args.get("scope").ok_or("scope")?;
        let identity = format!("tenant {tenant}, scope {scope}, key {key}");
        self.history.effects.push(EffectCall { op, identity, span, ended_as, args, result });
        Ok(())
    }

    /// Groups what was parsed by message.
    fn finish(self) -> ParsedHistory<'a> {
        let mut history = self.history;
        for (index, request) in history.requests.iter().enumerate() {
            history.requests_for.entry((request.topic, request.value)).or_default().push(index);
            if let Some(at) = request.at.filter(|_| !request.duplicate) {
                let known = known_message(request.envelope, (at.partition, request.value), request.span.last());
                let known = KnownMessage { accepted: true, already_done: request.already_done, ..known };
                merge(&mut history.messages, (request.topic, at.offset), known);
            }
        }
        for (index, delivery) in history.deliveries.iter().enumerate() {
            let Delivery { envelope, at, value, redriven, seq, topic, .. } = *delivery;
            let seen = KnownMessage { redriven, ..known_message(envelope, (at.partition, value), seq) };
            merge(&mut history.messages, (topic, at.offset), seen);
            history.timelines.entry(delivery.timeline_key()).or_default().deliveries.push(index);
            if let Some(origin) = delivery.origin.filter(|_| is_dead_letter_topic(topic)) {
                history.dead.entry((origin.topic, origin.group, origin.at.offset)).or_insert(seq);
                let source = known_message(envelope, (origin.at.partition, value), seq);
                let source = KnownMessage { has_dead_letter_policy: true, ..source };
                merge(&mut history.messages, (origin.topic, origin.at.offset), source);
            }
        }
        for (index, settle) in history.settles.iter().enumerate() {
            history.timelines.entry(settle.timeline_key()).or_default().settles.push(index);
            history.counts.acks += u64::from(settle.op.is_ack() && settle.ended_as == CallResult::Ok);
        }
        for timeline in history.timelines.values_mut() {
            let (deliveries, settles) = (&history.deliveries, &history.settles);
            timeline.deliveries.sort_by_key(|index| (deliveries[*index].token, deliveries[*index].seq));
            timeline.settles.sort_by_key(|index| (settles[*index].token, settles[*index].span.invoked));
        }
        history.counts.messages = history.messages.len() as u64;
        let mut groups: Vec<_> = history.timelines.keys().map(|(topic, group, _)| (*topic, *group)).collect();
        groups.extend(&history.setup.groups);
        groups.sort_unstable();
        groups.dedup();
        history.counts.groups = groups.len() as u64;
        history
    }
}

fn merge<'a>(messages: &mut BTreeMap<MessageKey<'a>, KnownMessage<'a>>, key: MessageKey<'a>, new: KnownMessage<'a>) {
    match messages.entry(key) {
        btree_map::Entry::Vacant(vacant) => {
            vacant.insert(new);
        }
        btree_map::Entry::Occupied(mut known) => {
            let known = known.get_mut();
            known.accepted |= new.accepted;
            known.already_done |= new.already_done;
            known.has_dead_letter_policy |= new.has_dead_letter_policy;
            known.out_of_order |= new.out_of_order;
            known.redriven |= new.redriven;
            known.identity = known.identity.or(new.identity);
        }
    }
}

fn known_message<'a>(envelope: &'a Value, (partition, value): (u64, &'a str), seq: u64) -> KnownMessage<'a> {
    KnownMessage {
        partition,
        value,
        seq,
        accepted: false,
        already_done: false,
        has_dead_letter_policy: has_dead_letter_policy(envelope),
        out_of_order: out_of_order(envelope),
        redriven: false,
        identity: identity(envelope),
    }
}

fn produce_request<'a>(
    args: &'a Value,
    (span, ended_as): (CallSpan, CallResult),
) -> Result<ProduceRequest<'a>, &'static str> {
    let envelope = args.get("envelope").unwrap_or(&Value::Null);
    let requested = required(args, "topic")?;
    let topic = match text(envelope, "target_topic") {
        "" => requested,
        target => target,
    };
    let (value, key) = (required(args, "value")?, text(args, "key"));
    let (at, duplicate, already_done, step) = (None, false, false, None);
    Ok(ProduceRequest { topic, requested, value, key, envelope, span, ended_as, at, duplicate, already_done, step })
}

fn partition_offset(value: &Value) -> Result<PartitionOffset, &'static str> {
    let partition = number(value, "partition").ok_or("partition")?;
    Ok(PartitionOffset { partition, offset: number(value, "offset").ok_or("offset")? })
}

/// The messages in the answer to a consume: one, or a list of them.
fn polled_messages(entry: &Entry) -> &[Value] {
    if (entry.op.as_str(), entry.phase) != ("consume", Phase::Ok) {
        return &[];
    }
    match &entry.result {
        Value::Array(items) => items,
        result if result.get("offset").is_some() => std::slice::from_ref(result),
        result => result.get("messages").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default(),
    }
}
