//! The timeline of a data folder.
#![allow(clippy::unwrap_used)]

// The logs are made by the same broker as those of the log reader's own tests.
#[path = "../../inspect/tests/log/harness.rs"]
#[allow(dead_code)]
mod harness;

use std::path::Path;
use std::process::Command;

use driftq_core::types::Retention;
use driftq_files::DataFolder;
use driftq_sim::view::timeline::{Glyph, LeaseEnd, TrackKind};
use driftq_sim::view::{RecordFilter, TIMELINE_RECORDS_MAX, timeline_of_log};
use serde_json::Value;

use self::harness::{TestBroker, limited, topic};

/// Writes the log of a broker that was killed while one message was in flight.
pub(super) fn small_data_folder(dir: &Path) -> TestBroker<driftq_files::FileStorage> {
    let mut broker = TestBroker::on(DataFolder::open(dir).unwrap().storage());
    broker.create_topic("orders", 1, Retention::default());
    broker.create_group("orders", "billing");
    broker.produce_with(limited("orders", 9));
    broker.receive("orders", "billing", "w1");
    broker
}

#[test]
fn timeline_assigns_leases_and_records_to_tracks() {
    let mut broker = TestBroker::new();
    broker.create_topic("orders", 1, Retention::default());
    broker.create_group("orders", "billing");
    broker.produce_with(limited("orders", 9));
    broker.receive("orders", "billing", "w1");
    broker.advance(2_000);
    broker.advance(20_000);
    let second = broker.receive("orders", "billing", "w2");
    broker.nack("orders", "billing", "w2", &second, "no");
    broker.advance(20_000);
    broker.receive("orders", "billing", "w1");
    broker.crash();

    let timeline = timeline_of_log(&mut broker.reader(), "a log", &RecordFilter::default()).unwrap();
    let tracks: Vec<_> = timeline.tracks.iter().map(|track| (track.kind, track.name.as_str())).collect();
    let expected = [
        (TrackKind::Producers, "producers"),
        (TrackKind::Broker, "broker"),
        (TrackKind::Worker, "w1"),
        (TrackKind::Worker, "w2"),
    ];
    assert_eq!(tracks, expected);
    let leases: Vec<_> = timeline.leases.iter().map(|lease| (lease.track, lease.attempt, lease.end)).collect();
    assert_eq!(leases, [(2, 1, LeaseEnd::Expired), (3, 2, LeaseEnd::Nacked), (2, 3, LeaseEnd::Open)]);
    for lease in &timeline.leases {
        let from = &timeline.steps[lease.from];
        assert_eq!((from.glyph, from.track, lease.message.as_str()), (Glyph::Delivery, lease.track, "orders/0"));
        assert_eq!(lease.until_ms, from.at_ms + 2_000);
        assert!(lease.to.is_none_or(|to| to > lease.from && to < timeline.steps.len()));
    }
    let expired = &timeline.steps[timeline.leases[0].to.unwrap()];
    assert_eq!((expired.glyph, expired.track, &expired.also[..]), (Glyph::Time, 1, &[2][..]));
    assert!(expired.diff[0].starts_with("orders/0 for group billing: in flight with w1"), "{:?}", expired.diff);
    assert_eq!(timeline.steps.iter().filter(|step| step.glyph == Glyph::Boot).count(), 2);
    let overview = broker.overview(None).unwrap();
    assert_eq!(timeline.steps.len() as u64, overview.records);
    let digest = format!("{} after LSN {}", overview.digest, overview.lsn);
    assert!(timeline.facts.contains(&("digest".to_owned(), digest)));
}

