//! What most requests leave out: optional fields, extreme numbers, and texts as long as a limit, one byte shorter or
//! one longer. Requests are changed after they were drawn, so that other draws stay as they are.

use driftq_core::faults::Faults;
use driftq_core::types::Limits;

use super::random::{Source, Stream};
use crate::actions::{Action, Details, EffectOutcome, EffectRef, NewMessage, Request, RetryPolicy, Scope};
use crate::names::{Group, Message, Topic};
use crate::world::{LENGTHS_FROM, World};

/// One in so many requests is changed.
const EVERY: u64 = 5;

/// Messages of their own, so that no producer sends them again.
const FIRST_MESSAGE: u32 = 1 << 20;

/// Changes the requests of every second world.
#[derive(Debug)]
pub(super) struct RareDetails {
    source: Option<Source>,
    next_message: u32,
}

impl RareDetails {
    pub(super) fn new(seed: u64) -> Self {
        let mut source = Source::new(seed, Stream::Details);
        Self { source: source.one_in(2).then_some(source), next_message: FIRST_MESSAGE }
    }

    /// Sometimes changes the request of an action.
    pub(super) fn add<F: Faults>(&mut self, action: &mut Action, world: &World<F>) {
        let (Action::Request(request) | Action::Send { request, .. }) = action else { return };
        let Some(source) = self.source.as_mut().filter(|_| world.is_serving()) else { return };
        // Few requests are these.
        let every = if let Request::CreateTopic { .. } | Request::Redrive { .. } = request { 2 } else { EVERY };
        if !source.one_in(every) {
            return;
        }
        let limits = world.limits();
        match request {
            Request::Produce(message) => {
                // Another message than the one that is or was sent without the change.
                message.message = fresh(&mut self.next_message);
                change_message(source, &limits, message);
            }
            Request::Complete { result, produce, failed, .. } => {
                match source.below(4) {
                    0 if !source.one_in(3) => *result = LENGTHS_FROM,
                    0 => *result = near(source, limits.result_bytes_max),
                    1 => *failed = Some(near(source, limits.error_text_bytes_max)),
                    2 => {
                        // As many outputs as a step may have, one more or one fewer.
                        let count = (limits.outputs_max + 1).saturating_sub(source.below(3) as usize);
                        produce.truncate(count);
                        while produce.len() < count && limits.outputs_max < 20 {
                            let topic = produce.first().map_or(Topic::new(0), |message| message.topic);
                            let message = fresh(&mut self.next_message);
                            produce.push(NewMessage { message, topic, ..NewMessage::default() });
                        }
                    }
                    _ => produce.iter_mut().for_each(|message| {
                        message.message = fresh(&mut self.next_message);
                        change_message(source, &limits, message);
                    }),
                }
            }
            Request::Nack { reason, delay_ms, never, .. } => match source.below(5) {
                0 | 1 => *reason = near(source, limits.error_text_bytes_max),
                2 => (*delay_ms, *never) = (Some(0), false),
                _ => (*delay_ms, *never) = (near_ms(source, limits.delay_max.0), false),
            },
            Request::Unsubscribe { keeps, .. } => *keeps = true,
            Request::Extend { lease_ms, .. }
            | Request::RenewEffect { lease_ms, .. }
            | Request::ReacquireEffect { lease_ms, .. } => *lease_ms = near_lease(source, &limits),
            Request::Subscribe(subscription) => match source.below(4) {
                0 => subscription.deliveries = Some(source.below(2)),
                1 => subscription.prefetch = source.pick(&[0, u32::MAX]),
                _ => subscription.lease_ms = near_lease(source, &limits),
            },
            Request::BeginEffect(begin) => match source.below(4) {
                0 => begin.request = near(source, limits.id_bytes_max),
                1 => begin.lease_ms = near_lease(source, &limits),
                _ => change_effect(source, &limits, &mut begin.effect),
            },
            Request::FinishEffect { outcome, result, error, .. } => match source.below(3) {
                0 if !source.one_in(3) => *result = LENGTHS_FROM,
                0 => *result = near(source, limits.result_bytes_max),
                1 => *outcome = EffectOutcome::FailedFinal,
                _ => *error = near(source, limits.error_text_bytes_max),
            },
            Request::GetEffect { effect } | Request::ForgetEffect { effect } => {
                change_effect(source, &limits, effect);
            }
            Request::ListEffects { kind, limit, .. } => match source.one_in(6) {
                true => *limit = source.pick(&[0, u8::MAX]),
                false => {
                    let scopes = [
                        Scope::Tenant,
                        Scope::Consume { topic: Topic::new(0), group: Group(0) },
                        Scope::Job { id: 1 },
                        Scope::Task { id: 1 },
                        Scope::Rpc { principal: 1, method: 1 },
                    ];
                    *kind = Some(source.pick(&scopes));
                }
            },
            Request::CreateTopic { partitions, .. } => {
                *partitions = match limits.partitions_max {
                    max @ ..10 => Some((max + 1).saturating_sub(source.below(3) as u32)),
                    _ => Some(0),
                };
            }
            Request::Peek { offset, limit, .. } => match source.one_in(2) {
                true => *limit = source.pick(&[0, u8::MAX]),
                false => *offset = source.pick(&[0, u64::MAX]),
            },
            Request::Redrive { offset, more, limit, .. } => match source.below(6) {
                0 => *limit = source.pick(&[0, u64::MAX]),
                _ => {
                    // Several dead letters, in any order; the small limits would hide all but the first.
                    let first = source.below(4);
                    *offset = Some(first);
                    *more = (0..1 + source.below(4)).map(|_| source.below(6)).collect();
                    *limit = source.pick(&[2, 8, u64::MAX]);
                }
            },
            Request::RedriveRest { limit } => *limit = source.pick(&[0, u64::MAX]),
            _ => {}
        }
    }
}

