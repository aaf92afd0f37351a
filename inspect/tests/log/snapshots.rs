//! Logs whose beginning was replaced by a snapshot, and logs that are damaged.

use driftq_core::command::Produce;
use driftq_core::faults::NoFaults;
use driftq_core::log::{FileId, MemoryStorage, Storage};
use driftq_core::pipeline::inspect;
use driftq_core::record::Retention;
use driftq_core::types::Timestamp;
use driftq_inspect::{At, Ending, Wal, WalError};

use crate::harness::{Rig, START, deliveries, keyed, kinds, says, topic};

/// Messages 0 (done), 1 (failed once and in flight again), 2 (never delivered), then snapshots enough for everything before them to go.
fn shortened() -> Rig<MemoryStorage> {
    let mut rig = Rig::new();
    rig.create("orders", 1, Retention::default());
    rig.create("bulk", 1, Retention::default());
    rig.create_group("orders", "billing");
    for key in ["k0", "k1", "k2"] {
        rig.produce_as(keyed("orders", key));
    }
    let first = rig.take("orders", "billing", "w1");
    rig.ack("orders", "billing", "w1", &first);
    let failed = rig.take("orders", "billing", "w1");
    rig.nack("orders", "billing", "w1", &failed, "no stock");
    rig.take("orders", "billing", "w2");
    for _ in 0..3 {
        rig.pass(10);
        // More than a segment, so that the one before can go.
        for _ in 0..5 {
            rig.produce_as(Produce::new(topic("bulk"), "", "x".repeat(4_000)));
        }
        rig.snapshot();
    }
    assert!(rig.overview(None).unwrap().base > 0, "the beginning is gone");
    rig
}

#[test]
fn of_a_message_that_is_older_than_the_log_the_snapshot_tells_what_it_knows() {
    let mut rig = shortened();
    let base = rig.overview(None).unwrap().base;
    let gone = rig.life("orders/0");
    assert_eq!(kinds(&gone), ["snapshot"]);
    says(&gone, "snapshot", &["gone before this snapshot", "the log tells no more"]);
    assert_eq!((gone.base, gone.events[0].lsn), (base, base));
    assert_eq!(gone.stands, ["in the end it is gone"]);

    let held = rig.life("orders/1");
    says(&held, "snapshot", &["known from a snapshot alone", "identity \"k1\"", "2025-12-21T12:00:00.000Z"]);
    says(&held, "snapshot", &["in flight, with w2", "2 attempts, 1 failed, last error \"no stock\""]);
    assert_eq!(deliveries(&held), [("billing", 2, "w2", None)], "{held}");
    assert_eq!(held.deliveries[0].at_ms, None);
    says(&rig.life("orders/2"), "snapshot", &["ready, never delivered"]);
    rig.pass(5_000);
    let held = rig.life("orders/1");
    assert_eq!(deliveries(&held)[0], ("billing", 2, "w2", Some("lease ended")), "{held}");
}

#[test]
fn points_before_the_snapshot_are_refused_and_digests_after_it_are_the_brokers() {
    let mut rig = shortened();
    rig.pass(5_000);
    let overview = rig.overview(None).unwrap();
    let (base, last) = (overview.base, overview.last);
    let refused = rig.overview(Some(At::Lsn(base - 1))).expect_err("it is gone");
    assert_eq!(
        refused.to_string(),
        format!(
            "LSN {} is not there: what is left of the log reaches from LSN {base} to LSN {last}; snapshots have replaced what \
             came before",
            base - 1
        )
    );
    let refused = rig.overview(Some(At::Time(Timestamp(START)))).expect_err("it is gone");
    assert!(matches!(refused, WalError::NoSuchTime { .. }), "{refused}");
    let told: Vec<_> = rig.digests.iter().filter(|(lsn, _)| *lsn >= base).collect();
    assert!(told.len() > 5);
    for (lsn, digest) in told {
        assert_eq!(&rig.overview(Some(At::Lsn(*lsn))).unwrap().digest, digest, "LSN {lsn}");
    }
    let files = &overview.files;
    assert!(
        files.iter().any(|file| file.note == "what is told begins here" && file.lsns == Some((base, base))),
        "{overview}"
    );
    let with_moments = files.iter().filter(|file| file.moments_ms.is_some()).count();
    assert!(with_moments >= 1, "{overview}");
}

