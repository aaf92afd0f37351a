//! Scenarios: what is done in a run, in terms that hold for any client.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The scenarios of this repository.
const BUILT_IN: &str = include_str!("../scenarios.json");

/// A scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it shows.
    pub about: String,
    /// The topics to create.
    #[serde(default)]
    pub topics: Vec<Topic>,
    /// The workers.
    #[serde(default)]
    pub workers: Vec<Worker>,
    /// The messages to produce, in this order.
    #[serde(default)]
    pub messages: Vec<Messages>,
    /// Operations that are asked for one after the other, with what they must answer.
    #[serde(default)]
    pub calls: Vec<Call>,
    /// Whether keys and hashes of the shared vectors are asked for.
    #[serde(default)]
    pub vectors: bool,
    /// The probabilities of faults, by name.
    #[serde(default)]
    pub chaos: Map<String, Value>,
    /// What ends processes.
    #[serde(default)]
    pub kills: Vec<Kill>,
    /// What must hold at the end.
    #[serde(default)]
    pub end: End,
    /// Whether a URL where nothing listens comes before that of the broker.
    #[serde(default)]
    pub dead_url_first: bool,
}

/// A topic.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// How many partitions it has.
    pub partitions: u32,
}

/// A worker, as in `worker_start`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worker {
    /// Its name.
    pub worker: String,
    /// The process that it runs in.
    #[serde(default)]
    pub process: usize,
    /// The topic it consumes.
    pub topic: String,
    /// Its group.
    pub group: String,
    /// What it does with a message.
    pub handler: Vec<Value>,
    /// How many handlers run at a time.
    pub concurrency: u32,
    /// The lease of a delivery.
    pub lease_ms: u64,
    /// The scope of its effects, as in a request, or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Value>,
    /// Whether messages of one key are handled one after the other.
    #[serde(default)]
    pub per_key_order: bool,
    /// How long shutdown waits for handlers.
    #[serde(default = "default_grace_ms")]
    pub grace_ms: u64,
    /// Stops it after so many effects of its process, while others go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_after_effects: Option<usize>,
    /// Starts it when the one of this name has been stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_after: Option<String>,
}

fn default_grace_ms() -> u64 {
    2_000
}

/// Messages that are alike. In texts `{n}` stands for the number of the message.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Messages {
    /// The topic.
    pub topic: String,
    /// How many.
    pub count: usize,
    /// The value.
    pub value: String,
    /// How many keys there are: `k0`, `k1`, …; 0: none has a key.
    #[serde(default)]
    pub keys: usize,
    /// The idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Through the batching producer.
    #[serde(default)]
    pub batch: bool,
    /// The milliseconds between one and the next.
    #[serde(default)]
    pub every_ms: u64,
    /// The deadline, so many milliseconds after it is produced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_in_ms: Option<u64>,
    /// Further fields of `produce`.
    #[serde(default)]
    pub fields: Map<String, Value>,
}

/// An operation, and what it must answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// The operation with its fields.
    pub request: Value,
    /// What the answer must contain: `ok` or `error` with some of their fields.
    pub expect: Value,
    /// Keeps the answer under this name: a text `$name.field` in a later request stands for a field of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<String>,
}

/// What ends a process. It is started again.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kill {
    /// The process.
    pub process: usize,
    /// After so many effects of it since its start.
    pub after_effects: usize,
    /// How often at most.
    #[serde(default = "once")]
    pub times: usize,
}

fn once() -> usize {
    1
}

/// What must hold at the end.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct End {
    /// How long the messages may take.
    pub within_ms: u64,
    /// Whether every message has at least one effect.
    pub effects: bool,
    /// Which messages are dead letters.
    pub dead_letters: DeadLetters,
    /// How many messages these topics must have, none of them twice.
    pub messages: Map<String, Value>,
}

impl Default for End {
    fn default() -> Self {
        Self { within_ms: 30_000, effects: true, dead_letters: DeadLetters::None, messages: Map::new() }
    }
}

/// Which messages are dead letters at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadLetters {
    /// None.
    None,
    /// Each.
    All,
    /// Some may be.
    Any,
}

/// The operations that ask for the keys and hashes of the files in this folder.
///
/// # Errors
/// If a file is missing or malformed.
pub(crate) fn vectors(folder: &Path) -> io::Result<Vec<Call>> {
    let mut calls = Vec::new();
    for (file, op, argument, from, answer) in [
        ("idempotency_keys.json", "idempotency_key", "parts", "parts", "key"),
        ("request_hashes.json", "request_hash", "value_json", "json", "hash"),
    ] {
        let path = folder.join(file);
        let text = fs::read_to_string(&path)
            .map_err(|error| io::Error::other(format!("{}: {error}; --vectors names the folder", path.display())))?;
        for vector in serde_json::from_str::<Vec<Value>>(&text)? {
            let expect = match vector.get("error") {
                Some(kind) => json!({"error": {"kind": kind}}),
                None => json!({"ok": vector[answer]}),
            };
            calls.push(Call { request: json!({"op": op, argument: vector[from]}), expect, keep: None });
        }
    }
    Ok(calls)
}

/// The built-in scenarios.
///
/// # Errors
/// If the file of this repository is malformed.
pub fn built_in() -> Result<Vec<Scenario>, serde_json::Error> {
    serde_json::from_str(BUILT_IN)
}
