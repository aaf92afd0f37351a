//! `GET /v1/consume`: a stream of deliveries, one JSON object per line.
//!
//! The head is sent as soon as the stream is connected. Blank lines keep an idle connection alive. Deliveries that the
//! socket does not take yet stay in the driver's queue, bounded by the stream's prefetch.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use driftq_core::command::Peek;
use driftq_core::command::{GroupLifetime, OnDisconnect, Subscribe};
use driftq_core::types::{Caller, ConsumerId, GroupName, Offset, OwnerName, PartitionId};
use serde::Deserialize;
use tokio::time::{Instant, Sleep};

use super::api::Api;
use super::error::ApiError;
use super::fields::{Fields, Str, group_start, millis, required};
use super::query::Query;
use super::requester::{Names, Requester};
use super::response::{ApiResponse, lines};
use super::response_body::PollLines;
use crate::driver::{Driver, NextDelivery};
use crate::json;
use crate::otlp::{OpenSpan, StreamTracer};

/// Bytes written at a time; a longer message is written as a whole.
const CHUNK_BYTES: usize = 64 << 10;

/// How often it is checked at most whether messages that are read from the log have arrived.
const READ_INTERVAL: Duration = Duration::from_millis(5);

/// The fields of the request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsumeFields<'a> {
    #[serde(borrow)]
    topic: Option<Str<'a>>,
    #[serde(borrow)]
    group: Option<Str<'a>>,
    #[serde(borrow)]
    owner: Option<Str<'a>>,
    lease_ms: Option<i64>,
    prefetch: Option<u32>,
    #[serde(borrow)]
    from: Option<Str<'a>>,
    release_on_disconnect: Option<bool>,
    ephemeral: Option<bool>,
    max: Option<u64>,
    wait_ms: Option<i64>,
}

impl<'a> Fields<'a> for ConsumeFields<'a> {
    fn from_query(query: &'a Query<'a>) -> Result<Self, ApiError> {
        Ok(Self {
            topic: query.text("topic")?.map(Into::into),
            group: query.text("group")?.map(Into::into),
            owner: query.text("owner")?.map(Into::into),
            lease_ms: query.value("lease_ms")?,
            prefetch: query.value("prefetch")?,
            from: query.text("from")?.map(Into::into),
            release_on_disconnect: query.flag("release_on_disconnect")?,
            ephemeral: query.flag("ephemeral")?,
            max: query.value("max")?,
            wait_ms: query.value("wait_ms")?,
        })
    }
}

impl ConsumeFields<'_> {
    fn subscribe(&self, prefetch: u32, names: &Names) -> Result<Subscribe, ApiError> {
        if self.max == Some(0) {
            return Err(ApiError::invalid("max must be at least 1"));
        }
        // `max` is the credit as well.
        let credit = self.max.map(|max| u32::try_from(max).unwrap_or(u32::MAX));
        let requested = self.prefetch.filter(|prefetch| *prefetch > 0);
        Ok(Subscribe {
            topic: names.rare_topic(required("topic", self.topic.as_deref())?)?,
            group: GroupName::new(required("group", self.group.as_deref())?)?,
            owner: OwnerName::new(required("owner", self.owner.as_deref())?)?,
            lease: millis("lease_ms", self.lease_ms)?,
            prefetch: requested.or(credit).unwrap_or(prefetch),
            deliveries_max: self.max,
            start: group_start(self.from.as_deref())?,
            on_disconnect: match self.release_on_disconnect {
                Some(true) => OnDisconnect::Release,
                Some(false) | None => OnDisconnect::Keep,
            },
            group_lifetime: match self.ephemeral {
                Some(true) => GroupLifetime::Ephemeral,
                Some(false) | None => GroupLifetime::Durable,
            },
        })
    }
}

/// Connects the stream.
pub(crate) async fn consume(
    api: &Api,
    from: &Requester,
    fields: ConsumeFields<'_>,
    span: Option<&OpenSpan>,
) -> Result<ApiResponse, ApiError> {
    let subscribe = fields.subscribe(api.settings.prefetch, &from.names)?;
    let wait = millis("wait_ms", fields.wait_ms)?.map(|wait| Duration::from_millis(wait.0));
    if let Some(span) = span {
        span.group(&subscribe.topic, &subscribe.group);
    }
    let tracer = api.tracer.as_ref().map(|tracer| StreamTracer::new(tracer, &subscribe.topic, &subscribe.group));
    let topic = subscribe.topic.clone();
    let lease = api.settings.limits.lease(subscribe.lease);
    let consumer = api.driver.subscribe(&from.caller, subscribe, lease).await??;
    let now = Instant::now();
    let keep_alive = api.settings.http.stream_keep_alive;
    let mut body = StreamBody {
        driver: Rc::clone(&api.driver),
        consumer,
        tracer,
        remaining: fields.max,
        wait,
        keep_alive,
        delivered_at: now,
        sent_at: now,
        timer: Box::pin(tokio::time::sleep(wait.map_or(keep_alive, |wait| wait.min(keep_alive)))),
        reading: None,
        is_complete: false,
    };
    if wait.is_some() {
        // The first deliveries are decided and wait for the sync. The reply to an empty peek is released after them, so
        // the idle time starts then. Its result does not matter, nor whether the client might peek.
        let peek = Peek { topic, partition: PartitionId(0), offset: Offset(u64::MAX), limit: 0 };
        let _ = api.driver.ask(&Caller::TRUSTED, peek).await;
        body.delivered_at = Instant::now();
    }
    Ok(lines(body))
}

