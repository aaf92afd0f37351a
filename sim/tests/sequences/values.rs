//! Values of requests, reasonable and not: mostly small, sometimes 0, the maximum, or anything.

use driftq_core::log::HEADER_BYTES;
use driftq_sim::actions::{Damage, IoFault, JobClass, Loss};
use driftq_sim::names::{Call, Group, Message, Topic, Worker};
use driftq_sim::setup::{DefaultRetention, GroupIdle, Setup};
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::select;

/// So far away that it has no effect before the drain. Waiting for it a few times does not reach the end of time.
pub const FAR: u64 = 1 << 56;

/// Claims refer to this many of the newest messages.
pub const NEWEST: u32 = 8;

/// A duration in a request.
pub fn span() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..60_u32, 3 => 0..3_000_u32, 1 => Just(0), 1 => Just(u32::MAX), 1 => any::<u32>()]
}

/// A duration in a retry policy.
pub fn wait() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..60_u64, 1 => Just(FAR), 1 => 0..FAR]
}

/// A time since the start of the world: past, soon, or far away.
pub fn time() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..200_u64, 2 => 0..20_000_u64, 1 => Just(0), 1 => Just(FAR), 1 => 0..FAR]
}

/// A clock jump: a little, to either end of time, or anywhere.
pub fn clock_jump() -> impl Strategy<Value = i64> {
    prop_oneof![6 => -300..300_i64, 2 => -20_000..20_000_i64, 1 => Just(i64::MIN), 1 => Just(i64::MAX), 1 => any::<i64>()]
}

/// An offset, of a message or beyond all.
pub fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..8_u64, 1 => Just(u64::MAX), 1 => any::<u64>()]
}

/// A count.
pub fn count() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 1..4_u64, 1 => Just(0), 1 => Just(u64::MAX)]
}

/// A prefetch.
pub fn prefetch() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 1..4_u32, 1 => Just(0), 1 => Just(u32::MAX), 1 => any::<u32>()]
}

/// A number of partitions: none, a few, the maximum, or more.
pub fn partitions() -> impl Strategy<Value = u32> {
    prop_oneof![24 => 1..4_u32, 1 => Just(0), 1 => Just(40), 1 => 1_025..2_000_u32, 1 => Just(u32::MAX)]
}

/// A partition, which may not exist.
pub fn partition() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..3_u32, 1 => Just(u32::MAX), 1 => any::<u32>()]
}

/// A topic: mostly the same, sometimes one that is never created.
pub fn topic() -> impl Strategy<Value = Topic> {
    let dlq = |number| Topic::new(number).dlq();
    prop_oneof![
        10 => Just(Topic::new(0)),
        3 => Just(Topic::new(1)),
        4 => Just(dlq(0)),
        1 => Just(dlq(1)),
        1 => any::<u8>().prop_map(Topic::new),
        1 => any::<u8>().prop_map(dlq),
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

/// A message, counted back from the newest.
pub fn message() -> impl Strategy<Value = Message> {
    prop_oneof![12 => (0..3_u32).prop_map(Message), 12 => (0..NEWEST).prop_map(Message), 1 => any::<u32>().prop_map(Message)]
}

/// A request in transit.
pub fn call() -> impl Strategy<Value = Call> {
    (0..4_u32).prop_map(Call)
}

/// An I/O class.
pub fn class() -> impl Strategy<Value = JobClass> {
    prop_oneof![3 => Just(JobClass::Log), 2 => Just(JobClass::Background)]
}

/// A fault of an I/O operation.
pub fn fault() -> impl Strategy<Value = IoFault> {
    prop_oneof![
        2 => Just(IoFault::Fail),
        2 => (0..600_u16).prop_map(|bytes| IoFault::Short { bytes }),
        1 => Just(IoFault::NoDescriptor),
    ]
}

/// The loss of a crash.
pub fn loss() -> impl Strategy<Value = Loss> {
    prop_oneof![3 => Just(Loss::All), 1 => Just(Loss::Nothing), 3 => any::<u32>().prop_map(|seed| Loss::Partial { seed })]
}

/// The damage of a probe.
pub fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        any::<u32>().prop_map(|bit| Damage::Flip { bit }),
        any::<u32>().prop_map(|sector| Damage::Zero { sector }),
        (any::<u32>(), any::<u32>()).prop_map(|(from, to)| Damage::Misdirect { from, to }),
        any::<u32>().prop_map(|sector| Damage::Unreadable { sector }),
    ]
}

