//! The reference model: when its timers fire, what a crash loses, and that it is synced whenever its disk works.

use driftq_core::command::{DeleteGroup, Produce};
use driftq_core::types::*;
use driftq_core::{Command, Model, ModelCommand, ModelOutput};

use super::test_broker::{group, limits, subscribe, topic};

const LEASE: u64 = 2_000;

fn create() -> driftq_core::command::CreateTopic {
    driftq_core::command::CreateTopic { name: topic("t"), partitions: None, retention: Default::default() }
}

/// A model with a message, and the consumer it is delivered to.
fn with_consumer(delay: Option<u64>) -> (Model, ConsumerId) {
    let mut model = Model::new(limits());
    model.apply(create());
    let mut request = Produce::new(topic("t"), "", "v");
    request.delay = delay.map(Millis);
    model.apply(request);
    let subscribed = model.submit(Command::Subscribe(subscribe("t", "g", "w")));
    match model.reply(subscribed) {
        Some(Ok(driftq_core::Reply::Subscribed { consumer })) => (model, consumer),
        other => panic!("unexpected reply to a subscribe: {other:?}"),
    }
}

fn assert_synced(model: &Model) {
    let broker = model.pipeline().broker();
    assert_eq!(broker.durable(), broker.appended());
}

#[test]
fn model_is_synced_after_every_command() {
    assert_synced(&Model::new(limits()));
    let (mut model, _) = with_consumer(None);
    for command in [
        ModelCommand::SetWallClock { by_ms: 3_600_000 },
        ModelCommand::RebaseWallClock,
        ModelCommand::Tick { by: Millis(LEASE) },
        ModelCommand::Crash,
        ModelCommand::Restart,
    ] {
        model.apply(command);
        assert_synced(&model);
    }
}

#[test]
fn timers_of_a_long_tick_fire_each_at_its_own_time() {
    let (mut model, consumer) = with_consumer(None);
    let start = model.now();
    model.tick(Millis(5 * LEASE));
    let ends = std::iter::from_fn(|| model.deliver(consumer)).map(|delivery| delivery.lease_until);
    assert_eq!(ends.collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6].map(|round| start.after(Millis(round * LEASE))));
}

#[test]
fn timers_fire_at_their_time_while_the_disk_is_stalled() {
    let (mut model, consumer) = with_consumer(Some(1_000));
    let start = model.now();
    model.apply(ModelCommand::Stall);
    model.tick(Millis(10_000));
    assert_eq!(model.deliver(consumer), None);
    model.apply(ModelCommand::Sync);
    let delivery = model.deliver(consumer).expect("it leaves with the sync");
    assert_eq!(delivery.lease_until, start.after(Millis(1_000 + LEASE)), "decided when the delay ended");
}

#[test]
fn only_a_crash_and_a_restart_open_the_log_again() {
    let (mut model, consumer) = with_consumer(None);
    assert_eq!(model.state().topics().count(), 1);
    let taken = model.apply(ModelCommand::Deliver { consumer });
    assert!(matches!(taken, ModelOutput::Delivery(Some(_))), "{taken:?}");
    for command in [
        ModelCommand::Tick { by: Millis(1) },
        ModelCommand::SetWallClock { by_ms: 1 },
        ModelCommand::RebaseWallClock,
        ModelCommand::Stall,
        ModelCommand::Sync,
        ModelCommand::FillDisk,
        ModelCommand::FreeDisk,
        ModelCommand::Snapshot,
        ModelCommand::FailSync,
    ] {
        let done = model.apply(command.clone());
        assert!(matches!(done, ModelOutput::Done), "{command:?}: {done:?}");
    }
}

#[test]
fn restart_closes_the_log_and_a_crash_does_not() {
    for (command, is_clean) in [(ModelCommand::Restart, true), (ModelCommand::Crash, false)] {
        let (mut model, _) = with_consumer(None);
        let ModelOutput::Recovered(recovered) = model.apply(command) else { panic!("the log opens") };
        assert_eq!(recovered.clean, is_clean);
    }
}

#[test]
fn crash_loses_replies_deliveries_and_closed_streams_that_were_not_taken() {
    let (mut model, consumer) = with_consumer(None);
    let deletion = model.submit(Command::DeleteGroup(DeleteGroup { topic: topic("t"), group: group("g") }));
    model.crash().expect("the log opens");
    assert_eq!((model.deliver(consumer), model.take_closed(), model.reply(deletion)), (None, vec![], None));
}
