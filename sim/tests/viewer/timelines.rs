//! What the recorder records.

use driftq_sim::run::{RunOptions, run_seed};
use driftq_sim::trace::Trace;
use driftq_sim::view::timeline::{Glyph, LeaseEnd, Timeline, TrackKind};
use driftq_sim::view::timeline_of;

use super::{kept, kept_as, long_trace};

fn labels(timeline: &Timeline) -> Vec<&str> {
    timeline.steps.iter().map(|step| step.label.as_str()).collect()
}

/// Asserts what holds for every timeline.
fn assert_well_formed(name: &str, timeline: &Timeline) {
    for (nth, step) in timeline.steps.iter().enumerate() {
        assert_eq!(step.number, nth as u64 + 1, "{name}");
        assert!(step.track < timeline.tracks.len(), "{name}: step {}", step.number);
        assert!(step.also.iter().all(|track| *track < timeline.tracks.len() && *track != step.track), "{name}");
        assert!(!step.label.is_empty() && !step.detail.is_empty(), "{name}: step {}", step.number);
    }
    assert!(timeline.steps.is_sorted_by_key(|step| step.at_ms), "{name}: time ascends");
    for lease in &timeline.leases {
        assert_eq!(timeline.tracks[lease.track].kind, TrackKind::Worker, "{name}: {lease:?}");
        assert!(lease.from < timeline.steps.len(), "{name}: {lease:?}");
        assert!(lease.to.is_none_or(|to| lease.from <= to && to < timeline.steps.len()), "{name}: {lease:?}");
        assert_eq!(lease.to.is_none(), lease.end == LeaseEnd::Open, "{name}: {lease:?}");
        assert!(lease.attempt > 0 && !lease.message.is_empty(), "{name}: {lease:?}");
    }
}

#[test]
fn kept_traces_are_recorded_with_the_violation_at_its_action() {
    for (name, trace) in kept() {
        let timeline = timeline_of(&trace, trace.header.mutant);
        let run = trace.replay(trace.header.mutant);
        assert_eq!(timeline.steps.len(), run.actions.len(), "{name}");
        assert_well_formed(&name, &timeline);
        let recorded = timeline
            .violation
            .as_ref()
            .map(|violation| (violation.step + 1, violation.invariant, violation.sentence.as_str()));
        let found = run.violation.as_ref().map(|found| (run.actions.len(), found.invariant, found.sentence));
        assert_eq!(recorded, found, "{name}");
        assert_eq!(timeline_of(&trace, trace.header.mutant), timeline, "{name} is recorded the same again");
    }
}

#[test]
fn recording_does_not_change_a_run() {
    for seed in 0..12 {
        let run = run_seed(seed, RunOptions::default());
        let trace = Trace::of(&run, Some(seed), None);
        let timeline = timeline_of(&trace, None);
        assert_well_formed(&format!("seed {seed}"), &timeline);
        assert_eq!(timeline.steps.len(), run.actions.len(), "seed {seed}");
        assert_eq!(timeline.violation, None, "seed {seed}");
        let crashes = timeline.facts.iter().find(|(name, _)| name == "crashes").map(|(_, value)| value.clone());
        assert_eq!(crashes, Some(run.counters.crashes.to_string()), "seed {seed}");
    }
}

#[test]
fn timeline_of_a_skipped_token_check_is_readable() {
    let trace = kept_as("mutant-skip-token-check");
    let timeline = timeline_of(&trace, trace.header.mutant);
    assert_eq!(
        labels(&timeline),
        [
            "create topic t0",
            "w0 subscribes to t0 in g0",
            "produce m0 to t0",
            "all I/O is performed; m0 delivered to w0",
            "w0 reads m0",
            "2.0 s pass",
            "lease of m0 ends; leased again to w0",
            "w0 nacks m0 with an outdated delivery",
        ]
    );
    let changed = "m0 for g0: in flight at w0 until 2.0 s (attempt 1, token 1.1) → in flight at w0 until 4.0 s \
        (attempt 2, token 1.2)";
    assert_eq!(timeline.steps[6].diff[0], changed);
    let outputs = &timeline.steps[3].outputs;
    assert_eq!(outputs[2], "reply to action 3 (produce m0 to t0): stored at offset 0");
    assert_eq!(outputs[3], "to w0: m0 (offset 0, attempt 1, token 1.1, until 2.0 s)");
    let leases: Vec<_> =
        timeline.leases.iter().map(|lease| (lease.from, lease.to, lease.until_ms, lease.end)).collect();
    let (expired, failed) = ((2, Some(6), 2_000, LeaseEnd::Expired), (6, Some(7), 4_000, LeaseEnd::Nacked));
    assert_eq!(leases, [expired, failed, (7, None, 4_000, LeaseEnd::Open)]);
    assert_eq!(timeline.violation.map(|violation| (violation.step, violation.invariant)), Some((7, 6)));
    let without_bug = timeline_of(&trace, None);
    assert_eq!(without_bug.violation, None);
    assert_eq!(without_bug.steps[7].diff, Vec::<String>::new(), "a broker that checks tokens changes nothing");
}

