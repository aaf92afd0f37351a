//! `GET /v1/consume`: messages as they come, one JSON object per line.
//!
//! The head leaves as soon as the stream is connected. Blank lines keep an idle connection alive. What the socket does not take
//! stays with the driver, no more of it than the stream's prefetch.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use driftq_core::Command;
use driftq_core::command::{OnDisconnect, Subscribe};
use driftq_core::record::GroupStart;
use driftq_core::types::{ConsumerId, GroupName, Offset, OwnerName, PartitionId, TopicName};
use serde::Deserialize;
use tokio::time::{Instant, Sleep};

use super::Api;
use super::answer::{Answer, lines};
use super::body::ReplyBody;
use super::error::ApiError;
use super::fields::{Fields, Str, required, span};
use super::query::Query;
use crate::driver::{Driver, Next};
use crate::json;

/// How much is written at a time; a message that alone is longer still goes as one.
const CHUNK_BYTES: usize = 64 << 10;

/// What a stream is asked for with.
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
            max: query.value("max")?,
            wait_ms: query.value("wait_ms")?,
        })
    }
}

/// Where a new group starts.
pub(crate) fn group_start(from: Option<&str>) -> Result<GroupStart, ApiError> {
    match from {
        None | Some("" | "earliest") => Ok(GroupStart::Earliest),
        Some("latest") => Ok(GroupStart::Latest),
        Some(other) => Err(ApiError::invalid(format!("bad from: {other:?}, want earliest or latest"))),
    }
}

impl ConsumeFields<'_> {
    fn subscribe(&self, prefetch: u32) -> Result<Subscribe, ApiError> {
        if self.max == Some(0) {
            return Err(ApiError::invalid("max must be at least 1"));
        }
        // `max` is the credit as well: whoever wants so many can take so many.
        let credit = self.max.map(|max| u32::try_from(max).unwrap_or(u32::MAX));
        let asked = self.prefetch.filter(|prefetch| *prefetch > 0);
        Ok(Subscribe {
            topic: TopicName::new(required("topic", self.topic.as_deref())?)?,
            group: GroupName::new(required("group", self.group.as_deref())?)?,
            owner: OwnerName::new(required("owner", self.owner.as_deref())?)?,
            lease: span("lease_ms", self.lease_ms)?,
            prefetch: asked.or(credit).unwrap_or(prefetch),
            deliveries_max: self.max,
            start: group_start(self.from.as_deref())?,
            on_disconnect: match self.release_on_disconnect {
                Some(true) => OnDisconnect::Release,
                Some(false) | None => OnDisconnect::Keep,
            },
        })
    }
}

/// Connects the stream and answers with its head.
pub(crate) async fn consume(api: &Api, fields: ConsumeFields<'_>) -> Result<Answer, ApiError> {
    let asked = fields.subscribe(api.settings.prefetch)?;
    let wait = span("wait_ms", fields.wait_ms)?.map(|wait| Duration::from_millis(wait.0));
    let topic = asked.topic.clone();
    let consumer = api.driver.subscribe(asked).await??;
    let now = Instant::now();
    let keep_alive = api.settings.http.stream_keep_alive;
    let mut body = StreamBody {
        driver: Rc::clone(&api.driver),
        consumer,
        left: fields.max,
        wait,
        keep_alive,
        delivered_at: now,
        sent_at: now,
        timer: Box::pin(tokio::time::sleep(wait.map_or(keep_alive, |wait| wait.min(keep_alive)))),
        finished: false,
    };
    if wait.is_some() {
        // What it was given as it came is still on its way to the disk. A look is answered behind it: from then on the stream can
        // be idle. Whatever the look says, the stream will find out itself.
        let look = Command::Peek { topic, partition: PartitionId(0), offset: Offset(u64::MAX), limit: 0 };
        let _ = api.driver.ask(look).await;
        body.delivered_at = Instant::now();
    }
    Ok(lines(ReplyBody::Stream(Box::new(body))))
}

/// A stream's lines.
pub(crate) struct StreamBody {
    driver: Rc<Driver>,
    consumer: ConsumerId,
    /// How many messages it still wants.
    left: Option<u64>,
    /// How long it waits for one.
    wait: Option<Duration>,
    keep_alive: Duration,
    delivered_at: Instant,
    sent_at: Instant,
    timer: Pin<Box<Sleep>>,
    /// It has had as many as it wanted, or has waited as long as it wanted: this is no disconnect.
    finished: bool,
}

impl StreamBody {
    pub(crate) fn poll_lines(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let mut out = Vec::new();
        if self.left == Some(0) {
            self.finished = true;
            return Poll::Ready(None);
        }
        let mut over = false;
        while !over && out.len() < CHUNK_BYTES {
            match self.driver.next_delivery(self.consumer, context.waker()) {
                Next::Delivery(delivery) => {
                    json::delivery(&delivery, &mut out);
                    out.push(b'\n');
                    self.left = self.left.map(|left| left - 1);
                    over = self.left == Some(0);
                }
                Next::Nothing => break,
                Next::Spent => (over, self.finished) = (true, true),
                Next::Over => over = true,
            }
        }
        if !out.is_empty() {
            self.delivered_at = Instant::now();
            self.sent_at = self.delivered_at;
            return Poll::Ready(Some(out));
        }
        if over { Poll::Ready(None) } else { self.poll_idle(context) }
    }

    /// Nothing to tell: a blank line now and then, or the end of a stream that waits no longer. The timer is not moved at every
    /// message; it goes off too early and is then set anew.
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        while self.timer.as_mut().poll(context).is_ready() {
            let (now, blank_at) = (Instant::now(), self.sent_at + self.keep_alive);
            let end_at = self.wait.and_then(|wait| self.delivered_at.checked_add(wait));
            if end_at.is_some_and(|end_at| end_at <= now) {
                self.finished = true;
                return Poll::Ready(None);
            }
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
        match self.finished {
            true => self.driver.finish(self.consumer),
            false => self.driver.leave(self.consumer),
        }
    }
}

impl std::fmt::Debug for StreamBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamBody").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}
