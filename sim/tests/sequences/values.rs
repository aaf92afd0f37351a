//! Numbers as clients send them who mean well, and as those do who do not: mostly small, now and then 0, the largest there
//! is, or anything.

use driftq_core::log::HEADER_BYTES;
use driftq_sim::actions::{Damage, IoFault, JobClass, Loss};
use driftq_sim::names::{Call, Group, Message, Topic, Worker};
use driftq_sim::setup::Setup;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::select;

/// So far away that nothing comes of it before everything is worked off. Waiting for it a few times over does not reach the
/// end of time.
pub const FAR: u64 = 1 << 56;

/// Workers speak of so many of the newest messages.
pub const NEWEST: u32 = 8;

/// A span a client names.
pub fn span() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..60_u32, 3 => 0..3_000_u32, 1 => Just(0), 1 => Just(u32::MAX), 1 => any::<u32>()]
}

/// A span of a retry policy.
pub fn wait() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..60_u64, 1 => Just(FAR), 1 => 0..FAR]
}

/// A moment, counted from the beginning of the world: long past, soon, or far away.
pub fn moment() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..200_u64, 2 => 0..20_000_u64, 1 => Just(0), 1 => Just(FAR), 1 => 0..FAR]
}

/// How far a clock is set on or back: a little, to either end of time, or anywhere.
pub fn leap() -> impl Strategy<Value = i64> {
    prop_oneof![6 => -300..300_i64, 2 => -20_000..20_000_i64, 1 => Just(i64::MIN), 1 => Just(i64::MAX), 1 => any::<i64>()]
}

/// An offset: of something that is there, or beyond everything.
pub fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..8_u64, 1 => Just(u64::MAX), 1 => any::<u64>()]
}

/// How many.
pub fn count() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 1..4_u64, 1 => Just(0), 1 => Just(u64::MAX)]
}

/// How many leases a stream may hold.
pub fn prefetch() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 1..4_u32, 1 => Just(0), 1 => Just(u32::MAX), 1 => any::<u32>()]
}

/// How many partitions: none, a few, as many as there may be, or more.
pub fn partitions() -> impl Strategy<Value = u32> {
    prop_oneof![24 => 1..4_u32, 1 => Just(0), 1 => Just(40), 1 => 1_025..2_000_u32, 1 => Just(u32::MAX)]
}

/// A partition, which may not be there.
pub fn partition() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..3_u32, 1 => Just(u32::MAX), 1 => any::<u32>()]
}

/// A topic: mostly one and the same, sometimes one nobody makes.
pub fn topic() -> impl Strategy<Value = Topic> {
    let letters = |number| Topic::new(number).dlq();
    prop_oneof![
        10 => Just(Topic::new(0)),
        3 => Just(Topic::new(1)),
        4 => Just(letters(0)),
        1 => Just(letters(1)),
        1 => any::<u8>().prop_map(Topic::new),
        1 => any::<u8>().prop_map(letters),
    ]
}

/// A group.
pub fn group() -> impl Strategy<Value = Group> {
    prop_oneof![12 => Just(Group(0)), 4 => Just(Group(1)), 1 => any::<u8>().prop_map(Group)]
}

/// A worker.
pub fn worker() -> impl Strategy<Value = Worker> {
    prop_oneof![12 => Just(Worker(0)), 4 => Just(Worker(1)), 1 => any::<u8>().prop_map(Worker)]
}

/// A message, counted back from the newest that was made before.
pub fn message() -> impl Strategy<Value = Message> {
    prop_oneof![12 => (0..3_u32).prop_map(Message), 12 => (0..NEWEST).prop_map(Message), 1 => any::<u32>().prop_map(Message)]
}

/// A call.
pub fn call() -> impl Strategy<Value = Call> {
    (0..4_u32).prop_map(Call)
}

/// A class.
pub fn class() -> impl Strategy<Value = JobClass> {
    prop_oneof![3 => Just(JobClass::Log), 2 => Just(JobClass::Background)]
}

/// What goes wrong with a piece of I/O.
pub fn fault() -> impl Strategy<Value = IoFault> {
    prop_oneof![Just(IoFault::Fail), (0..600_u16).prop_map(|bytes| IoFault::Short { bytes })]
}

/// What a disk keeps.
pub fn loss() -> impl Strategy<Value = Loss> {
    prop_oneof![3 => Just(Loss::All), 1 => Just(Loss::Nothing), 3 => any::<u32>().prop_map(|seed| Loss::Partial { seed })]
}

/// What becomes of what it has kept.
pub fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        any::<u32>().prop_map(|bit| Damage::Flip { bit }),
        any::<u32>().prop_map(|sector| Damage::Zero { sector }),
        (any::<u32>(), any::<u32>()).prop_map(|(from, to)| Damage::Misdirect { from, to }),
        any::<u32>().prop_map(|sector| Damage::Unreadable { sector }),
    ]
}

/// The limits of a world in which a broker can start and everything can be worked off, however narrow or wide.
pub fn setup() -> impl Strategy<Value = Setup> {
    let limits = (
        select(vec![1_u32, 2, 3, 8, u32::MAX]),
        prop_oneof![1 => Just(1_u64), 6 => 2..40_u64, 1 => Just(u64::MAX)],
        prop_oneof![1 => Just(1_u64), 2 => 24..64_u64, 4 => Just(4_096_u64), 1 => Just(u64::MAX)],
        prop_oneof![1 => Just(1_u64), 2 => Just(50_u64), 4 => Just(2_000_u64), 1 => Just(u64::from(u32::MAX))],
    );
    let memory = (select(vec![0_u64, 1, 500, 10_000, u64::MAX]), select(vec![0_u64, 1, 3, 64, u64::MAX]));
    let counts = (select(vec![1_usize, 2, 16, 16]), select(vec![1_usize, 2, 16]), select(vec![1_usize, 3, 64]));
    let sizes = (
        prop_oneof![4 => Just(1_u64 << 14), 1 => 200..600_u64, 1 => 600..4_000_u64],
        select(vec![0_u64, 200, 1_000]),
        select(vec![0_u64, 300, 2_000, u64::MAX]),
        select(vec![1_usize, 64, 4_096]),
    );
    let windows = select(vec![0_u64, 1, 500, 10_000, 600_000, u64::MAX]);
    let effects = (
        windows.clone(),
        windows.clone(),
        windows.clone(),
        windows,
        select(vec![0_u64, 1, 2, 64, 64, 64, u64::MAX]),
        select(vec![0_usize, 1, 64, 64]),
        select(vec![0_usize, 1, 64, 64, 64]),
    );
    let odd = weighted(0.02, Just(()));
    (limits, memory, counts, sizes, effects, odd).prop_map(|(limits, memory, counts, sizes, effects, shows)| Setup {
        in_flight_max: limits.0,
        messages_max: limits.1,
        bytes_max: limits.2,
        lease_ms: limits.3,
        dedupe_ttl_ms: memory.0,
        dedupe_keys_max: memory.1,
        effect_ttl_ms: effects.0,
        job_ttl_ms: effects.1,
        ack_ttl_ms: effects.2,
        completion_ttl_ms: effects.3,
        effects_max: effects.4,
        result_bytes_max: 4,
        completions_max: effects.5,
        outputs_max: effects.6,
        topics_max: counts.0,
        groups_max: counts.1,
        consumers_max: counts.2,
        segment_bytes: HEADER_BYTES as u64 + sizes.0,
        reserve_bytes: sizes.1,
        snapshot_every_bytes: sizes.2,
        slice_bytes: sizes.3,
        shows_given_up: shows.is_some(),
    })
}
