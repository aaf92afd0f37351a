//! What the recorder tells.

use driftq_sim::run::{RunOptions, run_seed};
use driftq_sim::trace::Trace;
use driftq_sim::view::timeline::{Glyph, LeaseEnd, Timeline, TrackKind};
use driftq_sim::view::timeline_of;

use crate::{kept, kept_as, long_trace};

fn labels(timeline: &Timeline) -> Vec<&str> {
    timeline.steps.iter().map(|step| step.label.as_str()).collect()
}

/// What must be true of any story.
fn is_well_formed(name: &str, timeline: &Timeline) {
    for (nth, step) in timeline.steps.iter().enumerate() {
        assert_eq!(step.number, nth as u64 + 1, "{name}");
        assert!(step.track < timeline.tracks.len(), "{name}: step {}", step.number);
        assert!(step.also.iter().all(|track| *track < timeline.tracks.len() && *track != step.track), "{name}");
        assert!(!step.label.is_empty() && !step.detail.is_empty(), "{name}: step {}", step.number);
    }
    assert!(timeline.steps.is_sorted_by_key(|step| step.at_ms), "{name}: time passes");
    for lease in &timeline.leases {
        assert_eq!(timeline.tracks[lease.track].kind, TrackKind::Worker, "{name}: {lease:?}");
        assert!(lease.from < timeline.steps.len(), "{name}: {lease:?}");
        assert!(lease.to.is_none_or(|to| lease.from <= to && to < timeline.steps.len()), "{name}: {lease:?}");
        assert_eq!(lease.to.is_none(), lease.end == LeaseEnd::Open, "{name}: {lease:?}");
        assert!(lease.attempt > 0 && !lease.message.is_empty(), "{name}: {lease:?}");
    }
}

#[test]
fn every_kept_trace_is_told_step_by_step_with_its_broken_promise_where_it_broke() {
    for (name, trace) in kept() {
        let timeline = timeline_of(&trace, trace.header.mutant);
        let run = trace.replay(trace.header.mutant);
        assert_eq!(timeline.steps.len(), run.actions.len(), "{name}");
        is_well_formed(&name, &timeline);
        let told = timeline
            .violation
            .as_ref()
            .map(|violation| (violation.step + 1, violation.invariant, violation.sentence.as_str()));
        let found = run.violation.as_ref().map(|found| (run.actions.len(), found.invariant, found.sentence));
        assert_eq!(told, found, "{name}");
        assert_eq!(timeline_of(&trace, trace.header.mutant), timeline, "{name} is told twice the same");
    }
}

#[test]
fn whole_lives_are_told_and_listening_changes_nothing() {
    for seed in 0..12 {
        let run = run_seed(seed, RunOptions::default());
        let trace = Trace::of(&run, Some(seed), None);
        let timeline = timeline_of(&trace, None);
        is_well_formed(&format!("seed {seed}"), &timeline);
        assert_eq!(timeline.steps.len(), run.actions.len(), "seed {seed}");
        assert_eq!(timeline.violation, None, "seed {seed}");
        let crashes = timeline.facts.iter().find(|(name, _)| name == "crashes").map(|(_, value)| value.clone());
        assert_eq!(crashes, Some(run.counters.crashes.to_string()), "seed {seed}");
    }
}

#[test]
fn the_story_of_a_token_that_is_not_compared_reads_like_one() {
    let trace = kept_as("mutant-skip-token-check");
    let timeline = timeline_of(&trace, trace.header.mutant);
    assert_eq!(
        labels(&timeline),
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
    assert_eq!(timeline.steps[6].diff[0], changed);
    let settled = &timeline.steps[3].outputs;
    assert_eq!(settled[2], "answer to step 3 (produce m0 to t0): stored at offset 0");
    assert_eq!(settled[3], "to w0: m0 (offset 0, attempt 1, token 1.1, until 2.0 s)");
    let leases: Vec<_> =
        timeline.leases.iter().map(|lease| (lease.from, lease.to, lease.until_ms, lease.end)).collect();
    let (ran_out, failed) = ((2, Some(6), 2_000, LeaseEnd::Expired), (6, Some(7), 4_000, LeaseEnd::Nacked));
    assert_eq!(leases, [ran_out, failed, (7, None, 4_000, LeaseEnd::Open)]);
    assert_eq!(timeline.violation.map(|violation| (violation.step, violation.invariant)), Some((7, 6)));
    let healthy = timeline_of(&trace, None);
    assert_eq!(healthy.violation, None);
    assert_eq!(healthy.steps[7].diff, Vec::<String>::new(), "a broker that compares tokens changes nothing");
}

/// A trace in the world of another, with these steps.
fn with_actions(actions: &[&str]) -> Trace {
    let head = kept_as("mutant-skip-token-check").to_jsonl();
    let head = head.lines().next().expect("a head").to_owned();
    let mut trace = Trace::from_jsonl(&format!("{head}\n{}\n", actions.join("\n"))).expect("a trace");
    trace.header.mutant = None;
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
    let trace = with_actions(&[CREATE, SUBSCRIBE, SETTLE, PRODUCE, POWER, BOOT]);
    let timeline = timeline_of(&trace, None);
    let leases: Vec<_> = timeline.leases.iter().map(|lease| (lease.from, lease.to, lease.end)).collect();
    assert_eq!(leases, [(3, Some(4), LeaseEnd::Undone)], "{:?}", labels(&timeline));
    let glyphs: Vec<Glyph> = timeline.steps.iter().skip(3).map(|step| step.glyph).collect();
    assert_eq!(glyphs, [Glyph::Produce, Glyph::Crash, Glyph::Boot]);
    assert!(timeline.steps[5].diff.iter().any(|line| line.ends_with("never stored: it was not synced")));
}

#[test]
fn an_ack_that_was_not_synced_is_taken_back_and_the_lease_goes_on() {
    let trace = with_actions(&[CREATE, SUBSCRIBE, PRODUCE, SETTLE, READ, ACK, POWER, BOOT]);
    let timeline = timeline_of(&trace, None);
    let leases: Vec<_> = timeline.leases.iter().map(|lease| (lease.from, lease.to, lease.end)).collect();
    assert_eq!(leases, [(2, Some(5), LeaseEnd::Acked), (7, None, LeaseEnd::Open)], "{:?}", labels(&timeline));
}

#[test]
fn a_synced_ack_ends_its_lease_for_good_and_a_repeated_call_looks_like_one() {
    let (send, arrive) =
        (r#"{"send":{"call":"c0","ask":{"produce":{"message":"m1","topic":"t0"}}}}"#, r#"{"arrive":{"call":"c0"}}"#);
    let jump = r#"{"jump":{"ms":-5000}}"#;
    let trace = with_actions(&[CREATE, SUBSCRIBE, PRODUCE, SETTLE, READ, ACK, SETTLE, send, arrive, arrive, jump]);
    let timeline = timeline_of(&trace, None);
    assert_eq!((timeline.leases[0].to, timeline.leases[0].end), (Some(5), LeaseEnd::Acked));
    let glyphs: Vec<Glyph> = timeline.steps.iter().skip(7).map(|step| step.glyph).collect();
    assert_eq!(glyphs[0], Glyph::Sent, "{:?}", labels(&timeline));
    assert_eq!(glyphs[2..], [Glyph::Duplicate, Glyph::ClockJump], "{:?}", labels(&timeline));
}

#[test]
fn five_thousand_steps_are_told() {
    let trace = long_trace(5_000);
    let timeline = timeline_of(&trace, None);
    assert_eq!(timeline.steps.len(), 5_000);
    is_well_formed("five thousand steps", &timeline);
}
