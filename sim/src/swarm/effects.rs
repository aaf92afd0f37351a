//! Workers that use the idempotency store, mostly correctly.

use driftq_core::faults::Faults;

use super::clients::{Clients, delivery_ref};
use super::kinds::ActionKind;
use super::profile::Profile;
use super::store_users::StoreUsers;
use crate::actions::{
    Action, DeliveryRef, EffectBegin, EffectOutcome, EffectRef, GrantRef, JobClass, Request, Scope, Tampering,
};
use crate::names::{Topic, Worker};
use crate::world::{HeldDelivery, World};

impl Clients {
    /// The next action of a store user; `None` if there is nothing to do.
    pub(super) fn use_store<F: Faults>(&mut self, kind: ActionKind, world: &World<F>) -> Option<Action> {
        match kind {
            ActionKind::ContinueDelivery => self.continue_delivery(world),
            ActionKind::StandaloneEffect => self.standalone_effect(world),
            ActionKind::InvalidEffect => self.invalid_effect(world).map(Action::Request),
            _ => Some(self.complete_step(world)),
        }
    }

    /// A worker that follows the protocol continues with one of its deliveries, from where it is: it requests a grant,
    /// runs the effect, records the outcome, acks the message. Between any two of these it may be slow or stop.
    fn continue_delivery<F: Faults>(&mut self, world: &World<F>) -> Option<Action> {
        let worker = self.worker();
        if world.network().unread(worker) > 0 && self.store_users.source.one_in(2) {
            return Some(Action::Read { worker, count: 1 });
        }
        let with_effect = |held: &&HeldDelivery| held.effect.is_some() && !self.is_settled(held.token);
        let unsettled: Vec<&HeldDelivery> = world.network().read_by(worker).filter(with_effect).collect();
        let Some(held) = unsettled.get(self.store_users.source.below(unsettled.len() as u64) as usize).copied() else {
            return Some(self.idle_worker(worker, world));
        };
        let effect = held.effect?;
        let grant = GrantRef { worker, effect, back: 0, tampering: Tampering::None };
        match world.network().granted(&grant).filter(|granted| granted.token > held.token) {
            Some(granted) if !granted.ran => Some(Action::RunEffect(grant)),
            Some(granted)
                if !self.store_users.recorded.contains(&granted.token) && !self.store_users.source.one_in(5) =>
            {
                let outcome = match self.store_users.source.one_in(4) {
                    true => EffectOutcome::FailedFinal,
                    false => self.outcome(),
                };
                self.store_users.recorded.insert(granted.token);
                if outcome == EffectOutcome::FailedRetryable {
                    self.store_users.failed.insert(granted.token);
                }
                let dead_letter = self.dead_letter(worker, held, outcome, world);
                Some(Action::Request(Request::FinishEffect {
                    grant,
                    outcome,
                    result: self.store_users.source.below(5) as u8,
                    error: 0,
                    dead_letter,
                }))
            }
            Some(granted) if self.store_users.failed.contains(&granted.token) => {
                let delivery = self.settle(worker, held, world);
                Some(Action::Request(Request::Nack { delivery, reason: 1, delay_ms: None, never: false }))
            }
            Some(_) => Some(Action::Request(self.settle_message(worker, held, world))),
            None if world.network().was_replayed(worker, &effect) => {
                Some(Action::Request(self.settle_message(worker, held, world)))
            }
            None if self.store_users.source.one_in(3) => Some(self.fail_delivery(worker, held, effect, world)),
            None => {
                let delivery = delivery_ref(worker, held, world);
                let delivery = (!self.store_users.source.one_in(3)).then_some(delivery);
                self.wait_for_reply();
                Some(Action::Request(Request::BeginEffect(EffectBegin {
                    delivery,
                    ..self.effect_begin(worker, effect, world)
                })))
            }
        }
    }

