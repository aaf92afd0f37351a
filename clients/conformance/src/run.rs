//! One run of a scenario: broker, proxies, adapters, messages, kills, and the state at the end.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Map, Value, json};

use crate::adapter::{Adapter, AdapterError};
use crate::broker::Broker;
use crate::proxy::{Listener, Numbers, ledger, proxy};
use crate::scenario::{self, Call, Messages, Scenario, Worker};
use crate::trace::{Entry, Recorder, Seen};

/// How long an adapter may take to answer an operation, faults included.
const ANSWER_WITHIN: Duration = Duration::from_secs(90);
/// How long an adapter retries a request.
const RETRY_FOR_MS: u64 = 30_000;
/// The timeout of an adapter's requests: above what a fault holds a request for.
const TIMEOUT_MS: u64 = 5_000;
const POLL: Duration = Duration::from_millis(20);
/// By so many times the time that messages may take it is prolonged at most, where the machine has much to do.
const STALLED_WITHINS_MAX: u32 = 2;
/// The lag of a group is asked for at this interval.
const LAG_EVERY: Duration = Duration::from_millis(150);
/// A port where nothing listens: that of a service of the first days, not used on any system of today.
const DEAD_URL: &str = "http://127.0.0.1:1";

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The program of the broker.
    pub driftqd: PathBuf,
    /// The adapter, a line of the shell.
    pub adapter: String,
    /// The seed of the faults.
    pub seed: u64,
    /// The folder with the vectors of keys and hashes.
    pub vectors: PathBuf,
    /// Where standard errors of adapters go.
    pub log: PathBuf,
}

/// Why there is nothing to judge.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The broker or a port.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The adapter does not start.
    #[error("{0}")]
    Adapter(#[from] AdapterError),
}

/// Runs a scenario once, and returns what was seen.
///
/// # Errors
/// If broker or adapter do not start. An adapter that fails later is seen by the judge.
pub fn run(scenario: &Scenario, setting: &Setting) -> Result<Vec<Entry>, RunError> {
    let vectors = if scenario.vectors { scenario::vectors(&setting.vectors)? } else { Vec::new() };
    let broker = Broker::start(&setting.driftqd, setting.seed, &scenario.chaos)?;
    let mut run = Run {
        scenario,
        setting,
        broker,
        vectors,
        recorder: Arc::default(),
        numbers: Arc::default(),
        processes: Vec::new(),
        incarnations: 0,
        stopped: Vec::new(),
        stops: Vec::new(),
    };
    run.all()?;
    Ok(run.recorder.entries())
}

/// A process of the scenario.
struct Process {
    adapter: Adapter,
    /// Closed with the process.
    proxy: Listener,
    ledger: Listener,
    kills: Vec<usize>,
}

/// A worker that is being stopped.
struct Stop {
    worker: String,
    process: usize,
    id: u64,
}

struct Run<'a> {
    scenario: &'a Scenario,
    setting: &'a Setting,
    broker: Broker,
    vectors: Vec<Call>,
    recorder: Arc<Recorder>,
    numbers: Arc<Numbers>,
    processes: Vec<Process>,
    incarnations: usize,
    /// Workers that have been told to stop and have answered.
    stopped: Vec<String>,
    stops: Vec<Stop>,
}

