//! Records in words: a name and named values, for a line of text or a JSON object.

use driftq_core::Body;
use driftq_core::idempotency::{Identity, Realm, Scope};
use driftq_core::record::{Event, GroupStart, MessageRef, Record};
use serde_json::{Map, Value, json};

/// Bytes of a key, value or text that are shown where not all is asked for.
const SHOWN_BYTES: usize = 64;

/// How much of long values is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// All of it.
    All,
    /// The beginning.
    Some,
}

/// The event's name and what it says.
pub fn words(record: &Record, show: Show) -> (&'static str, Map<String, Value>) {
    let (name, value) = match &record.event {
        Event::Booted { boot } => ("booted", json!({ "boot": boot.0 })),
        Event::TopicCreated { topic, name, partitions, retention } => (
            "topic created",
            json!({
                "topic": topic.0,
                "name": name.as_str(),
                "partitions": partitions,
                "retention_ms": retention.age.map(|age| age.0),
                "retention_bytes": retention.bytes,
            }),
        ),
        Event::TopicDeleted { topic } => ("topic deleted", json!({ "topic": topic.0 })),
        Event::GroupCreated { topic, group, name, start } => {
            let start = match start {
                GroupStart::Earliest => "earliest",
                GroupStart::Latest => "latest",
            };
            let value = json!({ "topic": topic.0, "group": group.0, "name": name.as_str(), "start": start });
            ("group created", value)
        }
        Event::GroupDeleted { topic, group } => ("group deleted", json!({ "topic": topic.0, "group": group.0 })),
        Event::GroupPaused { topic, group } => ("group paused", json!({ "topic": topic.0, "group": group.0 })),
        Event::GroupResumed { topic, group } => ("group resumed", json!({ "topic": topic.0, "group": group.0 })),
        Event::GroupSought { topic, group, targets } => {
            let targets: Vec<_> = targets.iter().map(|target| target.0).collect();
            ("group sought", json!({ "topic": topic.0, "group": group.0, "positions": targets }))
        }
        Event::Produced { topic, partition, offset, body, dedupe } => {
            let mut value = json!({ "topic": topic.0, "partition": partition.0, "offset": offset.0 });
            put_body(&mut value, body, show);
            if let Some(dedupe) = dedupe {
                value["gate_scope"] = json!(dedupe.scope.as_str());
                value["gate_until_ms"] = json!(dedupe.expires_at.0);
            }
            ("produced", value)
        }
        Event::Delivered { message_ref, token, owner, until } => {
            let more = json!({ "token": token.to_string(), "owner": owner.as_str(), "until_ms": until.0 });
            ("delivered", at_place(message_ref, more))
        }
        Event::Acked { message_ref, commits } => {
            ("acked", at_place(message_ref, json!({ "commits_for_ms": commits.map(|window| window.0) })))
        }
        Event::Skipped { message_ref } => ("skipped", at_place(message_ref, json!({}))),
        Event::Nacked { message_ref, reason, not_before } => {
            let reason = reason.as_ref().map(|reason| text(reason.as_bytes(), show));
            ("nacked", at_place(message_ref, json!({ "reason": reason, "not_before_ms": not_before.0 })))
        }
        Event::ReasonNoted { message_ref, reason } => {
            ("reason noted", at_place(message_ref, json!({ "reason": text(reason.as_bytes(), show) })))
        }
        Event::Expired { message_ref, not_before } => {
            ("expired", at_place(message_ref, json!({ "not_before_ms": not_before.0 })))
        }
        Event::Extended { message_ref, until } => ("extended", at_place(message_ref, json!({ "until_ms": until.0 }))),
        Event::Released { message_ref } => ("released", at_place(message_ref, json!({}))),
        Event::DeadLettered { message_ref, dead_topic, dead_partition, dead_offset, reason, last_error } => {
            let more = json!({
                "dead_topic": dead_topic.0,
                "dead_partition": dead_partition.0,
                "dead_offset": dead_offset.0,
                "reason": reason.as_str(),
                "last_error": text(last_error.as_bytes(), show),
            });
            ("dead-lettered", at_place(message_ref, more))
        }
        Event::Redriven { dead_topic, dead_partition, dead_position, topic, group, partition, offset } => (
            "redriven",
            json!({
                "dead_topic": dead_topic.0,
                "dead_partition": dead_partition.0,
                "dead_position": dead_position.0,
                "topic": topic.0,
                "group": group.0,
                "partition": partition.0,
                "offset": offset.0,
            }),
        ),
        Event::RetainedOut { topic, partition, through } => {
            ("retained out", json!({ "topic": topic.0, "partition": partition.0, "through": through.0 }))
        }
        Event::IdentitiesExpired { scope, count } => {
            ("identities expired", json!({ "scope": scope.as_str(), "count": count }))
        }
        Event::EffectBegun(begun) => {
            let mut value = of_effect(&begun.identity);
            value["token"] = json!(begun.token.to_string());
            value["owner"] = json!(begun.owner.as_str());
            value["until_ms"] = json!(begun.until.0);
            value["request_hash"] = json!(begun.request_hash);
            ("effect begun", value)
        }
        Event::EffectFinished { identity, outcome } => {
            let mut value = of_effect(identity);
            value["status"] = json!(outcome.status.as_str());
            value["response_code"] = json!(outcome.response_code);
            value["result"] = json!(outcome.result.as_ref().map(|result| text(result.as_bytes(), show)));
            value["last_error"] = json!(text(outcome.last_error.as_bytes(), show));
            ("effect finished", value)
        }
        Event::EffectRenewed { identity, until } => {
            let mut value = of_effect(identity);
            value["until_ms"] = json!(until.0);
            ("effect renewed", value)
        }
        Event::EffectForgotten { identity } => ("effect forgotten", of_effect(identity)),
        Event::EffectsExpired { realm, count } => {
            let (topic, group) = match realm {
                Realm::Shared => (None, None),
                Realm::Group(topic, group) => (Some(topic.as_str()), Some(group.as_str())),
            };
            ("effects expired", json!({ "topic": topic, "group": group, "count": count }))
        }
        Event::Completed(step) => {
            let produced = step.outputs.iter().map(|output| {
                let mut value = json!({
                    "topic": output.asked.as_str(),
                    "partition": output.partition.0,
                    "offset": output.offset.0,
                    "duplicate": output.stored.is_none(),
                });
                if let Some(stored) = &output.stored {
                    put_body(&mut value, &stored.body, show);
                }
                value
            });
            let result = step.effect.as_ref().and_then(|effect| effect.result.as_ref());
            let more = json!({
                "token": step.token.to_string(),
                "result": result.map(|result| text(result.as_bytes(), show)),
                "produced": produced.collect::<Vec<_>>(),
            });
            ("completed", at_place(&step.message_ref, more))
        }
        Event::CompletionsExpired { count } => ("completions expired", json!({ "count": count })),
        Event::Restored(image) => ("restored", json!({ "piece": format!("{image:?}") })),
    };
    (name, if let Value::Object(fields) = value { fields } else { Map::new() })
}

