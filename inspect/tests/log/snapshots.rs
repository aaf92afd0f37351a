//! Logs whose beginning was replaced by a snapshot, and logs that are damaged.

use driftq_core::command::Produce;
use driftq_core::log::{FileId, MemoryStorage, Storage};
use driftq_core::pipeline::inspect;
use driftq_core::types::{Retention, Timestamp};
use driftq_inspect::{InspectError, LogEnding, LogPoint, LogReader};

use crate::harness::{START, TestBroker, assert_event, deliveries, keyed, kinds, topic};

/// Message 0 is acked, 1 failed once and is in flight again, 2 was never delivered. The snapshots after that have
/// replaced the records of all three.
fn shortened() -> TestBroker<MemoryStorage> {
    let mut broker = TestBroker::new();
    broker.create_topic("orders", 1, Retention::NOTHING);
    broker.create_topic("bulk", 1, Retention::default());
    broker.create_group("orders", "billing");
    // The segments of messages stay. The first has none, so that it goes.
    broker.crash();
    for key in ["k0", "k1", "k2"] {
        broker.produce_with(keyed("orders", key));
    }
    let first = broker.receive("orders", "billing", "w1");
    broker.ack("orders", "billing", "w1", &first);
    let failed = broker.receive("orders", "billing", "w1");
    broker.nack("orders", "billing", "w1", &failed, "no stock");
    broker.receive("orders", "billing", "w2");
    for _ in 0..3 {
        broker.advance(10);
        // More than a segment, so that the one before can be removed.
        for _ in 0..5 {
            broker.produce_with(Produce::new(topic("bulk"), "", "x".repeat(4_000)));
        }
        broker.snapshot();
    }
    assert!(broker.overview(None).unwrap().base > 0, "a snapshot has replaced the beginning");
    broker
}

#[test]
fn message_older_than_the_log_is_described_from_the_snapshot() {
    let mut broker = shortened();
    let base = broker.overview(None).unwrap().base;
    let removed = broker.history("orders/0");
    assert_eq!(kinds(&removed), ["snapshot"]);
    assert_event(&removed, "snapshot", &["removed before this snapshot", "holds nothing else about it"]);
    assert_eq!((removed.base, removed.events[0].lsn), (base, base));
    assert_eq!(removed.final_state, ["final state: removed"]);

    let leased = broker.history("orders/1");
    assert_event(&leased, "snapshot", &["in the snapshot: produced at", "identity \"k1\"", "2025-12-21T12:00:00.000Z"]);
    assert_event(&leased, "snapshot", &["in flight with w2", "2 attempts, 1 failed, last error \"no stock\""]);
    assert_eq!(deliveries(&leased), [("billing", 2, "w2", None)], "{leased}");
    assert_eq!(leased.deliveries[0].at_ms, None);
    assert_event(&broker.history("orders/2"), "snapshot", &["ready, never delivered"]);
    broker.advance(5_000);
    let leased = broker.history("orders/1");
    assert_eq!(deliveries(&leased)[0], ("billing", 2, "w2", Some("lease expired")), "{leased}");
}

#[test]
fn point_before_snapshot_is_refused_and_later_digests_equal_those_of_the_broker() {
    let mut broker = shortened();
    broker.advance(5_000);
    let overview = broker.overview(None).unwrap();
    let (base, last) = (overview.base, overview.last);
    let refused = broker.overview(Some(LogPoint::Lsn(base - 1))).expect_err("before the snapshot");
    assert_eq!(
        refused.to_string(),
        format!(
            "LSN {} is not in the log, which reaches from LSN {base} to LSN {last}; a snapshot has replaced the records before",
            base - 1
        )
    );
    let refused = broker.overview(Some(LogPoint::Time(Timestamp(START)))).expect_err("before the snapshot");
    assert!(matches!(refused, InspectError::NoSuchTime { .. }), "{refused}");
    let digests: Vec<_> = broker.digests.iter().filter(|(lsn, _)| *lsn >= base).collect();
    assert!(digests.len() > 5);
    for (lsn, digest) in digests {
        assert_eq!(&broker.overview(Some(LogPoint::Lsn(*lsn))).unwrap().digest, digest, "LSN {lsn}");
    }
    let files = &overview.files;
    assert!(
        files.iter().any(|file| file.note == "replay starts here" && file.lsns == Some((base, base))),
        "{overview}"
    );
    let with_times = files.iter().filter(|file| file.times_ms.is_some()).count();
    assert!(with_times >= 1, "{overview}");
}