    /// A client uses the store without the queue, in any scope.
    fn standalone_effect<F: Faults>(&mut self, world: &World<F>) -> Option<Action> {
        let worker = self.worker();
        let effect = self.any_effect();
        let grant = GrantRef { worker, effect, back: 0, tampering: Tampering::None };
        let source = &mut self.store_users.source;
        let lease_ms = source.one_in(2).then(|| 1 + source.below(500) as u32);
        Some(match world.network().granted(&grant) {
            Some(granted) if !granted.ran && !source.one_in(4) => Action::RunEffect(grant),
            Some(granted) if !self.store_users.recorded.contains(&granted.token) => match source.below(6) {
                0 => Action::Request(Request::RenewEffect { grant, lease_ms }),
                1 => Action::Request(Request::BeginEffect(self.effect_begin(worker, effect, world))),
                _ => {
                    self.store_users.recorded.insert(granted.token);
                    let outcome = self.outcome();
                    Action::Request(Request::FinishEffect {
                        grant,
                        outcome,
                        result: self.store_users.source.below(5) as u8,
                        error: 0,
                        dead_letter: None,
                    })
                }
            },
            Some(_) if source.one_in(3) => Action::Request(Request::ReacquireEffect { worker, effect, lease_ms }),
            _ => {
                self.wait_for_reply();
                Action::Request(Request::BeginEffect(self.effect_begin(worker, effect, world)))
            }
        })
    }

