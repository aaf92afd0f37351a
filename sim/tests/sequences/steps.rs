//! Whole sequences: everything that can happen, in any order.

use driftq_sim::names::{Call, Group, Message, Topic, Worker};
use driftq_sim::setup::Setup;
use driftq_sim::steps::{
    Ask, Beginning, Effect, Ended, Grant, JobClass, Loss, Made, Right, Scope, Step, Stream, Target, Twist,
};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;

use super::asks::{administration, ask, grant, looking, made, store, streams, word};
use super::wild::{FAR, NEWEST, call, class, damage, fault, leap, loss, partitions, setup, span, worker};

/// A world, and what happens in it.
pub type Sequence = (Setup, Vec<Step>);

/// A few steps that make sense together: alone, most of them would come to nothing.
type Chunk = Vec<Step>;

/// What the driver does after a call: all there is to do, a part of it, or nothing.
fn upkeep() -> impl Strategy<Value = Chunk> {
    prop_oneof![
        6 => Just(vec![Step::Settle]),
        1 => Just(vec![Step::Wake, Step::Settle]),
        2 => Just(vec![]),
        3 => vec((class(), weighted(0.04, fault())).prop_map(|(class, fault)| Step::Io { class, fault }), 1..8),
    ]
}

fn asked(ask: impl Strategy<Value = Ask> + 'static) -> BoxedStrategy<Chunk> {
    (ask, upkeep())
        .prop_map(|(ask, mut upkeep)| {
            upkeep.insert(0, Step::Ask(ask));
            upkeep
        })
        .boxed()
}

/// A worker reads, and says something about what it has read.
fn said() -> BoxedStrategy<Chunk> {
    let read = (worker(), prop_oneof![4 => Just(u8::MAX), 2 => 1..3_u8, 1 => Just(0)]);
    (read, word(), upkeep())
        .prop_map(|((worker, count), word, mut upkeep)| {
            upkeep.splice(0..0, [Step::Read { worker, count }, Step::Ask(word)]);
            upkeep
        })
        .boxed()
}

/// A worker reads everything, and says the same of all it knows. What has died of it lives again.
fn said_of_all() -> BoxedStrategy<Chunk> {
    (worker(), 0..5_u8)
        .prop_map(|(worker, word)| {
            let mut steps = vec![Step::Settle, Step::Read { worker, count: u8::MAX }];
            steps.extend((0..NEWEST).map(Message).map(|message| {
                let right = Right { worker, message, ..Right::default() };
                Step::Ask(match word {
                    0 | 1 => Ask::Nack { right, reason: word, delay_ms: None },
                    2 => Ask::Release(right),
                    _ => Ask::Ack(right),
                })
            }));
            steps.push(Step::Settle);
            if word == 0 {
                let redrive = Ask::Redrive { topic: Topic::live(0), offset: None, limit: u64::MAX };
                steps.extend([Step::Ask(redrive), Step::Settle]);
            }
            steps
        })
        .boxed()
}

/// Somebody runs an effect, as far as it was granted.
fn run() -> BoxedStrategy<Chunk> {
    grant(worker()).prop_map(|grant| vec![Step::Run(grant)]).boxed()
}

