//! Faults of deliveries: a stream's lines are held, swapped, repeated and cut, and their leases end early.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use driftq_core::types::Millis;
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use tokio::time::{Instant, sleep, sleep_until};

use super::arrivals::WAIT_MAX;
use super::body::{Gone, PieceSender};
use super::draw::{Fault, Subject};
use super::lines::{Lines, Part, content};
use super::played::{DeliveryRef, Detail, SufferedBy};
use super::state::Chaos;

/// An expiry comes at once, or after so many of these parts of a lease.
const LEASE_PARTS: u64 = 8;

/// The leases that are to end early: the attempt that each message had then.
pub(super) type Expiries = RefCell<HashMap<ExpiryKey, u64>>;

/// Topic, group, partition and offset of a message.
pub(super) type ExpiryKey = (String, String, u32, u64);

/// The fields of a `GET /v1/consume` that its deliveries do not repeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Subscription {
    topic: String,
    group: String,
    lease_ms: Option<u64>,
}

impl Subscription {
    /// Reads a request that the broker has accepted: a body overrides the query.
    pub(super) fn of(query: Option<&str>, body: &[u8]) -> Self {
        let mut subscription = match content(body) {
            [] => Self::from_query(query.unwrap_or_default()),
            body => serde_json::from_slice(body).unwrap_or_default(),
        };
        for name in [&mut subscription.topic, &mut subscription.group] {
            *name = name.trim().to_owned();
        }
        subscription
    }

    fn from_query(query: &str) -> Self {
        let mut subscription = Self::default();
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let value = percent_decode_str(&value.replace('+', " ")).decode_utf8_lossy().into_owned();
            match name {
                "topic" => subscription.topic = value,
                "group" => subscription.group = value,
                "lease_ms" => subscription.lease_ms = value.trim().parse().ok(),
                _ => {}
            }
        }
        subscription
    }
}

/// The fields of a delivery that identify it.
#[derive(Debug, Deserialize)]
struct DeliveryLine {
    partition: u32,
    offset: u64,
    attempts: u64,
}

/// The stream of a client, with its faults.
pub(super) struct DeliveryStream {
    chaos: Rc<Chaos>,
    subscription: Subscription,
    out: PieceSender,
    /// The stream is cut in this line, counted from 1.
    cut_in: Option<(u64, SufferedBy)>,
    /// Deliveries that were written.
    written: u64,
    /// Deliveries that wait for a later one, and until when.
    held: Vec<Held>,
    held_until: Instant,
}

struct Held {
    line: Bytes,
    delivery: DeliveryRef,
    subject: Subject,
}

/// Why a stream ends before the broker ends it.
enum Ended {
    ClientGone,
    Cut,
}

impl From<Gone> for Ended {
    fn from(_: Gone) -> Self {
        Self::ClientGone
    }
}

impl DeliveryStream {
    pub(super) fn new(
        chaos: Rc<Chaos>,
        subscription: Subscription,
        out: PieceSender,
        cut_in: Option<(u64, SufferedBy)>,
    ) -> Self {
        let (held, held_until) = (Vec::new(), Instant::now());
        Self { chaos, subscription, out, cut_in, written: 0, held, held_until }
    }

    /// Passes the stream on until it ends.
    pub(super) async fn run(mut self, body: Incoming) {
        let mut lines = Lines::new(body, usize::MAX);
        match self.pass_on(&mut lines).await {
            Ok(()) | Err(Ended::ClientGone) => {}
            Err(Ended::Cut) => self.out.cut().await,
        }
    }

    async fn pass_on(&mut self, lines: &mut Lines) -> Result<(), Ended> {
        loop {
            let next = tokio::select! {
                next = lines.next() => next,
                () = self.out.gone() => return Err(Ended::ClientGone),
                () = sleep_until(self.held_until), if !self.held.is_empty() => {
                    self.write_held().await?;
                    continue;
                }
            };
            match next {
                Ok(Some(Part::Line(line))) => self.add(line).await?,
                // No line is too long.
                Ok(Some(Part::Fragment { bytes, .. })) => self.out.send(bytes).await?,
                Ok(None) => return self.write_held().await,
                // The broker has crashed.
                Err(_) => return Err(Ended::Cut),
            }
        }
    }

