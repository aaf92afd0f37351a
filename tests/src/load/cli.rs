//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::load::modes::budget::BudgetOptions;
use crate::load::modes::table::TableOptions;

/// Measures a DriftQ broker over HTTP.
#[derive(Debug, Parser)]
#[command(name = "load", version, propagate_version = true)]
pub(crate) struct Cli {
    /// The mode.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The modes.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Produces as fast as the connections allow; with --ceiling compared with a bare hyper server
    Produce(ProduceOptions),
    /// Producers, streaming consumers and acks at once; latency from produce to delivery
    EndToEnd(EndToEndOptions),
    /// Fills a backlog, then measures how fast streams and acks drain it
    Consume(ConsumeOptions),
    /// A large backlog: memory, disk, produce latency, kill -9 and restart, drains; or a steady one under load
    Backlog(BacklogOptions),
    /// Bulk operations on a large topic: produce latency of others while each runs
    Bulk(BulkOptions),
    /// Many idle streams: memory per stream, and CPU time of an idle broker
    Idle(IdleOptions),
    /// Many connections that send no request: the broker's memory, and produce latency of others
    Crowd(CrowdOptions),
    /// Jobs beside a silent consumer, a slow worker and a stalled disk: executions and dead letters, as Markdown
    Jobs(JobsOptions),
    /// Begins and finishes effects in the idempotency store; with --records a store with many records
    Effects(EffectsOptions),
    /// Produces with idempotency keys on a broker that remembers many, beside one that remembers none
    Keys(KeysOptions),
    /// Workers that complete a step for each delivery, with output messages
    Steps(StepsOptions),
    /// Where the CPU time and the instructions of each kind of request go, as Markdown
    Budget(BudgetOptions),
    /// Every row of the table of goals, as Markdown
    Table(TableOptions),
    /// DriftQ beside Redis, NATS, PostgreSQL, beanstalkd and RabbitMQ where they are installed, as Markdown
    Compare(CompareOptions),
    /// The bare hyper server that --ceiling starts
    #[command(hide = true)]
    CeilingServe,
}

impl Command {
    /// The broker's options, if the mode has a broker.
    pub(crate) fn broker_options_mut(&mut self) -> Option<&mut BrokerOptions> {
        match self {
            Command::Produce(options) => Some(&mut options.broker),
            Command::EndToEnd(options) => Some(&mut options.broker),
            Command::Consume(options) => Some(&mut options.broker),
            Command::Backlog(options) => Some(&mut options.broker),
            Command::Bulk(options) => Some(&mut options.broker),
            Command::Idle(options) => Some(&mut options.broker),
            Command::Crowd(options) => Some(&mut options.broker),
            Command::Jobs(options) => Some(&mut options.broker),
            Command::Effects(options) => Some(&mut options.broker),
            Command::Keys(options) => Some(&mut options.broker),
            Command::Steps(options) => Some(&mut options.broker),
            Command::Budget(options) => Some(&mut options.broker),
            Command::Table(options) => Some(&mut options.broker),
            Command::Compare(options) => Some(&mut options.broker),
            Command::CeilingServe => None,
        }
    }
}

/// Which broker is driven, and where its files are.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Broker")]
pub(crate) struct BrokerOptions {
    /// Drive a running broker, e.g. http://127.0.0.1:8080, instead of starting one
    #[arg(long, conflicts_with_all = ["driftqd", "dir", "daemon_args"])]
    pub(crate) url: Option<String>,
    /// The roots to which the certificate of a broker at an https:// --url must lead, PEM
    #[arg(long, value_name = "FILE", requires = "url")]
    pub(crate) ca: Option<PathBuf>,
    /// Accept every certificate of a broker at an https:// --url, for tests
    #[arg(long, requires = "url", conflicts_with = "ca")]
    pub(crate) insecure: bool,
    /// The process id of the broker at --url, to read its CPU time and memory
    #[arg(long, requires = "url")]
    pub(crate) pid: Option<u32>,
    /// The program to start [default: built by cargo when run by cargo, else the driftqd beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) driftqd: Option<PathBuf>,
    /// Where the temporary data folder is created, to choose the disk [default: beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) dir: Option<PathBuf>,
    /// A further argument for driftqd; may be repeated
    #[arg(long = "daemon-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) daemon_args: Vec<String>,
    /// Whether the mode speaks TLS.
    #[arg(skip)]
    pub(crate) speaks_tls: bool,
    /// Whether a broker that is started here has TLS.
    #[arg(skip)]
    pub(crate) has_tls: bool,
    /// Private memory the process may have, enforced by the kernel.
    #[arg(skip)]
    pub(crate) memory_limit: Option<u64>,
    /// A program and its arguments that runs the broker in its own process, such as valgrind.
    #[arg(skip)]
    pub(crate) wrapper: Vec<String>,
}

