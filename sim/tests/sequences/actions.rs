//! Sequences of all kinds of actions, in any order.

use driftq_sim::actions::{
    Action, DeliveryRef, EffectBegin, EffectOutcome, EffectRef, GrantRef, JobClass, Loss, NewMessage, ReadFault,
    Request, Scope, SeekTarget, Subscription, Tampering,
};
use driftq_sim::names::{Call, Group, Message, Topic, Worker};
use driftq_sim::reconfiguration::Reconfiguration;
use driftq_sim::setup::Setup;
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;

use super::requests::{administration, grant, new_message, query, request, settle_request, store, streams};
use super::values::{FAR, NEWEST, call, class, clock_jump, damage, fault, loss, partitions, setup, span, worker};

/// A setup and its actions.
pub type Sequence = (Setup, Vec<Action>);

/// A few actions that belong together: alone, most of them would have no effect.
type Chunk = Vec<Action>;

/// What the driver does after a request: everything, a part, or nothing.
fn driver_io() -> impl Strategy<Value = Chunk> {
    prop_oneof![
        6 => Just(vec![Action::FlushIo]),
        1 => Just(vec![Action::Wake, Action::FlushIo]),
        2 => Just(vec![]),
        3 => vec(read_step(), 1..6),
        3 => vec((class(), weighted(0.04, fault())).prop_map(|(class, fault)| Action::Io { class, fault }), 1..8),
    ]
}

fn requested(request: impl Strategy<Value = Request> + 'static) -> BoxedStrategy<Chunk> {
    (request, driver_io())
        .prop_map(|(request, mut driver_io)| {
            driver_io.insert(0, Action::Request(request));
            driver_io
        })
        .boxed()
}

/// A worker reads, and settles one of its deliveries.
fn settled() -> BoxedStrategy<Chunk> {
    let read = (worker(), prop_oneof![4 => Just(u8::MAX), 2 => 1..3_u8, 1 => Just(0)]);
    (read, settle_request(), driver_io())
        .prop_map(|((worker, count), settle_request, mut driver_io)| {
            driver_io.splice(0..0, [Action::Read { worker, count }, Action::Request(settle_request)]);
            driver_io
        })
        .boxed()
}

/// A worker reads everything and settles all of it the same way. Dead letters are redriven.
fn settled_all() -> BoxedStrategy<Chunk> {
    (worker(), 0..7_u8)
        .prop_map(|(worker, variant)| {
            let mut actions = vec![Action::FlushIo, Action::Read { worker, count: u8::MAX }];
            actions.extend((0..NEWEST).map(Message).map(|message| {
                let delivery = DeliveryRef { worker, message, ..DeliveryRef::default() };
                Action::Request(match variant {
                    0 | 1 => Request::Nack { delivery, reason: variant, delay_ms: None, never: false },
                    2 => Request::Release(delivery),
                    5 => Request::Nack { delivery, reason: 1, delay_ms: None, never: true },
                    6 => Request::Complete { delivery, result: 0, produce: Vec::new(), failed: Some(1) },
                    _ => Request::Ack(delivery),
                })
            }));
            actions.push(Action::FlushIo);
            let redrive = |limit| {
                let redrive = Request::Redrive { topic: Topic::new(0), offset: None, more: Vec::new(), limit };
                [Action::Request(redrive), Action::FlushIo]
            };
            match variant {
                0 => actions.extend(redrive(u64::MAX)),
                5 => {
                    // What the first part redrives is dead-lettered again before the rest is asked for.
                    actions.extend(redrive(1));
                    actions.push(Action::Read { worker, count: u8::MAX });
                    actions.extend((0..NEWEST).map(Message).map(|message| {
                        let delivery = DeliveryRef { worker, message, ..DeliveryRef::default() };
                        Action::Request(Request::Nack { delivery, reason: 0, delay_ms: None, never: true })
                    }));
                    let rest = Request::RedriveRest { limit: u64::MAX };
                    actions.extend([Action::FlushIo, Action::Request(rest), Action::FlushIo]);
                }
                _ => {}
            }
            actions
        })
        .boxed()
}