fn fresh(next: &mut u32) -> Message {
    *next += 1;
    Message(*next)
}

fn change_message(source: &mut Source, limits: &Limits, message: &mut NewMessage) {
    match source.below(10) {
        0 => message.key = near(source, limits.key_bytes_max),
        1 => message.identity = Some(near(source, limits.idempotency_key_bytes_max)),
        2 => message.tenant = near(source, limits.id_bytes_max),
        3 if limits.metadata_bytes_max < 1_000 => {
            // Alone, so that its length is known.
            plain(message);
            let len = (limits.metadata_bytes_max + 1 - source.below(3) as usize).saturating_sub(FIELD_BYTES);
            message.details = Some(Details { trace: u16::try_from(len).ok(), ..Details::default() });
        }
        4 if limits.message_bytes_max < 1_000 => {
            plain(message);
            let len = limits.message_bytes_max + 1 - source.below(3) as usize;
            message.key = 0;
            message.size = (len as u32).saturating_sub(message.message.0.to_string().len() as u32);
        }
        5 if message.deliver_at.is_some() => {}
        5 if source.one_in(3) => message.delay_ms = Some(0),
        5 => message.delay_ms = near_ms(source, limits.delay_max.0),
        6 => {
            // What overflows is capped, and what is not capped begins small.
            let (backoff_ms, max_backoff_ms) = match source.one_in(2) {
                true => (source.pick(&[1 << 62, 1 << 63, u64::MAX]), source.pick(&[1, 10, 200, 1 << 30])),
                false => (source.pick(&[1, 3]), source.pick(&[1 << 63, u64::MAX])),
            };
            let attempts = source.pick(&[0, 1, 70, u32::MAX]);
            message.policy = Some(RetryPolicy { attempts, backoff_ms, max_backoff_ms });
        }
        7 if limits.partition_bytes_max > 10_000 => message.size = 4_000 + source.below(4_000) as u32,
        _ => {
            let mut id = || match source.below(6) {
                0 | 1 => None,
                2 => Some(0),
                _ => Some(near(source, limits.id_bytes_max) - LENGTHS_FROM),
            };
            let (run, step, parent) = (id(), id(), id());
            message.details = Some(Details {
                run,
                step,
                parent,
                trace: source.one_in(2).then(|| source.pick(&[0, 0, 1, 9])),
                labels: source.below(4) as u8,
                route: source.one_in(2).then(|| source.below(4) as u8),
                pairs: source.below(3) as u8,
                lowest: source.one_in(2),
            });
        }
    }
}

/// The bytes that a text in the metadata counts beside its own.
const FIELD_BYTES: usize = 16;

/// Without metadata.
fn plain(message: &mut NewMessage) {
    (message.identity, message.tenant, message.deadline) = (None, 0, None);
    (message.router, message.details) = (None, None);
}

fn change_effect(source: &mut Source, limits: &Limits, effect: &mut EffectRef) {
    let id = near(source, limits.id_bytes_max);
    match source.below(5) {
        0 => effect.key = near(source, limits.idempotency_key_bytes_max),
        1 => effect.tenant = id,
        2 => effect.scope = Scope::Job { id },
        3 => effect.scope = Scope::Task { id },
        _ if source.one_in(2) => effect.scope = Scope::Rpc { principal: id, method: 1 },
        _ => effect.scope = Scope::Rpc { principal: 1, method: id },
    }
}

/// A text as long as the limit, one byte shorter or one longer, or empty; any short one if the limit is long.
fn near(source: &mut Source, max: usize) -> u8 {
    let len = match source.one_in(6) {
        true => 0,
        false if max < 200 => max + 1 - source.below(3) as usize,
        false => source.below(30) as usize,
    };
    LENGTHS_FROM + u8::try_from(len).unwrap_or(0)
}

fn near_ms(source: &mut Source, max: u64) -> Option<u32> {
    u32::try_from(max + 1 - source.below(3)).ok()
}

fn near_lease(source: &mut Source, limits: &Limits) -> Option<u32> {
    let limit = if source.one_in(2) { limits.lease_min.0 } else { limits.lease_max.0 };
    near_ms(source, limit)
}