/// `load produce`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ProduceOptions {
    /// Keep-alive connections, each with one request in flight
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) connections: u32,
    /// Bytes of each value
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(16..=8_000_000))]
    pub(crate) size: u32,
    /// How long to drive; with --ceiling, each of the two servers
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Messages per request; above 1 they are sent as NDJSON, and latencies are those of requests
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) batch: u32,
    /// Partitions of the topic; above 1 every message has a unique key
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) partitions: u32,
    /// Drive a bare hyper server in alternating slices too; the last line is then the ratio
    #[arg(long)]
    pub(crate) ceiling: bool,
    /// Drive a broker with TLS 1.3 and one without in alternating slices; the last line is the ratio of their rates
    #[arg(long, conflicts_with_all = ["ceiling", "url"])]
    pub(crate) tls: bool,
    /// The most messages per second over all connections [default: unlimited]
    #[arg(long, value_parser = rate)]
    pub(crate) rate: Option<f64>,
    #[command(flatten)]
    pub(crate) broker: BrokerOptions,
}

/// How deliveries are acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AckKind {
    /// One request per message
    Single,
    /// Everything received since the last response, as one NDJSON request
    Ndjson,
}

/// `load end-to-end`.
#[derive(Debug, Clone, Args)]
pub(crate) struct EndToEndOptions {
    /// Producing connections
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) producers: u32,
    /// Consuming streams, each with a connection for acks
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    pub(crate) consumers: u32,
    /// Bytes of each value
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(16..=8_000_000))]
    pub(crate) size: u32,
    /// How long to produce; the backlog is drained afterwards
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// How deliveries are acknowledged
    #[arg(long, value_enum, default_value_t = AckKind::Single)]
    pub(crate) ack: AckKind,
    /// Live leases a stream may hold [default: the broker's]
    #[arg(long)]
    pub(crate) prefetch: Option<u32>,
    /// Partitions of the topic
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) partitions: u32,
    /// The most messages per second over all producers [default: unlimited]
    #[arg(long, value_parser = rate)]
    pub(crate) rate: Option<f64>,
    #[command(flatten)]
    pub(crate) broker: BrokerOptions,
}

/// `load consume`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConsumeOptions {
    /// Messages to produce first
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) messages: u64,
    /// Consuming streams, each with a connection for acks
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    pub(crate) consumers: u32,
    /// Bytes of each value
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(16..=8_000_000))]
    pub(crate) size: u32,
    /// How deliveries are acknowledged
    #[arg(long, value_enum, default_value_t = AckKind::Ndjson)]
    pub(crate) ack: AckKind,
    /// Live leases a stream may hold [default: the broker's]
    #[arg(long)]
    pub(crate) prefetch: Option<u32>,
    /// Partitions of the topic
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) partitions: u32,
    /// Give up if the backlog is not drained after this long
    #[arg(long, default_value_t = 120.0, value_parser = seconds)]
    pub(crate) give_up_seconds: f64,
    #[command(flatten)]
    pub(crate) broker: BrokerOptions,
}