/// A worker runs an effect, if it was granted.
fn run_effects() -> BoxedStrategy<Chunk> {
    grant(worker()).prop_map(|grant| vec![Action::RunEffect(grant)]).boxed()
}

/// A message with an identity is produced and delivered to a worker, which follows the protocol of the idempotency
/// store in one of many ways, and stops at some point.
fn protocol_use() -> BoxedStrategy<Chunk> {
    (0..15_u8, 1..4_u8, 0..4_usize, vec(new_message().boxed(), 0..2).boxed())
        .prop_map(|(variant, key, cut_short, outputs)| {
            let (worker, topic, group) = (Worker(0), Topic::new(0), Group(0));
            let effect = EffectRef { scope: Scope::Consume { topic, group }, tenant: 0, key };
            let grant = GrantRef { worker, effect, back: 0, tampering: Tampering::None };
            let delivery = DeliveryRef { worker, message: Message(0), ..DeliveryRef::default() };
            let produce = Request::Produce(NewMessage { topic, identity: Some(key), ..NewMessage::default() });
            let begin = |ttl_ms, request, delivery| {
                let begin = EffectBegin { worker, effect, ttl_ms, request, delivery, ..EffectBegin::default() };
                Request::BeginEffect(EffectBegin { lease_ms: Some(10_000), ..begin })
            };
            let finish = |outcome| Request::FinishEffect { grant, outcome, result: 1, error: 0, dead_letter: None };
            let again = NewMessage { topic, identity: Some(key), ..NewMessage::default() };
            let outputs = if variant == 9 { vec![again] } else { outputs };
            let complete = Request::Complete { delivery, result: 1, produce: outputs, failed: None };
            let (call, read) = (Call(u32::from(key)), Action::Read { worker, count: u8::MAX });
            let repeat = [Action::Crash { loss: Loss::All }, Action::Boot, Action::Arrive { call }, Action::FlushIo];
            let requested = |requests: Vec<Request>| {
                requests.into_iter().flat_map(|request| [Action::Request(request), Action::FlushIo])
            };
            let mut actions: Chunk = vec![Action::Request(produce), Action::FlushIo, read.clone()];
            actions.extend(requested(vec![begin(None, 1, (variant % 2 == 0).then_some(delivery))]));
            actions.push(Action::RunEffect(grant));
            match variant {
                0 | 1 => actions.extend(requested(vec![finish(EffectOutcome::Succeeded), Request::Ack(delivery)])),
                2 => actions.extend(requested(vec![
                    Request::Ack(delivery),
                    finish(EffectOutcome::Succeeded),
                    finish(EffectOutcome::FailedFinal),
                ])),
                3 => {
                    let reacquire = Request::ReacquireEffect { worker, effect, lease_ms: None };
                    actions.extend(requested(vec![
                        finish(EffectOutcome::FailedRetryable),
                        reacquire,
                        begin(None, 2, None),
                    ]));
                    actions.push(Action::RunEffect(grant));
                }
                4 => {
                    actions.extend(requested(vec![Request::Nack {
                        delivery,
                        reason: 1,
                        delay_ms: None,
                        never: false,
                    }]));
                    actions.push(read);
                    actions.extend(requested(vec![begin(None, 0, Some(delivery))]));
                }
                5 => {
                    actions.extend(requested(vec![
                        Request::ForgetEffect { effect },
                        begin(Some(1), 0, Some(delivery)),
                        finish(EffectOutcome::Succeeded),
                    ]));
                    actions.extend([Action::AdvanceTime { ms: 5 }, Action::Wake, Action::FlushIo]);
                    actions.extend(requested(vec![begin(None, 0, None)]));
                }
                6 => {
                    let seek = Request::Seek { topic, group, to: SeekTarget::Earliest };
                    actions.extend(requested(vec![Request::Ack(delivery), seek]));
                }
                7 => {
                    actions.extend(requested(vec![Request::Ack(delivery)]));
                    actions.push(Action::AdvanceTime { ms: 600 });
                    actions.extend(requested(vec![Request::Produce(NewMessage {
                        topic,
                        identity: Some(key),
                        size: 1,
                        ..NewMessage::default()
                    })]));
                }
                8 => {
                    actions.extend([
                        Action::Send { call, request: complete },
                        Action::Arrive { call },
                        Action::FlushIo,
                    ]);
                    actions.extend(repeat);
                }
                9 => {
                    actions.extend([
                        Action::Send { call, request: complete },
                        Action::Arrive { call },
                        Action::FlushIo,
                    ]);
                    actions.extend([Action::AdvanceTime { ms: 20_000 }, Action::Arrive { call }, Action::FlushIo]);
                }
                10 => {
                    let effect = EffectRef { scope: Scope::Rpc { principal: 1, method: 1 }, ..effect };
                    let begin = Request::BeginEffect(EffectBegin { worker, effect, ..EffectBegin::default() });
                    let finish = Request::FinishEffect {
                        grant: GrantRef { effect, ..grant },
                        outcome: EffectOutcome::FailedRetryable,
                        result: 0,
                        error: 0,
                        dead_letter: None,
                    };
                    actions.extend(requested(vec![begin.clone(), finish, begin]));
                }
                11 => {
                    // More than most partitions hold.
                    let produce = vec![NewMessage { topic, ..NewMessage::default() }; 45];
                    actions.extend(requested(vec![Request::Complete { delivery, result: 0, produce, failed: None }]));
                }
                12 => {
                    let (outcome, dead_letter) = (EffectOutcome::FailedFinal, Some(delivery));
                    let finish = Request::FinishEffect { grant, outcome, result: 1, error: 0, dead_letter };
                    actions.extend(requested(vec![finish.clone(), finish]));
                }
                13 => {
                    let failed = Request::Complete { delivery, result: 0, produce: Vec::new(), failed: Some(1) };
                    actions.extend(requested(vec![failed.clone(), failed]));
                }
                _ => {
                    actions.extend(requested(vec![finish(EffectOutcome::Succeeded)]));
                    actions.extend([Action::Crash { loss: Loss::All }, Action::Boot]);
                    actions.extend(requested(vec![begin(None, 0, None)]));
                }
            }
            actions.truncate(if cut_short == 0 { actions.len() / 2 } else { actions.len() });
            actions
        })
        .boxed()
}

