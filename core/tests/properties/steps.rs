//! What can happen to a broker, as small steps that name things by number, so that any part of a sequence is a
//! sequence.

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;

/// The limits and sizes one sequence runs under.
#[derive(Clone, Debug)]
pub struct Shape {
    pub in_flight_max: u32,
    pub messages_max: u64,
    pub bytes_max: u64,
    pub dedupe_ttl: u64,
    pub dedupe_keys_max: u64,
    /// Bytes a segment has for frames.
    pub segment_room: u64,
    pub reserve: u64,
    pub snapshot_every: u64,
    pub slice_bytes: usize,
}

/// A sequence and what it runs under.
#[derive(Clone, Debug)]
pub struct Plan {
    pub shape: Shape,
    pub steps: Vec<Step>,
}

/// What a message is like.
#[derive(Clone, Debug, Default)]
pub struct Made {
    pub topic: u8,
    pub key: u8,
    pub size: u8,
    pub priority: Option<u8>,
    pub delay: Option<u16>,
    pub deliver_in: Option<u16>,
    pub deadline: Option<u16>,
    /// Most attempts, backoff, longest backoff.
    pub policy: Option<(u8, u16, u16)>,
    pub identity: Option<u8>,
    pub tenant: Option<u8>,
    pub target: Option<u8>,
    pub partition: Option<u8>,
    /// A router's target and partition.
    pub router: Option<(Option<u8>, Option<u8>)>,
}

/// What a worker says about a delivery.
#[derive(Clone, Debug)]
pub enum Word {
    Ack,
    Nack { reason: u8, delay: Option<u16> },
    Extend { lease: Option<u16> },
    Release,
}

/// What is wrong with a worker's claim, if anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twist {
    Honest,
    NoToken,
    Unreadable,
    /// Another delivery's token.
    Foreign(u8),
    WrongOwner,
    WrongPartition,
    WrongOffset,
    WrongGroup,
}

/// Where to seek.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    Earliest,
    Latest,
    Offset(u8),
    /// So long ago.
    Ago(u16),
}

/// What a power loss leaves of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    Nothing,
    Everything,
    /// Some sectors, some lost, some damaged; some of the folder's changes.
    Some(u8),
}

/// One thing that happens.
#[derive(Clone, Debug)]
pub enum Step {
    CreateTopic {
        topic: u8,
        partitions: u8,
        retention: u8,
    },
    DeleteTopic(u8),
    CreateGroup {
        topic: u8,
        group: u8,
        latest: bool,
    },
    DeleteGroup {
        topic: u8,
        group: u8,
    },
    Produce(Made),
    Subscribe {
        topic: u8,
        group: u8,
        owner: u8,
        lease: u16,
        prefetch: u8,
        most: Option<u8>,
        latest: bool,
        release: bool,
    },
    Unsubscribe(u8),
    SetPrefetch {
        stream: u8,
        prefetch: u8,
    },
    /// About the `nth` delivery, counted back from the newest.
    Say {
        word: Word,
        nth: u8,
        twist: Twist,
    },
    Seek {
        topic: u8,
        group: u8,
        to: Target,
    },
    Pause {
        topic: u8,
        group: u8,
    },
    Resume {
        topic: u8,
        group: u8,
    },
    Redrive {
        topic: u8,
        offset: Option<u8>,
        limit: u8,
    },
    Peek {
        topic: u8,
        partition: u8,
        offset: u8,
    },
    Describe(u8),
    List(u8),
    /// Time passes; the broker is called whenever it wants to be.
    Pass(u16),
    /// Time passes; the broker is called only at the end of it.
    Jump(u16),
    /// The next command comes with a clock that has gone back.
    Back(u16),
    /// So many steps are decided without any I/O.
    Undriven(u8),
    /// One job, and no more, is performed.
    OneJob {
        background: bool,
    },
    Snapshot,
    Crash(Keep),
    /// Only the first steps of the next job are performed, then the power goes.
    CrashMidJob {
        background: bool,
        steps: u8,
        keep: Keep,
    },
    Reopen,
    /// A message is produced, and the next sync fails; what follows is a restart.
    FailSync(Keep),
    /// The disk has room for so many KiB more than it holds; `None` for any number.
    Room(Option<u8>),
}

