//! Reads of payloads as steps: outputs wait for them, faults pass, rot does not.

use driftq_core::faults::NoFaults;
use driftq_sim::actions::{Action, Loss, NewMessage, ReadFault, Request, Subscription};
use driftq_sim::names::{Group, Message, Topic, Worker};
use driftq_sim::setup::Setup;
use driftq_sim::world::{Checks, World};

const TOPIC: Topic = Topic::new(0);

fn world(rots: bool) -> World<NoFaults> {
    let setup = Setup { memory_bytes: Some(0), read_steps: true, rots, ..Setup::default() };
    let mut world = World::new(&setup, NoFaults, Checks::default()).expect("the broker starts");
    let create = Request::CreateTopic { topic: TOPIC, partitions: None, keep_ms: None, keep_bytes: None };
    apply(&mut world, &[Action::Request(create), produce(0), produce(1), Action::FlushIo]);
    world
}

fn apply(world: &mut World<NoFaults>, actions: &[Action]) {
    actions.iter().for_each(|action| world.apply(action).expect("no violation"));
}

fn produce(nth: u32) -> Action {
    Action::Request(Request::Produce(NewMessage { message: Message(nth), topic: TOPIC, ..NewMessage::default() }))
}

fn subscribe(nth: u8) -> Action {
    let (worker, group) = (Worker(nth), Group(nth));
    Action::Request(Request::Subscribe(Subscription {
        worker,
        topic: TOPIC,
        group,
        owner: worker,
        prefetch: 1,
        ..Subscription::default()
    }))
}

/// The log is synced, and nothing else happens.
fn sync(world: &mut World<NoFaults>) {
    let log = Action::Io { class: driftq_sim::actions::JobClass::Log, fault: None };
    apply(world, &vec![log; 8]);
}

fn read(fault: Option<ReadFault>) -> Action {
    Action::PerformRead { nth: 0, fault, late: false }
}

#[test]
fn delivery_waits_for_its_read_and_replies_do_not() {
    let mut world = world(false);
    apply(&mut world, &[subscribe(0)]);
    let replies = world.counters().replies;
    sync(&mut world);
    assert_eq!((world.counters().replies, world.counters().deliveries), (replies + 1, 0));
    assert_eq!(world.reads_under_way(), (1, 0));
    apply(&mut world, &[Action::PerformRead { nth: 0, fault: None, late: true }]);
    assert_eq!((world.reads_under_way(), world.counters().deliveries), ((0, 1), 0));
    apply(&mut world, &[Action::CompleteRead { nth: 0 }]);
    assert_eq!((world.reads_under_way(), world.counters().deliveries), ((0, 0), 1));
}

#[test]
fn failed_read_is_repeated() {
    let faults = [ReadFault::Fail, ReadFault::Short { bytes: 9 }, ReadFault::Flip { bit: 300 }];
    for fault in faults {
        let mut world = world(false);
        apply(&mut world, &[subscribe(0)]);
        sync(&mut world);
        // A third fault in a row would be damage, and is not injected.
        let second = [Action::AdvanceTime { ms: 1_000 }, Action::Wake];
        for _ in 0..2 {
            apply(&mut world, &[read(Some(fault))]);
            assert_eq!(world.reads_under_way(), (0, 0), "{fault:?}");
            apply(&mut world, &second);
        }
        assert_eq!((world.reads_under_way(), world.counters().deliveries), ((1, 0), 0), "{fault:?}");
        apply(&mut world, &[read(Some(fault))]);
        assert_eq!((world.reads_under_way(), world.counters().deliveries), ((0, 0), 1), "{fault:?}");
    }
}

#[test]
fn crash_ends_reads_and_the_next_start_reads_again() {
    let mut world = world(false);
    apply(&mut world, &[subscribe(0)]);
    sync(&mut world);
    apply(&mut world, &[Action::Crash { loss: Loss::All }, Action::Boot]);
    assert_eq!((world.reads_under_way(), world.counters().deliveries), ((0, 0), 0));
    apply(&mut world, &[Action::Drain]);
    assert!(world.counters().deliveries >= 2);
}

#[test]
fn rotten_payload_is_not_delivered() {
    let second = [Action::AdvanceTime { ms: 1_000 }, Action::Wake];
    for (rots, deliveries) in [(true, 0), (false, 1)] {
        for bit in [70, 400] {
            let mut world = world(rots);
            apply(&mut world, &[Action::Rot { payload: 0, bit }, subscribe(0)]);
            sync(&mut world);
            // A third read would find it lost, which the oracle does not predict.
            apply(&mut world, &[read(None)]);
            apply(&mut world, &second);
            apply(&mut world, &[read(None)]);
            assert!(world.is_serving());
            assert_eq!(world.counters().deliveries, deliveries, "bit {bit}, rots: {rots}");
        }
    }
}
