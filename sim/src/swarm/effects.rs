//! Workers that use the idempotency store: most as they should, some as they should not.

use std::collections::BTreeSet;

use driftq_core::faults::Faults;
use driftq_core::types::LeaseToken;

use super::Profile;
use super::clients::{Clients, delivery_ref};
use super::kinds::ActionKind;
use super::random::Source;
use crate::actions::{
    Action, DeliveryRef, EffectBegin, EffectOutcome, EffectRef, GrantRef, JobClass, Request, Scope, Tampering,
};
use crate::names::{Topic, Worker};
use crate::world::{HeldDelivery, World};

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
    pub(super) fn use_store<F: Faults>(&mut self, kind: ActionKind, world: &World<F>) -> Option<Action> {
        match kind {
            ActionKind::Work => self.work(world),
            ActionKind::Effect => self.any_effect(world),
            ActionKind::OddEffect => self.odd_effect(world).map(Action::Request),
            _ => Some(self.step_done(world)),
        }
    }

    /// A worker that follows the contract goes on with one of its deliveries, from wherever it is: whether it may run the effect,
    /// run it, say how it ended, be done with the message. Between any two of these it may be slow, or never go on.
    fn work<F: Faults>(&mut self, world: &World<F>) -> Option<Action> {
        let worker = self.worker();
        if world.network().unread(worker) > 0 && self.users.source.one_in(2) {
            return Some(Action::Read { worker, count: 1 });
        }
        let with_effect = |held: &&HeldDelivery| held.effect.is_some() && !self.is_settled(held.token);
        let open: Vec<&HeldDelivery> = world.network().read_by(worker).filter(with_effect).collect();
        let Some(held) = open.get(self.users.source.below(open.len() as u64) as usize).copied() else {
            return Some(self.look_for_work(worker, world));
        };
        let effect = held.effect?;
        let grant = GrantRef { worker, effect, back: 0, tampering: Tampering::None };
        match world.network().granted(&grant).filter(|granted| granted.token > held.token) {
            Some(granted) if !granted.ran => Some(Action::RunEffect(grant)),
            Some(granted) if !self.users.told.contains(&granted.token) && !self.users.source.one_in(5) => {
                let outcome = self.outcome();
                self.users.told.insert(granted.token);
                if outcome == EffectOutcome::FailedRetryable {
                    self.users.failed.insert(granted.token);
                }
                Some(Action::Request(Request::FinishEffect {
                    grant,
                    outcome,
                    result: self.users.source.below(5) as u8,
                }))
            }
            Some(granted) if self.users.failed.contains(&granted.token) => {
                let delivery = self.settle(worker, held, world);
                Some(Action::Request(Request::Nack { delivery, reason: 1, delay_ms: None }))
            }
            Some(_) => Some(Action::Request(self.done(worker, held, world))),
            None if world.network().was_replayed(worker, &effect) => {
                Some(Action::Request(self.done(worker, held, world)))
            }
            None => {
                let delivery = delivery_ref(worker, held, world);
                let delivery = (!self.users.source.one_in(3)).then_some(delivery);
                self.wait();
                Some(Action::Request(Request::BeginEffect(EffectBegin {
                    delivery,
                    ..self.effect_begin(worker, effect, world)
                })))
            }
        }
    }

    /// Somebody uses the store beside the queue, in any scope.
    fn any_effect<F: Faults>(&mut self, world: &World<F>) -> Option<Action> {
        let worker = self.worker();
        let effect = self.effect();
        let grant = GrantRef { worker, effect, back: 0, tampering: Tampering::None };
        let source = &mut self.users.source;
        let lease_ms = source.one_in(2).then(|| 1 + source.below(500) as u32);
        Some(match world.network().granted(&grant) {
            Some(granted) if !granted.ran && !source.one_in(4) => Action::RunEffect(grant),
            Some(granted) if !self.users.told.contains(&granted.token) => match source.below(6) {
                0 => Action::Request(Request::RenewEffect { grant, lease_ms }),
                1 => Action::Request(Request::BeginEffect(self.effect_begin(worker, effect, world))),
                _ => {
                    self.users.told.insert(granted.token);
                    let outcome = self.outcome();
                    Action::Request(Request::FinishEffect { grant, outcome, result: self.users.source.below(5) as u8 })
                }
            },
            Some(_) if source.one_in(3) => Action::Request(Request::ReacquireEffect { worker, effect, lease_ms }),
            _ => {
                self.wait();
                Action::Request(Request::BeginEffect(self.effect_begin(worker, effect, world)))
            }
        })
    }

    /// Somebody says what it has no right to say, says it again, or only looks.
    fn odd_effect<F: Faults>(&mut self, world: &World<F>) -> Option<Request> {
        let worker = self.worker();
        let held: Vec<&HeldDelivery> = world.network().read_by(worker).collect();
        let nth = self.users.source.below(held.len() as u64) as usize;
        let held = held.get(nth).copied();
        let effect = match held.and_then(|held| held.effect) {
            Some(effect) if !self.users.source.one_in(3) => effect,
            _ => self.effect(),
        };
        let outcome = self.outcome();
        let source = &mut self.users.source;
        let tampering = source.pick(&[
            Tampering::None,
            Tampering::None,
            Tampering::None,
            Tampering::NoToken,
            Tampering::Unreadable,
        ]);
        let grant = GrantRef { worker, effect, back: source.below(3) as u8, tampering };
        let result = source.below(5) as u8;
        Some(match source.below(9) {
            0 | 1 => Request::GetEffect { effect },
            2 => Request::ForgetEffect { effect },
            3 => Request::ReacquireEffect { worker, effect, lease_ms: None },
            4 => Request::RenewEffect { grant, lease_ms: None },
            5 => {
                let tamperings = [
                    Tampering::None,
                    Tampering::Unreadable,
                    Tampering::NoToken,
                    Tampering::WrongPartition,
                    Tampering::WrongOffset,
                ];
                let tampering = source.pick(&tamperings);
                let delivery = held.map(|held| DeliveryRef { tampering, ..delivery_ref(worker, held, world) });
                Request::BeginEffect(EffectBegin { delivery, ..self.effect_begin(worker, effect, world) })
            }
            6 => Request::FinishEffect {
                grant,
                outcome: if source.one_in(8) { EffectOutcome::InProgress } else { outcome },
                result,
            },
            _ => Request::FinishEffect { grant, outcome: EffectOutcome::Succeeded, result },
        })
    }

    /// A worker completes a step, whether or not it has ever asked the store; sometimes once more.
    fn step_done<F: Faults>(&mut self, world: &World<F>) -> Action {
        let worker = self.worker();
        let again = self.users.source.one_in(6);
        let open = |held: &&HeldDelivery| again || !self.is_settled(held.token);
        let open: Vec<&HeldDelivery> = world.network().read_by(worker).filter(open).collect();
        let Some(held) = open.get(self.users.source.below(open.len() as u64) as usize).copied() else {
            return self.look_for_work(worker, world);
        };
        let mut request = self.completion(worker, held, world);
        if let Request::Complete { delivery, .. } = &mut request
            && self.users.source.one_in(10)
        {
            let tamperings = [
                Tampering::NoToken,
                Tampering::Unreadable,
                Tampering::WrongOwner,
                Tampering::WrongGroup,
                Tampering::WrongPartition,
            ];
            delivery.tampering = self.users.source.pick(&tamperings);
        }
        Action::Request(request)
    }

    /// A worker that has nothing to do reads what there is, or waits for something to come.
    fn look_for_work<F: Faults>(&mut self, worker: Worker, world: &World<F>) -> Action {
        match world.network().unread(worker) {
            0 if self.users.source.one_in(2) => Action::Wake,
            0 if self.users.profile == Profile::Effects => Action::Io { class: JobClass::Log, fault: None },
            0 => Action::FlushIo,
            _ => Action::Read { worker, count: 1 },
        }
    }

    /// The message is done: by an ack, or by a step that hands on the next.
    fn done<F: Faults>(&mut self, worker: Worker, held: &HeldDelivery, world: &World<F>) -> Request {
        match self.users.source.one_in(2) {
            true => self.completion(worker, held, world),
            false => Request::Ack(self.settle(worker, held, world)),
        }
    }

    /// Most wait for an answer before they go on: I/O is done then, and nothing else happens meanwhile.
    fn wait(&mut self) {
        if self.users.source.one_in(3) {
            return;
        }
        match self.users.profile {
            Profile::Default => self.next_is(Action::FlushIo),
            // Only the log's, and piece by piece: where so many wait, nothing else would ever be under way.
            Profile::Effects => (0..3).for_each(|_| self.next_is(Action::Io { class: JobClass::Log, fault: None })),
        }
    }

    fn completion<F: Faults>(&mut self, worker: Worker, held: &HeldDelivery, world: &World<F>) -> Request {
        let delivery = self.settle(worker, held, world);
        let count = self.users.source.pick(&[0, 1, 1, 2, 3]);
        let produce = (0..count).map(|_| self.new_message_once(world.elapsed())).collect();
        Request::Complete { delivery, result: self.users.source.below(4) as u8, produce }
    }

    fn effect_begin<F: Faults>(&mut self, worker: Worker, effect: EffectRef, world: &World<F>) -> EffectBegin {
        let Users { source, requests, .. } = &mut self.users;
        EffectBegin {
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

    fn outcome(&mut self) -> EffectOutcome {
        self.users.source.pick(&[
            EffectOutcome::Succeeded,
            EffectOutcome::Succeeded,
            EffectOutcome::Succeeded,
            EffectOutcome::Succeeded,
            EffectOutcome::FailedRetryable,
            EffectOutcome::FailedRetryable,
            EffectOutcome::FailedFinal,
        ])
    }

    /// Any effect of a few.
    fn effect(&mut self) -> EffectRef {
        let (topic, group) = (Topic::new(0), self.group());
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
        EffectRef { scope, tenant, key: self.users.key() }
    }
}
