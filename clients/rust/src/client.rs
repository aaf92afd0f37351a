//! The client: its settings, and messages: produce, consume, settle, peek.

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderValue;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::batch::{Answer, Batchers, read_json};
use crate::envelope::millis;
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::idempotency_key::encode;
use crate::message::{Claim, Item, Message};
use crate::produce::{Produce, Produced};
use crate::producer::{Producer, ProducerOptions};
use crate::stream::{Consume, Consumer};
use crate::transport::{Call, Endpoint, Reply, Settings, Transport, Trust};

const TIMEOUT: Duration = Duration::from_secs(30);
const RETRY_FOR: Duration = Duration::from_secs(60);

/// A client of one broker, which may have several URLs. Clones share their connections.
///
/// Nothing is sent before the first call. Connections belong to the runtime on which they are opened.
#[derive(Clone)]
pub struct Client {
    transport: Transport,
    /// What settles messages and effects goes in batches, where a worker has many under way.
    batchers: Option<Arc<Batchers>>,
}

/// The settings of a [`Client`].
#[derive(Default)]
pub struct ClientBuilder {
    urls: Vec<String>,
    key: Option<String>,
    timeout: Option<Duration>,
    retry_for: Option<Duration>,
    ca: Option<Vec<u8>>,
    observer: Observer,
}

impl ClientBuilder {
    /// Adds a base URL, such as `http://127.0.0.1:8080`. With several, requests go to one as long as it answers.
    #[must_use]
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.urls.push(url.into());
        self
    }

    /// Adds base URLs.
    #[must_use]
    pub fn urls<U: Into<String>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        self.urls.extend(urls.into_iter().map(Into::into));
        self
    }

    /// The key that every request shows. It is never logged.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The limit of one request; 30 s without it. Streams have none.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long one call is repeated; 60 s without it.
    #[must_use]
    pub fn retry_for(mut self, limit: Duration) -> Self {
        self.retry_for = Some(limit);
        self
    }

    /// The certificates to trust, as PEM text, instead of the system's.
    #[must_use]
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(pem.into());
        self
    }

    /// The certificates to trust, in a PEM file, instead of the system's.
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) if it cannot be read.
    pub fn ca_file(self, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let pem = std::fs::read(path).map_err(|error| Error::misuse(format!("{}: {error}", path.display())))?;
        Ok(self.ca_pem(pem))
    }

    /// A hook for metrics: requests that are repeated, and the events of streams. It must not block.
    #[must_use]
    pub fn on_event(mut self, hook: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Observer::new(hook);
        self
    }

    /// The client. Sends nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) for what is no URL or no key, and
    /// [`ErrorKind::Tls`](crate::ErrorKind::Tls) without certificates to trust.
    pub fn build(self) -> Result<Client, Error> {
        let endpoints = self.urls.iter().map(|url| Endpoint::parse(url)).collect::<Result<_, _>>()?;
        let key = match self.key {
            None => None,
            Some(key) => {
                let text = HeaderValue::try_from(format!("Bearer {key}"));
                let mut header = text.map_err(|_| Error::misuse("the key has characters that no header may have"))?;
                header.set_sensitive(true);
                Some(header)
            }
        };
        let settings = Settings {
            endpoints,
            key,
            timeout: self.timeout.unwrap_or(TIMEOUT),
            retry_for: self.retry_for.unwrap_or(RETRY_FOR),
            trust: self.ca.map_or(Trust::System, Trust::Pem),
        };
        Ok(Client { transport: Transport::new(settings, self.observer)?, batchers: None })
    }
}

impl fmt::Debug for ClientBuilder {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("urls", &self.urls).finish_non_exhaustive()
    }
}

impl fmt::Debug for Client {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.transport).finish()
    }
}

/// The program that a broker runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServerVersion {
    /// Its version.
    pub version: String,
    /// The commit it was built from.
    #[serde(default)]
    pub commit: String,
    /// Whether its log is kept on disk.
    #[serde(default)]
    pub wal_enabled: bool,
}

