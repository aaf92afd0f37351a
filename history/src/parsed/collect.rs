//! The one pass over the lines.

use std::collections::HashMap;

use serde_json::Value;

use super::fields::{flag, identity, may_die, millis, number, out_of_order, text};
use super::model::{
    Ask, Delivery, EffectCall, EffectOp, Fate, Known, Origin, Place, Settle, SettleOp, Setup, Span, Step,
};
use super::{Facts, is_dead_letter_topic};
use crate::read::DRIVER_OPS;
use crate::{Entry, Phase};

/// Calls that are open, by client, incarnation and what they ask for.
type Open<'a> = HashMap<(&'a str, u64, &'a str), &'a Entry>;

pub(super) fn gather(entries: &[Entry]) -> Facts<'_> {
    let mut gatherer = Gatherer::default();
    gatherer.facts.counts.entries = entries.len() as u64;
    let mut open: Open<'_> = HashMap::new();
    for entry in entries {
        let who = (entry.client.as_str(), entry.incarnation, entry.op.as_str());
        match (entry.op.as_str(), entry.phase) {
            ("deliver", _) => {
                let consume = open.get(&(who.0, who.1, "consume")).copied();
                gatherer.deliver(entry, &entry.result, consume);
            }
            (op, _) if DRIVER_OPS.contains(&op) => gatherer.driver(entry),
            (_, Phase::Invoke) => {
                if let Some(before) = open.insert(who, entry) {
                    gatherer.call(before, None);
                }
            }
            (..) => {
                let invoke = open.remove(&who).unwrap_or(entry);
                // A driver that polls may write what it was handed into the answer.
                for item in handed_over(entry) {
                    gatherer.deliver(entry, item, Some(invoke));
                }
                gatherer.call(invoke, Some(entry));
            }
        }
    }
    let mut left: Vec<&Entry> = open.into_values().collect();
    left.sort_by_key(|entry| entry.seq);
    for entry in left {
        gatherer.call(entry, None);
    }
    gatherer.conclude()
}

#[derive(Default)]
struct Gatherer<'a> {
    facts: Facts<'a>,
    /// What completes that show one token were to produce.
    produced_by: HashMap<(&'a str, &'a str, u64, &'a str), &'a Value>,
}

