//! An adapter with a small worker of its own, which keeps the contract, or breaks it in one way: the judge has to tell
//! one from the other. `--plant` names the bug.

mod broker;
mod delivery;
mod steps;
mod worker;

use std::collections::HashMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use self::broker::{Broker, Failure, Repeat};
use self::worker::Worker;

/// The bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    /// None: the contract is kept.
    None,
    /// The message is acked before its handler runs.
    AckBeforeEffect,
    /// No lease is extended.
    NoHeartbeat,
    /// A produce that may have happened is repeated without its key.
    RetryWithoutKey,
    /// A heartbeat that is refused is taken for one that succeeded.
    ResultAfterLostLease,
    /// A delivery whose line comes twice is handled twice.
    DuplicateLine,
    /// Handlers run without a grant.
    NoBegin,
    /// The stream asks for more than the concurrency, and more handlers run.
    Greedy,
    /// A worker that stops keeps what it holds.
    NoRelease,
    /// A failure is not recorded before the message goes back.
    NoFinish,
    /// A side effect is not asked for in the store.
    SideEffectAgain,
    /// Messages of one key are handled at the same time.
    NoKeyOrder,
    /// Every failure makes a dead letter.
    DeadLetter,
    /// Errors are answered with another kind.
    OtherKind,
    /// A begin does not name its delivery.
    NoDelivery,
    /// Requests show no lease token.
    NoToken,
    /// The result of the first attempt is reported for each.
    FirstResult,
    /// A panic of a handler ends the process.
    PanicExits,
    /// Messages are not finished.
    NoComplete,
    /// What was refused is sent again.
    RepeatRefused,
    /// The lease of the message is extended, that of its effect is not.
    NoRenew,
    /// A failure's delay is forgotten.
    NoDelay,
}

const PLANTS: [(&str, Plant); 22] = [
    ("none", Plant::None),
    ("ack-before-effect", Plant::AckBeforeEffect),
    ("no-heartbeat", Plant::NoHeartbeat),
    ("retry-without-key", Plant::RetryWithoutKey),
    ("result-after-lost-lease", Plant::ResultAfterLostLease),
    ("duplicate-line", Plant::DuplicateLine),
    ("no-begin", Plant::NoBegin),
    ("greedy", Plant::Greedy),
    ("no-release", Plant::NoRelease),
    ("no-finish", Plant::NoFinish),
    ("side-effect-again", Plant::SideEffectAgain),
    ("no-key-order", Plant::NoKeyOrder),
    ("dead-letter", Plant::DeadLetter),
    ("other-kind", Plant::OtherKind),
    ("no-delivery", Plant::NoDelivery),
    ("no-token", Plant::NoToken),
    ("first-result", Plant::FirstResult),
    ("panic-exits", Plant::PanicExits),
    ("no-complete", Plant::NoComplete),
    ("repeat-refused", Plant::RepeatRefused),
    ("no-renew", Plant::NoRenew),
    ("no-delay", Plant::NoDelay),
];

/// What all operations share.
struct Adapter {
    plant: Plant,
    broker: Mutex<Option<Broker>>,
    workers: Mutex<HashMap<String, Arc<Worker>>>,
}

fn main() -> ExitCode {
    let name = std::env::args().skip_while(|argument| argument != "--plant").nth(1).unwrap_or("none".to_owned());
    let Some((_, plant)) = PLANTS.iter().find(|(known, _)| *known == name) else {
        eprintln!("unknown plant {name:?}");
        return ExitCode::from(2);
    };
    let adapter = Arc::new(Adapter { plant: *plant, broker: Mutex::default(), workers: Mutex::default() });
    say(&json!({"adapter": format!("planted {name}"), "contract": 1}));
    for line in io::stdin().lines() {
        let Ok(request) = line.and_then(|line| Ok(serde_json::from_str::<Value>(&line)?)) else { break };
        let adapter = Arc::clone(&adapter);
        thread::spawn(move || {
            let mut answer = match operation(&adapter, &request) {
                Ok(ok) => json!({"ok": ok}),
                Err(failure) => json!({"error": failure.told(adapter.plant)}),
            };
            answer["id"] = request["id"].clone();
            say(&answer);
        });
    }
    ExitCode::SUCCESS
}

fn say(line: &Value) {
    // The runner has gone if this fails, and the end of the input follows.
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn operation(adapter: &Adapter, request: &Value) -> Result<Value, Failure> {
    let text = |name: &str| request[name].as_str().unwrap_or_default().to_owned();
    let broker = || {
        let broker = adapter.broker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        broker.ok_or_else(|| Failure::misuse("not connected"))
    };
    match request["op"].as_str().unwrap_or_default() {
        "connect" => {
            let connected = Broker::new(&request["urls"]).ok_or_else(|| Failure::misuse("no URL"))?;
            *adapter.broker.lock().unwrap_or_else(PoisonError::into_inner) = Some(connected);
            Ok(json!({}))
        }
        "create_topic" => {
            let body = json!({"name": text("topic"), "partitions": request["partitions"]});
            let answer = broker()?.call("/v1/topics", &body, Repeat::Safe)?;
            Ok(json!({"partitions": answer["partitions"]}))
        }
        "produce" => produce(adapter.plant, &broker()?, &text("topic"), request),
        "produce_many" => {
            let broker = broker()?;
            let messages = request["messages"].as_array().cloned().unwrap_or_default();
            let results =
                messages.iter().map(|message| match produce(adapter.plant, &broker, &text("topic"), message) {
                    Ok(ok) => json!({"ok": ok}),
                    Err(failure) => json!({"error": failure.told(adapter.plant)}),
                });
            Ok(json!({"results": results.collect::<Vec<_>>()}))
        }
        "worker_start" => {
            let worker = Worker::start(adapter.plant, broker()?, request);
            adapter.workers.lock().unwrap_or_else(PoisonError::into_inner).insert(text("worker"), worker);
            Ok(json!({}))
        }
        "worker_stop" => {
            let worker = adapter.workers.lock().unwrap_or_else(PoisonError::into_inner).remove(&text("worker"));
            let worker = worker.ok_or_else(|| Failure::misuse("unknown worker"))?;
            worker.stop(Duration::from_millis(request["grace_ms"].as_u64().unwrap_or(0)));
            Ok(json!({"completed": 0, "failed": 0, "lost": 0}))
        }
        _ => Err(Failure::misuse("unknown operation")),
    }
}

fn produce(plant: Plant, broker: &Broker, topic: &str, message: &Value) -> Result<Value, Failure> {
    let mut body = broker::message(topic, message);
    let answer = match (message["idempotency_key"].is_string(), plant) {
        (_, Plant::RetryWithoutKey) => match broker.call("/v1/produce", &body, Repeat::Never) {
            Err(failure) if failure.is_unknown() => {
                if let Some(envelope) = body["envelope"].as_object_mut() {
                    envelope.remove("idempotency_key");
                }
                broker.call("/v1/produce", &body, Repeat::Safe)?
            }
            answer => answer?,
        },
        (true, Plant::RepeatRefused) => {
            let first = broker.call("/v1/produce", &body, Repeat::Safe);
            first.or_else(|_| broker.call("/v1/produce", &body, Repeat::Safe))?
        }
        (true, _) => broker.call("/v1/produce", &body, Repeat::Safe)?,
        (false, _) => broker.call("/v1/produce", &body, Repeat::Never)?,
    };
    Ok(json!({
        "partition": answer["partition"],
        "offset": answer["offset"],
        "duplicate": answer["duplicate"] == true,
    }))
}
