//! Boots and time: every start counts, and time inside never runs backwards.

use super::rig::*;
use driftq_core::types::*;

#[test]
fn every_start_is_a_boot_of_its_own() {
    let mut rig = Rig::new();
    for (boot, way) in (1..).zip([Restart::Crash, Restart::Snapshot, Restart::Crash, Restart::Snapshot]) {
        assert_eq!(rig.pipeline.state().boot(), Boot(boot));
        rig.restart(way);
    }
}

#[test]
fn a_start_that_was_never_durable_gave_no_token_away() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.produce("t", "a");
    rig.subscribe_with("t", "g", "w", |asked| asked.lease = Some(Millis(1_000)));
    let first = rig.one();
    let mut storage = rig.storage.crash();
    // This start never gets as far as a sync, so the next one may count as it did.
    let opened = driftq_core::Pipeline::open(
        &mut storage,
        rig.config.clone(),
        None,
        rig.now.after(Millis(5_000)),
        driftq_core::faults::NoFaults,
    );
    let (mut pipeline, _) = opened.expect("the log opens");
    pipeline.handle(rig.now.after(Millis(5_000)), driftq_core::Command::Subscribe(subscribe("t", "g", "x")));
    assert_eq!(pipeline.poll_output(), None, "nothing of it is seen");
    let mut rig =
        Rig::open(storage.crash(), rig.config.clone(), rig.now.after(Millis(5_000)), driftq_core::faults::NoFaults);
    rig.subscribe("t", "g", "w");
    let second = rig.one();
    assert_eq!(second.token.boot, first.token.boot.next());
    assert_eq!(second.attempts, 2);
}

#[test]
fn time_handed_in_too_early_counts_as_the_latest_seen() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.pass(10_000);
    let latest = rig.now;
    rig.now = START;
    rig.produce("t", "a");
    assert_eq!(rig.kept_in("t", 0)[0].produced_at, latest);
    assert_eq!(rig.pipeline.broker().now(), latest);
}

#[test]
fn a_start_under_a_clock_set_back_goes_on_from_the_last_recorded_moment() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 1);
        rig.pass(10_000);
        rig.produce("t", "a");
        let recorded = rig.now;
        if way == Restart::Snapshot {
            rig.snapshot();
        }
        rig.now = START;
        rig.crash();
        assert_eq!(rig.pipeline.broker().now(), recorded);
        rig.now = rig.pipeline.broker().now();
        rig.subscribe("t", "g", "w");
        let delivery = rig.one();
        assert_eq!((delivery.produced_at, delivery.lease_until), (recorded, recorded.after(Millis(2_000))));
    }
}

#[test]
fn a_start_under_a_clock_further_on_believes_it() {
    let mut rig = Rig::new();
    rig.restart_after(Restart::Crash, 86_400_000);
    assert_eq!(rig.pipeline.broker().now(), START.after(Millis(86_400_000)));
    assert_eq!(rig.pipeline.state().clock(), START.after(Millis(86_400_000)), "and records it");
}

#[test]
fn the_same_commands_at_the_same_times_give_the_same_bytes() {
    let run = || {
        let mut rig = Rig::new();
        rig.topic("t", 3);
        for round in 0..20_u64 {
            rig.produce_with("t", &round.to_string(), |asked| {
                asked.key = round.to_le_bytes().into();
                asked.envelope.retry_policy = Some(policy(3, 100, 0));
            });
            rig.subscribe("t", "g", "w");
            rig.pass(700);
        }
        rig.snapshot();
        let files = driftq_core::log::Storage::list(&mut rig.storage).unwrap();
        let bytes: Vec<_> =
            files.iter().map(|info| (info.file, rig.storage.bytes(info.file).unwrap().to_vec())).collect();
        (rig.digest(), bytes)
    };
    let (first, second) = (run(), run());
    assert!(first.1.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() > 5_000);
    assert_eq!(first, second);
}
