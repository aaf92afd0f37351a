//! Workers that use the idempotency store: most as they should, some as they should not.

use std::collections::BTreeSet;

use driftq_core::faults::Faults;
use driftq_core::types::LeaseToken;

use super::Profile;
use super::clients::{Clients, right};
use super::draw::Source;
use super::family::Family;
use crate::names::{Topic, Worker};
use crate::steps::{Ask, Beginning, Effect, Ended, Grant, JobClass, Right, Scope, Step, Twist};
use crate::world::{Held, World};

/// What the store's users of one world are like, and what they remember beside what the world does.
#[derive(Debug)]
pub(super) struct Users {
    profile: Profile,
    source: Source,
    /// How many different keys there are.
    keys: u64,
    /// How many requests share a key.
    requests: u64,
    /// How many messages have an identity: one in so many.
    pub(super) identity_one_in: u64,
    /// Grants whose end was told, as far as their workers know, and those of them that failed.
    told: BTreeSet<LeaseToken>,
    failed: BTreeSet<LeaseToken>,
}

impl Users {
    pub(super) fn new(mut source: Source, profile: Profile) -> Self {
        let identity_one_in = if profile == Profile::Effects { 1 } else { source.pick(&[1, 2, 3]) };
        Self {
            keys: source.pick(&[1, 4, 12]),
            requests: source.pick(&[1, 2, 2]),
            identity_one_in,
            profile,
            source,
            told: BTreeSet::new(),
            failed: BTreeSet::new(),
        }
    }

    /// Which of a few identities a message has.
    pub(super) fn key(&mut self) -> u8 {
        // The first is the empty one, which is none.
        if self.source.one_in(12) { 0 } else { 1 + self.source.below(self.keys) as u8 }
    }
}

impl Clients {
    /// What somebody who uses the store does next; nothing if nobody has anything to do.
    pub(super) fn use_store<F: Faults>(&mut self, family: Family, world: &World<F>) -> Option<Step> {
        match family {
            Family::Work => self.work(world),
            Family::Effect => self.any_effect(world),
            Family::OddEffect => self.odd_effect(world).map(Step::Ask),
            _ => Some(self.step_done(world)),
        }
    }

    /// A worker that follows the contract goes on with one of its deliveries, from wherever it is: whether it may run the effect,
    /// run it, say how it ended, be done with the message. Between any two of these it may be slow, or never go on.
    fn work<F: Faults>(&mut self, world: &World<F>) -> Option<Step> {
        let worker = self.worker();
        if world.edge().unread(worker) > 0 && self.users.source.one_in(2) {
            return Some(Step::Read { worker, count: 1 });
        }
        let with_effect = |held: &&Held| held.effect.is_some() && !self.is_settled(held.token);
        let open: Vec<&Held> = world.edge().read_by(worker).filter(with_effect).collect();
        let Some(held) = open.get(self.users.source.below(open.len() as u64) as usize).copied() else {
            return Some(self.look_for_work(worker, world));
        };
        let effect = held.effect?;
        let grant = Grant { worker, effect, back: 0, twist: Twist::None };
        match world.edge().granted(&grant).filter(|granted| granted.token > held.token) {
            Some(granted) if !granted.ran => Some(Step::Run(grant)),
            Some(granted) if !self.users.told.contains(&granted.token) && !self.users.source.one_in(5) => {
                let ended = self.ended();
                self.users.told.insert(granted.token);
                if ended == Ended::FailedRetryable {
                    self.users.failed.insert(granted.token);
                }
                Some(Step::Ask(Ask::Finish { grant, ended, result: self.users.source.below(5) as u8 }))
            }
            Some(granted) if self.users.failed.contains(&granted.token) => {
                let right = self.settle(worker, held, world);
                Some(Step::Ask(Ask::Nack { right, reason: 1, delay_ms: None }))
            }
            Some(_) => Some(Step::Ask(self.done(worker, held, world))),
            None if world.edge().was_replayed(worker, &effect) => Some(Step::Ask(self.done(worker, held, world))),
            None => {
                let right = right(worker, held, world);
                let delivery = (!self.users.source.one_in(3)).then_some(right);
                self.wait();
                Some(Step::Ask(Ask::Begin(Beginning { delivery, ..self.beginning(worker, effect, world) })))
            }
        }
    }