/// A producer without a reply sends the same message again.
fn resent() -> BoxedStrategy<Chunk> {
    (new_message(), driver_io(), driver_io())
        .prop_map(|(new_message, between, after)| {
            let produce = Action::Request(Request::Produce(new_message));
            [vec![produce.clone()], between, vec![produce], after].concat()
        })
        .boxed()
}

fn network() -> BoxedStrategy<Chunk> {
    prop_oneof![
        2 => (call(), request()).prop_map(|(call, request)| vec![Action::Send { call, request }]),
        3 => (call(), driver_io()).prop_map(|(call, mut driver_io)| {
            driver_io.insert(0, Action::Arrive { call });
            driver_io
        }),
    ]
    .boxed()
}

fn time() -> BoxedStrategy<Chunk> {
    let timeout =
        prop_oneof![3 => Just(vec![Action::Wake, Action::FlushIo]), 1 => Just(vec![Action::Wake]), 1 => Just(vec![])];
    prop_oneof![
        6 => (span(), timeout).prop_map(|(ms, mut timeout): (u32, Chunk)| {
            timeout.insert(0, Action::AdvanceTime { ms });
            timeout
        }),
        1 => clock_jump().prop_map(|ms| vec![Action::JumpClock { ms }]),
    ]
    .boxed()
}

fn disk() -> BoxedStrategy<Chunk> {
    let free_space = weighted(0.6, prop_oneof![4 => 0..8_000_u32, 1 => Just(0), 1 => any::<u32>()]);
    prop_oneof![
        3 => (class(), weighted(0.5, fault())).prop_map(|(class, fault)| vec![Action::Io { class, fault }]),
        2 => Just(vec![Action::FlushIo]),
        3 => snapshot(),
        2 => free_space.prop_map(|bytes| vec![Action::SetFreeSpace { bytes }]),
        2 => (loss(), damage()).prop_map(|(loss, damage)| vec![Action::Probe { loss, damage }]),
        1 => (loss(), damage()).prop_map(|(loss, damage)| {
            vec![Action::Crash { loss }, Action::Damage { damage }, Action::Boot]
        }),
        2 => (any::<u8>(), any::<u16>()).prop_map(|(payload, bit)| vec![Action::Rot { payload, bit }]),
        1 => Just(vec![Action::Drain]),
    ]
    .boxed()
}

