//! Fingerprints: a 128-bit hash of everything that the future behaviour of a world depends on.
//!
//! Two worlds with the same fingerprint behave the same: the same actions give the same outputs and the same verdicts,
//! so exhaustive search explores only one of them. The fingerprint covers everything that an action or a check reads:
//! the broker, its log writer and maintenance, pending I/O, the clock, the clients, the shadow log, the oracle and the
//! tracker. It leaves out, for these reasons:
//!
//! - **Counters, coverage and the digest chain.** Only the comparison of the whole log every 4,096 events reads them,
//!   and exhaustive search stays below that.
//! - **Durable bytes.** Only recovery reads them. The state after the durable records stands for them. That recovery
//!   arrives at this state is an invariant, which the search must check whenever more has become durable, *before* it
//!   takes the world for a known one.
//! - **Absolute log positions.** LSNs and frame numbers count from the durable ones. File lengths, checksums and the
//!   remains of a torn tail in a closed segment are left out, so no segment may be full, no snapshot due by size and no
//!   disk short of space. None of this holds for a world that seeks, whose tracker compares durable positions.
//! - **The number of calls.** Tickets count back from the next one.
//! - **Message values**, except for their lengths: a name stands for one message.

use std::fmt::{self, Write as _};

use driftq_core::faults::Faults;
use driftq_core::log::FileId;

use super::execute::COMPARE_EVERY;
use super::state::World;

/// The fingerprint of a world, see [`World::fingerprint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub u128);

impl<F: Faults> World<F> {
    /// Forgets the part of its history that can no longer matter, so that worlds do not differ by it. Behaviour does
    /// not change.
    pub fn forget_history(&mut self) {
        if let Some(oracle) = &mut self.oracle {
            oracle.checkpoint(self.shadow.records());
        }
    }

    /// Asserts what the fingerprint leaves out for a reason: that the reason holds.
    ///
    /// # Panics
    /// If it does not, so that a search could take two worlds for one that differ.
    pub fn assert_searchable(&self) {
        assert!(self.counters.events < COMPARE_EVERY, "the whole log is compared with the state after so many events");
        assert!(!self.was_limited && !self.disk.is_limited(), "the disk is short of space");
        assert!(!self.disk.is_injured(), "the disk is damaged");
        let is_segment = |file: FileId| matches!(file, FileId::Segment(_));
        assert!(self.disk.files().all(|(file, _)| is_segment(file)), "a snapshot is due by size");
        let begun = self.disk.files().filter(|(_, bytes)| !bytes.is_empty()).count() as u64;
        assert!(begun <= self.counters.boots + 1, "a segment is full: {begun} were begun");
        let refused = self.broker.as_ref().map_or(0, |broker| broker.broker().counters().refused);
        assert_eq!(refused, 0, "the log refused a record for want of space");
    }

    /// The fingerprint. `buffer` is scratch space.
    ///
    /// Equivalent worlds are recognised only if both [forget their history](Self::forget_history) after every action.
    #[must_use]
    pub fn fingerprint(&self, buffer: &mut Vec<u8>) -> Fingerprint {
        buffer.clear();
        let mut canonical = CanonicalWriter {
            buffer,
            lsn: self.shadow.last_record().0,
            frame: self.shadow.durable().0,
            ticket: self.next_ticket.0,
            next: Next::Any,
        };
        self.canonical(&mut canonical).expect("writing to a vector does not fail");
        Fingerprint::of(buffer)
    }

    fn canonical(&self, out: &mut CanonicalWriter<'_>) -> fmt::Result {
        let Self {
            setup,
            next_setup,
            faults: _,
            injected_tickets: _,
            disk,
            broker,
            jobs,
            reads,
            now,
            skew,
            latest,
            network,
            tap_events: _,
            shadow,
            room,
            oracle,
            tracker,
            chain: _,
            counters: _,
            coverage: _,
            crashed_broker,
            comparisons: _,
            calls: _,
            records_before: _,
            next_ticket,
            was_limited: _,
            short_until: _,
            synced_at,
            failed_from,
        } = self;
        disk.canonical(out)?;
        out.part()?;
        if let Some(broker) = broker {
            broker.canonical(out)?;
        }
        out.part()?;
        for job in jobs {
            if let Some(running) = job {
                running.canonical(out)?;
            }
            out.part()?;
        }
        let durable = broker.as_ref().map(|broker| broker.broker().durable()).unwrap_or_default();
        reads.canonical(durable, out)?;
        out.part()?;
        network.canonical(out)?;
        out.part()?;
        shadow.canonical(out)?;
        out.part()?;
        room.canonical(out)?;
        out.part()?;
        if let Some(oracle) = oracle {
            oracle.canonical(out)?;
        }
        out.part()?;
        tracker.canonical(out)?;
        out.part()?;
        if next_setup.is_some() {
            write!(out, "{setup:?} {next_setup:?} ")?;
        }
        // What is marked needs no further mark.
        let synced_at = synced_at.filter(|_| !shadow.ends_in_mark());
        write!(out, "{now} {skew} {latest:?} {crashed_broker:?} {next_ticket:?} {failed_from:?} {synced_at:?}")
    }
}