/// How a delivery has failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failing {
    /// The cause, for the next attempt and for people.
    pub reason: String,
    /// When it is delivered again, instead of what its retry policy says.
    pub delay: Option<Duration>,
    /// Whether it is dead-lettered at once.
    pub is_permanent: bool,
}

impl Failing {
    /// It may succeed when it is tried again.
    #[must_use]
    pub fn retryable(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), delay: None, is_permanent: false }
    }

    /// It is dead-lettered.
    #[must_use]
    pub fn permanent(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), delay: None, is_permanent: true }
    }

    /// Delivers it again after this time.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        Self { delay: Some(delay), ..self }
    }
}

#[derive(Serialize)]
struct NackBody<'a> {
    #[serde(flatten)]
    claim: &'a Claim,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retryable: Option<bool>,
}

#[derive(Serialize)]
struct ExtendBody<'a> {
    #[serde(flatten)]
    claim: &'a Claim,
    lease_ms: u64,
}

/// The end of a step: its message is finished, this is the result, and these are the next messages.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Step {
    /// The result, any JSON value.
    pub result: Option<Box<RawValue>>,
    /// The next messages.
    pub produce: Vec<Produce>,
    /// The trace of the next messages, in the form of the W3C.
    pub traceparent: Option<String>,
}

impl Step {
    /// A step without result and messages.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The result.
    #[must_use]
    pub fn result(self, result: Option<Box<RawValue>>) -> Self {
        Self { result, ..self }
    }

    /// The next messages.
    #[must_use]
    pub fn produce(self, produce: Vec<Produce>) -> Self {
        Self { produce, ..self }
    }

    /// The trace of the next messages.
    #[must_use]
    pub fn traceparent(self, traceparent: Option<String>) -> Self {
        Self { traceparent, ..self }
    }
}

/// The body of a complete. Its fields are written one by one: raw JSON does not pass through `flatten`.
#[derive(Serialize)]
struct CompleteBody<'a> {
    topic: &'a str,
    group: &'a str,
    partition: u32,
    offset: u64,
    owner: &'a str,
    lease_token: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "<[Produce]>::is_empty")]
    produce: &'a [Produce],
}

/// The answer to a complete.
#[derive(Debug, Deserialize)]
pub(crate) struct CompleteAnswer {
    produced: Vec<Produced>,
}

impl Answer for CompleteAnswer {
    fn read(json: &[u8]) -> Result<Self, Error> {
        read_json(json, "the answer to a complete")
    }
}

#[derive(Deserialize)]
struct PeekAnswer {
    messages: Vec<Item>,
}

#[derive(Deserialize)]
struct RedriveAnswer {
    redriven: u64,
}

/// Which dead letters are redriven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redrive {
    /// Those at these offsets of the dead-letter topic.
    Offsets(Vec<u64>),
    /// All that are there, or so many of them.
    All {
        /// At most so many.
        limit: Option<u64>,
    },
}