/// A snapshot is written, up to some operation.
fn snapshot() -> BoxedStrategy<Chunk> {
    (vec(class(), 0..24), weighted(0.2, fault()), weighted(0.4, loss()))
        .prop_map(|(classes, fault, loss)| {
            let mut actions = vec![Action::FlushIo, Action::Snapshot];
            actions.extend(classes.into_iter().map(|class| Action::Io { class, fault: None }));
            actions.extend(fault.map(|fault| Action::Io { class: JobClass::Background, fault: Some(fault) }));
            actions.extend(loss.into_iter().flat_map(|loss| [Action::Crash { loss }, Action::Boot]));
            actions
        })
        .boxed()
}

fn crashes() -> BoxedStrategy<Chunk> {
    let starts = vec((0..12_u8, loss()).prop_map(|(after, loss)| Action::BootAndCrash { after, loss }), 0..3);
    prop_oneof![
        4 => (loss(), starts).prop_map(|(loss, mut starts): (Loss, Chunk)| {
            starts.insert(0, Action::Crash { loss });
            starts.push(Action::Boot);
            starts
        }),
        1 => loss().prop_map(|loss| vec![Action::Crash { loss }]),
        1 => Just(vec![Action::Boot]),
        1 => Just(vec![Action::Crash { loss: Loss::All }, Action::RebaseClock]),
        1 => (any::<u8>(), loss()).prop_map(|(after, loss)| vec![Action::BootAndCrash { after, loss }]),
        1 => Just(vec![Action::Close]),
        1 => (setup(), setup(), loss()).prop_filter_map("a broker starts with it", |(before, after, loss)| {
            let change = serde_json::to_value(Reconfiguration::between(&before, &after)).ok()?;
            let change = serde_json::from_value(change).ok()?;
            Some(vec![Action::Configure(change), Action::Crash { loss }, Action::Boot])
        }),
    ]
    .boxed()
}

/// The kinds of chunks. A sequence may leave out some: without restarts it goes deeper elsewhere.
fn chunk() -> impl Strategy<Value = (u8, Chunk)> {
    let with_kind = |kind: u8, chunk: BoxedStrategy<Chunk>| chunk.prop_map(move |chunk| (kind, chunk));
    prop_oneof![
        8 => with_kind(0, requested(new_message().prop_map(Request::Produce))),
        1 => with_kind(0, resent()),
        7 => with_kind(0, settled()),
        3 => with_kind(0, settled_all()),
        2 => with_kind(0, requested(streams())),
        2 => with_kind(7, requested(store())),
        1 => with_kind(7, run_effects()),
        3 => with_kind(7, protocol_use()),
        3 => with_kind(1, requested(administration())),
        1 => with_kind(2, requested(query())),
        2 => with_kind(3, network()),
        4 => with_kind(4, time()),
        2 => with_kind(5, disk()),
        2 => with_kind(6, crashes()),
    ]
}

/// Sequences of at most `chunks_max` chunks after the creation of a topic and a stream, ended by a drain.
pub fn sequences(chunks_max: usize) -> impl Strategy<Value = Sequence> {
    let begin =
        (partitions(), weighted(0.5, span()), weighted(0.5, span())).prop_map(|(partitions, lease_ms, keep_ms)| {
            let (worker, topic) = (Worker(0), Topic::new(0));
            let subscription =
                Subscription { worker, topic, owner: worker, lease_ms, prefetch: 2, ..Subscription::default() };
            let create = Request::CreateTopic { topic, partitions: Some(partitions), keep_ms, keep_bytes: None };
            vec![Action::Request(create), Action::Request(Request::Subscribe(subscription)), Action::FlushIo]
        });
    (setup(), begin, any::<u8>(), vec(chunk(), 1..chunks_max)).prop_map(
        |(setup, mut actions, disabled_kinds, chunks)| {
            let kept = chunks.into_iter().filter(|(kind, _)| *kind == 0 || disabled_kinds & (1 << kind) == 0);
            actions.extend(kept.flat_map(|(_, chunk)| chunk));
            actions.push(Action::Drain);
            assign_names(&mut actions);
            (setup, actions)
        },
    )
}

