//! The operations of the protocol.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use driftq_client::{
    Begin, Begun, BrokerStore, Client, CreateTopic, DeliveryRef, EffectStatus, Error, ErrorKind, Event, Finish,
    Identity, KeyPart, OnExpired, Produce, Produced, RetryPolicy, RunningWorker, Scope, Store as _, Worker,
    WorkerScope, idempotency_key, request_hash_of_text,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::ledger::Ledger;
use crate::steps;

/// The client and the workers of the runner.
#[derive(Default)]
pub(crate) struct Adapter {
    client: Mutex<Option<Client>>,
    workers: Mutex<HashMap<String, Running>>,
}

struct Running {
    worker: Option<RunningWorker>,
    events: Arc<Mutex<Vec<Value>>>,
}

impl Adapter {
    /// Does one operation and returns its answer.
    pub(crate) async fn answer(&self, request: &Value) -> Value {
        let id = &request["id"];
        match self.operate(request).await {
            Ok(ok) => json!({"id": id, "ok": ok}),
            Err(error) => json!({"id": id, "error": error_json(&error)}),
        }
    }

    /// Stops all workers as at the end of the process.
    pub(crate) async fn close(&self) {
        let workers: Vec<_> = self.workers().values_mut().filter_map(|running| running.worker.take()).collect();
        let mut stopping = tokio::task::JoinSet::new();
        for worker in workers {
            stopping.spawn(worker.stop());
        }
        while stopping.join_next().await.is_some() {}
    }

    async fn operate(&self, request: &Value) -> Result<Value, Error> {
        match request["op"].as_str().unwrap_or_default() {
            "connect" => self.connect(request),
            "create_topic" => {
                let topic = CreateTopic::new(text(request, "topic")?);
                let topic = match field::<Option<u32>>(request, "partitions")? {
                    Some(partitions) => topic.partitions(partitions),
                    None => topic,
                };
                Ok(json!({"partitions": self.client()?.create_topic(&topic).await?.partitions}))
            }
            "produce" => Ok(produced_json(&self.client()?.produce(&produce_of(request)?).await?)),
            "produce_many" => self.produce_many(request).await,
            "idempotency_key" => idempotency_key(parts(&request["parts"])?).map(Value::from),
            "request_hash" => request_hash_of_text(&text(request, "value_json")?).map(Value::from),
            "effect" => self.effect(request).await,
            "worker_start" => self.start(request).await,
            "worker_stop" => self.stop(request).await,
            "worker_events" => {
                let workers = self.workers();
                let running =
                    workers.get(&text(request, "worker")?).ok_or_else(|| misuse("there is no such worker"))?;
                let events = std::mem::take(&mut *running.events.lock().expect("not poisoned"));
                Ok(json!({"events": events}))
            }
            other => Err(misuse(format!("unknown operation {other:?}"))),
        }
    }

    fn connect(&self, request: &Value) -> Result<Value, Error> {
        let millis = |name| Ok::<_, Error>(field::<Option<u64>>(request, name)?.map(Duration::from_millis));
        let mut builder = Client::builder().urls(field::<Vec<String>>(request, "urls")?);
        if let Some(key) = field::<Option<String>>(request, "key")? {
            builder = builder.key(key);
        }
        if let Some(timeout) = millis("timeout_ms")? {
            builder = builder.timeout(timeout);
        }
        if let Some(limit) = millis("retry_for_ms")? {
            builder = builder.retry_for(limit);
        }
        if let Some(ca) = field::<Option<String>>(request, "ca")? {
            builder = builder.ca_file(ca)?;
        }
        *self.client.lock().expect("not poisoned") = Some(builder.build()?);
        Ok(json!({}))
    }

    async fn produce_many(&self, request: &Value) -> Result<Value, Error> {
        let producer = self.client()?.producer();
        let topic = &request["topic"];
        let mut pending = Vec::new();
        for message in field::<Vec<Value>>(request, "messages")? {
            let mut message = message;
            message["topic"] = topic.clone();
            pending.push(match produce_of(&message) {
                Ok(message) => producer.enqueue(&message).await,
                Err(error) => Err(error),
            });
        }
        let mut results = Vec::new();
        for answer in pending {
            let result = match answer {
                Ok(answer) => answer.await,
                Err(error) => Err(error),
            };
            results.push(match result {
                Ok(produced) => json!({"ok": produced_json(&produced)}),
                Err(error) => json!({"error": error_json(&error)}),
            });
        }
        Ok(json!({"results": results}))
    }