/// Collects the canonical encoding, with LSNs, frame numbers and tickets made relative.
struct CanonicalWriter<'a> {
    buffer: &'a mut Vec<u8>,
    /// The last durable record and the last durable frame.
    lsn: u64,
    frame: u64,
    ticket: u64,
    next: Next,
}

/// What the next piece may be.
#[derive(Clone, Copy)]
enum Next {
    Any,
    /// The parenthesis of a counted type, and then its number.
    Bracket(Counted),
    Number(Counted),
}

#[derive(Clone, Copy)]
enum Counted {
    Lsn,
    Frame,
    Ticket,
}

impl CanonicalWriter<'_> {
    /// Separates two parts.
    fn part(&mut self) -> fmt::Result {
        self.write_str("\n")
    }
}

impl fmt::Write for CanonicalWriter<'_> {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        // Debug of a newtype writes its name, a parenthesis, the digits and a parenthesis, each by itself.
        let next = std::mem::replace(&mut self.next, Next::Any);
        match (next, piece) {
            (_, "Lsn") => self.next = Next::Bracket(Counted::Lsn),
            (_, "FrameNumber") => self.next = Next::Bracket(Counted::Frame),
            (_, "Ticket") => self.next = Next::Bracket(Counted::Ticket),
            (Next::Bracket(counted), "(") => self.next = Next::Number(counted),
            (Next::Number(counted), digits) => {
                if let Ok(number) = digits.parse::<u64>() {
                    let number = match counted {
                        Counted::Lsn => number.saturating_sub(self.lsn),
                        Counted::Frame => number.saturating_sub(self.frame),
                        Counted::Ticket => self.ticket.wrapping_sub(number),
                    };
                    self.buffer.extend_from_slice(&number.to_le_bytes());
                    return Ok(());
                }
            }
            _ => {}
        }
        self.buffer.extend_from_slice(piece.as_bytes());
        Ok(())
    }
}

impl Fingerprint {
    fn of(bytes: &[u8]) -> Self {
        let fold = |left: u64, right: u64| {
            let product = u128::from(left) * u128::from(right);
            (product >> 64) as u64 ^ product as u64
        };
        let (mut first, mut second) = (0x9e37_79b9_7f4a_7c15_u64 ^ bytes.len() as u64, 0xd1b5_4a32_d192_ed03_u64);
        for chunk in bytes.chunks(16) {
            let mut padded = [0; 16];
            padded[..chunk.len()].copy_from_slice(chunk);
            let all = u128::from_le_bytes(padded);
            let (low, high) = (all as u64, (all >> 64) as u64);
            // Two independent hashes; every byte goes into both.
            first = fold(first ^ low, high ^ 0xa076_1d64_78bd_642f).wrapping_add(low.rotate_left(32));
            second = fold(second ^ high, low ^ 0xe703_7ed1_a0b4_28db).wrapping_add(high.rotate_left(17));
        }
        let mixed = |number: u64| fold(number ^ 0x8ebc_6af0_9c88_c6e3, 0x5899_65cc_7537_4cc3);
        Self(u128::from(mixed(first)) << 64 | u128::from(mixed(second ^ first.rotate_left(29))))
    }