    /// Somebody uses the store beside the queue, in any scope.
    fn any_effect<F: Faults>(&mut self, world: &World<F>) -> Option<Step> {
        let worker = self.worker();
        let effect = self.effect();
        let grant = Grant { worker, effect, back: 0, twist: Twist::None };
        let source = &mut self.users.source;
        let lease_ms = source.one_in(2).then(|| 1 + source.below(500) as u32);
        Some(match world.edge().granted(&grant) {
            Some(granted) if !granted.ran && !source.one_in(4) => Step::Run(grant),
            Some(granted) if !self.users.told.contains(&granted.token) => match source.below(6) {
                0 => Step::Ask(Ask::Renew { grant, lease_ms }),
                1 => Step::Ask(Ask::Begin(self.beginning(worker, effect, world))),
                _ => {
                    self.users.told.insert(granted.token);
                    let ended = self.ended();
                    Step::Ask(Ask::Finish { grant, ended, result: self.users.source.below(5) as u8 })
                }
            },
            Some(_) if source.one_in(3) => Step::Ask(Ask::Reacquire { worker, effect, lease_ms }),
            _ => {
                self.wait();
                Step::Ask(Ask::Begin(self.beginning(worker, effect, world)))
            }
        })
    }

    /// Somebody says what it has no right to say, says it again, or only looks.
    fn odd_effect<F: Faults>(&mut self, world: &World<F>) -> Option<Ask> {
        let worker = self.worker();
        let held: Vec<&Held> = world.edge().read_by(worker).collect();
        let nth = self.users.source.below(held.len() as u64) as usize;
        let held = held.get(nth).copied();
        let effect = match held.and_then(|held| held.effect) {
            Some(effect) if !self.users.source.one_in(3) => effect,
            _ => self.effect(),
        };
        let ended = self.ended();
        let source = &mut self.users.source;
        let twist = source.pick(&[Twist::None, Twist::None, Twist::None, Twist::NoToken, Twist::Unreadable]);
        let grant = Grant { worker, effect, back: source.below(3) as u8, twist };
        let result = source.below(5) as u8;
        Some(match source.below(9) {
            0 | 1 => Ask::Get { effect },
            2 => Ask::Forget { effect },
            3 => Ask::Reacquire { worker, effect, lease_ms: None },
            4 => Ask::Renew { grant, lease_ms: None },
            5 => {
                let twists =
                    [Twist::None, Twist::Unreadable, Twist::NoToken, Twist::WrongPartition, Twist::WrongOffset];
                let twist = source.pick(&twists);
                let delivery = held.map(|held| Right { twist, ..right(worker, held, world) });
                Ask::Begin(Beginning { delivery, ..self.beginning(worker, effect, world) })
            }
            6 => Ask::Finish { grant, ended: if source.one_in(8) { Ended::InProgress } else { ended }, result },
            _ => Ask::Finish { grant, ended: Ended::Succeeded, result },
        })
    }

    /// A worker completes a step, whether or not it has ever asked the store; sometimes once more.
    fn step_done<F: Faults>(&mut self, world: &World<F>) -> Step {
        let worker = self.worker();
        let again = self.users.source.one_in(6);
        let open = |held: &&Held| again || !self.is_settled(held.token);
        let open: Vec<&Held> = world.edge().read_by(worker).filter(open).collect();
        let Some(held) = open.get(self.users.source.below(open.len() as u64) as usize).copied() else {
            return self.look_for_work(worker, world);
        };
        let mut ask = self.completion(worker, held, world);
        if let Ask::Complete { right, .. } = &mut ask
            && self.users.source.one_in(10)
        {
            let twists =
                [Twist::NoToken, Twist::Unreadable, Twist::WrongOwner, Twist::WrongGroup, Twist::WrongPartition];
            right.twist = self.users.source.pick(&twists);
        }
        Step::Ask(ask)
    }

