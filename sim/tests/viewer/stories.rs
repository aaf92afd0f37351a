//! What the recorder tells.

use driftq_sim::life::{Conditions, live};
use driftq_sim::trace::Trace;
use driftq_sim::view::story::{Glyph, LaneKind, LeaseEnd, Story};
use driftq_sim::view::story_of;

use crate::{kept, kept_as, long_trace};

fn labels(story: &Story) -> Vec<&str> {
    story.moments.iter().map(|moment| moment.label.as_str()).collect()
}

/// What must be true of any story.
fn is_well_formed(name: &str, story: &Story) {
    for (nth, moment) in story.moments.iter().enumerate() {
        assert_eq!(moment.number, nth as u64 + 1, "{name}");
        assert!(moment.lane < story.lanes.len(), "{name}: step {}", moment.number);
        assert!(moment.also.iter().all(|lane| *lane < story.lanes.len() && *lane != moment.lane), "{name}");
        assert!(!moment.label.is_empty() && !moment.detail.is_empty(), "{name}: step {}", moment.number);
    }
    assert!(story.moments.is_sorted_by_key(|moment| moment.at_ms), "{name}: time passes");
    for lease in &story.leases {
        assert_eq!(story.lanes[lease.lane].kind, LaneKind::Worker, "{name}: {lease:?}");
        assert!(lease.from < story.moments.len(), "{name}: {lease:?}");
        assert!(lease.to.is_none_or(|to| lease.from <= to && to < story.moments.len()), "{name}: {lease:?}");
        assert_eq!(lease.to.is_none(), lease.end == LeaseEnd::Open, "{name}: {lease:?}");
        assert!(lease.attempt > 0 && !lease.message.is_empty(), "{name}: {lease:?}");
    }
}

#[test]
fn every_kept_trace_is_told_step_by_step_with_its_broken_promise_where_it_broke() {
    for (name, trace) in kept() {
        let story = story_of(&trace, trace.head.mutant);
        let life = trace.relive(trace.head.mutant);
        assert_eq!(story.moments.len(), life.steps.len(), "{name}");
        is_well_formed(&name, &story);
        let told = story.broken.as_ref().map(|broken| (broken.moment + 1, broken.invariant, broken.sentence.as_str()));
        let found = life.violation.as_ref().map(|found| (life.steps.len(), found.invariant, found.sentence));
        assert_eq!(told, found, "{name}");
        assert_eq!(story_of(&trace, trace.head.mutant), story, "{name} is told twice the same");
    }
}

#[test]
fn whole_lives_are_told_and_listening_changes_nothing() {
    for seed in 0..12 {
        let life = live(seed, Conditions::default());
        let trace = Trace::of(&life, Some(seed), None);
        let story = story_of(&trace, None);
        is_well_formed(&format!("seed {seed}"), &story);
        assert_eq!(story.moments.len(), life.steps.len(), "seed {seed}");
        assert_eq!(story.broken, None, "seed {seed}");
        let crashes = story.facts.iter().find(|(name, _)| name == "crashes").map(|(_, value)| value.clone());
        assert_eq!(crashes, Some(life.tally.crashes.to_string()), "seed {seed}");
    }
}

#[test]
fn the_story_of_a_token_that_is_not_compared_reads_like_one() {
    let trace = kept_as("mutant-skip-token-check");
    let story = story_of(&trace, trace.head.mutant);
    assert_eq!(
        labels(&story),
        [
            "create topic t0",
            "w0 subscribes to t0 in g0",
            "produce m0 to t0",
            "all is written and synced; m0 goes out to w0",
            "w0 reads m0",
            "2.0 s pass",
            "lease of m0 ends; leased again to w0",
            "w0 nacks m0 by a delivery that is not the newest",
        ]
    );
    let changed =
        "m0 for g0: held by w0 until 2.0 s (attempt 1, token 1.1) → held by w0 until 4.0 s (attempt 2, token 1.2)";
    assert_eq!(story.moments[6].diff[0], changed);
    let settled = &story.moments[3].outcomes;
    assert_eq!(settled[2], "answer to step 3 (produce m0 to t0): stored at offset 0");
    assert_eq!(settled[3], "to w0: m0 (offset 0, attempt 1, token 1.1, until 2.0 s)");
    let leases: Vec<_> = story.leases.iter().map(|lease| (lease.from, lease.to, lease.until_ms, lease.end)).collect();
    let (ran_out, failed) = ((2, Some(6), 2_000, LeaseEnd::Expired), (6, Some(7), 4_000, LeaseEnd::Nacked));
    assert_eq!(leases, [ran_out, failed, (7, None, 4_000, LeaseEnd::Open)]);
    assert_eq!(story.broken.map(|broken| (broken.moment, broken.invariant)), Some((7, 6)));
    let healthy = story_of(&trace, None);
    assert_eq!(healthy.broken, None);
    assert_eq!(healthy.moments[7].diff, Vec::<String>::new(), "a broker that compares tokens changes nothing");
}