    async fn add(&mut self, line: Bytes) -> Result<(), Ended> {
        let Ok(fields) = serde_json::from_slice::<DeliveryLine>(content(&line)) else {
            // A blank line, which keeps the connection alive.
            return Ok(self.out.send(line).await?);
        };
        let DeliveryLine { partition, offset, attempts } = fields;
        let Subscription { topic, group, .. } = &self.subscription;
        let subject = Subject::delivery(topic, group, partition, offset, attempts);
        let delivery = DeliveryRef { topic: topic.clone(), group: group.clone(), partition, offset, attempts };
        self.chaos.forget_expiry(&delivery);
        if let Some(hit) = self.chaos.draw(Fault::Delay, subject) {
            let ms = self.chaos.delay_ms(hit);
            self.play(Fault::Delay, &delivery, Detail::of("delivery").with_ms(ms));
            sleep(Duration::from_millis(ms)).await;
        }
        let is_reordered = self.chaos.draw(Fault::Reorder, subject).is_some();
        if is_reordered {
            self.play(Fault::Reorder, &delivery, Detail::of("delivery"));
            if self.held.is_empty() {
                self.held_until = Instant::now() + WAIT_MAX;
            }
            self.held.push(Held { line, delivery, subject });
            return Ok(());
        }
        self.write(Held { line, delivery, subject }).await?;
        self.write_held().await
    }

    async fn write_held(&mut self) -> Result<(), Ended> {
        for held in std::mem::take(&mut self.held) {
            self.write(held).await?;
        }
        Ok(())
    }

    async fn write(&mut self, Held { line, delivery, subject }: Held) -> Result<(), Ended> {
        self.written += 1;
        if let Some((_, stream)) = self.cut_in.take_if(|(line, _)| *line == self.written) {
            self.chaos.play(Fault::DropReply, stream, Detail::of("stream").with_line(self.written));
            self.out.send(line.slice(..line.len() / 2)).await?;
            return Err(Ended::Cut);
        }
        self.out.send(line.clone()).await?;
        if self.chaos.draw(Fault::Duplicate, subject).is_some() {
            self.play(Fault::Duplicate, &delivery, Detail::of("delivery"));
            self.out.send(line).await?;
        }
        if let Some(hit) = self.chaos.draw(Fault::Expire, subject) {
            let lease = self.chaos.lease(self.subscription.lease_ms.map(Millis));
            let at_once = hit.pick(0, 2) == 0;
            let parts = if at_once { 0 } else { 1 + hit.pick(1, LEASE_PARTS - 1) };
            let ms = lease.0 / LEASE_PARTS * parts;
            self.play(Fault::Expire, &delivery, Detail::of("lease").with_ms(ms));
            self.chaos.expire_after(Duration::from_millis(ms), delivery);
        }
        Ok(())
    }

    fn play(&self, fault: Fault, delivery: &DeliveryRef, detail: Detail) {
        self.chaos.play(fault, SufferedBy::Delivery { delivery: delivery.clone() }, detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscription(topic: &str, group: &str, lease_ms: Option<u64>) -> Subscription {
        Subscription { topic: topic.to_owned(), group: group.to_owned(), lease_ms }
    }

    #[test]
    fn subscription_is_read_from_the_query_or_from_a_body() {
        let query = Some("topic=orders%2Feu&owner=w&group=the+kitchen&lease_ms=500");
        assert_eq!(Subscription::of(query, b" \n"), subscription("orders/eu", "the kitchen", Some(500)));
        let body = br#"{"topic":" t ","group":"g","owner":"w"}"#;
        assert_eq!(Subscription::of(query, body), subscription("t", "g", None));
    }
}
