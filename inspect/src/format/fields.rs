//! Records as named values, for a line of text or a JSON object. Ids stay numbers: no state is needed.

use driftq_core::Body;
use driftq_core::record::{DeadLetterSlot, Event, MessageAt, Record, Referrer};
use driftq_core::types::{
    EffectNamespace, GroupOrigin, GroupStart, Identity, MessageRef, Outcome, PayloadId, Scope, WallAdjustment,
};
use serde_json::{Map, Value, json};

use crate::format::access;
use crate::format::event::message_ref;
use crate::format::text::shortened;
use crate::topic_text::topic_text;

/// How much of keys, values and texts is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// All of it.
    Full,
    /// The beginning.
    Shortened,
}

fn origin_name(origin: GroupOrigin) -> &'static str {
    match origin {
        GroupOrigin::Requested => "requested",
        GroupOrigin::Consumed => "consumed",
        GroupOrigin::Ephemeral => "ephemeral",
    }
}

/// The content of a record as named values.
#[must_use]
pub fn fields(record: &Record, detail: Detail) -> Map<String, Value> {
    let value = match &record.event {
        Event::Booted { boot } => json!({ "boot": boot.0 }),
        Event::TopicCreated { topic, name, partitions, retention } => json!({
            "topic": topic.0,
            "name": topic_text(name),
            "partitions": partitions,
            "retention_ms": retention.age.map(|age| age.0),
            "retention_bytes": retention.bytes,
        }),
        Event::RetentionChanged { topic, retention } => json!({
            "topic": topic.0,
            "retention_ms": retention.age.map(|age| age.0),
            "retention_bytes": retention.bytes,
        }),
        Event::TopicDeleted { topic } => json!({ "topic": topic.0 }),
        Event::GroupOriginChanged { topic, group, origin } => {
            json!({ "topic": topic.0, "group": group.0, "origin": origin_name(*origin) })
        }
        Event::GroupCreated { topic, group, name, start, origin } => {
            let start = match start {
                GroupStart::Earliest => "earliest",
                GroupStart::Latest => "latest",
            };
            let origin = origin_name(*origin);
            json!({ "topic": topic.0, "group": group.0, "name": name.as_str(), "start": start, "origin": origin })
        }
        Event::GroupDeleted { topic, group } => json!({ "topic": topic.0, "group": group.0 }),
        Event::GroupPaused { topic, group } => json!({ "topic": topic.0, "group": group.0 }),
        Event::GroupResumed { topic, group } => json!({ "topic": topic.0, "group": group.0 }),
        Event::GroupSought { topic, group, targets } => {
            let targets: Vec<_> = targets.iter().map(|target| target.0).collect();
            json!({ "topic": topic.0, "group": group.0, "positions": targets })
        }
        Event::Purged { topic, ends, winner_until } => {
            let ends: Vec<_> = ends.iter().map(|end| end.0).collect();
            json!({ "topic": topic.0, "positions": ends, "winner_until_ms": winner_until.0 })
        }
        Event::Produced { topic, partition, offset, body, dedupe, skipped } => {
            let mut value = json!({ "topic": topic.0, "partition": partition.0, "offset": offset.0 });
            insert_body(&mut value, body, detail);
            if let Some(dedupe) = dedupe {
                value["gate_topic"] = json!(topic_text(&dedupe.scope.topic));
                value["gate_destination"] = json!(topic_text(&dedupe.scope.destination));
                value["gate_until_ms"] = json!(dedupe.expires_at.0);
            }
            if !skipped.is_empty() {
                value["skipped_groups"] = json!(skipped.iter().map(|group| group.0).collect::<Vec<_>>());
            }
            value
        }
        Event::Delivered { token, owner, until, .. } => {
            json!({ "token": token.to_string(), "owner": owner.as_str(), "until_ms": until.0 })
        }
        Event::Acked { commits, winner_until, .. } => {
            let winner_until = winner_until.map(|until| until.0);
            json!({ "commits_for_ms": commits.map(|window| window.0), "winner_until_ms": winner_until })
        }
        Event::CumulativelyAcked { topic, group, partition, acks } => {
            let positions: Vec<_> = acks.iter().map(|ack| ack.position.0).collect();
            json!({ "topic": topic.0, "group": group.0, "partition": partition.0, "positions": positions })
        }
        Event::Released { .. } | Event::Withdrawn { .. } => json!({}),
        Event::Nacked { reason, not_before, .. } => {
            let reason = reason.as_ref().map(|reason| text(reason.as_bytes(), detail));
            json!({ "reason": reason, "not_before_ms": not_before.0 })
        }
        Event::ReasonNoted { reason, .. } => json!({ "reason": text(reason.as_bytes(), detail) }),
        Event::Expired { not_before, .. } => json!({ "not_before_ms": not_before.0 }),
        Event::Extended { until, .. } => json!({ "until_ms": until.0 }),
        Event::DeadLettered { dead_topic, dead_partition, dead_offset, reason, last_error, winner_until, .. } => {
            json!({
                "dead_topic": dead_topic.0,
                "dead_partition": dead_partition.0,
                "dead_offset": dead_offset.0,
                "reason": reason.as_str(),
                "last_error": text(last_error.as_bytes(), detail),
                "winner_until_ms": winner_until.0,
            })
        }
        Event::Redriven { dead_topic, dead_partition, dead_position, topic, group, partition, offset } => json!({
            "dead_topic": dead_topic.0,
            "dead_partition": dead_partition.0,
            "dead_position": dead_position.0,
            "topic": topic.0,
            "group": group.0,
            "partition": partition.0,
            "offset": offset.0,
        }),
        Event::RetentionExpired { topic, partition, through } => {
            json!({ "topic": topic.0, "partition": partition.0, "through": through.0 })
        }
        Event::DedupeExpired { scope, count } => {
            let (topic, destination) = (topic_text(&scope.topic), topic_text(&scope.destination));
            json!({ "gate_topic": topic, "gate_destination": destination, "count": count })
        }
        Event::EffectBegun(begun) => {
            let mut value = identity_fields(&begun.identity);
            value["token"] = json!(begun.token.to_string());
            value["owner"] = json!(begun.owner.as_str());
            value["until_ms"] = json!(begun.until.0);
            value["request_hash"] = json!(begun.request_hash);
            value
        }
        Event::EffectFinished { identity, outcome } => finished_fields(identity, outcome, detail),
        Event::EffectDeadLettered(failed) => {
            let mut value = finished_fields(&failed.identity, &failed.outcome, detail);
            value["dead_letter"] = slot_fields(&failed.dead_letter, detail);
            value["winner_until_ms"] = json!(failed.winner_until.0);
            value
        }
        Event::EffectRenewed { identity, until } => {
            let mut value = identity_fields(identity);
            value["until_ms"] = json!(until.0);
            value
        }
        Event::Relocated(relocated) => {
            let mut value =
                json!({ "from": payload_fields(relocated.from), "to": referrer_fields(&relocated.referrers) });
            insert_body(&mut value, &relocated.body, detail);
            value
        }
        Event::PayloadLost(lost) => json!({
            "payload": payload_fields(lost.payload),
            "of": referrer_fields(&lost.referrers),
            "damage": lost.damage,
        }),
        Event::EffectForgotten { identity } => identity_fields(identity),
        Event::EffectsExpired { namespace, count } => {
            let (topic, group) = match namespace {
                EffectNamespace::Shared => (None, None),
                EffectNamespace::Group(topic, group) => (Some(topic_text(topic)), Some(group.as_str())),
            };
            json!({ "topic": topic, "group": group, "count": count })
        }
        Event::Completed(step) => {
            let produced = step.outputs.iter().map(|output| {
                let mut value = json!({
                    "topic": topic_text(&output.requested_topic),
                    "partition": output.partition.0,
                    "offset": output.offset.0,
                    "duplicate": output.stored.is_none(),
                });
                if let Some(stored) = &output.stored {
                    insert_body(&mut value, &stored.body, detail);
                }
                value
            });
            let result = step.effect.as_ref().and_then(|effect| effect.result.as_ref());
            json!({
                "token": step.token.to_string(),
                "winner_until_ms": step.is_contested.then_some(step.until.0),
                "result": result.map(|result| text(result.json.as_bytes(), detail)),
                "produced": produced.collect::<Vec<_>>(),
                "dead_letter": step.dead_letter.as_ref().map(|slot| slot_fields(slot, detail)),
            })
        }
        Event::CompletionsExpired { count } | Event::WinnersExpired { count } => json!({ "count": count }),
        Event::WallClockAdjusted(adjustment) => match adjustment {
            WallAdjustment::Forward { offset } => json!({ "adjustment": "forward", "offset_ms": offset }),
            WallAdjustment::Slew { offset, target } => {
                json!({ "adjustment": "slew", "offset_ms": offset, "target_ms": target })
            }
            WallAdjustment::Rebase { offset } => json!({ "adjustment": "rebase", "offset_ms": offset }),
        },
        event @ (Event::KeyCreated(_)
        | Event::KeyRevoked { .. }
        | Event::KeyBound { .. }
        | Event::TenantCreated { .. }
        | Event::TenantDeleted { .. }
        | Event::Audited(_)) => access::fields(event).unwrap_or_default(),
        Event::Restored(image) => json!({ "piece": format!("{image:?}") }),
    };
    let mut fields = if let Value::Object(fields) = value { fields } else { Map::new() };
    if let Some(MessageRef { topic, group, partition, position }) = message_ref(&record.event) {
        fields.insert("topic".to_owned(), json!(topic.0));
        fields.insert("group".to_owned(), json!(group.0));
        fields.insert("partition".to_owned(), json!(partition.0));
        fields.insert("position".to_owned(), json!(position.0));
    }
    fields
}

