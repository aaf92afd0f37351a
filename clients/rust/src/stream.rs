//! The deliveries of a group as a stream that reconnects by itself.

use std::fmt::Write as _;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::time::{sleep, timeout};

use crate::envelope::millis;
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::message::{Claim, Item, Message};
use crate::topics::with_query;
use crate::transport::{Backoff, Body, Call, Failure, Repeat, Transport};

/// The broker writes a blank line every 15 s. A stream that is silent for three times as long is cut.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// The longest line that is read. The broker's messages are shorter.
const LINE_BYTES_MAX: usize = 128 << 20;

/// What a stream asks for.
#[derive(Clone, Debug)]
pub struct Consume {
    topic: String,
    group: String,
    owner: String,
    lease: Duration,
    prefetch: u32,
    max: Option<u64>,
    wait: Option<Duration>,
    from_latest: bool,
    release_on_disconnect: bool,
    ephemeral: bool,
}

impl Consume {
    /// The messages of a topic for a group, which is created if it does not exist. `owner` names this consumer.
    #[must_use]
    pub fn new(topic: impl Into<String>, group: impl Into<String>, owner: impl Into<String>) -> Self {
        Self {
            topic: topic.into(),
            group: group.into(),
            owner: owner.into(),
            lease: Duration::ZERO,
            prefetch: 0,
            max: None,
            wait: None,
            from_latest: false,
            release_on_disconnect: false,
            ephemeral: false,
        }
    }

    /// How long a delivery may take; 30 s without it.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// The most messages that are leased at a time; 100 without it.
    #[must_use]
    pub fn prefetch(self, prefetch: u32) -> Self {
        Self { prefetch, ..self }
    }

    /// The stream ends after so many messages.
    #[must_use]
    pub fn max(self, max: u64) -> Self {
        Self { max: Some(max), ..self }
    }

    /// The stream ends when nothing has come for so long.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }

    /// A new group starts behind the newest message.
    #[must_use]
    pub fn from_latest(self) -> Self {
        Self { from_latest: true, ..self }
    }

    /// Its leases are released when the stream is cut off.
    #[must_use]
    pub fn release_on_disconnect(self) -> Self {
        Self { release_on_disconnect: true, ..self }
    }

    /// A new group is deleted with its last stream.
    #[must_use]
    pub fn ephemeral(self) -> Self {
        Self { ephemeral: true, ..self }
    }

    fn path(&self, received: u64) -> String {
        let names = [("topic", self.topic.as_str()), ("group", &self.group), ("owner", &self.owner)];
        let mut path = with_query("/v1/consume", &names);
        let left = self.max.map(|max| max.saturating_sub(received));
        let numbers = [
            ("lease_ms", Some(millis(self.lease)).filter(|lease| *lease > 0)),
            ("prefetch", Some(u64::from(self.prefetch)).filter(|prefetch| *prefetch > 0)),
            ("max", left),
            ("wait_ms", self.wait.map(millis)),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                // Writing to a String cannot fail.
                let _ = write!(path, "&{name}={number}");
            }
        }
        if self.from_latest {
            path.push_str("&from=latest");
        }
        for (name, flag) in [("release_on_disconnect", self.release_on_disconnect), ("ephemeral", self.ephemeral)] {
            if flag {
                path.push('&');
                path.push_str(name);
                path.push_str("=true");
            }
        }
        path
    }
}

/// The deliveries of a group. It connects when the first message is asked for, and again whenever it is cut off. A line
/// that was cut is dropped; its message is delivered again.
#[derive(Debug)]
pub struct Consumer {
    transport: Transport,
    consume: Consume,
    topic: Arc<str>,
    body: Option<Body>,
    /// What has arrived and is not yet looked at.
    chunk: Bytes,
    /// The beginning of the line that continues there.
    partial: Vec<u8>,
    backoff: Backoff,
    has_connected: bool,
    /// The URL of the newest connection, for errors.
    server: String,
    received: u64,
    /// The failure after which it reconnects, once the pause is over.
    failure: Option<Failure>,
}

impl Consumer {
    pub(crate) fn new(transport: Transport, consume: &Consume) -> Self {
        Self {
            transport,
            consume: consume.clone(),
            topic: consume.topic.as_str().into(),
            body: None,
            chunk: Bytes::new(),
            partial: Vec::new(),
            backoff: Backoff::default(),
            has_connected: false,
            server: String::new(),
            received: 0,
            failure: None,
        }
    }

    /// The claim on a message of this stream.
    #[must_use]
    pub fn claim(&self, message: &Message) -> Claim {
        Claim::new(message, self.consume.group.as_str(), self.consume.owner.as_str())
    }