/// A message with an identity is produced and handed to a worker, which does what the contract of the idempotency store asks for, in
/// one of many ways, and stops somewhere.
fn worked() -> BoxedStrategy<Chunk> {
    (0..13_u8, 1..4_u8, 0..4_usize, vec(made().boxed(), 0..2).boxed())
        .prop_map(|(story, key, short, produce)| {
            let (worker, topic, group) = (Worker(0), Topic::live(0), Group(0));
            let effect = Effect { scope: Scope::Consume { topic, group }, tenant: 0, key };
            let grant = Grant { worker, effect, back: 0, twist: Twist::None };
            let right = Right { worker, message: Message(0), ..Right::default() };
            let made = Ask::Produce(Made { topic, identity: Some(key), ..Made::default() });
            let begin = |ttl_ms, request, delivery| {
                let begin = Beginning { worker, effect, ttl_ms, request, delivery, ..Beginning::default() };
                Ask::Begin(Beginning { lease_ms: Some(10_000), ..begin })
            };
            let finish = |ended| Ask::Finish { grant, ended, result: 1 };
            let complete = Ask::Complete { right, result: 1, produce };
            let (call, read) = (Call(u32::from(key)), Step::Read { worker, count: u8::MAX });
            let again = [Step::Crash { loss: Loss::All }, Step::Boot, Step::Arrive { call }, Step::Settle];
            let asked = |asks: Vec<Ask>| asks.into_iter().flat_map(|ask| [Step::Ask(ask), Step::Settle]);
            let mut steps: Chunk = vec![Step::Ask(made.clone()), Step::Settle, read.clone()];
            steps.extend(asked(vec![begin(None, 1, (story % 2 == 0).then_some(right))]));
            steps.push(Step::Run(grant));
            match story {
                0 | 1 => steps.extend(asked(vec![finish(Ended::Succeeded), Ask::Ack(right)])),
                2 => steps.extend(asked(vec![Ask::Ack(right), finish(Ended::Succeeded), finish(Ended::FailedFinal)])),
                3 => {
                    let reacquire = Ask::Reacquire { worker, effect, lease_ms: None };
                    steps.extend(asked(vec![finish(Ended::FailedRetryable), reacquire, begin(None, 2, None)]));
                    steps.push(Step::Run(grant));
                }
                4 => {
                    steps.extend(asked(vec![Ask::Nack { right, reason: 1, delay_ms: None }]));
                    steps.push(read);
                    steps.extend(asked(vec![begin(None, 0, Some(right))]));
                }
                5 => {
                    steps.extend(asked(vec![
                        Ask::Forget { effect },
                        begin(Some(1), 0, Some(right)),
                        finish(Ended::Succeeded),
                    ]));
                    steps.extend([Step::Pass { ms: 5 }, Step::Wake, Step::Settle]);
                    steps.extend(asked(vec![begin(None, 0, None)]));
                }
                6 => {
                    let seek = Ask::Seek { topic, group, to: Target::Earliest };
                    steps.extend(asked(vec![Ask::Ack(right), seek]));
                }
                7 => {
                    steps.extend(asked(vec![Ask::Ack(right)]));
                    steps.push(Step::Pass { ms: 600 });
                    steps.extend(asked(vec![Ask::Produce(Made {
                        topic,
                        identity: Some(key),
                        size: 1,
                        ..Made::default()
                    })]));
                }
                8 => {
                    steps.extend([Step::Send { call, ask: complete }, Step::Arrive { call }, Step::Settle]);
                    steps.extend(again);
                }
                9 => {
                    steps.extend([Step::Send { call, ask: complete }, Step::Arrive { call }, Step::Settle]);
                    steps.extend([Step::Pass { ms: 20_000 }, Step::Arrive { call }, Step::Settle]);
                }
                10 => {
                    let effect = Effect { scope: Scope::Rpc { principal: 1, method: 1 }, ..effect };
                    let begin = Ask::Begin(Beginning { worker, effect, ..Beginning::default() });
                    let finish =
                        Ask::Finish { grant: Grant { effect, ..grant }, ended: Ended::FailedRetryable, result: 0 };
                    steps.extend(asked(vec![begin.clone(), finish, begin]));
                }
                11 => {
                    // More than most partitions have room for.
                    let produce = vec![Made { topic, ..Made::default() }; 45];
                    steps.extend(asked(vec![Ask::Complete { right, result: 0, produce }]));
                }
                _ => {
                    steps.extend(asked(vec![finish(Ended::Succeeded)]));
                    steps.extend([Step::Crash { loss: Loss::All }, Step::Boot]);
                    steps.extend(asked(vec![begin(None, 0, None)]));
                }
            }
            steps.truncate(if short == 0 { steps.len() / 2 } else { steps.len() });
            steps
        })
        .boxed()
}