impl Client {
    /// The settings of a client.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), driftq_client::Error> {
    /// let client = driftq_client::Client::builder().url("http://127.0.0.1:8080").key("secret").build()?;
    /// assert!(!format!("{client:?}").contains("secret"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
    }

    /// What the broker runs.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub async fn version(&self) -> Result<ServerVersion, Error> {
        self.transport.json(&Call::get("/v1/version")).await
    }

    /// Produces one message. Many are faster through a [`Producer`].
    ///
    /// # Errors
    /// [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) for a message without idempotency key that may have been
    /// produced.
    pub async fn produce(&self, message: &Produce) -> Result<Produced, Error> {
        let mut call = Call::post("/v1/produce", message.to_json()?).repeatable_if(message.is_idempotent());
        call.traceparent = message.trace().map(ToOwned::to_owned);
        let reply = self.transport.call(&call).await?;
        Produced::scan(&reply.body).map_or_else(|| self.transport.parse(&call, &reply), Ok)
    }

    /// A producer that sends what waits while a batch is on the wire as the next batch. Needs a runtime.
    #[must_use]
    pub fn producer(&self) -> Producer {
        self.producer_with(ProducerOptions::default())
    }

    /// The same with other settings.
    #[must_use]
    pub fn producer_with(&self, options: ProducerOptions) -> Producer {
        Producer::start(self.transport.clone(), &options)
    }

    /// The deliveries of a group. Connects when the first one is asked for.
    #[must_use]
    pub fn consume(&self, consume: &Consume) -> Consumer {
        Consumer::new(self.transport.clone(), consume)
    }

    /// Finishes a message.
    ///
    /// # Errors
    /// [`ErrorKind::StaleLease`](crate::ErrorKind::StaleLease) if another worker has it.
    pub async fn ack(&self, claim: &Claim) -> Result<(), Error> {
        self.settle_within("/v1/ack", claim, self.transport.retry_for()).await
    }

    /// Finishes every message of the partition at or below the offset whose newest delivery went to the owner.
    ///
    /// # Errors
    /// As [`ack`](Self::ack).
    pub async fn ack_cumulative(&self, claim: &Claim) -> Result<(), Error> {
        let claim = Claim { lease_token: None, ..claim.clone() };
        // Not repeated: it could ack what was delivered to the owner in between.
        self.transport.call(&Call::post("/v1/ack-cumulative", json(&claim)?)).await.map(|_| ())
    }

    /// Fails this attempt.
    ///
    /// # Errors
    /// As [`ack`](Self::ack).
    pub async fn nack(&self, claim: &Claim, failing: &Failing) -> Result<(), Error> {
        self.nack_within(claim, failing, self.transport.retry_for()).await
    }

    /// Prolongs the lease: it ends `lease` from now.
    ///
    /// # Errors
    /// As [`ack`](Self::ack), also if the lease has expired.
    pub async fn extend(&self, claim: &Claim, lease: Duration) -> Result<(), Error> {
        self.extend_within(claim, lease, self.transport.retry_for()).await
    }

    /// Returns the message without counting a failure.
    ///
    /// # Errors
    /// As [`ack`](Self::ack).
    pub async fn release(&self, claim: &Claim) -> Result<(), Error> {
        self.settle_within("/v1/release", claim, self.transport.retry_for()).await
    }

    /// Finishes a message, stores its result and produces the next messages: all of it or nothing.
    ///
    /// # Errors
    /// As [`ack`](Self::ack); [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) without a lease token; and what a produce
    /// of one of the messages would have got.
    pub async fn complete(&self, claim: &Claim, step: &Step) -> Result<Vec<Produced>, Error> {
        self.complete_within(claim, step, self.transport.retry_for()).await
    }

    pub(crate) async fn complete_within(
        &self,
        claim: &Claim,
        step: &Step,
        limit: Duration,
    ) -> Result<Vec<Produced>, Error> {
        let token = claim.lease_token.as_deref().ok_or_else(|| Error::misuse("a complete needs the lease token"))?;
        let body = CompleteBody {
            topic: &claim.topic,
            group: &claim.group,
            partition: claim.partition,
            offset: claim.offset,
            owner: &claim.owner,
            lease_token: token,
            result: step.result.as_deref(),
            produce: &step.produce,
        };
        // The trace of a request is that of all its messages: one with both is no line of a batch.
        let has_trace = step.traceparent.is_some() && !step.produce.is_empty();
        if let Some(batchers) = self.batchers.as_ref().filter(|_| !has_trace) {
            let answer = batchers.completes.call(&body, true, limit).await?;
            return Ok(answer.produced);
        }
        let mut call = Call::post("/v1/complete", json(&body)?).repeatable_if(true).retry_for(limit);
        call.traceparent.clone_from(&step.traceparent);
        Ok(CompleteAnswer::read(&self.send_boxed(&call).await?.body)?.produced)
    }

    /// Ends the lease of a message as if it had run out.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if it is not leased.
    pub async fn expire_lease(&self, topic: &str, group: &str, partition: u32, offset: u64) -> Result<(), Error> {
        let body = serde_json::json!({"topic": topic, "group": group, "partition": partition, "offset": offset});
        self.transport.call(&Call::post("/v1/groups/expire", json(&body)?)).await.map(|_| ())
    }

    /// Reads messages from an offset on, without consuming them.
    ///
    /// # Errors
    /// If the topic or the partition does not exist.
    pub async fn peek(&self, topic: &str, partition: u32, offset: u64, limit: u32) -> Result<Vec<Message>, Error> {
        let mut path = String::from("/v1/peek?topic=");
        encode(&mut path, topic);
        path.push_str(&format!("&partition={partition}&offset={offset}&limit={limit}"));
        let answer: PeekAnswer = self.transport.json(&Call::get(path)).await?;
        let topic = Arc::from(topic);
        answer.messages.into_iter().map(|item| item.into_message(&topic)).collect()
    }

    /// Produces dead letters of a topic again, for the group that had failed them. Returns how many. It is not
    /// repeated if its outcome is unknown.
    ///
    /// # Errors
    /// If the topic does not exist.
    pub async fn redrive(&self, topic: &str, which: &Redrive) -> Result<u64, Error> {
        let body = match which {
            Redrive::Offsets(offsets) => serde_json::json!({"topic": topic, "offsets": offsets}),
            Redrive::All { limit } => serde_json::json!({"topic": topic, "all": true, "limit": limit}),
        };
        let answer: RedriveAnswer = self.transport.json(&Call::post("/v1/dlq/redrive", json(&body)?)).await?;
        Ok(answer.redriven)
    }

    /// A client whose connections belong to another runtime.
    pub(crate) fn fork(&self, observer: Observer) -> Self {
        Self { transport: self.transport.fork(observer), batchers: None }
    }

    /// The same; begins, finishes, completes and nacks that are under way together go in batches. Needs a runtime.
    pub(crate) fn with_batchers(self) -> Self {
        let batchers = Some(Arc::new(Batchers::start(&self.transport)));
        Self { batchers, ..self }
    }

    pub(crate) fn batchers(&self) -> Option<&Batchers> {
        self.batchers.as_deref()
    }

    /// The same as [`Transport::call`] with a small future. That of a worker's job is as large as the largest in it.
    pub(crate) fn send_boxed<'a>(
        &'a self,
        call: &'a Call,
    ) -> Pin<Box<dyn Future<Output = Result<Reply, Error>> + Send + 'a>> {
        Box::pin(self.transport.call(call))
    }

    /// Sends an ack or release. With a token it is repeated: a delivery cannot be settled twice.
    pub(crate) async fn settle_within(&self, path: &'static str, claim: &Claim, limit: Duration) -> Result<(), Error> {
        let call = Call::post(path, json(claim)?).repeatable_if(claim.lease_token.is_some()).retry_for(limit);
        self.send_boxed(&call).await.map(|_| ())
    }

    /// Sends a nack. With a token it is repeated.
    pub(crate) async fn nack_within(&self, claim: &Claim, failing: &Failing, limit: Duration) -> Result<(), Error> {
        let body = NackBody {
            claim,
            reason: &failing.reason,
            delay_ms: failing.delay.map(millis),
            retryable: failing.is_permanent.then_some(false),
        };
        let is_repeatable = claim.lease_token.is_some();
        if let Some(batchers) = &self.batchers {
            return batchers.nacks.call(&body, is_repeatable, limit).await.map(|_| ());
        }
        let call = Call::post("/v1/nack", json(&body)?).repeatable_if(is_repeatable).retry_for(limit);
        self.send_boxed(&call).await.map(|_| ())
    }

    pub(crate) async fn extend_within(&self, claim: &Claim, lease: Duration, limit: Duration) -> Result<(), Error> {
        let body = json(&ExtendBody { claim, lease_ms: millis(lease) })?;
        let call = Call::post("/v1/extend", body).repeatable_if(claim.lease_token.is_some()).retry_for(limit);
        self.transport.call(&call).await.map(|_| ())
    }
}

/// The JSON of a request.
pub(crate) fn json(body: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(body).map_err(|error| Error::misuse(format!("the request is no JSON: {error}")))
}