/// The body of a stream.
struct StreamBody {
    driver: Rc<Driver>,
    consumer: ConsumerId,
    /// Records deliveries; `None` if nothing is exported.
    tracer: Option<StreamTracer>,
    /// Deliveries left until `max`.
    remaining: Option<u64>,
    /// Idle time after which the stream ends.
    wait: Option<Duration>,
    keep_alive: Duration,
    delivered_at: Instant,
    sent_at: Instant,
    timer: Pin<Box<Sleep>>,
    /// Asks whether messages are read from the log, once the idle time has passed.
    reading: Option<Pin<Box<dyn Future<Output = Option<bool>>>>>,
    /// The stream ended by `max` or `wait_ms`, which is no disconnect.
    is_complete: bool,
}

impl PollLines for StreamBody {
    fn poll_lines(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let mut out = Vec::new();
        if self.remaining == Some(0) {
            self.is_complete = true;
            return Poll::Ready(None);
        }
        let mut ended = false;
        let clock = self.driver.wall_clock();
        let mut deliveries = self.driver.deliveries(self.consumer);
        while !ended && out.len() < CHUNK_BYTES {
            match deliveries.poll_next(context.waker()) {
                NextDelivery::Delivery(delivery) => {
                    let began = self.tracer.as_ref().map(|_| std::time::Instant::now());
                    json::delivery(&delivery, &clock, &mut out);
                    out.push(b'\n');
                    if let Some((tracer, began)) = self.tracer.as_ref().zip(began) {
                        tracer.delivered(&delivery, began);
                    }
                    self.remaining = self.remaining.map(|remaining| remaining - 1);
                    ended = self.remaining == Some(0);
                }
                NextDelivery::Pending => break,
                NextDelivery::LimitReached => (ended, self.is_complete) = (true, true),
                NextDelivery::Closed => ended = true,
            }
        }
        drop(deliveries);
        if !out.is_empty() {
            self.delivered_at = Instant::now();
            self.sent_at = self.delivered_at;
            return Poll::Ready(Some(out));
        }
        if ended { Poll::Ready(None) } else { self.poll_idle(context) }
    }

    fn may_pause(&self) -> bool {
        true
    }
}

impl StreamBody {
    /// A keep-alive line, or the end of a stream that was idle for `wait`. The timer is not reset at every delivery; if
    /// it fires too early, it is set again.
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        while self.reading.is_some() || self.timer.as_mut().poll(context).is_ready() {
            let (now, blank_at) = (Instant::now(), self.sent_at + self.keep_alive);
            let end_at = self.wait.and_then(|wait| self.delivered_at.checked_add(wait));
            if end_at.is_some_and(|end_at| end_at <= now) {
                let (driver, consumer) = (&self.driver, self.consumer);
                let reading = self.reading.get_or_insert_with(|| Box::pin(driver.awaits_bytes(consumer).wait()));
                let awaits_bytes = std::task::ready!(reading.as_mut().poll(context));
                self.reading = None;
                if awaits_bytes != Some(true) {
                    self.is_complete = true;
                    return Poll::Ready(None);
                }
                // Messages were ready: the idle time begins when they are read from the log.
                self.delivered_at = now;
                self.timer.as_mut().reset(now + self.wait.unwrap_or_default().max(READ_INTERVAL));
                continue;
            }
            self.reading = None;
            if blank_at <= now {
                self.sent_at = now;
                return Poll::Ready(Some(b"\n".to_vec()));
            }
            self.timer.as_mut().reset(end_at.map_or(blank_at, |end_at| end_at.min(blank_at)));
        }
        Poll::Pending
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        match self.is_complete {
            true => self.driver.close_stream(self.consumer),
            false => self.driver.disconnect(self.consumer),
        }
    }
}

impl std::fmt::Debug for StreamBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamBody").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}
