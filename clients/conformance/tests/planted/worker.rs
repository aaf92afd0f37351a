//! The worker: a stream, handlers, and what they report.

use std::collections::{HashSet, VecDeque};
use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use driftq_conformance::http::Event;
use serde_json::{Value, json};

use crate::Plant;
use crate::broker::{Broker, Repeat};
use crate::delivery::{Held, Identity, add};
use crate::steps::{Outcome, Run};

const RECONNECT_AFTER: Duration = Duration::from_millis(30);
const POLL: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Arc<Held>>,
    /// Tokens of all deliveries that came: a line may come twice.
    seen: HashSet<String>,
    /// Keys of the messages that are handled, where their order is kept.
    busy: HashSet<String>,
    running: usize,
    stream: Option<TcpStream>,
    is_stopping: bool,
}

/// A worker.
#[derive(Debug)]
pub(crate) struct Worker {
    plant: Plant,
    broker: Broker,
    request: Value,
    identity: Identity,
    lease: Duration,
    state: Mutex<State>,
    changed: Condvar,
    is_cancelled: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Worker {
    /// Starts as `worker_start` says.
    pub(crate) fn start(plant: Plant, broker: Broker, request: &Value) -> Arc<Self> {
        let text = |name: &str| request[name].as_str().unwrap_or_default().to_owned();
        let identity = Identity {
            topic: text("topic"),
            group: text("group"),
            owner: format!("{}-{}", text("worker"), std::process::id()),
        };
        let worker = Arc::new(Self {
            plant,
            broker,
            request: request.clone(),
            identity,
            lease: Duration::from_millis(request["lease_ms"].as_u64().unwrap_or(30_000)),
            state: Mutex::default(),
            changed: Condvar::new(),
            is_cancelled: AtomicBool::new(false),
            threads: Mutex::default(),
        });
        let mut threads = worker.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = Arc::clone(&worker);
        threads.push(thread::spawn(move || stream.streams()));
        let handlers = if plant == Plant::Greedy { worker.concurrency() * 3 } else { worker.concurrency() };
        for _ in 0..handlers {
            let handlers = Arc::clone(&worker);
            threads.push(thread::spawn(move || handlers.handlers()));
        }
        drop(threads);
        worker
    }

    /// Stops: returns when nothing is held.
    pub(crate) fn stop(&self, grace: Duration) {
        let mut state = self.state();
        state.is_stopping = true;
        if let Some(stream) = state.stream.take() {
            // It may have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
        let waiting: Vec<_> = state.queue.drain(..).collect();
        drop(state);
        self.changed.notify_all();
        for held in waiting {
            self.release(&held);
        }
        let until = Instant::now() + grace;
        while self.state().running > 0 && Instant::now() < until {
            thread::sleep(POLL);
        }
        self.is_cancelled.store(true, Ordering::SeqCst);
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            thread.join().expect("a thread of the worker panicked");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn concurrency(&self) -> u64 {
        self.request["concurrency"].as_u64().unwrap_or(1)
    }

    fn streams(&self) {
        let prefetch = if self.plant == Plant::Greedy { 100 } else { self.concurrency() };
        let Identity { topic, group, owner } = &self.identity;
        let lease_ms = self.lease.as_millis();
        let target =
            format!("/v1/consume?topic={topic}&group={group}&owner={owner}&lease_ms={lease_ms}&prefetch={prefetch}");
        let mut number = 0;
        while !self.state().is_stopping {
            if let Ok((stream, mut parser)) = self.broker.client(number).open("GET", &target, None) {
                // Blank lines come only every 15 s; the end of the worker shuts it down.
                let is_set = stream.set_read_timeout(None).is_ok();
                let kept = stream.try_clone();
                let mut state = self.state();
                if let (Ok(kept), false, true) = (kept, state.is_stopping, is_set) {
                    state.stream = Some(kept);
                    drop(state);
                    self.lines(stream, &mut parser);
                }
            }
            number += 1;
            thread::sleep(RECONNECT_AFTER);
        }
    }

    fn lines(&self, mut stream: TcpStream, parser: &mut driftq_conformance::http::Parser) {
        let (mut line, mut buffer) = (Vec::new(), [0; 16 * 1024]);
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            for event in parser.feed(&buffer[..length]) {
                let bytes = match event {
                    Event::Head(head) if head.status == 200 => continue,
                    Event::Body(bytes) => bytes,
                    // A refusal, or the end of the stream. The connection may stay open.
                    Event::Head(_) | Event::End => return,
                };
                line.extend_from_slice(&bytes);
                while let Some(end) = line.iter().position(|&byte| byte == b'\n') {
                    let whole: Vec<u8> = line.drain(..=end).collect();
                    if let Ok(item) = serde_json::from_slice::<Value>(&whole) {
                        self.received(item);
                    }
                }
            }
        }
    }

    fn received(&self, item: Value) {
        let Some(token) = item["lease_token"].as_str().map(str::to_owned) else { return };
        let mut state = self.state();
        if !state.seen.insert(token) && self.plant != Plant::DuplicateLine {
            return;
        }
        let held = Held::new(item, self.identity.clone());
        held.keep(self.plant, &self.broker, self.lease);
        if state.is_stopping {
            drop(state);
            self.release(&held);
        } else {
            state.queue.push_back(held);
            drop(state);
            self.changed.notify_all();
        }
    }

    fn handlers(&self) {
        loop {
            let mut state = self.state();
            let (held, key) = loop {
                if state.is_stopping {
                    return;
                }
                if let Some(next) = self.next(&mut state) {
                    break next;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            state.running += 1;
            drop(state);
            self.handle(&held);
            held.end();
            let mut state = self.state();
            state.running -= 1;
            state.busy.remove(&key);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// The next delivery that may be handled, and the key that it keeps busy.
    fn next(&self, state: &mut State) -> Option<(Arc<Held>, String)> {
        let is_ordered = self.request["per_key_order"] == true && self.plant != Plant::NoKeyOrder;
        let key = |held: &Held| match is_ordered {
            true => held.item["key"].as_str().unwrap_or_default().to_owned(),
            false => String::new(),
        };
        let at = state.queue.iter().position(|held| !state.busy.contains(&key(held)))?;
        let held = state.queue.remove(at)?;
        let key = key(&held);
        if !key.is_empty() {
            state.busy.insert(key.clone());
        }
        Some((held, key))
    }

    fn settle(&self, path: &str, held: &Held, further: Value) {
        let mut body = held.body(further);
        // A complete without its token would be refused.
        if self.plant == Plant::NoToken && path != "/v1/complete" {
            body["lease_token"] = Value::Null;
        }
        // Refused, it is another worker's; without an answer in time its lease runs out.
        let _ = self.broker.call(path, &body, Repeat::Safe);
    }

    fn release(&self, held: &Held) {
        held.end();
        if self.plant != Plant::NoRelease {
            self.settle("/v1/release", held, json!({}));
        }
    }

    fn handle(&self, held: &Held) {
        if held.key().is_some() && self.request["scope"] != "none" && self.plant != Plant::NoBegin {
            let mut body = held.effect();
            let delivery = json!({
                "partition": held.item["partition"],
                "offset": held.item["offset"],
                "lease_token": held.item["lease_token"],
            });
            let lease_ms = u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX);
            add(&mut body, json!({"owner": held.identity.owner, "lease_ms": lease_ms, "delivery": delivery}));
            if self.plant == Plant::NoDelivery {
                body["delivery"] = Value::Null;
            }
            match self.broker.call("/v1/idempotency/begin", &body, Repeat::Safe) {
                Ok(begun) if begun["decision"] == "EXECUTE" => {
                    held.granted(begun["lease_token"].as_str().unwrap_or_default());
                }
                Ok(begun) if begun["status"] == "SUCCEEDED" => {
                    return self.settle("/v1/complete", held, json!({"result": begun["result"]}));
                }
                Ok(_) => return self.settle("/v1/nack", held, json!({"retryable": false, "reason": "failed before"})),
                Err(failure) if failure.body["decision"] == "IN_PROGRESS" => return self.release(held),
                Err(_) => return held.lose(),
            }
        }
        if self.plant == Plant::AckBeforeEffect {
            self.settle("/v1/ack", held, json!({}));
        }
        let steps = self.request["handler"].as_array().cloned().unwrap_or_default();
        let run = Run {
            plant: self.plant,
            broker: &self.broker,
            held,
            worker: self.request["worker"].as_str().unwrap_or_default(),
            ledger: self.request["ledger"].as_str().unwrap_or_default(),
            is_stopped: &|| self.is_cancelled.load(Ordering::SeqCst),
        };
        self.report(held, run.all(&steps));
    }

    fn report(&self, held: &Held, outcome: Outcome) {
        match outcome {
            _ if held.is_lost() => {}
            Outcome::Done { .. } if self.plant == Plant::NoComplete => {}
            Outcome::Done { result, produce } => {
                self.settle("/v1/complete", held, json!({"result": result, "produce": produce}));
            }
            Outcome::Retry { text, .. } if self.plant == Plant::DeadLetter => self.fail(held, &text),
            Outcome::Retry { text, delay_ms } => {
                let delay_ms = delay_ms.filter(|_| self.plant != Plant::NoDelay);
                self.finish(held, json!({"status": "FAILED_RETRYABLE", "last_error": text}));
                self.settle("/v1/nack", held, json!({"reason": text, "delay_ms": delay_ms}));
            }
            Outcome::Permanent(text) => self.fail(held, &text),
            Outcome::Cancelled => {
                self.finish(held, json!({"status": "FAILED_RETRYABLE", "last_error": "shutdown"}));
                self.release(held);
            }
        }
    }

    fn fail(&self, held: &Held, text: &str) {
        if held.grant().is_none() {
            return self.settle("/v1/nack", held, json!({"retryable": false, "reason": text}));
        }
        let delivery = json!({
            "partition": held.item["partition"],
            "offset": held.item["offset"],
            "lease_token": held.item["lease_token"],
        });
        let failure = json!({"status": "FAILED_FINAL", "last_error": text, "dead_letter": true, "delivery": delivery});
        self.finish(held, failure);
    }

    fn finish(&self, held: &Held, outcome: Value) {
        let is_failure = outcome["status"] == "FAILED_RETRYABLE";
        let Some(grant) = held.grant().filter(|_| self.plant != Plant::NoFinish || !is_failure) else { return };
        let mut body = held.effect();
        add(&mut body, json!({"lease_token": grant}));
        add(&mut body, outcome);
        // As for a settlement.
        let _ = self.broker.call("/v1/idempotency/finish", &body, Repeat::Safe);
    }
}