    /// Adds state that is kept outside the world.
    #[must_use]
    pub fn with(self, more: u64) -> Self {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.0.to_le_bytes());
        bytes[16..].copy_from_slice(&more.to_le_bytes());
        Self::of(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use driftq_core::faults::NoFaults;
    use driftq_core::types::{Ticket, Timestamp};

    use super::*;
    use crate::actions::{Action, DeliveryRef, JobClass, Loss, NewMessage, Request, Subscription};
    use crate::names::{Group, Message, Topic, Worker};
    use crate::setup::Setup;
    use crate::world::Checks;

    type TestWorld = World<NoFaults>;

    fn after(world: &TestWorld, actions: &[Action]) -> TestWorld {
        let mut world = world.clone();
        for action in actions {
            world.apply(action).expect("no violation");
            world.forget_history();
        }
        world
    }

    fn fingerprint_of(world: &TestWorld) -> Fingerprint {
        world.fingerprint(&mut Vec::new())
    }

    fn produce(nth: u8) -> Action {
        Action::Request(Request::Produce(NewMessage {
            message: Message(u32::from(nth)),
            size: nth.into(),
            ..NewMessage::default()
        }))
    }

    fn delivery_ref(nth: u8) -> DeliveryRef {
        DeliveryRef { worker: Worker(nth), message: Message(u32::from(nth)), ..DeliveryRef::default() }
    }

    /// Two workers have read one message each.
    fn busy() -> TestWorld {
        let topic = Topic::new(0);
        let create = Request::CreateTopic { topic, partitions: None, keep_ms: None, keep_bytes: None };
        let subscribe = |nth| {
            let worker = Worker(nth);
            let (group, owner) = (Group(0), worker);
            Action::Request(Request::Subscribe(Subscription {
                worker,
                topic,
                group,
                owner,
                prefetch: 1,
                ..Subscription::default()
            }))
        };
        let read = |nth| Action::Read { worker: Worker(nth), count: 1 };
        let world = World::new(&Setup::default(), NoFaults, Checks::default()).expect("the broker starts");
        let actions = [
            Action::Request(create),
            subscribe(0),
            subscribe(1),
            produce(0),
            produce(1),
            Action::FlushIo,
            read(0),
            read(1),
        ];
        after(&world, &actions)
    }

    #[test]
    fn worlds_that_differ_in_one_part_have_different_fingerprints() {
        let base = busy();
        let log = Action::Io { class: JobClass::Log, fault: None };
        let nack =
            Action::Request(Request::Nack { delivery: delivery_ref(1), reason: 1, delay_ms: None, never: false });
        let actions = [
            Action::AdvanceTime { ms: 7 },
            Action::Request(Request::Ack(delivery_ref(0))),
            log.clone(),
            log.clone(),
            nack,
            log,
        ];
        let other = after(&base, &actions);
        let with = |change: &dyn Fn(&mut TestWorld)| {
            let mut world = base.clone();
            change(&mut world);
            world
        };
        let changed = [
            with(&|world| world.disk = other.disk.clone()),
            with(&|world| world.broker = other.broker.clone()),
            with(&|world| world.broker = None),
            with(&|world| world.jobs = other.jobs.clone()),
            with(&|world| world.now = other.now),
            with(&|world| world.skew = 1),
            with(&|world| world.latest = Timestamp(world.latest.0 + 1)),
            with(&|world| world.network = after(&base, &[Action::Crash { loss: Loss::All }]).network),
            with(&|world| world.shadow = other.shadow.clone()),
            with(&|world| world.oracle = other.oracle.clone()),
            with(&|world| world.oracle = None),
            with(&|world| world.tracker = other.tracker.clone()),
            with(&|world| world.crashed_broker = after(&base, &[Action::Crash { loss: Loss::All }]).crashed_broker),
            with(&|world| world.failed_from = Some(Ticket(0))),
            with(&|world| world.synced_at = Some(Timestamp(7))),
        ];
        let mut fingerprints: Vec<_> = changed.iter().chain([&base, &other]).map(fingerprint_of).collect();
        let count = fingerprints.len();
        fingerprints.sort_unstable();
        fingerprints.dedup();
        assert_eq!(fingerprints.len(), count);
    }

    #[test]
    fn equivalent_histories_have_one_fingerprint() {
        let base = busy();
        let (first, second) =
            (Action::Request(Request::Ack(delivery_ref(0))), Action::Request(Request::Ack(delivery_ref(1))));
        let flush = Action::FlushIo;
        let forth = after(&base, &[first.clone(), flush.clone(), second.clone(), flush.clone()]);
        let back = after(&base, &[second, flush.clone(), first.clone(), flush.clone()]);
        assert_eq!(fingerprint_of(&forth), fingerprint_of(&back), "both acks are durable, in either order");
        let late = after(&forth, &[first, flush]);
        assert_eq!(fingerprint_of(&forth), fingerprint_of(&late), "a repeated ack changed nothing");
        let waiting = after(&base, &[produce(2), Action::Request(Request::ListTopics)]);
        assert_ne!(fingerprint_of(&after(&base, &[produce(2)])), fingerprint_of(&waiting), "a reply is pending");
    }

    #[test]
    fn durable_records_count_by_their_state_and_others_by_content() {
        let base = busy();
        let extend = |ms| Action::Request(Request::Extend { delivery: delivery_ref(0), lease_ms: Some(ms) });
        let flush = Action::FlushIo;
        let (long, longer) = (extend(5_000), extend(6_000));
        let straight = after(&base, std::slice::from_ref(&longer));
        let detour = after(&base, &[long, longer]);
        assert_ne!(
            fingerprint_of(&straight),
            fingerprint_of(&detour),
            "a crash between the two extends exposes the difference"
        );
        assert_eq!(
            fingerprint_of(&after(&straight, std::slice::from_ref(&flush))),
            fingerprint_of(&after(&detour, &[flush]))
        );
    }
}