/// Limits under which a broker can start and drain, however narrow or wide.
pub fn setup() -> impl Strategy<Value = Setup> {
    let limits = (
        select(vec![1_u32, 2, 3, 8, u32::MAX]),
        prop_oneof![1 => Just(1_u64), 6 => 2..40_u64, 1 => Just(u64::MAX)],
        prop_oneof![1 => Just(1_u64), 2 => 24..64_u64, 4 => Just(4_096_u64), 1 => Just(u64::MAX)],
        prop_oneof![1 => Just(1_u64), 2 => Just(50_u64), 4 => Just(2_000_u64), 1 => Just(u64::from(u32::MAX))],
        (
            prop_oneof![4 => Just(1_u64), 1 => 2..200_u64],
            prop_oneof![1 => 200..2_000_u64, 4 => Just(43_200_000_u64), 1 => Just(u64::MAX)],
            prop_oneof![1 => Just(0_u64), 1 => 1..2_000_u64, 4 => Just(2_592_000_000_u64), 1 => Just(u64::MAX)],
        ),
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
        windows,
        select(vec![0_u64, 1, 2, 64, 64, 64, u64::MAX]),
        select(vec![0_usize, 1, 64, 64]),
        select(vec![0_usize, 1, 64, 64, 64]),
    );
    let retention = (weighted(0.7, 0..5_000_u64), weighted(0.5, 0..200_u64));
    let kept = (weighted(0.5, retention), weighted(0.4, select(vec![0_u64, 200, 1_000])));
    let idle = select(vec![None, None, Some((0, 2_000)), Some((200, 600_000)), Some((u64::MAX, u64::MAX))]);
    let idle = idle.prop_map(|idle| idle.map(|(ms, max_ms)| GroupIdle { ms, max_ms }));
    let first_segment = prop_oneof![1 => 200..4_000_u64, 4 => Just(1_u64 << 13), 1 => Just(u64::MAX >> 1)];
    let storage = (weighted(0.1, Just(40_000_u64)), weighted(0.1, 1_000..20_000_u64), proptest::bool::weighted(0.2));
    let flags = (select(vec![true, true, false]), kept, idle, first_segment, storage);
    (limits, memory, counts, sizes, effects, flags).prop_map(
        |(limits, memory, counts, sizes, effects, (adaptive_credit, kept, group_idle, first_segment, storage))| Setup {
            in_flight_max: limits.0,
            messages_max: limits.1,
            bytes_max: limits.2,
            lease_ms: limits.3,
            lease_min_ms: limits.4.0,
            lease_max_ms: limits.4.1,
            delay_max_ms: limits.4.2,
            dedupe_ttl_ms: memory.0,
            dedupe_keys_max: memory.1,
            effect_ttl_ms: effects.0,
            job_ttl_ms: effects.1,
            completion_ttl_ms: effects.2,
            effects_max: effects.3,
            result_bytes_max: 4,
            completions_max: effects.4,
            outputs_max: effects.5,
            topics_max: counts.0,
            groups_max: counts.1,
            consumers_max: counts.2,
            segment_bytes: HEADER_BYTES as u64 + sizes.0,
            segment_bytes_min: HEADER_BYTES as u64 + first_segment,
            snapshot_every_segments: 3,
            rest_ms: adaptive_credit.then_some(500),
            reserve_bytes: sizes.1,
            snapshot_every_bytes: sizes.2,
            slice_bytes: sizes.3,
            memory_bytes: Some(sizes.1),
            // Performed by the flushes of the sequences.
            read_steps: adaptive_credit,
            read_ahead_bytes: sizes.2.min(4 << 20),
            clean_spare_segments: 0,
            scrub_ms: storage.0,
            rots: storage.2,
            state_bytes_max: storage.1,
            adaptive_credit,
            retention: kept.0.map(|(ms, bytes)| DefaultRetention { ms, bytes }),
            retained_bytes_max: kept.1,
            group_idle,
            texts: None,
            work: None,
            // Then something may be violated.
            shows_given_up: false,
        },
    )
}