#[test]
fn a_damaged_log_is_refused_in_the_words_of_a_start() {
    let mut rig = shortened();
    for _ in 0..3 {
        rig.produce("orders");
    }
    let mut disk = rig.disk.clone();
    // A synced record in the newest stretch of the log loses a bit.
    let segments = disk.list().unwrap().into_iter().map(|info| info.file);
    let segments = segments
        .filter(|file| matches!(file, FileId::Segment(_)))
        .flat_map(|file| [4_100, 4_140, 4_200, 8_500, 12_500].map(|byte| (file, byte)));
    let damaged = segments.into_iter().find_map(|(file, byte)| {
        let mut disk = rig.disk.clone();
        disk.bytes_mut(file)?.flip(8 * byte);
        inspect(&mut disk.clone(), None, &NoFaults).err().map(|error| (disk, error))
    });
    let (disk, error) = damaged.expect("some damage is refused by a start");
    for at in [None, Some(At::Lsn(1))] {
        let refused = Wal::over(disk.clone()).overview(at).expect_err("it is damaged");
        assert_eq!(refused.to_string(), error.to_string());
        assert!(refused.to_string().contains("driftqd wal verify"), "{refused}");
    }
}

#[test]
fn a_log_that_is_shorter_than_its_newest_snapshot_is_refused_though_an_older_one_fits() {
    let rig = shortened();
    let mut disk = rig.disk.clone();
    let snapshots: Vec<_> = disk
        .list()
        .unwrap()
        .into_iter()
        .map(|info| info.file)
        .filter(|file| matches!(file, FileId::Snapshot(_)))
        .collect();
    assert_eq!(snapshots.len(), 2, "{snapshots:?}");
    // The newest snapshot is the only witness of what is cut off here.
    let segments: Vec<_> = disk
        .list()
        .unwrap()
        .into_iter()
        .map(|info| info.file)
        .filter(|file| matches!(file, FileId::Segment(_)))
        .collect();
    let mut refused = 0;
    for file in segments.iter().rev() {
        disk.uproot(*file);
        if let Err(error) = inspect(&mut disk.clone(), None, &NoFaults) {
            let told = Wal::over(disk.clone()).overview(None).expect_err("a start would refuse");
            assert_eq!(told.to_string(), error.to_string());
            refused += 1;
        }
    }
    assert!(refused > 0, "no start was refused");
}

#[test]
fn damage_before_the_newest_snapshot_only_moves_where_the_log_begins() {
    let rig = shortened();
    let sound = rig.overview(None).unwrap();
    let mut disk = rig.disk.clone();
    disk.bytes_mut(FileId::Snapshot(driftq_core::types::Lsn(sound.base))).expect("it is there").flip(8 * 5_000);
    let overview = Wal::over(disk).overview(None).unwrap();
    assert!(overview.base > sound.base, "{overview}");
    assert_eq!((overview.digest, overview.last), (sound.digest, sound.last));
}

#[test]
fn how_a_log_ends_is_told() {
    let mut rig = Rig::new();
    rig.create("orders", 1, Retention::default());
    rig.produce("orders");
    assert_eq!(rig.overview(None).unwrap().ending, Ending::Killed);
    let sound = rig.overview(None).unwrap();

    // Half a frame behind the last one.
    let mut torn = rig.disk.clone();
    let segment = FileId::Segment(1);
    let end = torn.bytes(segment).unwrap().iter().rposition(|byte| *byte != 0).unwrap();
    torn.bytes_mut(segment).unwrap().overwrite(end + 8, &[0xAB; 20]);
    let overview = Wal::over(torn).overview(None).unwrap();
    assert_eq!(overview.ending, Ending::Torn);
    assert!(overview.notices.iter().any(|notice| notice.contains("torn tail")), "{overview}");
    assert_eq!(overview.digest, sound.digest);

    rig.broker.close();
    rig.work();
    assert_eq!(rig.overview(None).unwrap().ending, Ending::Clean);
}
