//! The end of a history: every group is consumed and acked until nothing more is delivered.

use std::sync::Arc;

use driftq_history::Phase;
use serde_json::{Value, json};

use super::client::{CallResult, RecordedClient};
use super::interrupt;
use super::recorder::{DRIVER, Recorder};
use super::workload::{GROUPS, REDELIVERY_MS_MAX, lease_of};
use crate::http::{Client, Request};

/// How long a group must deliver nothing to count as drained: longer than any redelivery takes.
const SILENCE_MS: u64 = REDELIVERY_MS_MAX + 150;
const CONSUMERS_PER_GROUP: u64 = 2;
/// How many streams of one consumer may fail in a round.
const FAILED_STREAMS_MAX: u32 = 3;
/// How often groups are consumed in a round. More than once only if a slow disk delays deliveries for longer than the
/// silence.
const PASSES_MAX: u32 = 10;

/// Drains all groups at once.
///
/// # Errors
/// If a group cannot be drained.
pub fn round(recorder: &Arc<Recorder>, client: &Client, round: u64) -> Result<(), String> {
    let args = json!({ "round": round });
    recorder.write((DRIVER, 0), "drain", Phase::Invoke, &args, Value::Null);
    let mut pass = 0;
    let mut lagging = None;
    while pass == 0 || lagging.is_some() {
        if pass == PASSES_MAX {
            return Err(format!("{} is not drained after {pass} passes", lagging.unwrap_or_default()));
        }
        drain_all(recorder, client, &format!("drain-{round}-{pass}"))?;
        lagging = lagging_group(client)?;
        pass += 1;
    }
    recorder.write((DRIVER, 0), "drain", Phase::Ok, &args, json!({}));
    Ok(())
}

/// A group that has not finished all messages of its topic.
fn lagging_group(client: &Client) -> Result<Option<String>, String> {
    for (topic, group) in GROUPS {
        let description =
            client.call(&Request::get(&format!("/v1/topics/{topic}"))).map_err(|error| error.to_string())?;
        let description = description.json();
        let groups = description["groups"].as_array().into_iter().flatten().filter(|known| known["group"] == group);
        let mut partitions = groups.flat_map(|group| group["partitions"].as_array().into_iter().flatten());
        if partitions.any(|partition| partition["lag"] != 0) {
            return Ok(Some(format!("{topic}/{group}")));
        }
    }
    Ok(None)
}

fn drain_all(recorder: &Arc<Recorder>, client: &Client, prefix: &str) -> Result<(), String> {
    let drained: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let start = |((topic, group), number): ((&'static str, &'static str), u64)| {
            let name = format!("{prefix}-{topic}-{group}-{number}");
            scope.spawn(move || drain(recorder, client, (topic, group), &name))
        };
        let consumers = GROUPS.iter().flat_map(|group| (0..CONSUMERS_PER_GROUP).map(move |number| (*group, number)));
        let threads: Vec<_> = consumers.map(start).collect();
        let panicked = |_| Err("a draining thread panicked".to_owned());
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    drained.into_iter().collect()
}

fn drain(recorder: &Arc<Recorder>, client: &Client, (topic, group): (&str, &str), name: &str) -> Result<(), String> {
    let mut streams = RecordedClient::new(recorder, client, format!("{name}-stream"));
    let mut calls = RecordedClient::new(recorder, client, name.to_owned());
    let args = json!({
        "topic": topic, "group": group, "owner": name, "lease_ms": 10_000, "prefetch": 10, "wait_ms": SILENCE_MS,
    });
    let cannot = |reason: &str| format!("{topic}/{group} cannot be drained: {reason}");
    for _ in 0..=FAILED_STREAMS_MAX {
        let mut stream = streams.consume(&args).ok_or_else(|| cannot("no stream"))?;
        while let Some(item) = stream.next() {
            let result = calls.call("ack", &lease_of(&item, topic, group, name));
            if !result.is_ok() && result != CallResult::Rejected(409) {
                return Err(cannot(&format!("an ack got {result:?}")));
            }
            interrupt::check()?;
        }
        if stream.ended() {
            return Ok(());
        }
    }
    Err(cannot("its streams fail"))
}

/// Records the hash of the server's state, if the server provides one.
pub fn digest(recorder: &Arc<Recorder>, client: &Client) {
    if let Ok(reply) = client.call(&Request::get("/v1/digest"))
        && reply.status == 200
    {
        recorder.write((DRIVER, 0), "digest", Phase::Ok, &json!({}), reply.json());
    }
}
