//! Measures how fast a log is read. Ignored by default: it asserts nothing.

use driftq_core::OpenOptions;

use std::time::Instant;

use driftq_core::command::{Ack, CreateTopic};
use driftq_core::command::{Claim, GroupLifetime, OnDisconnect, Produce, Subscribe, TokenClaim};
use driftq_core::types::{GroupStart, Retention, Timestamp};
use driftq_core::{Command, Output, PipelineConfig};
use driftq_files::{DataFolder, Prepare};
use driftq_inspect::LogReader;

use crate::harness::{START, group, owner, topic};

const RECORDS: u64 = 1_000_000;
const BATCH: u64 = 1_000;

/// A log of a million records: messages of 200 bytes, each delivered and acked.
fn make(path: &std::path::Path) {
    let mut disk = DataFolder::open(path).unwrap().storage().with_prepare(Prepare::Reserve);
    let config = PipelineConfig { snapshot_every_bytes: u64::MAX, ..PipelineConfig::default() };
    let log = Some(driftq_files::fresh_log_id().unwrap());
    let (mut broker, _) = OpenOptions::new().config(config).create(log).open(&mut disk, Timestamp(START)).unwrap();
    let mut now = START;
    let at = Timestamp;
    let retention = Retention::default();
    broker.handle(at(now), Command::CreateTopic(CreateTopic { name: topic("orders"), partitions: Some(4), retention }));
    let subscribe = Subscribe {
        topic: topic("orders"),
        group: group("billing"),
        owner: owner("w"),
        lease: None,
        prefetch: 1_000_000,
        deliveries_max: None,
        start: GroupStart::Earliest,
        on_disconnect: OnDisconnect::Keep,
        group_lifetime: GroupLifetime::Durable,
    };
    broker.handle(at(now), Command::Subscribe(subscribe));
    let mut produced = 0;
    while produced < RECORDS / 3 {
        for nth in produced..produced + BATCH {
            let produce = Produce::new(topic("orders"), format!("key-{nth}"), vec![b'x'; 200]);
            broker.handle(at(now), Command::Produce(Box::new(produce)));
        }
        produced += BATCH;
        now += 7;
        broker.handle_timeout(at(now));
        broker.drive(at(now), &mut disk);
        let mut claims = Vec::new();
        while let Some(output) = broker.poll_output() {
            if let Output::Deliver { delivery, .. } = output {
                claims.push(Claim {
                    topic: topic("orders"),
                    group: group("billing"),
                    partition: delivery.partition,
                    offset: delivery.offset,
                    owner: owner("w"),
                    token: TokenClaim::Shown(delivery.token),
                });
            }
        }
        for claim in claims {
            broker.handle(at(now), Command::Ack(Ack(claim)));
        }
        broker.drive(at(now), &mut disk);
    }
}

#[test]
#[ignore = "measures"]
fn measure_million_records() {
    let temporary = tempfile::tempdir().unwrap();
    // A folder that the caller names is kept, to be read with `driftqd wal inspect`.
    let path = std::env::var_os("DRIFTQ_WAL_DIR").map_or(temporary.path().to_owned(), Into::into);
    make(&path);
    let mut reader = LogReader::open(&path).unwrap();
    for _ in 0..3 {
        let started = Instant::now();
        let overview = reader.overview(None).unwrap();
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "overview: {} records in {seconds:.2} s, {:.0} records/s",
            overview.records,
            overview.records as f64 / seconds
        );
        let started = Instant::now();
        let history = reader.trace_message(&"orders/300000".parse().unwrap(), None, None).unwrap();
        println!("history: {} events in {:.2} s", history.events.len(), started.elapsed().as_secs_f64());
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default());
}
