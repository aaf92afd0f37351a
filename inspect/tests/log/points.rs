//! The state at any LSN and at any time.

use std::collections::BTreeMap;
use std::time::Duration;

use driftq_core::command::Produce;
use driftq_core::log::MemoryStorage;
use driftq_core::types::{Millis, Retention, Timestamp};
use driftq_inspect::{GroupSummary, InspectError, LogEnding, LogPoint};

use crate::harness::{START, TestBroker, keyed, limited, topic};

/// A log with a message in every delivery state, over two seconds.
fn busy() -> TestBroker<MemoryStorage> {
    let mut broker = TestBroker::new();
    broker.create_topic("orders", 1, Retention::default());
    for name in ["billing", "mail"] {
        broker.create_group("orders", name);
    }
    broker.produce_with(limited("orders", 1));
    let dead = broker.receive("orders", "billing", "w1");
    broker.advance(1_000);
    broker.nack("orders", "billing", "w1", &dead, "no");
    broker.produce("orders");
    let acked = broker.receive("orders", "billing", "w1");
    broker.advance(1_000);
    broker.ack("orders", "billing", "w1", &acked);
    broker.produce_with(limited("orders", 9));
    let failed = broker.receive("orders", "billing", "w1");
    broker.nack("orders", "billing", "w1", &failed, "later");
    let mut late = Produce::new(topic("orders"), "key", "late");
    late.delay = Some(Millis(600_000));
    broker.produce_with(late);
    broker.produce_with(keyed("orders", "k"));
    broker.receive("orders", "billing", "w2");
    broker.produce("orders");
    broker
}

fn group_summary(group: &str, [ready, delayed, in_flight, acked, dead]: [u64; 5]) -> GroupSummary {
    GroupSummary { group: group.to_owned(), paused: false, ready, delayed, in_flight, acked, dead }
}

#[test]
fn every_message_is_counted_by_its_state() {
    let broker = busy();
    let overview = broker.overview(None).unwrap();
    let orders = overview.summary.topics.iter().find(|topic| topic.topic == "orders").unwrap();
    let expected = [group_summary("billing", [1, 2, 1, 1, 1]), group_summary("mail", [5, 1, 0, 0, 0])];
    assert_eq!(orders.groups, expected, "{overview}");
    assert_eq!((orders.next_offset, orders.kept), (6, 6));
    assert_eq!(overview.summary.identities, 1);
    assert_eq!((overview.base, overview.ending), (0, LogEnding::Killed));
    let counts = overview.rates.intervals().fold([0; 6], |sum, interval| {
        let c = interval.counts;
        let counts = [c.produced, c.delivered, c.acked, c.nacked, c.expired, c.dead];
        std::array::from_fn(|index| sum[index] + counts[index])
    });
    assert_eq!(counts[..3], [6, 4, 1]);
    assert_eq!(counts[4..], [0, 1]);
    let kinds: BTreeMap<_, _> = overview.kinds.iter().map(|count| (count.kind, count.records)).collect();
    assert_eq!((kinds["produced"], kinds["delivered"], kinds["dead-lettered"]), (6, 4, 1));
    assert_eq!(kinds.values().sum::<u64>(), overview.records);
}

#[test]
fn digest_at_every_lsn_equals_that_of_the_broker() {
    let broker = busy();
    let digests: BTreeMap<u64, String> = broker.digests.iter().cloned().collect();
    assert!(digests.len() >= 15, "{}", digests.len());
    for (lsn, digest) in &digests {
        let overview = broker.overview(Some(LogPoint::Lsn(*lsn))).unwrap();
        assert_eq!((&overview.digest, overview.lsn), (digest, *lsn));
        assert!(overview.to_string().trim_end().ends_with(&format!("digest {digest} at LSN {lsn}")));
    }
    let distinct: std::collections::BTreeSet<_> = digests.values().collect();
    assert!(distinct.len() >= 15, "different states have different digests");
    let end = broker.overview(None).unwrap();
    assert_eq!(Some(&end.digest), digests.values().last());
}

#[test]
fn time_between_two_records_has_state_of_the_earlier() {
    let broker = busy();
    let at = |ms: u64| broker.overview(Some(LogPoint::Time(Timestamp(START + ms)))).unwrap();
    let lsn_before = at(999).lsn;
    assert_eq!(at(0).digest, at(999).digest);
    assert_ne!(at(999).digest, at(1_000).digest);
    assert_eq!(broker.overview(Some(LogPoint::Lsn(lsn_before))).unwrap().digest, at(500).digest);
    assert!(at(500).record_lsn <= lsn_before);
    let end = broker.overview(None).unwrap();
    assert_eq!(at(3_600_000).digest, end.digest);
    // Backoff and delay pass without a record.
    let later = at(3_600_000);
    assert_eq!(later.summary.topics.iter().find(|t| t.topic == "orders").unwrap().groups[0].delayed, 0);
    let before_end = broker.overview(Some(LogPoint::BeforeEnd(Duration::from_millis(1_001)))).unwrap();
    assert_eq!(before_end.digest, at(999).digest);
}

#[test]
fn point_outside_the_log_is_refused_with_its_range() {
    let broker = busy();
    let last = broker.overview(None).unwrap().last;
    let refused = broker.overview(Some(LogPoint::Lsn(last + 1))).expect_err("beyond the end");
    assert_eq!(
        refused.to_string(),
        format!("LSN {} is not in the log, which reaches from LSN 0 to LSN {last}", last + 1)
    );
    let refused = broker.overview(Some(LogPoint::Time(Timestamp(START - 1)))).expect_err("before the beginning");
    assert_eq!(
        refused.to_string(),
        "2025-12-21T11:59:59.999Z is not in the log, which reaches from 2025-12-21T12:00:00.000Z to \
         2025-12-21T12:00:02.000Z"
    );
    let history = broker.reader().trace_message(&"orders/1".parse().unwrap(), None, Some(LogPoint::Lsn(1)));
    assert!(matches!(history, Err(InspectError::NoSuchTopic { .. })), "{history:?}");
}

#[test]
fn message_history_ends_at_a_point() {
    let broker = busy();
    let message = "orders/1".parse().unwrap();
    let at = Some(LogPoint::Time(Timestamp(START + 1_999)));
    let history = broker.reader().trace_message(&message, None, at).unwrap();
    assert_eq!(history.deliveries.len(), 1);
    assert_eq!(history.deliveries[0].end, None, "the ack comes later");
    assert_eq!(broker.history("orders/1").deliveries[0].end.as_deref(), Some("acked"));
}

#[test]
fn records_are_listed_with_resolved_names() {
    let broker = busy();
    let list = |from, to| {
        let mut lines = Vec::new();
        broker.reader().records(from, to, |line| lines.push(line)).unwrap();
        lines
    };
    let all = list(None, None);
    assert_eq!(all.len() as u64, broker.overview(None).unwrap().records);
    assert!(all.windows(2).all(|pair| pair[0].lsn < pair[1].lsn));
    let acked = all.iter().find(|line| line.kind == "acked").unwrap();
    assert_eq!(acked.text, "orders/1 for group billing: acked by w1");
    let (from, to) = (all[3].lsn, all[5].lsn);
    let some = list(Some(from), Some(to));
    assert_eq!(some, all[3..=5]);
    assert_eq!(list(Some(from), Some(u64::MAX)), all[3..]);
}
