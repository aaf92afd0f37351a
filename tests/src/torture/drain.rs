//! The end of a history: everything is taken and acked until nothing comes any more.

use std::sync::Arc;

use driftq_history::Phase;
use serde_json::{Value, json};

use super::client::{Answer, Client};
use super::interrupt;
use super::recorder::{DRIVER, Recorder};
use super::workload::{AWAY_MS_MAX, GROUPS};
use crate::http::{Request, Server};

/// How long nothing may come before a group counts as drained: longer than any message can stay away.
const SILENCE_MS: u64 = AWAY_MS_MAX + 150;
/// As many take from a group at a time.
const HANDS: u64 = 2;
/// Streams that a broker may tear in a round, before the round has failed.
const TORN_MAX: u32 = 3;

/// Drains all groups at once.
///
/// # Errors
/// Why a group cannot be drained.
pub fn round(recorder: &Arc<Recorder>, server: &Server, round: u64) -> Result<(), String> {
    let args = json!({ "round": round });
    recorder.write((DRIVER, 0), "drain", Phase::Invoke, &args, Value::Null);
    let drained: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let start = |(place, hand): ((&'static str, &'static str), u64)| {
            let name = format!("drain-{round}-{}-{}-{hand}", place.0, place.1);
            scope.spawn(move || drain(recorder, server, place, &name))
        };
        let places = GROUPS.iter().flat_map(|place| (0..HANDS).map(move |hand| (*place, hand)));
        let threads: Vec<_> = places.map(start).collect();
        let panicked = |_| Err("a thread that drains panicked".to_owned());
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    drained.into_iter().collect::<Result<(), String>>()?;
    recorder.write((DRIVER, 0), "drain", Phase::Ok, &args, json!({}));
    Ok(())
}

fn drain(recorder: &Arc<Recorder>, server: &Server, place: (&str, &str), name: &str) -> Result<(), String> {
    let (topic, group) = place;
    let mut streams = Client::new(recorder, server, format!("{name}-stream"));
    let mut calls = Client::new(recorder, server, name.to_owned());
    let args = json!({
        "topic": topic, "group": group, "owner": name, "lease_ms": 10_000, "prefetch": 10, "wait_ms": SILENCE_MS,
    });
    let mut torn = 0;
    loop {
        let mut stream =
            streams.consume(&args).ok_or_else(|| format!("{topic}/{group} cannot be drained: no stream"))?;
        while let Some(item) = stream.next() {
            let lease = json!({
                "topic": topic, "group": group, "owner": name, "partition": item["partition"],
                "offset": item["offset"], "lease_token": item["lease_token"],
            });
            let answer = calls.call("ack", &lease);
            if !answer.is_ok() && answer != Answer::Refused(409) {
                return Err(format!("{topic}/{group} cannot be drained: an ack got {answer:?}"));
            }
            if interrupt::asked() {
                return Err(interrupt::INTERRUPTED.to_owned());
            }
        }
        if stream.ended_well() {
            return Ok(());
        }
        torn += 1;
        if torn > TORN_MAX {
            return Err(format!("{topic}/{group} cannot be drained: its streams are torn"));
        }
    }
}

/// Asks for the hash of the server's state, where the server has such a thing.
pub fn digest(recorder: &Arc<Recorder>, server: &Server) {
    if let Ok(reply) = server.call(&Request::get("/v1/digest"))
        && reply.status == 200
    {
        recorder.write((DRIVER, 0), "digest", Phase::Ok, &json!({}), reply.json());
    }
}
