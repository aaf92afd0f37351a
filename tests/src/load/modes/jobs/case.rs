//! The cases: what is wrong in each, and how it is brought about.

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::load::broker::Broker;
use crate::load::cli::BrokerOptions;
use crate::load::client::{Connection, Item, NDJSON, get, post, post_into};
use crate::load::drive::count_lines;
use crate::load::error::{Error, Result};
use crate::load::modes::jobs::figures::Figures;
use crate::load::modes::jobs::worker::{Counts, Worker};
use crate::load::report::Failures;
use crate::torture::syscall_injector::{LOG_THREAD, SyscallInjector};
use crate::torture::tools::missing_for_syscalls;

const GROUP: &str = "workers";
/// How often the broker is asked for the jobs that are left.
const POLL: Duration = Duration::from_millis(50);
/// A worker that had nothing to do for this long has worked on everything that was sent to it.
const IDLE: Duration = Duration::from_millis(500);
/// How long a request outside of the stall, and the head of a stream after it, may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long the deliveries of a stream that was not read may take to arrive from the socket.
const UNREAD_WITHIN: Duration = Duration::from_secs(1);

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Trouble {
    /// A consumer opens a stream, never reads it and never acks, beside a worker that acks at once.
    SilentStream,
    /// The only worker takes this long for each job, one after the other.
    SlowWorker(Duration),
    /// The first sync after the jobs were stored takes this long; the worker acks at once.
    StalledDisk(Duration),
}

/// What streams and jobs ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The lease of all streams; `None` for the broker's default.
    pub(crate) lease_ms: Option<u32>,
    /// The attempts of each job; `None` for a job without a retry policy.
    pub(crate) max_attempts: Option<u32>,
}

/// A case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    /// What is wrong.
    pub(crate) trouble: Trouble,
    /// How many jobs there are.
    pub(crate) jobs: u64,
    /// What streams and jobs ask for.
    pub(crate) limits: Limits,
}

impl Case {
    /// The name in the table.
    pub(crate) fn name(&self) -> String {
        let trouble = match self.trouble {
            Trouble::SilentStream => "silent stream".to_owned(),
            Trouble::SlowWorker(work) => format!("sequential worker, {} ms a job", work.as_millis()),
            Trouble::StalledDisk(length) => format!("disk stalled for {} s", length.as_secs_f64()),
        };
        let lease = self.limits.lease_ms.map_or_else(|| "default lease".to_owned(), |ms| format!("lease {ms} ms"));
        let attempts = self
            .limits
            .max_attempts
            .map_or_else(|| "no retry policy".to_owned(), |attempts| format!("`max_attempts` {attempts}"));
        format!("{trouble}; {lease}, {attempts}")
    }

    /// Whether no job may die in it. The rules of leases guarantee that for the default lease, not for a lease that is
    /// shorter than the work its stream holds.
    pub(crate) fn has_goal(&self) -> bool {
        !matches!((self.trouble, self.limits.lease_ms), (Trouble::SlowWorker(_), Some(_)))
    }

    /// Starts a broker, stores the jobs, and counts until every job is acked or dead, or `give_up` has passed.
    pub(crate) async fn measure(&self, options: &BrokerOptions, give_up: Duration) -> Result<Figures> {
        let mut broker = Broker::open(options, &[]).await?;
        let topic = broker.create_topic(1).await?;
        self.store_jobs(broker.addr(), &topic).await?;
        let stall = match self.trouble {
            Trouble::StalledDisk(length) => Some((length, stall_next_sync(&broker, length).await?)),
            _ => None,
        };
        let begun = Instant::now();
        let silent = match self.trouble {
            Trouble::SilentStream => Some(self.open_silent_stream(broker.addr(), &topic).await?),
            _ => None,
        };
        let stalled_for = stall.as_ref().map_or(Duration::ZERO, |(length, _)| *length);
        let worker = self.start_worker(broker.addr(), &topic, stalled_for + ANSWER_WITHIN);
        // Answers wait for the sync too.
        tokio::time::sleep(stalled_for).await;
        let took = wait_for_end(&mut broker, &topic, &worker, begun, stalled_for + give_up).await?;
        if took < stalled_for {
            return Err("the disk was not stalled: all jobs ended before its sync".into());
        }
        if let Some(silent) = silent {
            require_deliveries(silent).await?;
        }
        let Counts { executions, acked, .. } = worker.counts();
        let dead_letters = broker.dead_letter_count(&topic).await?;
        Ok(Figures { jobs: self.jobs, executions, dead_letters, acked: acked.len() as u64, took })
    }

