//! Where two lives meet: a number for everything that the future of a world depends on.
//!
//! Two worlds with one fingerprint have the same futures: whatever is done to both, the same comes out, and the same checks
//! pass. So whoever has gone every way from the one need not go any from the other. Everything is in it that a step or a check
//! ever reads: the broker, its writer and its chores, I/O under way, the clock, the clients, the log, the naive model and the
//! observer's books. What is left out, and why that is sound:
//!
//! - **What is only counted**: the tally, the rare situations, the digest chain. No check reads them but the comparison of the
//!   whole log every 4,096 events, and nobody who uses fingerprints lives so long.
//! - **What durable bytes say**, since only a start reads them: in their place stands the state that the records in them come to.
//!   That a start makes that state of them is a promise, and whoever uses fingerprints must have it checked whenever more has
//!   become durable, *before* the world is taken for one that was seen.
//! - **Where the log stands.** A place in the log counts from what is durable: in it, or so far beyond. How long files are and what
//!   their frames are sealed with is left out, as is what a torn tail left behind in a segment that is closed. So no segment may
//!   be full, no snapshot due for its bytes, and no disk short of room. None of this holds of a world that seeks, whose observer
//!   compares places that are durable.
//! - **How many calls there were.** Tickets count back from the next one.
//! - **The values of messages**, but for their lengths: one name, one message.

use std::fmt::{self, Write as _};

use driftq_core::faults::Faults;

use super::World;

/// What a world comes down to: see [`World::fingerprint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub u128);

impl<F: Faults> World<F> {
    /// Forgets how it came about, as far as that can no longer make a difference, so that worlds do not differ by it. What comes
    /// out of it stays the same.
    pub fn forget(&mut self) {
        if let Some(oracle) = &mut self.oracle {
            oracle.set_down(self.shadow.records());
        }
    }

    /// A number for everything that its future depends on. `paper` is room to write in, whose content is lost.
    ///
    /// Two worlds are sure to meet only if both [forget](Self::forget) after every step.
    #[must_use]
    pub fn fingerprint(&self, paper: &mut Vec<u8>) -> Fingerprint {
        paper.clear();
        let mut canonical =
            Outline { paper, durable: self.shadow.durable().0, ticket: self.next_ticket.0, next: Next::Any };
        self.canonical(&mut canonical).expect("there is always room on the paper");
        Fingerprint::of(paper)
    }

    fn canonical(&self, out: &mut Outline<'_>) -> fmt::Result {
        let Self {
            setup: _,
            faults: _,
            disk,
            broker,
            lanes,
            now,
            skew,
            latest,
            network,
            heard: _,
            shadow,
            oracle,
            observer,
            chain: _,
            counters: _,
            coverage: _,
            died,
            compared: _,
            records_before: _,
            next_ticket,
            failed_from,
        } = self;
        disk.canonical(out)?;
        out.part()?;
        if let Some(broker) = broker {
            broker.canonical(out)?;
        }
        out.part()?;
        for class in lanes {
            if let Some(running) = class {
                running.canonical(out)?;
            }
            out.part()?;
        }
        network.canonical(out)?;
        out.part()?;
        shadow.canonical(out)?;
        out.part()?;
        if let Some(oracle) = oracle {
            oracle.canonical(out)?;
        }
        out.part()?;
        observer.canonical(out)?;
        out.part()?;
        write!(out, "{now} {skew} {latest:?} {died:?} {next_ticket:?} {failed_from:?}")
    }
}

/// Takes what is written and puts it on paper, places in the log and tickets counted from where they matter.
struct Outline<'a> {
    paper: &'a mut Vec<u8>,
    durable: u64,
    ticket: u64,
    next: Next,
}

/// What may come next.
#[derive(Clone, Copy)]
enum Next {
    Any,
    /// The bracket of something that is counted, and then its number.
    Bracket(Counted),
    Number(Counted),
}

#[derive(Clone, Copy)]
enum Counted {
    Lsn,
    Ticket,
}

impl Outline<'_> {
    /// One part ends and another begins.
    fn part(&mut self) -> fmt::Result {
        self.write_str("\n")
    }
}

impl fmt::Write for Outline<'_> {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        // A number type writes its name, a bracket, its digits and a bracket, each by itself.
        let next = std::mem::replace(&mut self.next, Next::Any);
        match (next, piece) {
            (_, "Lsn") => self.next = Next::Bracket(Counted::Lsn),
            (_, "Ticket") => self.next = Next::Bracket(Counted::Ticket),
            (Next::Bracket(counted), "(") => self.next = Next::Number(counted),
            (Next::Number(counted), digits) => {
                if let Ok(number) = digits.parse::<u64>() {
                    let number = match counted {
                        Counted::Lsn => number.saturating_sub(self.durable),
                        Counted::Ticket => self.ticket.wrapping_sub(number),
                    };
                    self.paper.extend_from_slice(&number.to_le_bytes());
                    return Ok(());
                }
            }
            _ => {}
        }
        self.paper.extend_from_slice(piece.as_bytes());
        Ok(())
    }
}