    async fn effect(&self, request: &Value) -> Result<Value, Error> {
        let store = BrokerStore::new(&self.client()?);
        let identity: Identity = field(request, "identity")?;
        let lease = Duration::from_millis(field::<Option<u64>>(request, "lease_ms")?.unwrap_or(0));
        match request["action"].as_str().unwrap_or_default() {
            "begin" => {
                let mut begin = Begin::new(identity, text(request, "owner")?).lease(lease);
                begin.ttl = field::<Option<u64>>(request, "ttl_ms")?.map(Duration::from_millis);
                begin.request_hash = field(request, "request_hash")?;
                begin.on_expired = field::<Option<OnExpired>>(request, "on_expired")?;
                begin.delivery = field::<Option<DeliveryRef>>(request, "delivery")?;
                begun_json(store.begin(&begin).await?)
            }
            "finish" => {
                let token = text(request, "lease_token")?;
                let mut finish = Finish::new(identity, token, field::<EffectStatus>(request, "status")?);
                finish.response_code = field::<Option<i32>>(request, "response_code")?.unwrap_or(0);
                finish.last_error = field::<Option<String>>(request, "last_error")?.unwrap_or_default();
                finish.result = field(request, "result")?;
                if request["dead_letter"] == true {
                    finish.dead_letter = Some(field(request, "delivery")?);
                }
                store.finish(&finish).await.map(|()| json!({"ok": true}))
            }
            "reacquire" => {
                let grant = store.reacquire(&identity, &text(request, "owner")?, lease).await?;
                begun_json(Begun::Execute(grant))
            }
            "renew" => store.renew(&identity, &text(request, "lease_token")?, lease).await.map(|()| json!({})),
            "get" => match store.get(&identity).await? {
                Some(effect) => to_json(&effect),
                None => Err(unknown_effect()),
            },
            "forget" if store.forget(&identity).await? => Ok(json!({})),
            "forget" => Err(unknown_effect()),
            other => Err(misuse(format!("unknown action {other:?}"))),
        }
    }

    async fn start(&self, request: &Value) -> Result<Value, Error> {
        let name = text(request, "worker")?;
        if self.workers().get(&name).is_some_and(|running| running.worker.is_some()) {
            return Err(misuse(format!("the worker {name:?} runs already")));
        }
        let ledger = Ledger::new(&field::<Option<String>>(request, "ledger")?.unwrap_or_default(), &name);
        let steps: Arc<Vec<Value>> = Arc::new(field(request, "handler")?);
        let events: Arc<Mutex<Vec<Value>>> = Arc::default();
        let connected = Arc::new(Notify::new());
        let (list, notify) = (Arc::clone(&events), Arc::clone(&connected));
        let (topic, group) = (text(request, "topic")?, text(request, "group")?);
        let mut worker = Worker::new(&self.client()?, &topic, &group, move |message, context| {
            let (steps, ledger) = (Arc::clone(&steps), ledger.clone());
            async move { steps::run(&steps, &ledger, &message, &context).await }
        })
        .scope(scope(&request["scope"])?)
        .on_event(move |event| {
            if matches!(event, Event::Connected) {
                notify.notify_one();
            }
            list.lock().expect("not poisoned").push(event_json(event));
        });
        if let Some(concurrency) = field::<Option<usize>>(request, "concurrency")? {
            worker = worker.concurrency(concurrency);
        }
        if let Some(lease) = field::<Option<u64>>(request, "lease_ms")? {
            worker = worker.lease(Duration::from_millis(lease));
        }
        if let Some(grace) = field::<Option<u64>>(request, "grace_ms")? {
            worker = worker.grace(Duration::from_millis(grace));
        }
        if request["per_key_order"] == true {
            worker = worker.per_key_order();
        }
        let mut worker = worker.spawn();
        tokio::select! {
            () = connected.notified() => {}
            ended = worker.ended() => {
                ended?;
                return Err(misuse("the worker has ended"));
            }
        }
        self.workers().insert(name, Running { worker: Some(worker), events });
        Ok(json!({}))
    }

    async fn stop(&self, request: &Value) -> Result<Value, Error> {
        let name = text(request, "worker")?;
        let worker = self.workers().get_mut(&name).and_then(|running| running.worker.take());
        let worker = worker.ok_or_else(|| misuse(format!("there is no worker {name:?}")))?;
        let summary = match field::<Option<u64>>(request, "grace_ms")? {
            Some(grace) => worker.stop_within(Duration::from_millis(grace)).await?,
            None => worker.stop().await?,
        };
        Ok(json!({"completed": summary.completed, "failed": summary.failed, "lost": summary.lost}))
    }

    fn client(&self) -> Result<Client, Error> {
        self.client.lock().expect("not poisoned").clone().ok_or_else(|| misuse("connect first"))
    }

    fn workers(&self) -> std::sync::MutexGuard<'_, HashMap<String, Running>> {
        self.workers.lock().expect("not poisoned")
    }
}

fn misuse(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Misuse, message)
}

fn unknown_effect() -> Error {
    Error::new(ErrorKind::NotFound, "the effect is not known").answered(404, "NOT_FOUND")
}

/// A field of a request; a field that is absent is null.
fn field<T: DeserializeOwned>(request: &Value, name: &str) -> Result<T, Error> {
    T::deserialize(&request[name]).map_err(|error| misuse(format!("{name}: {error}")))
}

fn text(request: &Value, name: &str) -> Result<String, Error> {
    field(request, name)
}