impl<'a> Gatherer<'a> {
    fn driver(&mut self, entry: &'a Entry) {
        let facts = &mut self.facts;
        match (entry.op.as_str(), entry.phase) {
            ("setup", Phase::Ok) => {
                let listed = entry.args.get("groups").and_then(Value::as_array).into_iter().flatten();
                facts.setup = Setup {
                    max_in_flight: number(&entry.args, "max_in_flight"),
                    lease_ms: number(&entry.args, "lease_ms").filter(|lease| *lease > 0),
                    dedupe_ms: number(&entry.args, "dedupe_ms"),
                    groups: listed.map(|group| (text(group, "topic"), text(group, "group"))).collect(),
                };
                facts.setup.groups.sort_unstable();
                facts.setup.groups.dedup();
            }
            ("kill" | "power", Phase::Ok) => facts.counts.kills += 1,
            ("start", Phase::Ok) => facts.counts.starts += 1,
            ("clock", _) => facts.clocks.push(entry.seq),
            ("drain", phase) => {
                let round = match number(&entry.args, "round") {
                    Some(1) => &mut facts.drains[0],
                    Some(2) => &mut facts.drains[1],
                    _ => return facts.malformed.push((entry.seq, "a drain is of round 1 or 2".to_owned())),
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
        self.facts.counts.deliveries += 1;
        match self.delivery(entry, item, consume) {
            Ok(delivery) => self.facts.deliveries.push(delivery),
            Err(what) => self.facts.malformed.push((entry.seq, format!("a delivery must name its {what}"))),
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
            Ok::<_, &'static str>(Origin { topic, group, place: Place { partition, offset } })
        });
        let asked = consume.map_or(args, |consume| &consume.args);
        Ok(Delivery {
            seq: entry.seq,
            topic: said(args, "topic")?,
            group: said(args, "group")?,
            owner: text(args, "owner"),
            place: place(item)?,
            attempt: number(item, "attempts").ok_or("attempts")?,
            token: said(item, "lease_token")?,
            until: millis(item, "lease_until"),
            lease_ms: number(asked, "lease_ms").filter(|lease| *lease > 0).or(self.facts.setup.lease_ms),
            value: said(item, "value")?,
            key: text(item, "key"),
            envelope,
            origin: origin.transpose()?,
            redriven: number(item, "redrives").unwrap_or(0) > 0,
            consume: consume.map(|consume| consume.seq),
            ends_with_stream: flag(asked, "release_on_disconnect"),
        })
    }

    /// One call and its answer, if it has one.
    fn call(&mut self, invoke: &'a Entry, answer: Option<&'a Entry>) {
        let span = Span { invoked: invoke.seq, ended: answer.map(|answer| answer.seq), t: invoke.t };
        let fate = match answer.map(|answer| answer.phase) {
            Some(Phase::Ok) => Fate::Ok,
            Some(Phase::Fail) => Fate::Fail,
            Some(Phase::Info | Phase::Invoke) | None => Fate::Info,
        };
        let counts = &mut self.facts.counts;
        counts.calls += 1;
        *match fate {
            Fate::Ok => &mut counts.ok,
            Fate::Fail => &mut counts.fail,
            Fate::Info => &mut counts.info,
        } += 1;
        let result = answer.map_or(&Value::Null, |answer| &answer.result);
        let taken = match invoke.op.as_str() {
            "produce" => self.produce(&invoke.args, result, (span, fate)),
            "ack" => self.settle(SettleOp::Ack, &invoke.args, result, (span, fate)),
            "nack" => self.settle(SettleOp::Nack, &invoke.args, result, (span, fate)),
            "extend" => self.settle(SettleOp::Extend, &invoke.args, result, (span, fate)),
            "release" => self.settle(SettleOp::Release, &invoke.args, result, (span, fate)),
            "complete" => self.complete(&invoke.args, result, (span, fate)),
            "begin" | "reacquire" => self.effect(EffectOp::Begin, invoke, result, (span, fate)),
            "finish" => self.effect(EffectOp::Finish, invoke, result, (span, fate)),
            "renew" => self.effect(EffectOp::Renew, invoke, result, (span, fate)),
            "consume" => {
                if self.facts.drains[0].began.is_some_and(|began| began < invoke.seq) {
                    self.facts.drained_topics.insert(text(&invoke.args, "topic"));
                }
                Ok(())
            }
            // A route that nothing is promised about here.
            _ => Ok(()),
        };
        if let (Err(what), true) = (taken, fate != Fate::Fail) {
            self.facts.malformed.push((span.last(), format!("a {} must name its {what}", invoke.op)));
        }
    }

    fn produce(&mut self, args: &'a Value, result: &'a Value, (span, fate): (Span, Fate)) -> Result<(), &'static str> {
        let mut ask = ask(args, (span, fate))?;
        if fate == Fate::Ok {
            ask.place = Some(place(result)?);
            ask.duplicate = flag(result, "duplicate");
        }
        self.facts.asks.push(ask);
        Ok(())
    }

    fn settle(
        &mut self,
        op: SettleOp,
        args: &'a Value,
        result: &'a Value,
        (span, fate): (Span, Fate),
    ) -> Result<(), &'static str> {
        let token = Some(text(args, "lease_token")).filter(|token| !token.is_empty());
        let until = millis(result, "lease_until").filter(|_| fate == Fate::Ok);
        if op == SettleOp::Extend && fate == Fate::Ok && until.is_none() {
            return Err("lease_until");
        }
        let (topic, group) = (said(args, "topic")?, said(args, "group")?);
        self.facts.settles.push(Settle { op, topic, group, place: place(args)?, token, span, fate, until });
        Ok(())
    }