impl Fingerprint {
    fn of(bytes: &[u8]) -> Self {
        let fold = |left: u64, delivery: u64| {
            let product = u128::from(left) * u128::from(delivery);
            (product >> 64) as u64 ^ product as u64
        };
        let (mut first, mut second) = (0x9e37_79b9_7f4a_7c15_u64 ^ bytes.len() as u64, 0xd1b5_4a32_d192_ed03_u64);
        for chunk in bytes.chunks(16) {
            let mut words = [0; 16];
            words[..chunk.len()].copy_from_slice(chunk);
            let all = u128::from_le_bytes(words);
            let (low, high) = (all as u64, (all >> 64) as u64);
            // Two that share nothing but the bytes, each of which goes into both.
            first = fold(first ^ low, high ^ 0xa076_1d64_78bd_642f).wrapping_add(low.rotate_left(32));
            second = fold(second ^ high, low ^ 0xe703_7ed1_a0b4_28db).wrapping_add(high.rotate_left(17));
        }
        let mixed = |number: u64| fold(number ^ 0x8ebc_6af0_9c88_c6e3, 0x5899_65cc_7537_4cc3);
        Self(u128::from(mixed(first)) << 64 | u128::from(mixed(second ^ first.rotate_left(29))))
    }

    /// Takes in something that is remembered beside the world.
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

    type Quiet = World<NoFaults>;

    fn taking(world: &Quiet, actions: &[Action]) -> Quiet {
        let mut world = world.clone();
        for action in actions {
            world.apply(action).expect("no promise is broken");
            world.forget();
        }
        world
    }

    fn print(world: &Quiet) -> Fingerprint {
        world.fingerprint(&mut Vec::new())
    }

    fn produce(nth: u8) -> Action {
        Action::Request(Request::Produce(NewMessage {
            message: Message(u32::from(nth)),
            size: nth,
            ..NewMessage::default()
        }))
    }

    fn delivery_ref(nth: u8) -> DeliveryRef {
        DeliveryRef { worker: Worker(nth), message: Message(u32::from(nth)), ..DeliveryRef::default() }
    }

    /// Two workers have read one message each.
    fn busy() -> Quiet {
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
        let world = World::new(&Setup::default(), NoFaults, Checks::default()).expect("it starts");
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
        taking(&world, &actions)
    }

    #[test]
    fn two_worlds_that_differ_in_one_part_only_have_different_fingerprints() {
        let one = busy();
        let log = Action::Io { class: JobClass::Log, fault: None };
        let nack = Action::Request(Request::Nack { delivery: delivery_ref(1), reason: 1, delay_ms: None });
        let actions = [
            Action::AdvanceTime { ms: 7 },
            Action::Request(Request::Ack(delivery_ref(0))),
            log.clone(),
            log.clone(),
            nack,
            log,
        ];
        let other = taking(&one, &actions);
        let with = |change: &dyn Fn(&mut Quiet)| {
            let mut world = one.clone();
            change(&mut world);
            world
        };
        let changed = [
            with(&|world| world.disk = other.disk.clone()),
            with(&|world| world.broker = other.broker.clone()),
            with(&|world| world.broker = None),
            with(&|world| world.lanes = other.lanes.clone()),
            with(&|world| world.now = other.now),
            with(&|world| world.skew = 1),
            with(&|world| world.latest = Timestamp(world.latest.0 + 1)),
            with(&|world| world.network = taking(&one, &[Action::Crash { loss: Loss::All }]).network),
            with(&|world| world.shadow = other.shadow.clone()),
            with(&|world| world.oracle = other.oracle.clone()),
            with(&|world| world.oracle = None),
            with(&|world| world.observer = other.observer.clone()),
            with(&|world| world.died = taking(&one, &[Action::Crash { loss: Loss::All }]).died),
            with(&|world| world.failed_from = Some(Ticket(0))),
        ];
        let mut prints: Vec<_> = changed.iter().chain([&one, &other]).map(print).collect();
        let count = prints.len();
        prints.sort_unstable();
        prints.dedup();
        assert_eq!(prints.len(), count);
    }

    #[test]
    fn ways_that_meet_have_one_fingerprint_and_what_was_only_asked_is_forgotten() {
        let one = busy();
        let (first, second) =
            (Action::Request(Request::Ack(delivery_ref(0))), Action::Request(Request::Ack(delivery_ref(1))));
        let settle = Action::FlushIo;
        let forth = taking(&one, &[first.clone(), settle.clone(), second.clone(), settle.clone()]);
        let back = taking(&one, &[second, settle.clone(), first.clone(), settle.clone()]);
        assert_eq!(print(&forth), print(&back), "what they say is durable, and comes to the same");
        let late = taking(&forth, &[first, settle]);
        assert_eq!(print(&forth), print(&late), "a word that is worth nothing was answered");
        let waiting = taking(&one, &[produce(2), Action::Request(Request::ListTopics)]);
        assert_ne!(print(&taking(&one, &[produce(2)])), print(&waiting), "an answer is still to come");
    }

    #[test]
    fn what_is_durable_counts_by_what_it_comes_to_and_what_is_not_by_what_it_says() {
        let one = busy();
        let extend = |ms| Action::Request(Request::Extend { delivery: delivery_ref(0), lease_ms: Some(ms) });
        let settle = Action::FlushIo;
        let (long, longer) = (extend(5_000), extend(6_000));
        let straight = taking(&one, std::slice::from_ref(&longer));
        let detour = taking(&one, &[long, longer]);
        assert_ne!(print(&straight), print(&detour), "a crash between the two would show");
        assert_eq!(print(&taking(&straight, std::slice::from_ref(&settle))), print(&taking(&detour, &[settle])));
    }
}