#[test]
fn long_log_is_limited_to_last_records_or_to_the_filter() {
    let mut broker = TestBroker::new();
    broker.create_topic("orders", 1, Retention::default());
    broker.create_topic("other", 1, Retention::default());
    broker.create_group("orders", "billing");
    broker.produce("orders");
    for _ in 0..TIMELINE_RECORDS_MAX * 2 / 3 {
        let delivery = broker.receive("orders", "billing", "w1");
        broker.produce("orders");
        broker.ack("orders", "billing", "w1", &delivery);
    }
    broker.produce("other");
    let timeline_of = |filter: &RecordFilter| timeline_of_log(&mut broker.reader(), "a log", filter).unwrap();
    let timeline = timeline_of(&RecordFilter::default());
    let overview = broker.overview(None).unwrap();
    assert_eq!(timeline.steps.len(), TIMELINE_RECORDS_MAX);
    assert_eq!((timeline.steps[0].at_ms, timeline.steps[TIMELINE_RECORDS_MAX - 1].number), (0, overview.record_lsn));
    let omitted =
        timeline.facts.iter().find(|(name, _)| name == "records omitted").map(|(_, count)| count.replace(',', ""));
    assert_eq!(omitted, Some((overview.records - TIMELINE_RECORDS_MAX as u64).to_string()));
    for lease in &timeline.leases {
        assert_eq!(timeline.steps[lease.from].glyph, Glyph::Delivery);
        assert!(lease.to.is_some_and(|to| timeline.steps[to].glyph == Glyph::Ack), "{lease:?}");
        assert!(timeline.steps[lease.from].messages.contains(&lease.message));
    }
    assert!(timeline.leases.len() > TIMELINE_RECORDS_MAX / 4);

    let timeline = timeline_of(&RecordFilter { from: Some(3), ..RecordFilter::default() });
    assert_eq!((timeline.steps.len(), timeline.steps[0].number), (TIMELINE_RECORDS_MAX, 3));
    let timeline = timeline_of(&RecordFilter { from: Some(3), to: Some(9), ..RecordFilter::default() });
    assert_eq!(timeline.steps.last().unwrap().number, 9);
    let timeline = timeline_of(&RecordFilter { message: Some("orders/7".parse().unwrap()), ..RecordFilter::default() });
    let labels: Vec<_> = timeline.steps.iter().map(|step| step.label.as_str()).collect();
    assert_eq!(labels, ["booted", "produced orders/7", "delivered orders/7", "acked orders/7"]);
    let timeline = timeline_of(&RecordFilter { topic: Some(topic("other")), ..RecordFilter::default() });
    let labels: Vec<_> = timeline.steps.iter().map(|step| step.label.as_str()).collect();
    assert_eq!(labels, ["booted", "topic created", "produced other/0"]);
}

/// Runs `driftq-sim view` and returns what it printed and the timeline in the page.
fn view(dir: &Path, page: &Path, args: &[&str]) -> (String, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_driftq-sim"));
    let output = command.arg("view").arg(dir).arg("--out").arg(page).args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let html = std::fs::read_to_string(page).unwrap();
    let (_, json) = html.split_once("application/json").and_then(|(_, rest)| rest.split_once('>')).unwrap();
    let json = serde_json::from_str(json.split_once("</script>").unwrap().0).unwrap();
    (String::from_utf8(output.stdout).unwrap(), json)
}

#[test]
fn view_of_data_folder_shows_log_range_and_single_message() {
    let (folder, pages) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut broker = TestBroker::on(DataFolder::open(folder.path()).unwrap().storage());
    broker.create_topic("orders", 2, Retention::default());
    broker.create_group("orders", "billing");
    broker.produce("orders");
    broker.receive("orders", "billing", "w1");
    broker.advance(2_000);
    let second = broker.receive("orders", "billing", "w2");
    broker.ack("orders", "billing", "w2", &second);
    drop(broker);

    let page = pages.path().join("new/folder/page.html");
    let (out, all) = view(folder.path(), &page, &[]);
    let records = all["steps"].as_array().unwrap().len();
    assert!(out.starts_with(&format!("{records} records\nwritten to ")), "{out}");
    assert_eq!((&all["unit"], all["leases"].as_array().unwrap().len()), (&Value::from("record"), 2));
    let (_, range) = view(folder.path(), &page, &["--from", "3", "--to", "4"]);
    assert_eq!(range["steps"].as_array().unwrap().len(), 2);
    let (_, message) = view(folder.path(), &page, &["--message", "orders/0"]);
    assert_eq!(message["title"], Value::from("orders/0"));
    assert!(message["steps"].as_array().unwrap().len() < records);
}

#[test]
fn record_selection_without_data_folder_is_refused() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_driftq-sim"));
    let output = command.args(["view", "3", "--from", "3"]).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && err.contains("3 is not a data folder"), "{err}");
}
