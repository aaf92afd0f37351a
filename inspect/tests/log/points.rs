//! The state at any LSN and at any moment.

use std::collections::BTreeMap;
use std::time::Duration;

use driftq_core::command::Produce;
use driftq_core::log::MemoryStorage;
use driftq_core::record::Retention;
use driftq_core::types::{Millis, Timestamp};
use driftq_inspect::{At, Ending, GroupStanding, WalError};

use crate::harness::{Rig, START, keyed, topic, tried};

/// A message in every place there is, a second apart from each other.
fn busy() -> Rig<MemoryStorage> {
    let mut rig = Rig::new();
    rig.create("orders", 1, Retention::default());
    for name in ["billing", "mail"] {
        rig.create_group("orders", name);
    }
    rig.produce_as(tried("orders", 1));
    let dead = rig.take("orders", "billing", "w1");
    rig.pass(1_000);
    rig.nack("orders", "billing", "w1", &dead, "no");
    rig.produce("orders");
    let done = rig.take("orders", "billing", "w1");
    rig.pass(1_000);
    rig.ack("orders", "billing", "w1", &done);
    rig.produce_as(tried("orders", 9));
    let failed = rig.take("orders", "billing", "w1");
    rig.nack("orders", "billing", "w1", &failed, "later");
    let mut late = Produce::new(topic("orders"), "key", "late");
    late.delay = Some(Millis(600_000));
    rig.produce_as(late);
    rig.produce_as(keyed("orders", "k"));
    rig.take("orders", "billing", "w2");
    rig.produce("orders");
    rig
}

fn standing(group: &str, [ready, delayed, in_flight, done, dead]: [u64; 5]) -> GroupStanding {
    GroupStanding { group: group.to_owned(), paused: false, ready, delayed, in_flight, done, dead }
}

#[test]
fn every_message_is_counted_where_it_is() {
    let rig = busy();
    let overview = rig.overview(None).unwrap();
    let orders = overview.standing.topics.iter().find(|topic| topic.topic == "orders").unwrap();
    let expected = [standing("billing", [1, 2, 1, 1, 1]), standing("mail", [5, 1, 0, 0, 0])];
    assert_eq!(orders.groups, expected, "{overview}");
    assert_eq!((orders.next_offset, orders.kept), (6, 6));
    assert_eq!(overview.standing.identities, 1);
    assert_eq!((overview.base, overview.ending), (0, Ending::Killed));
    let happened = overview.rates.rows().fold([0; 6], |sum, row| {
        let h = row.happened;
        let counts = [h.produced, h.delivered, h.acked, h.nacked, h.expired, h.dead];
        std::array::from_fn(|index| sum[index] + counts[index])
    });
    assert_eq!(happened[..3], [6, 4, 1]);
    assert_eq!(happened[4..], [0, 1]);
    let counted: BTreeMap<_, _> = overview.kinds.iter().map(|line| (line.kind, line.records)).collect();
    assert_eq!((counted["produced"], counted["delivered"], counted["dead-lettered"]), (6, 4, 1));
    assert_eq!(counted.values().sum::<u64>(), overview.records);
}

#[test]
fn the_digest_at_every_lsn_is_the_one_the_broker_had_there() {
    let rig = busy();
    let told: BTreeMap<u64, String> = rig.digests.iter().cloned().collect();
    assert!(told.len() >= 15, "{}", told.len());
    for (lsn, digest) in &told {
        let overview = rig.overview(Some(At::Lsn(*lsn))).unwrap();
        assert_eq!((&overview.digest, overview.lsn), (digest, *lsn));
        assert!(overview.to_string().trim_end().ends_with(&format!("digest {digest} at LSN {lsn}")));
    }
    let distinct: std::collections::BTreeSet<_> = told.values().collect();
    assert!(distinct.len() >= 15, "another state has another digest");
    let end = rig.overview(None).unwrap();
    assert_eq!(Some(&end.digest), told.values().last());
}

#[test]
fn a_moment_between_two_records_has_the_state_of_the_earlier_one() {
    let rig = busy();
    let at = |ms: u64| rig.overview(Some(At::Time(Timestamp(START + ms)))).unwrap();
    let lsn_before = at(999).lsn;
    assert_eq!(at(0).digest, at(999).digest);
    assert_ne!(at(999).digest, at(1_000).digest);
    assert_eq!(rig.overview(Some(At::Lsn(lsn_before))).unwrap().digest, at(500).digest);
    assert!(at(500).record_lsn <= lsn_before);
    let end = rig.overview(None).unwrap();
    assert_eq!(at(3_600_000).digest, end.digest);
    // Later the backoff and the delay have passed, though nothing was recorded any more.
    let later = at(3_600_000);
    assert_eq!(later.standing.topics.iter().find(|t| t.topic == "orders").unwrap().groups[0].delayed, 0);
    let back = rig.overview(Some(At::BeforeEnd(Duration::from_millis(1_001)))).unwrap();
    assert_eq!(back.digest, at(999).digest);
}

#[test]
fn a_point_that_is_not_there_is_refused_with_what_there_is() {
    let rig = busy();
    let last = rig.overview(None).unwrap().last;
    let refused = rig.overview(Some(At::Lsn(last + 1))).expect_err("it is beyond the end");
    assert_eq!(
        refused.to_string(),
        format!("LSN {} is not there: what is left of the log reaches from LSN 0 to LSN {last}", last + 1)
    );
    let refused = rig.overview(Some(At::Time(Timestamp(START - 1)))).expect_err("it is before the beginning");
    assert_eq!(
        refused.to_string(),
        "2025-12-21T11:59:59.999Z is not there: what is left of the log reaches from 2025-12-21T12:00:00.000Z to \
         2025-12-21T12:00:02.000Z"
    );
    let life = rig.wal().life(&"orders/1".parse().unwrap(), None, Some(At::Lsn(1)));
    assert!(matches!(life, Err(WalError::NoSuchTopic { .. })), "{life:?}");
}

#[test]
fn a_life_can_be_told_as_far_as_a_point() {
    let rig = busy();
    let message = "orders/1".parse().unwrap();
    let at = Some(At::Time(Timestamp(START + 1_999)));
    let life = rig.wal().life(&message, None, at).unwrap();
    assert_eq!(life.deliveries.len(), 1);
    assert_eq!(life.deliveries[0].outcome, None, "the ack was to come");
    assert_eq!(rig.life("orders/1").deliveries[0].outcome.as_deref(), Some("acked"));
}

#[test]
fn records_are_listed_with_the_names_of_what_they_are_about() {
    let rig = busy();
    let list = |from, to| {
        let mut lines = Vec::new();
        rig.wal().records(from, to, |line| lines.push(line)).unwrap();
        lines
    };
    let all = list(None, None);
    assert_eq!(all.len() as u64, rig.overview(None).unwrap().records);
    assert!(all.windows(2).all(|pair| pair[0].lsn < pair[1].lsn));
    let acked = all.iter().find(|line| line.kind == "acked").unwrap();
    assert_eq!(acked.text, "orders/1 for group billing: acked by w1");
    let (from, to) = (all[3].lsn, all[5].lsn);
    let some = list(Some(from), Some(to));
    assert_eq!(some, all[3..=5]);
    assert_eq!(list(Some(from), Some(u64::MAX)), all[3..]);
}