    /// Stores the jobs for a group that exists.
    async fn store_jobs(&self, addr: SocketAddr, topic: &str) -> Result<()> {
        let mut connection = Connection::connect(addr).await?;
        let group = format!(r#"{{"topic":"{topic}","group":"{GROUP}"}}"#);
        exchange(&mut connection, &post(addr, "/v1/groups", &group)).await?;
        let policy = self.limits.max_attempts.map_or_else(String::new, |attempts| {
            format!(r#","envelope":{{"retry_policy":{{"max_attempts":{attempts}}}}}"#)
        });
        let mut lines = String::new();
        for job in 0..self.jobs {
            writeln!(lines, r#"{{"topic":"{topic}","value":"job {job}"{policy}}}"#)?;
        }
        let mut request = Vec::new();
        post_into(&mut request, addr, "/v1/produce", NDJSON, lines.as_bytes());
        exchange(&mut connection, &request).await?;
        let mut failures = Failures::default();
        if count_lines(connection.body(), self.jobs, &mut failures) != self.jobs {
            return Err(format!("not all jobs were stored: {failures}").into());
        }
        Ok(())
    }

    async fn open_silent_stream(&self, addr: SocketAddr, topic: &str) -> Result<Connection> {
        let mut stream = Connection::connect_for_stream(addr).await?;
        let status = stream.open_stream(&get(addr, &self.target(topic, "silent"))).await?;
        if status != 200 {
            return Err(format!("the silent stream was refused: {status}").into());
        }
        Ok(stream)
    }

    fn start_worker(&self, addr: SocketAddr, topic: &str, head_within: Duration) -> Worker {
        let work = match self.trouble {
            Trouble::SlowWorker(work) => work,
            Trouble::SilentStream | Trouble::StalledDisk(_) => Duration::ZERO,
        };
        let ack_front = format!(r#"{{"topic":"{topic}","group":"{GROUP}","owner":"worker""#);
        Worker::start(addr, self.target(topic, "worker"), ack_front, work, head_within)
    }

    /// Opens a stream with the defaults of the broker, except for a lease that the case sets.
    fn target(&self, topic: &str, owner: &str) -> String {
        let lease = self.limits.lease_ms.map_or_else(String::new, |ms| format!("&lease_ms={ms}"));
        format!("/v1/consume?topic={topic}&group={GROUP}&owner={owner}{lease}")
    }
}

/// Makes the next sync of the log take this long.
async fn stall_next_sync(broker: &Broker, length: Duration) -> Result<SyscallInjector> {
    if let Some(missing) = missing_for_syscalls() {
        return Err(missing.into());
    }
    let pid = broker.pid().ok_or("the broker's process is not known")?;
    let action = format!("delay_enter={}:when=1", length.as_micros());
    // It blocks until strace is attached.
    let attach = move || SyscallInjector::attach(pid, LOG_THREAD, "fdatasync", &action);
    Ok(tokio::task::spawn_blocking(attach).await??)
}

/// Waits until no job is left and the worker has worked on everything it was sent. Returns when no job was left.
async fn wait_for_end(
    broker: &mut Broker,
    topic: &str,
    worker: &Worker,
    begun: Instant,
    give_up: Duration,
) -> Result<Duration> {
    let mut ended = None;
    while begun.elapsed() < give_up {
        let counts = worker.counts();
        if let Some(failure) = counts.failure {
            broker.check_alive()?;
            return Err(format!("the worker failed: {failure}").into());
        }
        if ended.is_none() && broker.message_count(topic).await? == 0 {
            ended = Some(begun.elapsed());
        }
        if let Some(ended) = ended.filter(|_| counts.idle_since.is_some_and(|since| since.elapsed() >= IDLE)) {
            return Ok(ended);
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(begun.elapsed())
}

/// Reads the first line of a stream that was not read. Fails if it has none: the case would show nothing.
async fn require_deliveries(mut stream: Connection) -> Result<()> {
    let first_line = async {
        loop {
            let line = stream.body().split(|&byte| byte == b'\n').find(|line| !line.trim_ascii().is_empty());
            if line.is_some_and(|line| Item::scan(line).is_some()) {
                return Ok::<(), Error>(());
            }
            stream.read_more().await?;
        }
    };
    let unread = tokio::time::timeout(UNREAD_WITHIN, first_line).await;
    unread.map_err(|_| "the silent stream got no delivery")?
}

/// Sends a request and requires a status of success.
async fn exchange(connection: &mut Connection, request: &[u8]) -> Result<()> {
    let status = tokio::time::timeout(ANSWER_WITHIN, connection.exchange(request)).await??;
    if status / 100 != 2 {
        return Err(format!("{status} {}", String::from_utf8_lossy(connection.body())).into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_says_what_is_wrong_and_what_is_not_default() {
        let limits = Limits { lease_ms: None, max_attempts: None };
        let case = |trouble, limits| Case { trouble, jobs: 1, limits }.name();
        assert_eq!(case(Trouble::SilentStream, limits), "silent stream; default lease, no retry policy");
        let limits = Limits { lease_ms: Some(2_000), max_attempts: Some(2) };
        let stalled = Trouble::StalledDisk(Duration::from_millis(7_500));
        assert_eq!(case(stalled, limits), "disk stalled for 7.5 s; lease 2000 ms, `max_attempts` 2");
        let slow = Trouble::SlowWorker(Duration::from_millis(100));
        assert_eq!(case(slow, limits), "sequential worker, 100 ms a job; lease 2000 ms, `max_attempts` 2");
    }
}