/// A trace in the world of another, with these steps.
fn with_steps(steps: &[&str]) -> Trace {
    let head = kept_as("mutant-skip-token-check").to_jsonl();
    let head = head.lines().next().expect("a head").to_owned();
    let mut trace = Trace::from_jsonl(&format!("{head}\n{}\n", steps.join("\n"))).expect("a trace");
    trace.head.mutant = None;
    trace
}

const CREATE: &str = r#"{"ask":{"create":{"topic":"t0"}}}"#;
const SUBSCRIBE: &str = r#"{"ask":{"subscribe":{"worker":"w0","topic":"t0","group":"g0","owner":"w0","prefetch":4}}}"#;
const PRODUCE: &str = r#"{"ask":{"produce":{"message":"m0","topic":"t0"}}}"#;
const READ: &str = r#"{"read":{"worker":"w0","count":1}}"#;
const ACK: &str = r#"{"ask":{"ack":{"worker":"w0","message":"m0"}}}"#;
const SETTLE: &str = r#""settle""#;
const POWER: &str = r#"{"crash":{"loss":"all"}}"#;
const BOOT: &str = r#""boot""#;

#[test]
fn a_lease_that_nobody_was_told_of_is_undone_by_the_crash() {
    let trace = with_steps(&[CREATE, SUBSCRIBE, SETTLE, PRODUCE, POWER, BOOT]);
    let story = story_of(&trace, None);
    let leases: Vec<_> = story.leases.iter().map(|lease| (lease.from, lease.to, lease.end)).collect();
    assert_eq!(leases, [(3, Some(4), LeaseEnd::Undone)], "{:?}", labels(&story));
    let glyphs: Vec<Glyph> = story.moments.iter().skip(3).map(|moment| moment.glyph).collect();
    assert_eq!(glyphs, [Glyph::Produce, Glyph::Crash, Glyph::Boot]);
    assert!(story.moments[5].diff.iter().any(|line| line.ends_with("never stored: it was not synced")));
}

#[test]
fn an_ack_that_was_not_synced_is_taken_back_and_the_lease_goes_on() {
    let trace = with_steps(&[CREATE, SUBSCRIBE, PRODUCE, SETTLE, READ, ACK, POWER, BOOT]);
    let story = story_of(&trace, None);
    let leases: Vec<_> = story.leases.iter().map(|lease| (lease.from, lease.to, lease.end)).collect();
    assert_eq!(leases, [(2, Some(5), LeaseEnd::Acked), (7, None, LeaseEnd::Open)], "{:?}", labels(&story));
}

#[test]
fn a_synced_ack_ends_its_lease_for_good_and_a_repeated_call_looks_like_one() {
    let (send, arrive) =
        (r#"{"send":{"call":"c0","ask":{"produce":{"message":"m1","topic":"t0"}}}}"#, r#"{"arrive":{"call":"c0"}}"#);
    let jump = r#"{"jump":{"ms":-5000}}"#;
    let trace = with_steps(&[CREATE, SUBSCRIBE, PRODUCE, SETTLE, READ, ACK, SETTLE, send, arrive, arrive, jump]);
    let story = story_of(&trace, None);
    assert_eq!((story.leases[0].to, story.leases[0].end), (Some(5), LeaseEnd::Acked));
    let glyphs: Vec<Glyph> = story.moments.iter().skip(7).map(|moment| moment.glyph).collect();
    assert_eq!(glyphs[0], Glyph::Sent, "{:?}", labels(&story));
    assert_eq!(glyphs[2..], [Glyph::Duplicate, Glyph::ClockJump], "{:?}", labels(&story));
}

#[test]
fn five_thousand_steps_are_told() {
    let trace = long_trace(5_000);
    let story = story_of(&trace, None);
    assert_eq!(story.moments.len(), 5_000);
    is_well_formed("five thousand steps", &story);
}