fn finished_fields(identity: &Identity, outcome: &Outcome, detail: Detail) -> Value {
    let mut value = identity_fields(identity);
    value["status"] = json!(outcome.status.as_str());
    value["response_code"] = json!(outcome.response_code);
    value["result"] = json!(outcome.result.as_ref().map(|result| text(result.as_bytes(), detail)));
    value["last_error"] = json!(text(outcome.last_error.as_bytes(), detail));
    value
}

fn slot_fields(slot: &DeadLetterSlot, detail: Detail) -> Value {
    json!({
        "topic": slot.topic.0,
        "partition": slot.partition.0,
        "offset": slot.offset.0,
        "last_error": text(slot.last_error.as_bytes(), detail),
    })
}

fn identity_fields(identity: &Identity) -> Value {
    let mut value =
        json!({ "tenant": identity.tenant(), "scope": identity.scope.kind().as_str(), "key": identity.key() });
    match &identity.scope {
        Scope::Consume { topic, group } => {
            value["topic"] = json!(topic_text(topic));
            value["group"] = json!(group.as_str());
        }
        Scope::Tenant => {}
        Scope::Job { id } | Scope::Task { id } => value["id"] = json!(id),
        Scope::Rpc { principal, method } => {
            value["principal"] = json!(principal);
            value["method"] = json!(method);
        }
    }
    value
}