fn shape() -> impl Strategy<Value = Shape> {
    let limits = (1..4_u32, 1..9_u64, prop_oneof![24..40_u64, 60..200_u64], 1..4_u64);
    let sizes = (prop_oneof![200..600_u64, 600..4_000_u64], 0..200_u64, prop_oneof![Just(u64::MAX), 500..4_000_u64]);
    (limits, sizes, prop_oneof![Just(1_usize), 20..200_usize], prop_oneof![50..500_u64, 1_000..5_000_u64]).prop_map(
        |((in_flight_max, messages_max, bytes_max, dedupe_keys_max), sizes, slice_bytes, dedupe_ttl)| {
            let (segment_room, reserve, snapshot_every) = sizes;
            Shape {
                in_flight_max,
                messages_max,
                bytes_max,
                dedupe_ttl,
                dedupe_keys_max,
                segment_room,
                reserve,
                snapshot_every,
                slice_bytes,
            }
        },
    )
}

fn topic() -> impl Strategy<Value = u8> {
    prop_oneof![6 => Just(0_u8), 2 => Just(1_u8), 2 => Just(2_u8), 1 => Just(3_u8)]
}

fn group() -> impl Strategy<Value = u8> {
    prop_oneof![3 => Just(0_u8), 2 => Just(1_u8)]
}

fn made() -> impl Strategy<Value = Made> {
    let place = (topic(), 0..4_u8, 0..20_u8, weighted(0.1, topic()), weighted(0.1, 0..3_u8));
    let time = (weighted(0.15, 0..60_u16), weighted(0.05, 0..60_u16), weighted(0.15, 0..90_u16));
    let rank = (
        weighted(0.2, prop_oneof![Just(0_u8), Just(1), Just(9)]),
        weighted(0.35, (prop_oneof![Just(1_u8), 0..3_u8], 0..40_u16, 0..60_u16)),
    );
    let identity = (weighted(0.2, 0..3_u8), weighted(0.1, 0..3_u8));
    let router = weighted(0.1, (weighted(0.5, topic()), weighted(0.5, 0..3_u8)));
    (place, time, rank, identity, router).prop_map(
        |((topic, key, size, target, partition), time, (priority, policy), (identity, tenant), router)| {
            let (delay, deliver_in, deadline) = time;
            Made {
                topic,
                key,
                size,
                priority,
                delay,
                deliver_in,
                deadline,
                policy,
                identity,
                tenant,
                target,
                partition,
                router,
            }
        },
    )
}

fn word() -> impl Strategy<Value = Word> {
    prop_oneof![
        5 => Just(Word::Ack),
        4 => (0..4_u8, weighted(0.2, 0..60_u16)).prop_map(|(reason, delay)| Word::Nack { reason, delay }),
        1 => weighted(0.8, 0..80_u16).prop_map(|lease| Word::Extend { lease }),
        1 => Just(Word::Release),
    ]
}

fn twist() -> impl Strategy<Value = Twist> {
    prop_oneof![
        12 => Just(Twist::Honest),
        2 => Just(Twist::NoToken),
        1 => Just(Twist::Unreadable),
        2 => any::<u8>().prop_map(Twist::Foreign),
        1 => Just(Twist::WrongOwner),
        1 => Just(Twist::WrongPartition),
        1 => Just(Twist::WrongOffset),
        1 => Just(Twist::WrongGroup),
    ]
}

fn nth() -> impl Strategy<Value = u8> {
    prop_oneof![4 => 0..3_u8, 1 => any::<u8>()]
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        2 => Just(Target::Earliest),
        1 => Just(Target::Latest),
        1 => (0..12_u8).prop_map(Target::Offset),
        1 => (0..100_u16).prop_map(Target::Ago),
    ]
}

fn keep() -> impl Strategy<Value = Keep> {
    prop_oneof![2 => Just(Keep::Nothing), 1 => Just(Keep::Everything), 1 => any::<u8>().prop_map(Keep::Some)]
}

fn subscribe() -> impl Strategy<Value = Step> {
    let who = (topic(), group(), 0..2_u8, prop_oneof![0..30_u16, 30..200_u16]);
    let how =
        (prop_oneof![4 => 1..4_u8, 1 => Just(0_u8)], weighted(0.1, 1..4_u8), weighted(0.15, Just(())), any::<bool>());
    (who, how).prop_map(|((topic, group, owner, lease), (prefetch, most, latest, release))| Step::Subscribe {
        topic,
        group,
        owner,
        lease,
        prefetch,
        most,
        latest: latest.is_some(),
        release,
    })
}

