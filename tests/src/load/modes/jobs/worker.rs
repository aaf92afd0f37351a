//! A worker: reads a stream, works on one delivery after the other and acks each.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::load::client::{Connection, Item, ResponseState, get, post};

/// What a worker has counted so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    /// Deliveries it worked on.
    pub(crate) executions: u64,
    /// Offsets of the jobs whose ack was accepted.
    pub(crate) acked: BTreeSet<u64>,
    /// Since when it has had nothing to work on.
    pub(crate) idle_since: Option<Instant>,
    /// What ended it.
    pub(crate) failure: Option<String>,
}

/// A running worker. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    counts: Arc<Mutex<Counts>>,
    _task: JoinSet<()>,
}

impl Worker {
    /// Starts a worker that takes `work` for each delivery. `target` opens its stream, whose first answer may take
    /// `head_within`; `ack_front` is the part of an ack that all of its jobs share.
    pub(crate) fn start(
        addr: SocketAddr,
        target: String,
        ack_front: String,
        work: Duration,
        head_within: Duration,
    ) -> Self {
        let counts = Arc::<Mutex<Counts>>::default();
        let task = Task { addr, target, ack_front, work, head_within, counts: Arc::clone(&counts) };
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run());
        Self { counts, _task: tasks }
    }

    /// What it has counted so far.
    pub(crate) fn counts(&self) -> Counts {
        lock(&self.counts).clone()
    }
}

fn lock(counts: &Mutex<Counts>) -> MutexGuard<'_, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Task {
    addr: SocketAddr,
    target: String,
    ack_front: String,
    work: Duration,
    head_within: Duration,
    counts: Arc<Mutex<Counts>>,
}

impl Task {
    async fn run(self) {
        if let Err(failure) = self.work_on_all().await {
            lock(&self.counts).failure = Some(failure);
        }
    }

    /// Returns only with the reason why it cannot go on.
    async fn work_on_all(&self) -> Result<(), String> {
        let failed = |error: io::Error| error.to_string();
        let mut acks = Acks { addr: self.addr, connection: None };
        let mut stream = Connection::connect_for_stream(self.addr).await.map_err(failed)?;
        let request = get(self.addr, &self.target);
        let status = stream.open_stream_within(&request, self.head_within).await.map_err(failed)?;
        if status != 200 {
            return Err(format!("the stream was refused: {status} {}", text(stream.body())));
        }
        loop {
            while let Some(end) = stream.body().iter().position(|&byte| byte == b'\n') {
                let line = stream.body()[..end].to_vec();
                stream.consume_body(end + 1);
                // A blank line is a keep-alive.
                if !line.trim_ascii().is_empty() {
                    let item = Item::scan(&line).ok_or("the stream has a line that is not an item")?;
                    self.execute(&mut acks, &item).await?;
                }
            }
            lock(&self.counts).idle_since.get_or_insert_with(Instant::now);
            if stream.read_more().await.map_err(failed)? == ResponseState::Complete {
                return Err("the stream ended".to_owned());
            }
        }
    }

    async fn execute(&self, acks: &mut Acks, item: &Item<'_>) -> Result<(), String> {
        {
            let mut counts = lock(&self.counts);
            counts.executions += 1;
            counts.idle_since = None;
        }
        if !self.work.is_zero() {
            tokio::time::sleep(self.work).await;
        }
        let offset = text(item.offset);
        let body = format!(
            r#"{},"partition":{},"offset":{offset},"lease_token":"{}"}}"#,
            self.ack_front,
            text(item.partition),
            text(item.lease_token),
        );
        let (status, answer) = acks.send(&body).await.map_err(|error| error.to_string())?;
        match status {
            200..=299 => {
                lock(&self.counts).acked.insert(offset.parse().map_err(|_| "an offset is not a number")?);
                Ok(())
            }
            // Another delivery of the job is newer: this execution was in vain, which the count shows.
            409 => Ok(()),
            _ => Err(format!("an ack got {status} {answer}")),
        }
    }
}

/// A connection for acks. The broker closes it when it is idle for long, as during a stall.
struct Acks {
    addr: SocketAddr,
    connection: Option<Connection>,
}

impl Acks {
    /// Sends an ack and returns the status and body of its answer. If the connection was closed, it is sent once more:
    /// an ack that was accepted is accepted again.
    async fn send(&mut self, body: &str) -> io::Result<(u16, String)> {
        let request = post(self.addr, "/v1/ack", body);
        if let Some(connection) = &mut self.connection
            && let Ok(status) = connection.exchange(&request).await
        {
            return Ok((status, text(connection.body())));
        }
        let connection = self.connection.insert(Connection::connect(self.addr).await?);
        let status = connection.exchange(&request).await?;
        Ok((status, text(connection.body())))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
