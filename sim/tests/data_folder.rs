//! The timeline of a data folder.
#![allow(clippy::unwrap_used)]

// The logs are made by the same broker as those of the log reader's own tests.
#[path = "../../inspect/tests/log/harness.rs"]
#[allow(dead_code)]
mod harness;

use std::path::Path;
use std::process::Command;

use driftq_core::record::Retention;
use driftq_files::DataFolder;
use driftq_sim::view::story::{Glyph, LaneKind, LeaseEnd};
use driftq_sim::view::{MOMENTS_MAX, Pick, story_of_log};
use serde_json::Value;

use crate::harness::{Rig, topic, tried};

#[test]
fn leases_and_moments_are_told_by_who_held_what() {
    let mut rig = Rig::new();
    rig.create("orders", 1, Retention::default());
    rig.create_group("orders", "billing");
    rig.produce_as(tried("orders", 9));
    rig.take("orders", "billing", "w1");
    rig.pass(2_000);
    rig.pass(20_000);
    let second = rig.take("orders", "billing", "w2");
    rig.nack("orders", "billing", "w2", &second, "no");
    rig.pass(20_000);
    rig.take("orders", "billing", "w1");
    rig.crash();

    let story = story_of_log(&mut rig.wal(), "a log", &Pick::default()).unwrap();
    let lanes: Vec<_> = story.lanes.iter().map(|lane| (lane.kind, lane.name.as_str())).collect();
    let expected = [
        (LaneKind::Producers, "producers"),
        (LaneKind::Broker, "broker"),
        (LaneKind::Worker, "w1"),
        (LaneKind::Worker, "w2"),
    ];
    assert_eq!(lanes, expected);
    let leases: Vec<_> = story.leases.iter().map(|lease| (lease.lane, lease.attempt, lease.end)).collect();
    assert_eq!(leases, [(2, 1, LeaseEnd::Expired), (3, 2, LeaseEnd::Nacked), (2, 3, LeaseEnd::Open)]);
    for lease in &story.leases {
        let from = &story.moments[lease.from];
        assert_eq!((from.glyph, from.lane, lease.message.as_str()), (Glyph::Delivery, lease.lane, "orders/0"));
        assert_eq!(lease.until_ms, from.at_ms + 2_000);
        assert!(lease.to.is_none_or(|to| to > lease.from && to < story.moments.len()));
    }
    let expired = &story.moments[story.leases[0].to.unwrap()];
    assert_eq!((expired.glyph, expired.lane, &expired.also[..]), (Glyph::Time, 1, &[2][..]));
    assert!(expired.diff[0].starts_with("orders/0 for group billing: in flight, with w1"), "{:?}", expired.diff);
    assert_eq!(story.moments.iter().filter(|moment| moment.glyph == Glyph::Boot).count(), 2);
    let overview = rig.overview(None).unwrap();
    assert_eq!(story.moments.len() as u64, overview.records);
    let digest = format!("{} after LSN {}", overview.digest, overview.lsn);
    assert!(story.facts.contains(&("digest".to_owned(), digest)));
}

#[test]
fn a_long_log_gives_its_last_moments_or_the_first_from_where_it_was_asked_or_one_message() {
    let mut rig = Rig::new();
    rig.create("orders", 1, Retention::default());
    rig.create("other", 1, Retention::default());
    rig.create_group("orders", "billing");
    rig.produce("orders");
    for _ in 0..MOMENTS_MAX * 2 / 3 {
        let taken = rig.take("orders", "billing", "w1");
        rig.produce("orders");
        rig.ack("orders", "billing", "w1", &taken);
    }
    rig.produce("other");
    let tell = |pick: &Pick| story_of_log(&mut rig.wal(), "a log", pick).unwrap();
    let story = tell(&Pick::default());
    let overview = rig.overview(None).unwrap();
    assert_eq!(story.moments.len(), MOMENTS_MAX);
    assert_eq!((story.moments[0].at_ms, story.moments[MOMENTS_MAX - 1].number), (0, overview.record_lsn));
    let left_out =
        story.facts.iter().find(|(name, _)| name == "moments left out").map(|(_, count)| count.replace(',', ""));
    assert_eq!(left_out, Some((overview.records - MOMENTS_MAX as u64).to_string()));
    for lease in &story.leases {
        assert_eq!(story.moments[lease.from].glyph, Glyph::Delivery);
        assert!(lease.to.is_some_and(|to| story.moments[to].glyph == Glyph::Ack), "{lease:?}");
        assert!(story.moments[lease.from].messages.contains(&lease.message));
    }
    assert!(story.leases.len() > MOMENTS_MAX / 4);

    let story = tell(&Pick { from: Some(3), ..Pick::default() });
    assert_eq!((story.moments.len(), story.moments[0].number), (MOMENTS_MAX, 3));
    let story = tell(&Pick { from: Some(3), to: Some(9), ..Pick::default() });
    assert_eq!(story.moments.last().unwrap().number, 9);
    let story = tell(&Pick { message: Some("orders/7".parse().unwrap()), ..Pick::default() });
    let labels: Vec<_> = story.moments.iter().map(|moment| moment.label.as_str()).collect();
    assert_eq!(labels, ["booted", "produced orders/7", "delivered orders/7", "acked orders/7"]);
    let story = tell(&Pick { topic: Some(topic("other")), ..Pick::default() });
    let labels: Vec<_> = story.moments.iter().map(|moment| moment.label.as_str()).collect();
    assert_eq!(labels, ["booted", "topic created", "produced other/0"]);
}

/// Runs `driftq-sim view` and returns what it printed and the timeline in the page.
fn view(dir: &Path, page: &Path, args: &[&str]) -> (String, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_driftq-sim"));
    let ended = command.arg("view").arg(dir).arg("--out").arg(page).args(args).output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
    let html = std::fs::read_to_string(page).unwrap();
    let (_, json) = html.split_once("application/json").and_then(|(_, rest)| rest.split_once('>')).unwrap();
    let json = serde_json::from_str(json.split_once("</script>").unwrap().0).unwrap();
    (String::from_utf8(ended.stdout).unwrap(), json)
}

#[test]
fn view_of_data_folder_shows_log_range_and_single_message() {
    let (folder, pages) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut rig = Rig::on(DataFolder::open(folder.path()).unwrap().storage());
    rig.create("orders", 2, Retention::default());
    rig.create_group("orders", "billing");
    rig.produce("orders");
    rig.take("orders", "billing", "w1");
    rig.pass(2_000);
    let second = rig.take("orders", "billing", "w2");
    rig.ack("orders", "billing", "w2", &second);
    drop(rig);

    let page = pages.path().join("new/folder/page.html");
    let (out, all) = view(folder.path(), &page, &[]);
    let records = all["moments"].as_array().unwrap().len();
    assert!(out.starts_with(&format!("{records} records\nwritten to ")), "{out}");
    assert_eq!((&all["unit"], all["leases"].as_array().unwrap().len()), (&Value::from("record"), 2));
    let (_, some) = view(folder.path(), &page, &["--from", "3", "--to", "4"]);
    assert_eq!(some["moments"].as_array().unwrap().len(), 2);
    let (_, one) = view(folder.path(), &page, &["--message", "orders/0"]);
    assert_eq!(one["title"], Value::from("orders/0"));
    assert!(one["moments"].as_array().unwrap().len() < records);
}

#[test]
fn record_selection_without_data_folder_is_refused() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_driftq-sim"));
    let ended = command.args(["view", "3", "--from", "3"]).output().unwrap();
    let err = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.code() == Some(2) && err.contains("3 is not a data folder"), "{err}");
}