    fn complete(&mut self, args: &'a Value, result: &'a Value, (span, fate): (Span, Fate)) -> Result<(), &'static str> {
        let settle = self.facts.settles.len();
        self.settle(SettleOp::Complete, args, result, (span, fate))?;
        let (topic, group, offset) = self.facts.settles[settle].story();
        let wanted = args.get("produce").unwrap_or(&Value::Null);
        // Whoever shows the winner's token is told the winner's answer, whatever else is said.
        let token = text(args, "lease_token");
        let same = **self.produced_by.entry((topic, group, offset, token)).or_insert(wanted) == *wanted;
        let outputs = wanted.as_array().map(Vec::as_slice).unwrap_or_default();
        let told = result.get("produced").and_then(Value::as_array).filter(|_| fate == Fate::Ok);
        let first = self.facts.asks.len();
        for (index, output) in outputs.iter().enumerate() {
            let mut ask = ask(output, (span, fate))?;
            ask.step = Some((topic, group, offset));
            if let Some(told) = told.and_then(|told| told.get(index)).filter(|_| same) {
                ask.place = Some(place(told)?);
                ask.duplicate = flag(told, "duplicate");
            }
            self.facts.asks.push(ask);
        }
        let told = match fate {
            Fate::Ok if same => Some(told.map_or(0, Vec::len)),
            _ => None,
        };
        self.facts.steps.push(Step { settle, asks: first..self.facts.asks.len(), told });
        Ok(())
    }

    fn effect(
        &mut self,
        op: EffectOp,
        invoke: &'a Entry,
        result: &'a Value,
        (span, fate): (Span, Fate),
    ) -> Result<(), &'static str> {
        let args = &invoke.args;
        let key = text(args, "key");
        if key.is_empty() {
            // No idempotency at all.
            return Ok(());
        }
        let tenant = Some(text(args, "tenant_id")).filter(|tenant| !tenant.is_empty()).unwrap_or("default");
        let scope = args.get("scope").ok_or("scope")?;
        let identity = format!("tenant {tenant}, scope {scope}, key {key}");
        self.facts.effects.push(EffectCall { op, identity, span, fate, args, result });
        Ok(())
    }

    /// Sorts what was gathered by message.
    fn conclude(self) -> Facts<'a> {
        let mut facts = self.facts;
        for (index, ask) in facts.asks.iter().enumerate() {
            facts.asks_of.entry((ask.topic, ask.value)).or_default().push(index);
            if let Some(place) = ask.place.filter(|_| !ask.duplicate) {
                let known = known(ask.envelope, (place.partition, ask.value), ask.span.last());
                merge(&mut facts.messages, (ask.topic, place.offset), Known { accepted: true, ..known });
            }
        }
        for (index, delivery) in facts.deliveries.iter().enumerate() {
            let Delivery { envelope, place, value, redriven, seq, topic, .. } = *delivery;
            let seen = Known { redriven, ..known(envelope, (place.partition, value), seq) };
            merge(&mut facts.messages, (topic, place.offset), seen);
            facts.stories.entry(delivery.story()).or_default().deliveries.push(index);
            if let Some(origin) = delivery.origin.filter(|_| is_dead_letter_topic(topic)) {
                facts.dead.entry((origin.topic, origin.group, origin.place.offset)).or_insert(seq);
                let dead = Known { may_die: true, ..known(envelope, (origin.place.partition, value), seq) };
                merge(&mut facts.messages, (origin.topic, origin.place.offset), dead);
            }
        }
        for (index, settle) in facts.settles.iter().enumerate() {
            facts.stories.entry(settle.story()).or_default().settles.push(index);
            facts.counts.acks += u64::from(settle.op.finishes() && settle.fate == Fate::Ok);
        }
        for story in facts.stories.values_mut() {
            story.deliveries.sort_by_key(|index| (facts.deliveries[*index].token, facts.deliveries[*index].seq));
            story.settles.sort_by_key(|index| (facts.settles[*index].token, facts.settles[*index].span.invoked));
        }
        facts.counts.messages = facts.messages.len() as u64;
        let mut groups: Vec<_> = facts.stories.keys().map(|(topic, group, _)| (*topic, *group)).collect();
        groups.extend(&facts.setup.groups);
        groups.sort_unstable();
        groups.dedup();
        facts.counts.groups = groups.len() as u64;
        facts
    }
}

fn merge<'a>(
    messages: &mut std::collections::BTreeMap<(&'a str, u64), Known<'a>>,
    key: (&'a str, u64),
    new: Known<'a>,
) {
    match messages.entry(key) {
        std::collections::btree_map::Entry::Vacant(vacant) => {
            vacant.insert(new);
        }
        std::collections::btree_map::Entry::Occupied(mut known) => {
            let known = known.get_mut();
            known.accepted |= new.accepted;
            known.may_die |= new.may_die;
            known.out_of_order |= new.out_of_order;
            known.redriven |= new.redriven;
            known.identity = known.identity.or(new.identity);
        }
    }
}

fn known<'a>(envelope: &'a Value, (partition, value): (u64, &'a str), seq: u64) -> Known<'a> {
    Known {
        partition,
        value,
        seq,
        accepted: false,
        may_die: may_die(envelope),
        out_of_order: out_of_order(envelope),
        redriven: false,
        identity: identity(envelope),
    }
}

fn ask<'a>(args: &'a Value, (span, fate): (Span, Fate)) -> Result<Ask<'a>, &'static str> {
    let envelope = args.get("envelope").unwrap_or(&Value::Null);
    let topic = match text(envelope, "target_topic") {
        "" => said(args, "topic")?,
        target => target,
    };
    let (value, key) = (said(args, "value")?, text(args, "key"));
    Ok(Ask { topic, value, key, envelope, span, fate, place: None, duplicate: false, step: None })
}

fn place(value: &Value) -> Result<Place, &'static str> {
    let partition = number(value, "partition").ok_or("partition")?;
    Ok(Place { partition, offset: number(value, "offset").ok_or("offset")? })
}

fn said<'a>(value: &'a Value, name: &'static str) -> Result<&'a str, &'static str> {
    Some(text(value, name)).filter(|text| !text.is_empty()).ok_or(name)
}

/// The items in the answer to a consume: one, or a list of them.
fn handed_over(entry: &Entry) -> &[Value] {
    if (entry.op.as_str(), entry.phase) != ("consume", Phase::Ok) {
        return &[];
    }
    match &entry.result {
        Value::Array(items) => items,
        result if result.get("offset").is_some() => std::slice::from_ref(result),
        result => result.get("messages").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default(),
    }
}