fn of_effect(identity: &Identity) -> Value {
    let mut value = json!({ "tenant": identity.tenant(), "scope": identity.scope.kind(), "key": identity.key() });
    match &identity.scope {
        Scope::Consume { topic, group } => {
            value["topic"] = json!(topic.as_str());
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

fn at_place(message_ref: &MessageRef, more: Value) -> Value {
    let mut value = json!({
        "topic": message_ref.topic.0,
        "group": message_ref.group.0,
        "partition": message_ref.partition.0,
        "position": message_ref.position.0,
    });
    if let (Value::Object(fields), Value::Object(more)) = (&mut value, more) {
        fields.extend(more);
    }
    value
}

fn put_body(value: &mut Value, body: &Body, show: Show) {
    value["key"] = json!(text(body.key(), show));
    value["value"] = json!(text(body.value(), show));
    value["value_bytes"] = json!(body.value().len());
    if body.has_metadata() {
        value["metadata"] = json!(text(format!("{:?}", body.metadata()).as_bytes(), show));
    }
}

/// Bytes as text, shortened unless all is asked for; what is not UTF-8 is replaced.
fn text(bytes: &[u8], show: Show) -> String {
    match show {
        Show::Some if bytes.len() > SHOWN_BYTES => {
            let shown = String::from_utf8_lossy(&bytes[..SHOWN_BYTES]);
            format!("{}… ({} bytes)", shown.trim_end_matches('\u{fffd}'), bytes.len())
        }
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}
