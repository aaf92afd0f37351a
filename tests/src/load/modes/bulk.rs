//! `load bulk`: the latency of produces to one topic while a bulk operation on another one runs.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::load::broker::Broker;
use crate::load::cli::BulkOptions;
use crate::load::client::{Connection, Effect, MessageShape, post, post_into};
use crate::load::drive::{Produces, Shape, Stamp};
use crate::load::error::Result;
use crate::load::modes::fill;
use crate::load::modes::slices::{Pace, Target};
use crate::load::report::{Failures, Stats, time};
use crate::progress::Progress;

/// Connections of the producers that are measured.
const CONNECTIONS: u32 = 4;
/// How long produces are measured before the bulk operation begins.
const LEAD: Duration = Duration::from_millis(200);
/// How long an operation, and the preparation of one, may take.
const WITHIN: Duration = Duration::from_secs(600);
/// When dead letters pass their deadline, from the start of their production.
const DEADLINE: Duration = Duration::from_secs(20);
/// Messages in a request with dead letters to be.
const BATCH: u64 = 500;

/// Measures and prints one line per operation.
pub(crate) async fn run(options: &BulkOptions) -> Result<Failures> {
    let broker = Broker::open(&options.broker, &[]).await?;
    let mut bulk =
        Bulk { options, others: broker.create_topic(1).await?, broker, base: None, failures: Failures::default() };
    let topic = bulk.filled().await?;
    bulk.measure("nothing", None).await?;
    let groups = |name: &str, from: &str| format!(r#"{{"topic":"{topic}","group":"{name}","from":"{from}"}}"#);
    let seek = |to: &str| format!(r#"{{"topic":"{topic}","group":"b","to":"{to}"}}"#);
    bulk.post("create a group at the earliest message", "/v1/groups", &groups("a", "earliest")).await?;
    bulk.post("create a group at the latest message", "/v1/groups", &groups("b", "latest")).await?;
    bulk.post("seek to the earliest message", "/v1/groups/seek", &seek("earliest")).await?;
    bulk.post("seek to the latest message", "/v1/groups/seek", &seek("latest")).await?;
    bulk.request("delete a group of two", delete(&bulk.broker, &format!("/v1/groups?topic={topic}&group=a"))).await?;
    let topic = bulk.filled().await?;
    bulk.post("purge", &format!("/v1/topics/{topic}/purge"), "").await?;
    let topic = bulk.filled().await?;
    bulk.request("delete a topic", delete(&bulk.broker, &format!("/v1/topics/{topic}"))).await?;
    let topic = bulk.dead_lettered().await?;
    bulk.post("redrive all", "/v1/dlq/redrive", &format!(r#"{{"topic":"{topic}","all":true}}"#)).await?;
    Ok(bulk.failures)
}

struct Bulk<'a> {
    options: &'a BulkOptions,
    broker: Broker,
    /// The topic of the produces that are measured.
    others: String,
    /// Their p99 without a bulk operation.
    base: Option<Duration>,
    failures: Failures,
}

impl Bulk<'_> {
    /// A new topic with messages.
    async fn filled(&self) -> Result<String> {
        let topic = self.broker.create_topic(1).await?;
        let message =
            MessageShape { topic: topic.clone(), size: self.options.size, partitions: 1, effect: Effect::None };
        fill(&self.broker, message, self.options.messages).await?;
        Ok(topic)
    }

    /// A new topic with dead letters.
    async fn dead_lettered(&self) -> Result<String> {
        let _progress = Progress::spinner("waiting for dead letters");
        let (topic, addr) = (self.broker.create_topic(1).await?, self.broker.addr());
        let mut connection = Connection::connect(addr).await?;
        expect(&mut connection, &post(addr, "/v1/groups", &format!(r#"{{"topic":"{topic}","group":"g"}}"#))).await?;
        let deadline = rfc3339(SystemTime::now() + DEADLINE);
        let line = format!(r#"{{"topic":"{topic}","value":"dead","envelope":{{"deadline":"{deadline}"}}}}"#);
        for first in (0..self.options.dead_letters).step_by(BATCH as usize) {
            let lines = (self.options.dead_letters - first).min(BATCH) as usize;
            let mut request = Vec::new();
            let body = vec![line.as_str(); lines].join("\n");
            post_into(&mut request, addr, "/v1/produce", "application/x-ndjson", body.as_bytes());
            expect(&mut connection, &request).await?;
        }
        let begun = Instant::now();
        while self.broker.message_count(&topic).await? > 0 {
            if begun.elapsed() > WITHIN {
                return Err("the deadlines of messages have no effect".into());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(topic)
    }

    async fn post(&mut self, what: &str, target: &str, body: &str) -> Result<()> {
        let request = post(self.broker.addr(), target, body);
        self.request(what, request).await
    }

    async fn request(&mut self, what: &str, request: Vec<u8>) -> Result<()> {
        self.measure(what, Some(request)).await
    }

    /// Measures produces while `request` is performed, and prints a line.
    async fn measure(&mut self, what: &str, request: Option<Vec<u8>>) -> Result<()> {
        let message = MessageShape { topic: self.others.clone(), size: 16, partitions: 1, effect: Effect::None };
        let shape = Shape { message, batch: 1, stamp: Stamp::Number };
        let length = Duration::from_secs_f64(self.options.seconds);
        let pace = Pace { connections: CONNECTIONS, length, rate: Some(self.options.rate) };
        let mut target = Target::<Produces>::connect(self.broker.addr(), &shape, pace).await?;
        let operation = async {
            let Some(request) = request else { return Ok(Duration::ZERO) };
            let mut connection = Connection::connect(self.broker.addr()).await?;
            tokio::time::sleep(LEAD).await;
            let begun = Instant::now();
            expect(&mut connection, &request).await?;
            Ok::<_, crate::load::error::Error>(begun.elapsed())
        };
        let (driven, took) = tokio::join!(target.slice(length, || None), operation);
        driven?;
        self.report(what, &target.server.stats, took?);
        Ok(())
    }

    fn report(&mut self, what: &str, stats: &Stats, took: Duration) {
        self.failures.merge(&stats.failures);
        let p99 = stats.quantile(0.99);
        let base = *self.base.get_or_insert(p99);
        let ratio = if base.is_zero() { 0.0 } else { p99.as_secs_f64() / base.as_secs_f64() };
        println!(
            "{what:<40} took {:<9} p99 of others {:<9} max {:<9} {ratio:.2} × that without",
            time(took),
            time(p99),
            time(stats.quantile(1.0)),
        );
    }
}

/// Sends a request and requires a status of success.
async fn expect(connection: &mut Connection, request: &[u8]) -> Result<()> {
    let status = tokio::time::timeout(WITHIN, connection.exchange(request)).await??;
    if status / 100 != 2 {
        return Err(format!("{status} {}", String::from_utf8_lossy(connection.body())).into());
    }
    Ok(())
}

fn delete(broker: &Broker, target: &str) -> Vec<u8> {
    format!("DELETE {target} HTTP/1.1\r\nHost: {}\r\n\r\n", broker.addr()).into_bytes()
}

/// A time as RFC 3339 in UTC, with whole seconds.
fn rfc3339(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01, in eras of 400 years.
    let days = day + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let (date, month) = (of_year - (153 * march_month + 2) / 5 + 1, (march_month + 2) % 12 + 1);
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}Z", second / 3_600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc3339() {
        let at = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(at(4_107_542_399), "2100-02-28T23:59:59Z");
    }
}