    /// A client sends an invalid or repeated request, or a query.
    fn invalid_effect<F: Faults>(&mut self, world: &World<F>) -> Option<Request> {
        let worker = self.worker();
        let held: Vec<&HeldDelivery> = world.network().read_by(worker).collect();
        let nth = self.store_users.source.below(held.len() as u64) as usize;
        let held = held.get(nth).copied();
        let effect = match held.and_then(|held| held.effect) {
            Some(effect) if !self.store_users.source.one_in(3) => effect,
            _ => self.any_effect(),
        };
        let outcome = self.outcome();
        let source = &mut self.store_users.source;
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
                error: 0,
                dead_letter: match source.one_in(2) {
                    true => held.map(|held| delivery_ref(worker, held, world)),
                    false => None,
                },
            },
            _ => {
                Request::FinishEffect { grant, outcome: EffectOutcome::Succeeded, result, error: 0, dead_letter: None }
            }
        })
    }

    /// A worker completes a step, with or without the store; sometimes again.
    fn complete_step<F: Faults>(&mut self, world: &World<F>) -> Action {
        let worker = self.worker();
        let again = self.store_users.source.one_in(6);
        let is_candidate = |held: &&HeldDelivery| again || !self.is_settled(held.token);
        let candidates: Vec<&HeldDelivery> = world.network().read_by(worker).filter(is_candidate).collect();
        let Some(held) = candidates.get(self.store_users.source.below(candidates.len() as u64) as usize).copied()
        else {
            return self.idle_worker(worker, world);
        };
        let mut request = self.completion(worker, held, world);
        if let Request::Complete { delivery, .. } = &mut request
            && self.store_users.source.one_in(10)
        {
            let tamperings = [
                Tampering::NoToken,
                Tampering::Unreadable,
                Tampering::WrongOwner,
                Tampering::WrongGroup,
                Tampering::WrongPartition,
            ];
            delivery.tampering = self.store_users.source.pick(&tamperings);
        }
        Action::Request(request)
    }

    /// An idle worker reads what there is, or waits.
    fn idle_worker<F: Faults>(&mut self, worker: Worker, world: &World<F>) -> Action {
        match world.network().unread(worker) {
            0 if self.store_users.source.one_in(2) => Action::Wake,
            0 if self.store_users.profile == Profile::Effects => Action::Io { class: JobClass::Log, fault: None },
            0 => Action::FlushIo,
            _ => Action::Read { worker, count: 1 },
        }
    }

    /// Acks the message, or completes a step with outputs.
    fn settle_message<F: Faults>(&mut self, worker: Worker, held: &HeldDelivery, world: &World<F>) -> Request {
        match self.store_users.source.one_in(2) {
            true => self.completion(worker, held, world),
            false => Request::Ack(self.settle(worker, held, world)),
        }
    }

    /// Most workers wait for a reply before they continue, so the I/O is performed next.
    fn wait_for_reply(&mut self) {
        if self.store_users.source.one_in(3) {
            return;
        }
        match self.store_users.profile {
            Profile::Default | Profile::Weeks => self.schedule(Action::FlushIo),
            // Only the log's I/O, one operation at a time: with this many waiting workers nothing else would ever be
            // pending.
            Profile::Effects => (0..3).for_each(|_| self.schedule(Action::Io { class: JobClass::Log, fault: None })),
        }
    }

    fn completion<F: Faults>(&mut self, worker: Worker, held: &HeldDelivery, world: &World<F>) -> Request {
        let delivery = self.settle(worker, held, world);
        let count = self.store_users.source.pick(&[0, 1, 1, 2, 3]);
        let produce = (0..count).map(|_| self.new_message_once(world.wall_elapsed())).collect();
        let result = self.store_users.source.below(4) as u8;
        let failed = self.store_users.source.one_in(3).then(|| self.store_users.source.below(4) as u8);
        Request::Complete { delivery, result, produce, failed }
    }

    /// Begins the effect of a delivery, and fails it for good with its message once it is granted.
    fn fail_delivery<F: Faults>(
        &mut self,
        worker: Worker,
        held: &HeldDelivery,
        effect: EffectRef,
        world: &World<F>,
    ) -> Action {
        let outcome = EffectOutcome::FailedFinal;
        let dead_letter = self.dead_letter(worker, held, outcome, world);
        let grant = GrantRef { worker, effect, back: 0, tampering: Tampering::None };
        let result = self.store_users.source.below(5) as u8;
        self.schedule(Action::FlushIo);
        self.schedule(Action::Request(Request::FinishEffect { grant, outcome, result, error: 0, dead_letter }));
        self.schedule(Action::RunEffect(grant));
        self.schedule(Action::FlushIo);
        let delivery = Some(delivery_ref(worker, held, world));
        Action::Request(Request::BeginEffect(EffectBegin { delivery, ..self.effect_begin(worker, effect, world) }))
    }

    /// The delivery that a finish dead-letters: that of the worker, if the effect failed for good; sometimes in error.
    fn dead_letter<F: Faults>(
        &mut self,
        worker: Worker,
        held: &HeldDelivery,
        outcome: EffectOutcome,
        world: &World<F>,
    ) -> Option<DeliveryRef> {
        let source = &mut self.store_users.source;
        let is_given = if outcome == EffectOutcome::FailedFinal { !source.one_in(4) } else { source.one_in(30) };
        is_given.then(|| {
            let tampering = match source.below(8) {
                0 | 1 => Tampering::Unreadable,
                2 => Tampering::WrongOffset,
                _ => Tampering::None,
            };
            DeliveryRef { tampering, ..delivery_ref(worker, held, world) }
        })
    }

    /// Lists effects, from the start or after one that need not exist.
    pub(super) fn list_effects(&mut self) -> Request {
        let after = self.store_users.source.one_in(3).then(|| self.any_effect());
        let outcome = self.store_users.source.one_in(3).then(|| self.outcome());
        let source = &mut self.store_users.source;
        Request::ListEffects {
            tenant: if source.one_in(4) { source.below(4) as u8 } else { 0 },
            kind: None,
            outcome,
            older_ms: if source.one_in(4) { source.below(2_000) as u32 } else { 0 },
            limit: 1 + source.below(6) as u8,
            after,
        }
    }

    fn effect_begin<F: Faults>(&mut self, worker: Worker, effect: EffectRef, world: &World<F>) -> EffectBegin {
        let StoreUsers { source, requests, .. } = &mut self.store_users;
        EffectBegin {
            worker,
            effect,
            lease_ms: source.one_in(2).then(|| source.pick(&[0, 1, 50, 500, 10_000])),
            ttl_ms: source.one_in(4).then(|| source.pick(&[0, 1, 300, 5_000])),
            expires_at: source.one_in(8).then(|| (world.wall_elapsed() + source.below(3_000)).saturating_sub(20)),
            request: source.below(1 + *requests) as u8,
            report: source.one_in(5).then(|| source.one_in(2)),
            delivery: None,
        }
    }

    fn outcome(&mut self) -> EffectOutcome {
        self.store_users.source.pick(&[
            EffectOutcome::Succeeded,
            EffectOutcome::Succeeded,
            EffectOutcome::Succeeded,
            EffectOutcome::Succeeded,
            EffectOutcome::FailedRetryable,
            EffectOutcome::FailedRetryable,
            EffectOutcome::FailedFinal,
        ])
    }

    fn any_effect(&mut self) -> EffectRef {
        let (topic, group) = (Topic::new(0), self.group());
        let source = &mut self.store_users.source;
        let scope = match source.below(6) {
            0 => Scope::Tenant,
            1 => Scope::Job { id: source.below(3) as u8 },
            2 => Scope::Task { id: source.below(3) as u8 },
            3 => Scope::Consume { topic, group },
            // Mostly one with non-empty names.
            4 => Scope::Rpc { principal: source.below(3) as u8, method: source.below(3) as u8 },
            _ => Scope::Rpc { principal: 1, method: 1 },
        };
        let tenant = if source.one_in(3) { source.below(4) as u8 } else { 0 };
        EffectRef { scope, tenant, key: self.store_users.key() }
    }
}