/// A producer that heard nothing says the same once more.
fn sent_again() -> BoxedStrategy<Chunk> {
    (made(), upkeep(), upkeep())
        .prop_map(|(made, between, after)| {
            let made = Step::Ask(Ask::Produce(made));
            [vec![made.clone()], between, vec![made], after].concat()
        })
        .boxed()
}

fn network() -> BoxedStrategy<Chunk> {
    prop_oneof![
        2 => (call(), ask()).prop_map(|(call, ask)| vec![Step::Send { call, ask }]),
        3 => (call(), upkeep()).prop_map(|(call, mut upkeep)| {
            upkeep.insert(0, Step::Arrive { call });
            upkeep
        }),
    ]
    .boxed()
}

fn time() -> BoxedStrategy<Chunk> {
    let woken = prop_oneof![3 => Just(vec![Step::Wake, Step::Settle]), 1 => Just(vec![Step::Wake]), 1 => Just(vec![])];
    prop_oneof![
        6 => (span(), woken).prop_map(|(ms, mut woken): (u32, Chunk)| {
            woken.insert(0, Step::Pass { ms });
            woken
        }),
        1 => leap().prop_map(|ms| vec![Step::Jump { ms }]),
    ]
    .boxed()
}

fn disk() -> BoxedStrategy<Chunk> {
    let room = weighted(0.6, prop_oneof![4 => 0..8_000_u32, 1 => Just(0), 1 => any::<u32>()]);
    prop_oneof![
        3 => (class(), weighted(0.5, fault())).prop_map(|(class, fault)| vec![Step::Io { class, fault }]),
        2 => Just(vec![Step::Settle]),
        3 => snapshot(),
        2 => room.prop_map(|bytes| vec![Step::Room { bytes }]),
        2 => (loss(), damage()).prop_map(|(loss, damage)| vec![Step::Probe { loss, damage }]),
        1 => Just(vec![Step::Drain]),
    ]
    .boxed()
}

/// A snapshot is written, up to some piece of it.
fn snapshot() -> BoxedStrategy<Chunk> {
    (vec(class(), 0..16), weighted(0.2, fault()), weighted(0.4, loss()))
        .prop_map(|(pieces, fault, loss)| {
            let mut steps = vec![Step::Settle, Step::Snapshot];
            steps.extend(pieces.into_iter().map(|class| Step::Io { class, fault: None }));
            steps.extend(fault.map(|fault| Step::Io { class: JobClass::Background, fault: Some(fault) }));
            steps.extend(loss.into_iter().flat_map(|loss| [Step::Crash { loss }, Step::Boot]));
            steps
        })
        .boxed()
}

fn power() -> BoxedStrategy<Chunk> {
    let starts = vec((0..12_u8, loss()).prop_map(|(after, loss)| Step::BootAndCrash { after, loss }), 0..3);
    prop_oneof![
        4 => (loss(), starts).prop_map(|(loss, mut starts): (Loss, Chunk)| {
            starts.insert(0, Step::Crash { loss });
            starts.push(Step::Boot);
            starts
        }),
        1 => loss().prop_map(|loss| vec![Step::Crash { loss }]),
        1 => Just(vec![Step::Boot]),
        1 => (any::<u8>(), loss()).prop_map(|(after, loss)| vec![Step::BootAndCrash { after, loss }]),
        1 => Just(vec![Step::Close]),
    ]
    .boxed()
}

/// The kinds of chunk, of which a sequence may do without some: a world without restarts goes deeper elsewhere.
fn chunk() -> impl Strategy<Value = (u8, Chunk)> {
    let of = |kind: u8, chunk: BoxedStrategy<Chunk>| chunk.prop_map(move |chunk| (kind, chunk));
    prop_oneof![
        8 => of(0, asked(made().prop_map(Ask::Produce))),
        1 => of(0, sent_again()),
        7 => of(0, said()),
        3 => of(0, said_of_all()),
        2 => of(0, asked(streams())),
        2 => of(7, asked(store())),
        1 => of(7, run()),
        3 => of(7, worked()),
        3 => of(1, asked(administration())),
        1 => of(2, asked(looking())),
        2 => of(3, network()),
        4 => of(4, time()),
        2 => of(5, disk()),
        2 => of(6, power()),
    ]
}