/// Assigns names to the messages, in order, and to the claims on them. A message equal to the one before it is a
/// resend: a name stands for one message.
fn assign_names(actions: &mut [Action]) {
    let mut newest: Option<NewMessage> = None;
    for action in actions {
        let (Action::Request(request) | Action::Send { request, .. }) = action else { continue };
        match request {
            Request::Produce(new_message) => {
                let last = newest.as_ref().map(|last| last.message);
                new_message.message = last.unwrap_or_default();
                if newest.as_ref().is_some_and(|last| last != new_message) {
                    new_message.message = Message(new_message.message.0 + 1);
                }
                newest = Some(new_message.clone());
            }
            Request::Ack(delivery)
            | Request::Release(delivery)
            | Request::AckCumulative(delivery)
            | Request::ExpireLease(delivery)
            | Request::FinishEffect { dead_letter: Some(delivery), .. }
            | Request::Nack { delivery, .. }
            | Request::Extend { delivery, .. } => {
                resolve(delivery, newest.as_ref());
            }
            Request::BeginEffect(EffectBegin { delivery: Some(delivery), .. }) => resolve(delivery, newest.as_ref()),
            Request::Complete { delivery, produce, .. } => {
                resolve(delivery, newest.as_ref());
                for new_message in produce {
                    new_message.message = Message(newest.as_ref().map_or(0, |last| last.message.0 + 1));
                    // It differs from every other message, so none counts as its resend.
                    newest = Some(NewMessage { message: new_message.message, key: u8::MAX, ..NewMessage::default() });
                }
            }
            _ => {}
        }
    }
}

/// Makes the claim refer to a message counted back from the newest.
fn resolve(delivery: &mut DeliveryRef, newest: Option<&NewMessage>) {
    let last = newest.map_or(0, |last| last.message.0);
    delivery.message = Message(last.saturating_sub(delivery.message.0));
}

/// The sequence with all far times at the end of time. They are never reached, so nothing is drained.
pub fn endless((setup, actions): Sequence) -> Sequence {
    let mut actions: Vec<Action> =
        actions.into_iter().filter(|action| *action != Action::Drain).map(at_end_of_time).collect();
    actions.extend([Action::FlushIo, Action::Crash { loss: Loss::All }, Action::Boot, Action::FlushIo]);
    (setup, actions)
}

fn at_end_of_time(mut action: Action) -> Action {
    let end = |number: &mut u64| *number = if *number < FAR { *number } else { u64::MAX };
    match &mut action {
        Action::Request(Request::Produce(new_message))
        | Action::Send { request: Request::Produce(new_message), .. } => {
            let policy =
                new_message.policy.iter_mut().flat_map(|policy| [&mut policy.backoff_ms, &mut policy.max_backoff_ms]);
            new_message.deliver_at.iter_mut().chain(&mut new_message.deadline).chain(policy).for_each(end);
        }
        Action::Request(Request::Seek { to: SeekTarget::Time(time), .. }) => end(time),
        _ => {}
    }
    action
}

/// A step of a read of payloads; without one under way it does nothing.
fn read_step() -> impl Strategy<Value = Action> {
    let fault = prop_oneof![
        Just(ReadFault::Fail),
        (0..400_u16).prop_map(|bytes| ReadFault::Short { bytes }),
        any::<u16>().prop_map(|bit| ReadFault::Flip { bit }),
    ];
    prop_oneof![
        3 => (0..4_u8, weighted(0.3, fault), any::<bool>())
            .prop_map(|(nth, fault, late)| Action::PerformRead { nth, fault, late }),
        1 => (0..4_u8).prop_map(|nth| Action::CompleteRead { nth }),
    ]
}