    /// A worker that has nothing to do reads what there is, or waits for something to come.
    fn look_for_work<F: Faults>(&mut self, worker: Worker, world: &World<F>) -> Step {
        match world.edge().unread(worker) {
            0 if self.users.source.one_in(2) => Step::Wake,
            0 if self.users.profile == Profile::Effects => Step::Io { class: JobClass::Log, fault: None },
            0 => Step::Settle,
            _ => Step::Read { worker, count: 1 },
        }
    }

    /// The message is done: by an ack, or by a step that hands on the next.
    fn done<F: Faults>(&mut self, worker: Worker, held: &Held, world: &World<F>) -> Ask {
        match self.users.source.one_in(2) {
            true => self.completion(worker, held, world),
            false => Ask::Ack(self.settle(worker, held, world)),
        }
    }

    /// Most wait for an answer before they go on: I/O is done then, and nothing else happens meanwhile.
    fn wait(&mut self) {
        if self.users.source.one_in(3) {
            return;
        }
        match self.users.profile {
            Profile::Default => self.next_is(Step::Settle),
            // Only the log's, and piece by piece: where so many wait, nothing else would ever be under way.
            Profile::Effects => (0..3).for_each(|_| self.next_is(Step::Io { class: JobClass::Log, fault: None })),
        }
    }

    fn completion<F: Faults>(&mut self, worker: Worker, held: &Held, world: &World<F>) -> Ask {
        let right = self.settle(worker, held, world);
        let count = self.users.source.pick(&[0, 1, 1, 2, 3]);
        let produce = (0..count).map(|_| self.made_once(world.elapsed())).collect();
        Ask::Complete { right, result: self.users.source.below(4) as u8, produce }
    }

    fn beginning<F: Faults>(&mut self, worker: Worker, effect: Effect, world: &World<F>) -> Beginning {
        let Users { source, requests, .. } = &mut self.users;
        Beginning {
            worker,
            effect,
            lease_ms: source.one_in(2).then(|| source.pick(&[0, 1, 50, 500, 10_000])),
            ttl_ms: source.one_in(4).then(|| source.pick(&[0, 1, 300, 5_000])),
            expires_at: source.one_in(8).then(|| (world.elapsed() + source.below(3_000)).saturating_sub(20)),
            request: source.below(1 + *requests) as u8,
            report: source.one_in(5).then(|| source.one_in(2)),
            delivery: None,
        }
    }

    fn ended(&mut self) -> Ended {
        self.users.source.pick(&[
            Ended::Succeeded,
            Ended::Succeeded,
            Ended::Succeeded,
            Ended::Succeeded,
            Ended::FailedRetryable,
            Ended::FailedRetryable,
            Ended::FailedFinal,
        ])
    }

    /// Any effect of a few.
    fn effect(&mut self) -> Effect {
        let (topic, group) = (Topic::live(0), self.group());
        let source = &mut self.users.source;
        let scope = match source.below(6) {
            0 => Scope::Tenant,
            1 => Scope::Job { id: source.below(3) as u8 },
            2 => Scope::Task { id: source.below(3) as u8 },
            3 => Scope::Consume { topic, group },
            // Mostly one whose names are not empty.
            4 => Scope::Rpc { principal: source.below(3) as u8, method: source.below(3) as u8 },
            _ => Scope::Rpc { principal: 1, method: 1 },
        };
        let tenant = if source.one_in(3) { source.below(4) as u8 } else { 0 };
        Effect { scope, tenant, key: self.users.key() }
    }
}
