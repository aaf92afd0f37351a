//! A log as a story.

use driftq_core::record::Retention;
use driftq_sim::view::timeline::{Glyph, LeaseEnd, TrackKind as LaneKind};
use driftq_sim::wal::{MOMENTS_MAX, Pick, story_of_log};

use crate::rig::{Rig, topic, tried};

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
    let lanes: Vec<_> = story.tracks.iter().map(|lane| (lane.kind, lane.name.as_str())).collect();
    let expected = [
        (LaneKind::Producers, "producers"),
        (LaneKind::Broker, "broker"),
        (LaneKind::Worker, "w1"),
        (LaneKind::Worker, "w2"),
    ];
    assert_eq!(lanes, expected);
    let leases: Vec<_> = story.leases.iter().map(|lease| (lease.track, lease.attempt, lease.end)).collect();
    assert_eq!(leases, [(2, 1, LeaseEnd::Expired), (3, 2, LeaseEnd::Nacked), (2, 3, LeaseEnd::Open)]);
    for lease in &story.leases {
        let from = &story.steps[lease.from];
        assert_eq!((from.glyph, from.track, lease.message.as_str()), (Glyph::Delivery, lease.track, "orders/0"));
        assert_eq!(lease.until_ms, from.at_ms + 2_000);
        assert!(lease.to.is_none_or(|to| to > lease.from && to < story.steps.len()));
    }
    let expired = &story.steps[story.leases[0].to.unwrap()];
    assert_eq!((expired.glyph, expired.track, &expired.also[..]), (Glyph::Time, 1, &[2][..]));
    assert!(expired.diff[0].starts_with("orders/0 for group billing: in flight, with w1"), "{:?}", expired.diff);
    assert_eq!(story.steps.iter().filter(|moment| moment.glyph == Glyph::Boot).count(), 2);
    let overview = rig.overview(None).unwrap();
    assert_eq!(story.steps.len() as u64, overview.records);
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
    assert_eq!(story.steps.len(), MOMENTS_MAX);
    assert_eq!((story.steps[0].at_ms, story.steps[MOMENTS_MAX - 1].number), (0, overview.record_lsn));
    let left_out =
        story.facts.iter().find(|(name, _)| name == "moments left out").map(|(_, count)| count.replace(',', ""));
    assert_eq!(left_out, Some((overview.records - MOMENTS_MAX as u64).to_string()));
    for lease in &story.leases {
        assert_eq!(story.steps[lease.from].glyph, Glyph::Delivery);
        assert!(lease.to.is_some_and(|to| story.steps[to].glyph == Glyph::Ack), "{lease:?}");
        assert!(story.steps[lease.from].messages.contains(&lease.message));
    }
    assert!(story.leases.len() > MOMENTS_MAX / 4);

    let story = tell(&Pick { from: Some(3), ..Pick::default() });
    assert_eq!((story.steps.len(), story.steps[0].number), (MOMENTS_MAX, 3));
    let story = tell(&Pick { from: Some(3), to: Some(9), ..Pick::default() });
    assert_eq!(story.steps.last().unwrap().number, 9);
    let story = tell(&Pick { message: Some("orders/7".parse().unwrap()), ..Pick::default() });
    let labels: Vec<_> = story.steps.iter().map(|moment| moment.label.as_str()).collect();
    assert_eq!(labels, ["booted", "produced orders/7", "delivered orders/7", "acked orders/7"]);
    let story = tell(&Pick { topic: Some(topic("other")), ..Pick::default() });
    let labels: Vec<_> = story.steps.iter().map(|moment| moment.label.as_str()).collect();
    assert_eq!(labels, ["booted", "topic created", "produced other/0"]);
}