fn administration() -> BoxedStrategy<Step> {
    prop_oneof![
        3 => (topic(), 0..4_u8, 0..8_u8)
            .prop_map(|(topic, partitions, retention)| Step::CreateTopic { topic, partitions, retention }),
        1 => topic().prop_map(Step::DeleteTopic),
        2 => (topic(), group(), any::<bool>())
            .prop_map(|(topic, group, latest)| Step::CreateGroup { topic, group, latest }),
        2 => (topic(), group()).prop_map(|(topic, group)| Step::DeleteGroup { topic, group }),
        3 => (topic(), group(), target()).prop_map(|(topic, group, to)| Step::Seek { topic, group, to }),
        1 => (topic(), group()).prop_map(|(topic, group)| Step::Pause { topic, group }),
        2 => (topic(), group()).prop_map(|(topic, group)| Step::Resume { topic, group }),
    ]
    .boxed()
}

fn redrive() -> impl Strategy<Value = Step> {
    (prop_oneof![4 => Just(0_u8), 1 => topic()], weighted(0.3, 0..4_u8), 1..4_u8)
        .prop_map(|(topic, offset, limit)| Step::Redrive { topic, offset, limit })
}

fn looking() -> BoxedStrategy<Step> {
    prop_oneof![
        1 => (topic(), 0..3_u8, 0..9_u8)
            .prop_map(|(topic, partition, offset)| Step::Peek { topic, partition, offset }),
        2 => topic().prop_map(Step::Describe),
        1 => topic().prop_map(Step::List),
    ]
    .boxed()
}

fn disk() -> BoxedStrategy<Step> {
    prop_oneof![
        7 => (1..6_u8).prop_map(Step::Undriven),
        3 => any::<bool>().prop_map(|background| Step::OneJob { background }),
        2 => Just(Step::Snapshot),
        3 => keep().prop_map(Step::Crash),
        2 => (any::<bool>(), 0..6_u8, keep())
            .prop_map(|(background, steps, keep)| Step::CrashMidJob { background, steps, keep }),
        1 => Just(Step::Reopen),
        1 => keep().prop_map(Step::FailSync),
        1 => weighted(0.5, 0..8_u8).prop_map(Step::Room),
    ]
    .boxed()
}

fn time() -> BoxedStrategy<Step> {
    prop_oneof![
        6 => (0..60_u16).prop_map(Step::Pass),
        1 => (0..300_u16).prop_map(Step::Pass),
        2 => (0..150_u16).prop_map(Step::Jump),
        1 => (0..6_000_u16).prop_map(Step::Jump),
        1 => (0..300_u16).prop_map(Step::Back),
    ]
    .boxed()
}

fn streams() -> BoxedStrategy<Step> {
    prop_oneof![
        4 => subscribe(),
        2 => nth().prop_map(Step::Unsubscribe),
        1 => (nth(), 0..4_u8).prop_map(|(stream, prefetch)| Step::SetPrefetch { stream, prefetch }),
    ]
    .boxed()
}

fn say() -> impl Strategy<Value = Step> {
    (word(), nth(), twist()).prop_map(|(word, nth, twist)| Step::Say { word, nth, twist })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => made().prop_map(Step::Produce),
        8 => say(),
        3 => streams(),
        2 => administration(),
        2 => redrive(),
        1 => looking(),
        4 => time(),
        3 => disk(),
    ]
}

/// Which kinds of step a sequence does without: a world without restarts goes deeper elsewhere.
fn allowed(step: &Step, without: u8) -> bool {
    let family = match step {
        Step::DeleteTopic(_) | Step::DeleteGroup { .. } | Step::Seek { .. } => 0,
        Step::Crash(_) | Step::CrashMidJob { .. } | Step::FailSync(_) | Step::Reopen => 1,
        Step::Undriven(_) | Step::OneJob { .. } => 2,
        Step::Room(_) => 3,
        Step::Jump(_) | Step::Back(_) => 4,
        Step::Pause { .. } | Step::Redrive { .. } => 5,
        Step::Unsubscribe(_) | Step::SetPrefetch { .. } => 6,
        _ => return true,
    };
    without & (1 << family) == 0
}

/// Sequences of at most `longest` steps behind the making of a topic and of a stream.
pub fn plans(longest: usize) -> impl Strategy<Value = Plan> {
    let start = (1..4_u8, 0..8_u8, subscribe());
    (shape(), start, any::<u8>(), vec(step(), 1..longest)).prop_map(
        |(shape, (partitions, retention, stream), without, steps)| {
            let mut all = vec![Step::CreateTopic { topic: 0, partitions, retention }, stream];
            all.extend(steps.into_iter().filter(|step| allowed(step, without)));
            Plan { shape, steps: all }
        },
    )
}