fn parts(parts: &Value) -> Result<Vec<KeyPart>, Error> {
    let parts = parts.as_array().ok_or_else(|| misuse("parts: a list is needed"))?;
    parts
        .iter()
        .map(|part| match part {
            Value::String(text) => Ok(text.into()),
            Value::Bool(flag) => Ok((*flag).into()),
            part => {
                let number = part.as_i64().map(KeyPart::from).or_else(|| part.as_u64().map(KeyPart::from));
                number.ok_or_else(|| misuse(format!("{part} is neither text nor an integer nor a truth value")))
            }
        })
        .collect()
}

fn scope(scope: &Value) -> Result<WorkerScope, Error> {
    match scope {
        Value::Null => Ok(WorkerScope::Consume),
        Value::String(kind) => match kind.as_str() {
            "consume" => Ok(WorkerScope::Consume),
            "none" => Ok(WorkerScope::None),
            "tenant" => Ok(WorkerScope::Other(Scope::Tenant)),
            other => Err(misuse(format!("unknown scope {other:?}"))),
        },
        scope => {
            let scope: Scope =
                serde_json::from_value(scope.clone()).map_err(|error| misuse(format!("scope: {error}")))?;
            Ok(if matches!(scope, Scope::Consume { .. }) { WorkerScope::Consume } else { WorkerScope::Other(scope) })
        }
    }
}

/// The message of a request, or of an output of a handler.
pub(crate) fn produce_of(fields: &Value) -> Result<Produce, Error> {
    let topic = text(fields, "topic")?;
    let mut body = json!({"topic": topic});
    for name in ["value", "value_base64", "key"] {
        if !fields[name].is_null() {
            body[name] = fields[name].clone();
        }
    }
    let mut produce: Produce = serde_json::from_value(body).map_err(|error| misuse(error.to_string()))?;
    if let Some(key) = field::<Option<String>>(fields, "idempotency_key")? {
        produce = produce.idempotency_key(key);
    }
    if let Some(priority) = field::<Option<u8>>(fields, "priority")? {
        produce = produce.priority(priority);
    }
    if let Some(delay) = field::<Option<u64>>(fields, "delay_ms")? {
        produce = produce.delay(Duration::from_millis(delay));
    }
    if let Some(deadline) = field::<Option<String>>(fields, "deadline")? {
        produce = produce.deadline(deadline);
    }
    if let Some(policy) = field::<Option<RetryPolicy>>(fields, "retry_policy")? {
        produce = produce.retry_policy(policy);
    }
    for (name, value) in field::<Option<HashMap<String, String>>>(fields, "labels")?.unwrap_or_default() {
        produce = produce.label(name, value);
    }
    Ok(produce)
}

fn produced_json(produced: &Produced) -> Value {
    json!({
        "partition": produced.partition, "offset": produced.offset, "duplicate": produced.duplicate,
        "already_done": produced.already_done,
    })
}

fn to_json(value: &impl serde::Serialize) -> Result<Value, Error> {
    serde_json::to_value(value).map_err(|error| misuse(error.to_string()))
}

fn begun_json(begun: Begun) -> Result<Value, Error> {
    let decision = begun.decision();
    let mut answer = match begun {
        Begun::Execute(grant) => to_json(&grant)?,
        Begun::Replay(ended) => to_json(&ended)?,
        Begun::Retryable { attempt, last_error } => json!({"attempt": attempt, "last_error": last_error}),
        Begun::InProgress { retry_after } => {
            let error = Error::new(ErrorKind::InProgress, "the effect is in progress elsewhere");
            return Err(error.answered(409, "FAILED_PRECONDITION").with_retry_after(Some(retry_after)));
        }
        _ => json!({}),
    };
    answer["decision"] = decision.into();
    Ok(answer)
}

fn error_json(error: &Error) -> Value {
    json!({
        "kind": error.kind().as_str(), "status": error.status(), "code": error.code(), "message": error.message(),
        "retry_is_safe": error.retry_is_safe(),
    })
}

fn event_json(event: &Event<'_>) -> Value {
    let mut json = json!({"event": event.name()});
    match event {
        Event::Received { message } | Event::LeaseLost { message } | Event::Released { message } => {
            json["message"] = message.id().to_string().into();
        }
        Event::HandlerStuck { message } => json["message"] = message.id().to_string().into(),
        Event::Began { message, decision } => {
            json["message"] = message.id().to_string().into();
            json["decision"] = (*decision).into();
        }
        Event::Completed { message, elapsed } => {
            json["message"] = message.id().to_string().into();
            json["seconds"] = elapsed.as_secs_f64().into();
        }
        Event::Failed { message, kind, error } => {
            json["message"] = message.id().to_string().into();
            json["kind"] = (*kind).into();
            json["error"] = (*error).into();
        }
        Event::Disconnected { error } => json["error"] = error_json(error),
        Event::LoopBlocked { blocked } => json["seconds"] = blocked.as_secs_f64().into(),
        Event::RequestRetried { error, pause } => {
            json["error"] = error_json(error);
            json["seconds"] = pause.as_secs_f64().into();
        }
        _ => {}
    }
    json
}