/// Sequences of at most `longest` chunks behind the making of a topic and of a stream, and the working off of everything.
pub fn sequences(longest: usize) -> impl Strategy<Value = Sequence> {
    let begin =
        (partitions(), weighted(0.5, span()), weighted(0.5, span())).prop_map(|(partitions, lease_ms, keep_ms)| {
            let (worker, topic) = (Worker(0), Topic::live(0));
            let stream = Stream { worker, topic, owner: worker, lease_ms, prefetch: 2, ..Stream::default() };
            let create = Ask::Create { topic, partitions: Some(partitions), keep_ms, keep_bytes: None };
            vec![Step::Ask(create), Step::Ask(Ask::Subscribe(stream)), Step::Settle]
        });
    (setup(), begin, any::<u8>(), vec(chunk(), 1..longest)).prop_map(|(setup, mut steps, without, chunks)| {
        let kept = chunks.into_iter().filter(|(kind, _)| *kind == 0 || without & (1 << kind) == 0);
        steps.extend(kept.flat_map(|(_, chunk)| chunk));
        steps.push(Step::Drain);
        name(&mut steps);
        (setup, steps)
    })
}

/// Gives the messages their names, one after the other, and the claims the names of the messages they are about. A message
/// like the one before it is that one, sent again: a name means one message for ever.
fn name(steps: &mut [Step]) {
    let mut newest: Option<Made> = None;
    for step in steps {
        let (Step::Ask(ask) | Step::Send { ask, .. }) = step else { continue };
        match ask {
            Ask::Produce(made) => {
                let last = newest.as_ref().map(|last| last.message);
                made.message = last.unwrap_or_default();
                if newest.as_ref().is_some_and(|last| last != made) {
                    made.message = Message(made.message.0 + 1);
                }
                newest = Some(made.clone());
            }
            Ask::Ack(right) | Ask::Release(right) | Ask::Nack { right, .. } | Ask::Extend { right, .. } => {
                about(right, newest.as_ref());
            }
            Ask::Begin(Beginning { delivery: Some(right), .. }) => about(right, newest.as_ref()),
            Ask::Complete { right, produce, .. } => {
                about(right, newest.as_ref());
                for made in produce {
                    made.message = Message(newest.as_ref().map_or(0, |last| last.message.0 + 1));
                    // Nothing is like it, so nothing is that one, sent again.
                    newest = Some(Made { message: made.message, key: u8::MAX, ..Made::default() });
                }
            }
            _ => {}
        }
    }
}

/// The claim is about a message counted back from the newest.
fn about(right: &mut Right, newest: Option<&Made>) {
    let last = newest.map_or(0, |last| last.message.0);
    right.message = Message(last.saturating_sub(right.message.0));
}

/// The same with the end of time for everything that is far away. Nobody waits for that, so nothing is worked off.
pub fn endless((setup, steps): Sequence) -> Sequence {
    let mut steps: Vec<Step> = steps.into_iter().filter(|step| *step != Step::Drain).map(to_the_end).collect();
    steps.extend([Step::Settle, Step::Crash { loss: Loss::All }, Step::Boot, Step::Settle]);
    (setup, steps)
}

fn to_the_end(mut step: Step) -> Step {
    let end = |number: &mut u64| *number = if *number < FAR { *number } else { u64::MAX };
    match &mut step {
        Step::Ask(Ask::Produce(made)) | Step::Send { ask: Ask::Produce(made), .. } => {
            let policy = made.policy.iter_mut().flat_map(|policy| [&mut policy.backoff_ms, &mut policy.longest_ms]);
            made.deliver_at.iter_mut().chain(&mut made.deadline).chain(policy).for_each(end);
        }
        Step::Ask(Ask::Seek { to: Target::Time(moment), .. }) => end(moment),
        _ => {}
    }
    step
}
