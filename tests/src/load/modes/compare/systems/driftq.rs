//! DriftQ: one topic with one partition, streams, and acks on connections of their own.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::load::broker::Broker;
use crate::load::client::{Connection, Effect, Item, MessageShape, ProduceRequest, ResponseState, get, post_into};
use crate::load::drive::count_lines;
use crate::load::error::Result;
use crate::load::modes::compare::deliveries::Deliveries;
use crate::load::modes::compare::server::version_of;
use crate::load::modes::compare::system::{Answers, Consumer, PREFETCH, Producer, Site, System};
use crate::load::modes::compare::wire::malformed;
use crate::load::modes::consumers::consume_target;

const GROUP: &str = "compare";
const JSON: &str = "application/json";

/// A running broker.
#[derive(Debug)]
pub(crate) struct DriftQ {
    broker: Broker,
    version: String,
    value_bytes: u32,
}

impl System for DriftQ {
    type Producer = Produces;
    type Consumer = Streams;
    const HAS_BATCHES: bool = true;

    async fn start(site: &Site) -> Result<Self> {
        let program = site.broker.driftqd.as_ref().ok_or("no driftqd to start: name one with --driftqd")?;
        let version = version_of(program, "--version");
        Ok(Self { broker: Broker::open(&site.broker, &[]).await?, version, value_bytes: site.value_bytes })
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn settings(&self) -> String {
        format!(
            "its defaults, which sync before every answer; one topic with one partition; a consumer is a stream with \
             prefetch {PREFETCH} and a connection for acks, one ack request in flight; batches are NDJSON"
        )
    }

    fn cpu(&self) -> Option<Duration> {
        self.broker.cpu()
    }

    fn exited(&mut self) -> Option<String> {
        self.broker.check_alive().err().map(|error| error.to_string())
    }

    async fn create(&self) -> Result<String> {
        self.broker.create_topic(1).await
    }

    async fn producer(&self, queue: &str, batch: u32) -> Result<Produces> {
        let (addr, topic) = (self.broker.addr(), queue.to_owned());
        let shape = MessageShape { topic, size: self.value_bytes, partitions: 1, effect: Effect::None };
        let connection = Connection::connect(addr).await?;
        Ok(Produces { connection, request: ProduceRequest::new(addr, &shape, batch) })
    }

    async fn consumer(&self, queue: &str, index: u32) -> Result<Streams> {
        let (addr, owner) = (self.broker.addr(), format!("c{index}"));
        let mut stream = Connection::connect_for_stream(addr).await?;
        let target = consume_target(queue, GROUP, &owner, Some(PREFETCH as u32));
        let status = stream.open_stream(&get(addr, &target)).await?;
        if status != 200 {
            return Err(format!("a stream was refused: {status} {}", String::from_utf8_lossy(stream.body())).into());
        }
        let ack_front = format!(r#"{{"topic":"{queue}","group":"{GROUP}","owner":"{owner}","partition":"#);
        let acks = Connection::connect(addr).await?;
        Ok(Streams { addr, stream, acks, ack_front, waiting: Waiting::default() })
    }

    async fn unacked(&self, queue: &str) -> Result<u64> {
        self.broker.message_count(queue).await
    }
}

/// A connection that produces.
#[derive(Debug)]
pub(crate) struct Produces {
    connection: Connection,
    request: ProduceRequest,
}

impl Producer for Produces {
    async fn produce(&mut self, first: u64, answers: &mut Answers) -> io::Result<()> {
        let messages = self.request.messages();
        let status = self.connection.exchange(self.request.checked(first)).await?;
        match (status, messages) {
            (200, 1) => answers.confirm(1),
            (200, _) => {
                let stored = count_lines(self.connection.body(), messages, &mut answers.failures);
                answers.confirm(stored);
            }
            _ => answers.failures.status(status, self.connection.body()),
        }
        Ok(())
    }
}

/// A stream and a connection for acks.
#[derive(Debug)]
pub(crate) struct Streams {
    addr: SocketAddr,
    stream: Connection,
    acks: Connection,
    /// The part of an ack that all messages share.
    ack_front: String,
    waiting: Waiting,
}

/// Bodies of acks on their way from the stream to the other connection.
#[derive(Debug, Default)]
struct Waiting {
    acks: Mutex<VecDeque<Vec<u8>>>,
    wake: Notify,
}

impl Consumer for Streams {
    async fn run(&mut self, deliveries: Arc<Deliveries>) -> io::Result<()> {
        let reading = read(&mut self.stream, &self.ack_front, &self.waiting, &deliveries);
        let acking = ack(&mut self.acks, self.addr, &self.waiting, &deliveries);
        tokio::try_join!(reading, acking).map(|((), ())| ())
    }
}

async fn read(stream: &mut Connection, front: &str, waiting: &Waiting, deliveries: &Deliveries) -> io::Result<()> {
    loop {
        if let Some(end) = stream.body().iter().rposition(|byte| *byte == b'\n') {
            let mut acks = waiting.acks.lock().unwrap_or_else(PoisonError::into_inner);
            // A blank line is a keep-alive.
            let lines = stream.body()[..end].split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
            for line in lines {
                let item = Item::scan(line).ok_or_else(|| malformed("a line that is not an item"))?;
                deliveries.note_delivered(item.value);
                let parts = [front.as_bytes(), item.partition, br#","offset":"#, item.offset, br#","lease_token":""#];
                acks.push_back([&parts.concat()[..], item.lease_token, b"\"}"].concat());
            }
            drop(acks);
            stream.consume_body(end + 1);
            waiting.wake.notify_one();
        }
        if stream.read_more().await? == ResponseState::Complete {
            return Err(io::Error::other("a stream ended"));
        }
    }
}

async fn ack(acks: &mut Connection, addr: SocketAddr, waiting: &Waiting, deliveries: &Deliveries) -> io::Result<()> {
    let mut request = Vec::new();
    loop {
        let next = waiting.acks.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(body) = next else {
            waiting.wake.notified().await;
            continue;
        };
        post_into(&mut request, addr, "/v1/ack", JSON, &body);
        match acks.exchange(&request).await? {
            200..=299 => deliveries.note_acked(1),
            status => deliveries.note_failure(&format!("ack {status}")),
        }
    }
}
