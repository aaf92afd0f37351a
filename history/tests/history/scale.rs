//! Histories as long as those of a long run.

use driftq_history::{Check, check, read_from};

use crate::builder::{History, item};

#[test]
fn history_of_two_hundred_thousand_lines_is_checked() {
    let mut history = History::with_groups(&[("t", "g"), ("t", "h")]);
    history.consume("w1", "g");
    history.consume("w2", "h");
    let messages = 25_000;
    for offset in 0..messages {
        history.produced(offset..offset + 1);
        for (index, client) in ["w1", "w2"].into_iter().enumerate() {
            let token = offset * 2 + index as u64 + 1;
            history.deliver(client, item(offset, token));
            history.ack(client, offset, token);
        }
    }
    let history = history.drained();
    assert!(history.entries.len() >= 200_000);
    let entries = read_from(history.text().as_bytes()).expect("a well-formed history");
    assert_eq!(entries, history.entries);
    let report = check(&entries);
    assert!(report.passed(), "{report}");
    assert_eq!((report.counts.messages, report.counts.acks), (messages, messages * 2));
    assert_eq!(report.tally(Check::Lost).looked_at, messages * 2);
    assert_eq!(report.tally(Check::InFlight).looked_at, messages * 2);
}

#[test]
fn message_with_ten_thousand_deliveries_is_checked() {
    let mut history = History::new();
    history.produced(0..1);
    history.consume("w1", "g");
    for attempt in 1..=10_000 {
        history.deliver("w1", item(0, attempt).attempt(attempt));
        history.settle("w1", "nack", driftq_history::Phase::Ok, (0, attempt), serde_json::json!({}));
    }
    history.deliver("w1", item(0, 10_001).attempt(10_001));
    history.ack("w1", 0, 10_001);
    let report = check(&history.drained().entries);
    assert!(report.passed(), "{report}");
}
