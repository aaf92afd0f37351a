//! What must hold at the end, and what the client has told its caller.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::Conviction;
use super::facts::{Facts, Operation};
use crate::scenario::DeadLetters;

pub(super) fn check(facts: &Facts, convictions: &mut Vec<Conviction>) {
    for (entry, what) in &facts.timeouts {
        convictions.push(Conviction {
            rule: "timed_out",
            text: format!("gave up waiting: {what}"),
            entries: vec![*entry],
        });
    }
    for (incarnation, (_, entry, _)) in facts.ends.iter().filter(|(_, end)| !end.2) {
        convictions.push(Conviction {
            rule: "adapter_ended",
            text: format!("process {incarnation} ended by itself, or not at the end of its input"),
            entries: vec![*entry],
        });
    }
    backlog(facts, convictions);
    stored(facts, convictions);
    dead_letters(facts, convictions);
    results(facts, convictions);
    for operation in &facts.operations {
        answers(facts, operation, convictions);
    }
}

/// The messages of a topic at the end.
pub(super) fn items<'a>(facts: &'a Facts, topic: &str) -> &'a [Value] {
    facts.state["topics"][topic]["messages"].as_array().map_or(&[], Vec::as_slice)
}

/// Whether a message has become a dead letter of any group.
pub(super) fn is_dead_letter(facts: &Facts, topic: &str, item: &Value) -> bool {
    items(facts, &format!("dlq.{topic}")).iter().any(|letter| {
        let origin = &letter["envelope"]["dlq"];
        origin["original_partition"] == item["partition"] && origin["original_offset"] == item["offset"]
    })
}

fn backlog(facts: &Facts, convictions: &mut Vec<Conviction>) {
    for worker in &facts.scenario.workers {
        let groups = facts.state["topics"][&worker.topic]["groups"].as_array().cloned().unwrap_or_default();
        let group = groups.iter().find(|group| group["group"] == worker.group.as_str());
        let partitions = group.and_then(|group| group["partitions"].as_array()).cloned().unwrap_or_default();
        let lag: u64 = partitions.iter().filter_map(|partition| partition["lag"].as_u64()).sum();
        if lag > 0 || group.is_none() {
            convictions.push(Conviction {
                rule: "message_missing",
                text: format!("{lag} messages of {} are not acked in {}", worker.topic, worker.group),
                entries: Vec::new(),
            });
        }
    }
}

/// Topics whose messages are counted have each value once.
fn stored(facts: &Facts, convictions: &mut Vec<Conviction>) {
    for (topic, count) in &facts.scenario.end.messages {
        let mut values: BTreeMap<&str, usize> = BTreeMap::new();
        for item in items(facts, topic) {
            *values.entry(item["value"].as_str().unwrap_or_default()).or_default() += 1;
        }
        for (value, times) in values.iter().filter(|(_, times)| **times > 1) {
            convictions.push(Conviction {
                rule: "message_twice",
                text: format!("{value:?} is {times} times in {topic}"),
                entries: Vec::new(),
            });
        }
        if count.as_u64() != u64::try_from(values.len()).ok() {
            convictions.push(Conviction {
                rule: "message_missing",
                text: format!("{topic} has {} messages, not {count}", values.len()),
                entries: Vec::new(),
            });
        }
    }
}

fn dead_letters(facts: &Facts, convictions: &mut Vec<Conviction>) {
    for topic in facts.scenario.topics.iter().map(|topic| topic.name.as_str()) {
        for item in items(facts, topic) {
            let is_dead = is_dead_letter(facts, topic, item);
            let wrong = match facts.scenario.end.dead_letters {
                DeadLetters::None => is_dead,
                DeadLetters::All => !is_dead,
                DeadLetters::Any => false,
            };
            if wrong {
                let not = if is_dead { "" } else { "no " };
                convictions.push(Conviction {
                    rule: "dead_letters",
                    text: format!("{topic}/{}/{} is {not}dead letter", item["partition"], item["offset"]),
                    entries: Vec::new(),
                });
            }
        }
    }
}