#[test]
fn damaged_log_is_refused_with_the_error_of_broker_startup() {
    let mut broker = shortened();
    for _ in 0..3 {
        broker.produce("orders");
    }
    let mut disk = broker.disk.clone();
    // Flips a bit in a synced record after the newest snapshot.
    let segments = disk.list().unwrap().into_iter().map(|info| info.file);
    let segments = segments
        .filter(|file| matches!(file, FileId::Segment(_)))
        .flat_map(|file| [4_100, 4_140, 4_200, 8_500, 12_500].map(|byte| (file, byte)));
    let damaged = segments.into_iter().find_map(|(file, byte)| {
        let mut disk = broker.disk.clone();
        disk.bytes_mut(file)?.flip(8 * byte);
        inspect(&mut disk.clone(), None).err().map(|error| (disk, error))
    });
    let (disk, error) = damaged.expect("startup refuses some damage");
    for at in [None, Some(LogPoint::Lsn(1))] {
        let refused = LogReader::new(disk.clone()).overview(at).expect_err("damaged");
        assert_eq!(refused.to_string(), error.to_string());
        assert!(refused.to_string().contains("driftqd wal verify"), "{refused}");
    }
}

#[test]
fn log_shorter_than_newest_snapshot_is_refused_even_if_an_older_snapshot_fits() {
    let broker = shortened();
    let mut disk = broker.disk.clone();
    let snapshots: Vec<_> = disk
        .list()
        .unwrap()
        .into_iter()
        .map(|info| info.file)
        .filter(|file| matches!(file, FileId::Snapshot(_)))
        .collect();
    assert_eq!(snapshots.len(), 2, "{snapshots:?}");
    // Only the newest snapshot proves that the removed records were synced.
    let segments: Vec<_> = disk
        .list()
        .unwrap()
        .into_iter()
        .map(|info| info.file)
        .filter(|file| matches!(file, FileId::Segment(_)))
        .collect();
    let mut refused = 0;
    for file in segments.iter().rev() {
        disk.take_file(*file);
        if let Err(error) = inspect(&mut disk.clone(), None) {
            let refusal = LogReader::new(disk.clone()).overview(None).expect_err("startup refuses");
            assert_eq!(refusal.to_string(), error.to_string());
            refused += 1;
        }
    }
    assert!(refused > 0, "startup refused nothing");
}

#[test]
fn damage_before_newest_snapshot_moves_the_start_of_the_replay() {
    let broker = shortened();
    let whole = broker.overview(None).unwrap();
    let mut disk = broker.disk.clone();
    let oldest = whole.files.iter().find(|file| file.note == "replay starts here").expect("a snapshot");
    let oldest: FileId = oldest.name.parse().expect("a file of the log");
    disk.bytes_mut(oldest).expect("the snapshot exists").flip(8 * 5_000);
    let overview = LogReader::new(disk).overview(None).unwrap();
    assert!(overview.base > whole.base, "{overview}");
    assert_eq!((overview.digest, overview.last), (whole.digest, whole.last));
}

#[test]
fn ending_is_clean_killed_or_torn() {
    let mut broker = TestBroker::new();
    broker.create_topic("orders", 1, Retention::default());
    broker.produce("orders");
    assert_eq!(broker.overview(None).unwrap().ending, LogEnding::Killed);
    let whole = broker.overview(None).unwrap();

    // Half a frame after the last one.
    let mut torn = broker.disk.clone();
    let segment = FileId::Segment(1);
    let end = torn.bytes(segment).unwrap().iter().rposition(|byte| *byte != 0).unwrap();
    torn.bytes_mut(segment).unwrap().overwrite(end + 8, &[0xAB; 20]);
    let overview = LogReader::new(torn).overview(None).unwrap();
    assert_eq!(overview.ending, LogEnding::Torn);
    assert!(overview.notices.iter().any(|notice| notice.contains("torn tail")), "{overview}");
    assert_eq!(overview.digest, whole.digest);

    broker.pipeline.close();
    broker.settle();
    assert_eq!(broker.overview(None).unwrap().ending, LogEnding::Clean);
}