fn insert_body(value: &mut Value, body: &Body, detail: Detail) {
    value["key"] = json!(text(body.key(), detail));
    value["value"] = json!(text(body.value(), detail));
    value["value_bytes"] = json!(body.value().len());
    if body.has_metadata() {
        value["metadata"] = json!(text(format!("{:?}", body.metadata()).as_bytes(), detail));
    }
}

/// A byte string as text. What is not UTF-8 is replaced.
fn text(bytes: &[u8], detail: Detail) -> String {
    match detail {
        Detail::Full => String::from_utf8_lossy(bytes).into_owned(),
        Detail::Shortened => match shortened(bytes) {
            (shown, None) => shown.into_owned(),
            (shown, Some(len)) => format!("{shown}… ({len} bytes)"),
        },
    }
}

fn payload_fields(payload: PayloadId) -> Value {
    json!({ "lsn": payload.lsn.0, "part": payload.part })
}

/// Who refers to a payload.
fn referrer_fields(referrers: &[Referrer]) -> Value {
    let fields = referrers.iter().map(|referrer| match referrer {
        Referrer::Message(MessageAt { topic, partition, position }) => {
            json!({ "topic": topic.0, "partition": partition.0, "position": position.0 })
        }
        Referrer::Effect(identity) => identity_fields(identity),
    });
    fields.collect()
}