/// A trace with the setup of another and these actions.
fn with_actions(actions: &[&str]) -> Trace {
    let header = kept_as("mutant-skip-token-check").to_jsonl();
    let header = header.lines().next().expect("a header").to_owned();
    let mut trace = Trace::from_jsonl(&format!("{header}\n{}\n", actions.join("\n"))).expect("a trace");
    trace.header.mutant = None;
    trace
}

const CREATE: &str = r#"{"ask":{"create":{"topic":"t0"}}}"#;
const SUBSCRIBE: &str = r#"{"ask":{"subscribe":{"worker":"w0","topic":"t0","group":"g0","owner":"w0","prefetch":4}}}"#;
const PRODUCE: &str = r#"{"ask":{"produce":{"message":"m0","topic":"t0"}}}"#;
const READ: &str = r#"{"read":{"worker":"w0","count":1}}"#;
const ACK: &str = r#"{"ask":{"ack":{"worker":"w0","message":"m0"}}}"#;
const FLUSH_IO: &str = r#""settle""#;
const CRASH: &str = r#"{"crash":{"loss":"all"}}"#;
const BOOT: &str = r#""boot""#;

#[test]
fn unreleased_lease_is_undone_by_a_crash() {
    let trace = with_actions(&[CREATE, SUBSCRIBE, FLUSH_IO, PRODUCE, CRASH, BOOT]);
    let timeline = timeline_of(&trace, None);
    let leases: Vec<_> = timeline.leases.iter().map(|lease| (lease.from, lease.to, lease.end)).collect();
    assert_eq!(leases, [(3, Some(4), LeaseEnd::Undone)], "{:?}", labels(&timeline));
    let glyphs: Vec<Glyph> = timeline.steps.iter().skip(3).map(|step| step.glyph).collect();
    assert_eq!(glyphs, [Glyph::Produce, Glyph::Crash, Glyph::Boot]);
    assert!(timeline.steps[5].diff.iter().any(|line| line.ends_with("lost: it was not synced")));
}

#[test]
fn unsynced_ack_is_undone_by_a_crash_and_the_lease_continues() {
    let trace = with_actions(&[CREATE, SUBSCRIBE, PRODUCE, FLUSH_IO, READ, ACK, CRASH, BOOT]);
    let timeline = timeline_of(&trace, None);
    let leases: Vec<_> = timeline.leases.iter().map(|lease| (lease.from, lease.to, lease.end)).collect();
    assert_eq!(leases, [(2, Some(5), LeaseEnd::Acked), (7, None, LeaseEnd::Open)], "{:?}", labels(&timeline));
}

#[test]
fn synced_ack_ends_the_lease_and_a_repeated_request_is_marked() {
    let (send, arrive) =
        (r#"{"send":{"call":"c0","ask":{"produce":{"message":"m1","topic":"t0"}}}}"#, r#"{"arrive":{"call":"c0"}}"#);
    let jump = r#"{"jump":{"ms":-5000}}"#;
    let trace = with_actions(&[CREATE, SUBSCRIBE, PRODUCE, FLUSH_IO, READ, ACK, FLUSH_IO, send, arrive, arrive, jump]);
    let timeline = timeline_of(&trace, None);
    assert_eq!((timeline.leases[0].to, timeline.leases[0].end), (Some(5), LeaseEnd::Acked));
    let glyphs: Vec<Glyph> = timeline.steps.iter().skip(7).map(|step| step.glyph).collect();
    assert_eq!(glyphs[0], Glyph::Sent, "{:?}", labels(&timeline));
    assert_eq!(glyphs[2..], [Glyph::Duplicate, Glyph::ClockJump], "{:?}", labels(&timeline));
}

#[test]
fn five_thousand_actions_are_recorded() {
    let trace = long_trace(5_000);
    let timeline = timeline_of(&trace, None);
    assert_eq!(timeline.steps.len(), 5_000);
    assert_well_formed("five thousand actions", &timeline);
}