/// `load backlog`.
#[derive(Debug, Clone, Args)]
pub(crate) struct BacklogOptions {
    /// Messages of the backlog
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) messages: u64,
    /// Bytes of each value
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(16..=8_000_000))]
    pub(crate) size: u32,
    /// Partitions of the topic
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) partitions: u32,
    /// How long to measure the produce latency, per broker
    #[arg(long, default_value_t = 4.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Payload bytes the broker keeps in memory, e.g. 16M [default: the broker's, or a fifth of --memory-limit]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) memory_bytes: Option<u64>,
    /// After the restart, drain the backlog with NDJSON acks: every payload is read from disk, every byte is checked
    #[arg(long)]
    pub(crate) cold: bool,
    /// Drain a backlog of a second broker that has every payload in memory; with --cold the rates are compared
    #[arg(long)]
    pub(crate) warm: bool,
    /// Messages of that backlog, if there are fewer of them than of the other
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) warm_messages: u64,
    /// Consuming streams of a drain
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    pub(crate) consumers: u32,
    /// The most private memory of the broker, e.g. 512M: the kernel refuses it more, before and after the kill
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) memory_limit: Option<u64>,
    /// Instead of all this: keep the backlog as large as it is for so long, produce and ack at --rate, so that segments
    /// have to be cleaned
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with_all = ["cold", "warm", "memory_limit"])]
    pub(crate) steady: Option<f64>,
    /// Messages per second of --steady, produced and acked
    #[arg(long, default_value_t = 20_000.0, value_parser = rate)]
    pub(crate) rate: f64,
    #[command(flatten)]
    pub(crate) broker: BrokerOptions,
}

/// `load bulk`.
#[derive(Debug, Clone, Args)]
pub(crate) struct BulkOptions {
    /// Messages of the topic on which operations are performed
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) messages: u64,
    /// Dead letters to redrive
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) dead_letters: u64,
    /// Bytes of each value
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(16..=8_000_000))]
    pub(crate) size: u32,
    /// Produces per second to another topic, over all connections
    #[arg(long, default_value_t = 500.0, value_parser = rate)]
    pub(crate) rate: f64,
    /// How long to measure them, per operation
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    #[command(flatten)]
    pub(crate) broker: BrokerOptions,
}

/// `load idle`.
#[derive(Debug, Clone, Args)]
pub(crate) struct IdleOptions {
    /// Consuming streams to open
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=500_000))]
    pub(crate) streams: u32,
    /// How long to measure the broker's CPU time, without and with the streams
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    #[command(flatten)]
    pub(crate) broker: BrokerOptions,
}

/// How far the connections of a crowd get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CrowdKind {
    /// They send nothing
    Silent,
    /// They send the beginning of a head
    Head,
    /// They send the head of a produce and no body
    Body,
    /// They send the beginning of a TLS handshake
    Hello,
    /// They complete a TLS handshake and send nothing
    Tls,
}

/// `load crowd`.
#[derive(Debug, Clone, Args)]
pub(crate) struct CrowdOptions {
    /// Connections to open
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) connections: u32,
    /// How far they get, separated by commas, each with a broker of its own [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) kind: Vec<CrowdKind>,
    /// Produces per second of other clients, which are measured
    #[arg(long, default_value_t = 500.0, value_parser = rate)]
    pub(crate) rate: f64,
    /// How long they are measured, without and with the connections
    #[arg(long, default_value_t = 4.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Turns without and with them; the median of the ratios of the latencies is printed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) turns: u32,
    #[command(flatten)]
    pub(crate) broker: BrokerOptions,
}

/// `load jobs`.
#[derive(Debug, Clone, Args)]
pub(crate) struct JobsOptions {
    /// Jobs of each case with a silent stream
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) jobs: u64,
    /// Jobs of each case with a sequential worker
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) sequential_jobs: u64,
    /// How long the sequential worker takes for each job
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=600_000))]
    pub(crate) work_ms: u32,
    /// Jobs of each case with a stalled disk
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) stalled_jobs: u64,
    /// How long a sync of the log is stalled by strace, a case each
    #[arg(long, default_value = "7.5,60", value_delimiter = ',', value_parser = seconds)]
    pub(crate) stall_seconds: Vec<f64>,
    /// The lease of the cases that do not use the default one
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=43_200_000))]
    pub(crate) lease_ms: u32,
    /// Attempts of each job; the goal applies from 2 on
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) max_attempts: u32,
    /// Give a case up after this long, beside its stall
    #[arg(long, default_value_t = 120.0, value_parser = seconds)]
    pub(crate) give_up_seconds: f64,
    #[command(flatten)]
    pub(crate) broker: BrokerOptions,
}