/// A stored result is one that was reported for a delivery, in a request that was not refused.
fn results(facts: &Facts, convictions: &mut Vec<Conviction>) {
    let mut reported: HashMap<&str, Vec<&Value>> = HashMap::new();
    let accepted = facts.calls.iter().filter(|call| matches!(call.status, 0 | 200 | 503));
    for call in accepted.filter(|call| call.path == "/v1/complete") {
        let delivery = call.delivery_token().and_then(|token| facts.delivery(token));
        if let Some(key) = delivery.and_then(|delivery| delivery.idempotency_key.as_deref()) {
            reported.entry(key).or_default().push(&call.body["result"]);
        }
    }
    for record in facts.state["effects"].as_array().into_iter().flatten() {
        let is_of_message = record["scope"]["kind"] == "consume" && record["status"] == "SUCCEEDED";
        let key = record["key"].as_str().unwrap_or_default();
        let known = reported.get(key).map_or(&[][..], Vec::as_slice);
        if is_of_message && !record["result"].is_null() && !known.contains(&&record["result"]) {
            convictions.push(Conviction {
                rule: "stale_result",
                text: format!("the result of {key} is {}, which no accepted request reported", record["result"]),
                entries: Vec::new(),
            });
        }
    }
}

/// What the adapter answered: success where that is certain to come, and the broker's own offsets.
fn answers(facts: &Facts, operation: &Operation, convictions: &mut Vec<Conviction>) {
    let op = operation.request["op"].as_str().unwrap_or_default();
    let Some((_, answer)) = &operation.answer else { return };
    let mut wrong = |text: String| {
        convictions.push(Conviction { rule: "wrong_answer", text, entries: vec![operation.entry] });
    };
    if !operation.expect.is_null() {
        if !contains(answer, &operation.expect) {
            wrong(format!("{op} is answered with {answer}, not {}", operation.expect));
        }
        return;
    }
    let has_key = |message: &Value| message["idempotency_key"].is_string();
    match op {
        "produce" if answer["ok"].is_null() && has_missed_its_deadline(facts, &operation.request) => {}
        "produce" if answer["ok"].is_null() => {
            let is_unknown = answer["error"]["kind"] == "unknown";
            if has_key(&operation.request) || !is_unknown {
                wrong(format!("{op} of {} is answered with {answer}", operation.request["value"]));
            } else if answer["error"]["retry_is_safe"] != false {
                wrong(format!("{op} without a key is said to be safe to repeat: {answer}"));
            }
        }
        "produce" => {
            if let Some(text) = misplaced(facts, &operation.request["topic"], &operation.request, &answer["ok"]) {
                wrong(text);
            }
        }
        "produce_many" => {
            let messages = operation.request["messages"].as_array().cloned().unwrap_or_default();
            let results = answer["ok"]["results"].as_array().cloned().unwrap_or_default();
            if results.len() != messages.len() {
                wrong(format!("{op} of {} messages has {} results", messages.len(), results.len()));
            }
            for (message, result) in messages.iter().zip(&results) {
                if result["ok"].is_null() && (has_key(message) || result["error"]["kind"] != "unknown") {
                    wrong(format!("{op} of {} is answered with {result}", message["value"]));
                } else if let Some(text) = misplaced(facts, &operation.request["topic"], message, &result["ok"]) {
                    wrong(text);
                }
            }
        }
        _ if answer["ok"].is_null() => wrong(format!("{op} is answered with {answer}")),
        _ => {}
    }
}

/// Whether the broker itself refused a message because its deadline had passed on the way.
fn has_missed_its_deadline(facts: &Facts, message: &Value) -> bool {
    let last = facts.calls.iter().rfind(|call| {
        call.path == "/v1/produce" && call.body["topic"] == message["topic"] && call.body["value"] == message["value"]
    });
    message["deadline"].is_string()
        && last.is_some_and(|call| call.status == 400 && call.answer["message"] == "deadline has passed")
}

/// What is wrong with the offset that a producer was told.
fn misplaced(facts: &Facts, topic: &Value, message: &Value, told: &Value) -> Option<String> {
    if told.is_null() {
        return None;
    }
    let item = items(facts, topic.as_str()?)
        .iter()
        .find(|item| item["offset"] == told["offset"] && item["partition"] == told["partition"]);
    let is_right = item.is_some_and(|item| item["value"] == message["value"]);
    (!is_right).then(|| format!("{} is not where its producer was told: {told}", message["value"]))
}

/// Whether a value has all that is expected of it.
fn contains(value: &Value, expected: &Value) -> bool {
    match expected {
        Value::Object(fields) => fields.iter().all(|(name, expected)| contains(&value[name], expected)),
        other => value == other,
    }
}