    /// The next message; none after the end of a stream with [`max`](Consume::max) or [`wait`](Consume::wait).
    ///
    /// It waits for as long as it takes. Dropping the future loses no message.
    ///
    /// # Errors
    /// Before it has connected for the first time, what would fail again: an unknown topic or key, a wrong server.
    /// After that it reconnects, whatever happens.
    pub async fn next(&mut self) -> Result<Option<Message>, Error> {
        self.next_when(|| std::future::ready(())).await
    }

    /// The same, and waits for `may_connect` before each connection.
    pub(crate) async fn next_when<F: Future<Output = ()>>(
        &mut self,
        may_connect: impl Fn() -> F,
    ) -> Result<Option<Message>, Error> {
        loop {
            if let Some(failure) = &self.failure {
                sleep(self.backoff.pause(failure.retry_after)).await;
                self.failure = None;
            }
            if self.body.is_none() {
                if self.consume.max.is_some_and(|max| self.received >= max) {
                    return Ok(None);
                }
                may_connect().await;
                match self.transport.open(&Call::get(self.consume.path(self.received))).await {
                    Ok((body, server)) => {
                        self.body = Some(body);
                        self.server = server;
                        self.has_connected = true;
                        self.transport.observer().report(&Event::Connected);
                    }
                    Err(failure) if !self.has_connected && is_final(&failure) => return Err(failure.error),
                    Err(failure) => {
                        self.disconnect(failure);
                        continue;
                    }
                }
            }
            match self.next_line().await {
                Ok(Some(message)) => {
                    self.backoff.reset();
                    self.received += 1;
                    return Ok(Some(message));
                }
                Ok(None) => {
                    let is_done =
                        self.consume.wait.is_some() || self.consume.max.is_some_and(|max| self.received >= max);
                    self.close();
                    if is_done {
                        return Ok(None);
                    }
                    let ended = Error::new(ErrorKind::Unknown, "the server has ended the stream");
                    self.disconnect(Failure::new(ended, Repeat::Any));
                }
                Err(failure) => self.disconnect(failure),
            }
        }
    }

    /// Closes the connection. Asking for another message opens a new one.
    pub fn close(&mut self) {
        self.body = None;
        self.chunk = Bytes::new();
        self.partial = Vec::new();
    }

    fn disconnect(&mut self, failure: Failure) {
        self.close();
        self.transport.observer().report(&Event::Disconnected { error: &failure.error });
        self.failure = Some(failure);
    }

    /// The message of the next line that is not blank; none at the end of the stream.
    async fn next_line(&mut self) -> Result<Option<Message>, Failure> {
        loop {
            while let Some(end) = memchr::memchr(b'\n', &self.chunk) {
                let rest = self.chunk.split_to(end);
                self.chunk.advance(1);
                // Only a line that came in several pieces is copied.
                let message = if self.partial.is_empty() {
                    parse(&rest, &self.topic)
                } else {
                    self.partial.extend_from_slice(&rest);
                    let line = std::mem::take(&mut self.partial);
                    parse(&line, &self.topic)
                };
                if let Some(message) = message.transpose() {
                    return message.map(Some);
                }
            }
            self.partial.extend_from_slice(&std::mem::take(&mut self.chunk));
            if self.partial.len() > LINE_BYTES_MAX {
                let error = Error::protocol(format!("a line of the stream has more than {LINE_BYTES_MAX} bytes"));
                return Err(Failure::new(error, Repeat::Never));
            }
            let Some(body) = &mut self.body else { return Ok(None) };
            match timeout(SILENCE_MAX, body.chunk()).await {
                Ok(Some(Ok(data))) => self.chunk = data,
                Ok(Some(Err(error))) => return Err(Failure::cut(&self.server, &error)),
                Ok(None) if !self.partial.is_empty() => {
                    let error = Error::new(ErrorKind::Unknown, format!("{}: the stream was cut short", self.server));
                    return Err(Failure::new(error, Repeat::Any));
                }
                Ok(None) => return Ok(None),
                Err(_) => {
                    let error = Error::new(ErrorKind::Unknown, format!("the stream was silent for {SILENCE_MAX:?}"));
                    return Err(Failure::new(error, Repeat::Any));
                }
            }
        }
    }
}

/// The message of a line; none of a blank one.
fn parse(line: &[u8], topic: &Arc<str>) -> Result<Option<Message>, Failure> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let item: Result<Item, _> = serde_json::from_slice(line);
    let item = item.map_err(|error| Error::protocol(format!("a line of the stream is no message: {error}")));
    item.and_then(|item| item.into_message(topic)).map(Some).map_err(|error| Failure::new(error, Repeat::Never))
}

/// Whether a stream that has never been open would be refused again.
fn is_final(failure: &Failure) -> bool {
    failure.repeat == Repeat::Never && !matches!(failure.error.kind(), ErrorKind::StorageFull | ErrorKind::Unknown)
}