/// `load effects`.
#[derive(Debug, Clone, Args)]
pub(crate) struct EffectsOptions {
    /// Keep-alive connections, each with one request in flight
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) connections: u32,
    /// How long to drive; with --ceiling or --records, each of the two servers
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Bytes of each result, as JSON
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=65_536))]
    pub(crate) result_size: u32,
    /// Drive a bare hyper server in alternating slices too; the last line is then the ratio
    #[arg(long, conflicts_with = "records")]
    pub(crate) ceiling: bool,
    /// Create this many records first, measure their memory, and compare with empty stores in turns
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) records: Option<u64>,
    #[command(flatten)]
    pub(crate) broker: BrokerOptions,
}

/// `load steps`.
#[derive(Debug, Clone, Args)]
pub(crate) struct StepsOptions {
    /// Workers, each with a stream
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    pub(crate) workers: u32,
    /// Messages that each step produces
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub(crate) outputs: u32,
    /// How long the workers run, unless the input ends earlier
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Bytes of each value, of input and output
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(16..=8_000_000))]
    pub(crate) size: u32,
    /// Partitions of each topic
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) partitions: u32,
    /// Completes that a worker may have in flight, each on its own connection
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) in_flight: u32,
    /// Live leases a stream may hold [default: the broker's]
    #[arg(long)]
    pub(crate) prefetch: Option<u32>,
    /// Messages to produce first [default: more than can be completed in that time]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) messages: Option<u64>,
    /// Use messages without an idempotency key, so that no step's result is stored
    #[arg(long)]
    pub(crate) plain: bool,
    #[command(flatten)]
    pub(crate) broker: BrokerOptions,
}

/// `load keys`.
#[derive(Debug, Clone, Args)]
pub(crate) struct KeysOptions {
    /// Keys that the broker remembers
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keys: u64,
    /// Keep-alive connections, each with one request in flight
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) connections: u32,
    /// How long each turn drives each of the two brokers
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Turns, each beside a new broker; the median of their ratios is printed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) turns: u32,
    #[command(flatten)]
    pub(crate) broker: BrokerOptions,
}

/// A system that DriftQ is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Competitor {
    /// Redis Streams, the append-only file synced before every answer
    Redis,
    /// NATS JetStream, synced before the ack of a publish
    Nats,
    /// NATS JetStream with its default settings: its acks do not wait for the disk; only if it is named
    NatsUnsynced,
    /// PostgreSQL with SKIP LOCKED
    Postgres,
    /// beanstalkd, synced at every write
    Beanstalkd,
    /// RabbitMQ with a quorum queue
    Rabbitmq,
}

/// `load compare`.
#[derive(Debug, Clone, Args)]
pub(crate) struct CompareOptions {
    /// The systems to compare with, separated by commas [default: all but nats-unsynced]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) only: Vec<Competitor>,
    /// How long each kind of work drives a system in each turn
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Turns, in each of which every system is started and does all the work
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) turns: u32,
    /// Bytes of each value; every system allows so many by default
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(16..=65_535))]
    pub(crate) size: u32,
    /// Connections of the single produces, each with one request in flight
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    pub(crate) connections: u32,
    #[command(flatten)]
    pub(crate) broker: BrokerOptions,
}

/// Seconds.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    between(text, 0.01, 86_400.0)
}

/// Messages per second.
fn rate(text: &str) -> Result<f64, String> {
    between(text, 0.1, 1e9)
}

/// Bytes, with K, M or G for powers of 1024.
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'K')) => (&text[..at], 10),
        Some((at, 'M')) => (&text[..at], 20),
        Some((at, 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| "not a number, which may end with K, M or G".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

fn between(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (least..=most).contains(&number) { Ok(number) } else { Err(format!("not between {least} and {most}")) }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bytes_may_have_a_unit() {
        assert_eq!(bytes("16M"), Ok(16 << 20));
        assert_eq!(bytes("5"), Ok(5));
        for text in ["", "M", "1.5G", "-1", "16777216T", "99999999999G"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_rejected() {
        for text in ["nan", "inf", "-1", "0", "x", ""] {
            assert!(seconds(text).is_err(), "{text}");
            assert!(rate(text).is_err(), "{text}");
        }
        assert_eq!(seconds("0.5"), Ok(0.5));
    }
}