impl Run<'_> {
    fn all(&mut self) -> Result<(), RunError> {
        let count = self.scenario.workers.iter().map(|worker| worker.process + 1).max().unwrap_or(1);
        let first = self.adapter()?;
        self.recorder.record(Seen::Run {
            adapter: first.0.name().to_owned(),
            seed: self.setting.seed,
            scenario: serde_json::to_value(self.scenario).map_err(io::Error::from)?,
        });
        self.add(first);
        for _ in 1..count {
            let next = self.adapter()?;
            self.add(next);
        }
        if let Err(error) = self.drive() {
            self.recorder.record(Seen::TimedOut { what: error.to_string() });
        }
        for process in 0..self.processes.len() {
            let adapter = &mut self.processes[process].adapter;
            let expected = adapter.finish();
            adapter.kill();
            self.recorder.record(Seen::Ended { incarnation: adapter.incarnation(), expected });
        }
        let state = self.broker.state()?;
        self.recorder.record(Seen::Final { state });
        Ok(())
    }

    fn drive(&mut self) -> Result<(), RunError> {
        for process in 0..self.processes.len() {
            self.connect(process)?;
        }
        for topic in &self.scenario.topics {
            self.call(0, json!({"op": "create_topic", "topic": topic.name, "partitions": topic.partitions}))?;
        }
        // Before the first message, so that each is for every group.
        for worker in &self.scenario.workers {
            let body = json!({"topic": worker.topic, "group": worker.group});
            self.broker.ask("POST", "/v1/groups", Some(&body))?;
        }
        for worker in self.scenario.workers.iter().filter(|worker| worker.start_after.is_none()) {
            self.start_worker(worker)?;
        }
        for messages in &self.scenario.messages {
            self.produce(messages)?;
        }
        let mut kept = Map::new();
        for call in self.scenario.calls.iter().chain(&self.vectors) {
            let adapter = &mut self.processes[0].adapter;
            let id = adapter.ask(filled(&call.request, &kept), call.expect.clone())?;
            let answer = adapter.answer(id, ANSWER_WITHIN)?;
            if let Some(name) = &call.keep {
                kept.insert(name.clone(), answer["ok"].clone());
            }
        }
        self.work()?;
        for worker in &self.scenario.workers {
            if !self.stopped.contains(&worker.worker) && !self.is_stopping(&worker.worker) {
                self.stop_worker(worker)?;
            }
        }
        self.await_stops()
    }

    /// Waits until all groups have acked everything, with kills and stops meanwhile.
    fn work(&mut self) -> Result<(), RunError> {
        let (start, within) = (Instant::now(), Duration::from_millis(self.scenario.end.within_ms));
        let mut asked = Instant::now();
        loop {
            self.watch()?;
            if asked.elapsed() >= LAG_EVERY {
                asked = Instant::now();
                if self.is_done()? {
                    return Ok(());
                }
            }
            // A client that gets no processor has more time, but not for ever.
            let elapsed = start.elapsed();
            if elapsed >= within && elapsed >= within + self.recorder.stalled().min(within * STALLED_WITHINS_MAX) {
                self.recorder.record(Seen::TimedOut { what: "all messages to be acked".to_owned() });
                return Ok(());
            }
            thread::sleep(POLL);
        }
    }

    fn is_done(&mut self) -> Result<bool, RunError> {
        let scenario = self.scenario;
        for worker in &scenario.workers {
            if self.broker.lag(&worker.topic, &worker.group)? != Some(0) {
                return Ok(false);
            }
        }
        // A worker that waits for the stop of another one must have been started.
        Ok(scenario
            .workers
            .iter()
            .all(|worker| worker.stop_after_effects.is_none() || self.stopped.contains(&worker.worker)))
    }

    /// Kills, restarts, stops and starts what is due.
    fn watch(&mut self) -> Result<(), RunError> {
        let scenario = self.scenario;
        for process in 0..self.processes.len() {
            let incarnation = self.processes[process].adapter.incarnation();
            let effects = self.recorder.effects_of(incarnation);
            let due = scenario.kills.iter().enumerate().find(|(at, kill)| {
                kill.process == process
                    && effects >= kill.after_effects
                    && self.processes[process].kills[*at] < kill.times
            });
            let exits = scenario.workers.iter().any(|worker| worker.process == process && exits(worker));
            let is_running = self.processes[process].adapter.is_running();
            if let Some((at, _)) = due {
                self.processes[process].kills[at] += 1;
                self.processes[process].adapter.kill();
            }
            if due.is_some() || !is_running {
                let expected = due.is_some() || exits;
                self.recorder.record(Seen::Ended { incarnation, expected });
                self.restart(process)?;
            }
        }
        for worker in &scenario.workers {
            let incarnation = self.processes[worker.process].adapter.incarnation();
            let due = worker.stop_after_effects.is_some_and(|after| self.recorder.effects_of(incarnation) >= after);
            if due && !self.stopped.contains(&worker.worker) && !self.is_stopping(&worker.worker) {
                self.stop_worker(worker)?;
            }
        }
        self.poll_stops(Duration::ZERO)
    }

    fn restart(&mut self, process: usize) -> Result<(), RunError> {
        let (adapter, proxy, ledger) = self.adapter()?;
        self.recorder.record(Seen::Started { incarnation: adapter.incarnation(), process });
        let kills = std::mem::take(&mut self.processes[process].kills);
        self.processes[process] = Process { adapter, proxy, ledger, kills };
        self.connect(process)?;
        for worker in self.scenario.workers.iter().filter(|worker| worker.process == process) {
            if worker.start_after.is_none() && !self.stopped.contains(&worker.worker) {
                self.start_worker(worker)?;
            }
        }
        Ok(())
    }

    fn adapter(&mut self) -> Result<(Adapter, Listener, Listener), RunError> {
        let incarnation = self.incarnations;
        self.incarnations += 1;
        let proxy = proxy(self.broker.addr(), incarnation, Arc::clone(&self.recorder), Arc::clone(&self.numbers))?;
        let ledger = ledger(incarnation, Arc::clone(&self.recorder))?;
        let adapter =
            Adapter::start(&self.setting.adapter, incarnation, &self.setting.log, Arc::clone(&self.recorder))?;
        Ok((adapter, proxy, ledger))
    }

    fn add(&mut self, (adapter, proxy, ledger): (Adapter, Listener, Listener)) {
        let process = self.processes.len();
        self.recorder.record(Seen::Started { incarnation: adapter.incarnation(), process });
        let kills = vec![0; self.scenario.kills.len()];
        self.processes.push(Process { adapter, proxy, ledger, kills });
    }

    fn connect(&mut self, process: usize) -> Result<(), RunError> {
        let mut urls = vec![self.processes[process].proxy.url()];
        if self.scenario.dead_url_first {
            urls.insert(0, DEAD_URL.to_owned());
        }
        let request = json!({"op": "connect", "urls": urls, "timeout_ms": TIMEOUT_MS, "retry_for_ms": RETRY_FOR_MS});
        self.call(process, request)
    }

    /// Asks for an operation. What it answers is for the judge.
    fn call(&mut self, process: usize, request: Value) -> Result<(), RunError> {
        self.processes[process].adapter.call(request, ANSWER_WITHIN)?;
        Ok(())
    }

    fn start_worker(&mut self, worker: &Worker) -> Result<(), RunError> {
        let mut request = json!({
            "op": "worker_start",
            "worker": worker.worker,
            "topic": worker.topic,
            "group": worker.group,
            "handler": worker.handler,
            "concurrency": worker.concurrency,
            "lease_ms": worker.lease_ms,
            "per_key_order": worker.per_key_order,
            "grace_ms": worker.grace_ms,
            "ledger": self.processes[worker.process].ledger.url(),
        });
        if let Some(scope) = &worker.scope {
            request["scope"] = scope.clone();
        }
        self.call(worker.process, request)
    }

    fn stop_worker(&mut self, worker: &Worker) -> Result<(), RunError> {
        let request = json!({"op": "worker_stop", "worker": worker.worker, "grace_ms": worker.grace_ms});
        let id = self.processes[worker.process].adapter.ask(request, Value::Null)?;
        self.stops.push(Stop { worker: worker.worker.clone(), process: worker.process, id });
        Ok(())
    }

    fn is_stopping(&self, worker: &str) -> bool {
        self.stops.iter().any(|stop| stop.worker == worker)
    }

    fn await_stops(&mut self) -> Result<(), RunError> {
        self.poll_stops(ANSWER_WITHIN)
    }

    /// Takes the answers of workers that have stopped, and starts those that were to follow them.
    fn poll_stops(&mut self, within: Duration) -> Result<(), RunError> {
        for stop in std::mem::take(&mut self.stops) {
            match self.processes[stop.process].adapter.answer(stop.id, within) {
                Ok(_) => {
                    let scenario = self.scenario;
                    for next in &scenario.workers {
                        if next.start_after.as_ref() == Some(&stop.worker) {
                            self.start_worker(next)?;
                        }
                    }
                    self.stopped.push(stop.worker);
                }
                Err(AdapterError::TimedOut) if within.is_zero() => self.stops.push(stop),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn produce(&mut self, messages: &Messages) -> Result<(), RunError> {
        let all = (0..messages.count).map(|n| message(messages, n));
        if messages.batch {
            let all: Vec<Value> = all.collect();
            return self.call(0, json!({"op": "produce_many", "topic": messages.topic, "messages": all}));
        }
        // One is made when the one before it is produced: its deadline counts from then.
        for mut request in all {
            request["op"] = json!("produce");
            request["topic"] = json!(messages.topic);
            // It may be a crash that takes the process with the call; the next one has another try.
            match self.call(0, request) {
                Err(RunError::Adapter(AdapterError::Ended)) | Ok(()) => {}
                Err(error) => return Err(error),
            }
            self.watch()?;
            thread::sleep(Duration::from_millis(messages.every_ms));
        }
        Ok(())
    }
}

fn message(messages: &Messages, n: usize) -> Value {
    let numbered = |text: &str| text.replace("{n}", &n.to_string());
    let mut message = json!({"value": numbered(&messages.value)});
    if messages.keys > 0 {
        message["key"] = json!(format!("k{}", n % messages.keys));
    }
    if let Some(key) = &messages.idempotency_key {
        message["idempotency_key"] = json!(numbered(key));
    }
    if let Some(ms) = messages.deadline_in_ms {
        message["deadline"] = json!(rfc3339(SystemTime::now() + Duration::from_millis(ms)));
    }
    for (field, value) in &messages.fields {
        message[field] = value.clone();
    }
    message
}

/// A request with what stands for fields of kept answers.
fn filled(request: &Value, kept: &Map<String, Value>) -> Value {
    match request {
        Value::String(text) => {
            let field = text.strip_prefix('$').and_then(|name| name.split_once('.'));
            field.map_or_else(|| request.clone(), |(name, field)| kept[name][field].clone())
        }
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), filled(value, kept))).collect(),
        other => other.clone(),
    }
}

/// A time as in an envelope, in UTC.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    const DAY_SECONDS: u64 = 86_400;
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / DAY_SECONDS, since.as_secs() % DAY_SECONDS);
    // Years that begin in March, so that the day of a leap year is the last one; eras of 400 years from the year 0.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// Whether a step of the worker ends its process.
fn exits(worker: &Worker) -> bool {
    worker.handler.iter().any(|step| step["do"] == "exit")
}
