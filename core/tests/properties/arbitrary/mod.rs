//! Strategies for any encodable record, whether or not a broker would write it.

use std::collections::BTreeMap;
use std::sync::Arc;

use driftq_core::Body;
use driftq_core::record::{
    Completed, CumulativeAck, DeadLetterSlot, DedupeWindow, EffectBegun, EffectConclusion, EffectDeadLettered, Event,
    MessageAt, PayloadLost, Produced, Record, Referrer, Relocated, StepResult, Stored,
};
use driftq_core::reply::StepOutput;
use driftq_core::types::{
    Completion, Details, Effect, EffectNamespace, EffectStatus, GroupStart, Identity, Lifetime, Lsn, MessageRef,
    Outcome, PayloadId, Pin, Retention, Scope, *,
};
use proptest::collection::{btree_map, vec};
use proptest::option::{of, weighted};
use proptest::prelude::*;

mod access;
mod image;

use access::of_access;
use image::image;

fn number() -> BoxedStrategy<u64> {
    prop_oneof![0..200_u64, any::<u64>(), Just(u64::MAX), Just(127), Just(128)].boxed()
}

fn number32() -> BoxedStrategy<u32> {
    prop_oneof![0..200_u32, any::<u32>(), Just(u32::MAX)].boxed()
}

fn text() -> BoxedStrategy<Text> {
    prop_oneof![
        3 => vec(prop_oneof![Just('a'), Just('\u{e9}'), Just('\0'), Just(' '), any::<char>()], 0..8)
            .prop_map(|chars| chars.into_iter().collect::<String>().into()),
        1 => Just("x".repeat(200).into()),
    ]
    .boxed()
}

fn name() -> BoxedStrategy<String> {
    let chars = prop_oneof![Just('a'), Just('Z'), Just('9'), Just('.'), Just('_'), Just(':'), Just('-')];
    vec(chars, 1..12)
        .prop_map(|chars| chars.into_iter().collect::<String>())
        .prop_filter("dots would be path segments", |name| name != "." && name != "..")
        .boxed()
}

fn tenant() -> BoxedStrategy<TenantId> {
    prop_oneof![3 => Just(TenantId::DEFAULT), 2 => number32().prop_map(TenantId)].boxed()
}

fn topic_name() -> BoxedStrategy<TopicName> {
    tenant().prop_flat_map(topic_name_of).boxed()
}

fn topic_name_of(tenant: TenantId) -> BoxedStrategy<TopicName> {
    let plain = name().prop_map(move |name| TopicName::of(tenant, &name).expect("a name"));
    prop_oneof![plain.clone(), plain.prop_filter_map("has a dead-letter topic", |name| name.dead_letter())].boxed()
}

fn group_name() -> BoxedStrategy<GroupName> {
    name().prop_map(|name| GroupName::new(&name).expect("a name")).boxed()
}

fn owner_name() -> BoxedStrategy<OwnerName> {
    name().prop_map(|name| OwnerName::new(&name).expect("a name")).boxed()
}

fn time() -> BoxedStrategy<Timestamp> {
    number().prop_map(Timestamp).boxed()
}

fn offset() -> BoxedStrategy<Offset> {
    number().prop_map(Offset).boxed()
}

fn position() -> BoxedStrategy<Position> {
    number().prop_map(Position).boxed()
}

fn partition() -> BoxedStrategy<PartitionId> {
    number32().prop_map(PartitionId).boxed()
}

fn topic() -> BoxedStrategy<TopicId> {
    number32().prop_map(TopicId).boxed()
}

fn group() -> BoxedStrategy<GroupId> {
    number32().prop_map(GroupId).boxed()
}

fn boot() -> BoxedStrategy<Boot> {
    number32().prop_map(Boot).boxed()
}

fn token() -> BoxedStrategy<LeaseToken> {
    (boot(), number()).prop_map(|(boot, counter)| LeaseToken { boot, counter }).boxed()
}

fn message_ref() -> BoxedStrategy<MessageRef> {
    (topic(), group(), partition(), position())
        .prop_map(|(topic, group, partition, position)| MessageRef { topic, group, partition, position })
        .boxed()
}

fn retention() -> BoxedStrategy<Retention> {
    (of(number()), of(number())).prop_map(|(age, bytes)| Retention { age: age.map(Millis), bytes }).boxed()
}

fn deadline() -> BoxedStrategy<Deadline> {
    (time(), text()).prop_map(|(at, text)| Deadline { at, text }).boxed()
}

fn policy() -> BoxedStrategy<RetryPolicy> {
    (number32(), number(), number())
        .prop_map(|(max_attempts, backoff, max_backoff)| RetryPolicy {
            max_attempts,
            backoff: Millis(backoff),
            max_backoff: Millis(max_backoff),
        })
        .boxed()
}

fn pairs() -> BoxedStrategy<BTreeMap<Text, Text>> {
    btree_map(text(), text(), 0..4).boxed()
}

fn envelope() -> BoxedStrategy<Envelope> {
    let texts = (of(text()), of(text()), of(text()), of(text()), of(text()));
    let places = (of(topic_name()), of(partition()), of(deadline()), of(policy()));
    let rest =
        (of((0..10_u8).prop_map(|level| Priority::new(level).expect("0 to 9"))), of(time()), of(time()), pairs());
    (texts, places, rest)
        .prop_map(|(texts, places, (priority, deliver_at, delayed_until, labels))| {
            let (run_id, step_id, parent_step_id, tenant_id, idempotency_key) = texts;
            let (target_topic, partition_override, deadline, retry_policy) = places;
            Envelope {
                run_id,
                step_id,
                parent_step_id,
                tenant_id,
                idempotency_key,
                target_topic,
                partition_override,
                deadline,
                retry_policy,
                priority,
                deliver_at,
                delayed_until,
                labels,
            }
        })
        .boxed()
}

fn dead_reason() -> BoxedStrategy<DeadReason> {
    prop_oneof![
        Just(DeadReason::MaxAttempts),
        Just(DeadReason::DeadlineExceeded),
        Just(DeadReason::NonRetryable),
        Just(DeadReason::PayloadDamaged),
    ]
    .boxed()
}

fn dead_letter() -> BoxedStrategy<DeadLetter> {
    let kept = (of(policy()), of(topic_name()), of(partition()), of(deadline())).prop_map(
        |(retry_policy, target_topic, partition_override, deadline)| KeptForRedrive {
            retry_policy,
            target_topic,
            partition_override,
            deadline,
        },
    );
    let origin = (topic_name(), partition(), offset(), group_name());
    (origin, number32(), text(), dead_reason(), time(), kept)
        .prop_map(|(origin, attempts, last_error, reason, routed_at, kept)| {
            let (original_topic, original_partition, original_offset, group) = origin;
            let origin = DeadLetterOrigin {
                original_topic,
                original_partition,
                original_offset,
                group,
                attempts,
                last_error,
                reason,
                routed_at,
            };
            DeadLetter { origin, kept }
        })
        .boxed()
}

/// Any metadata of a message.
pub fn metadata() -> BoxedStrategy<Metadata> {
    let routing = (text(), pairs()).prop_map(|(label, meta)| Routing { label, meta });
    let redrive = (number32(), offset(), offset()).prop_map(|(count, dead_letter_offset, original_offset)| {
        RedriveOrigin { count, dead_letter_offset, original_offset }
    });
    (envelope(), of(routing), of(text()), weighted(0.3, dead_letter()), of(redrive), of(produce_scope()), of(text()))
        .prop_map(|(envelope, routing, trace, dead_letter, redrive, requested, lost)| Metadata {
            envelope,
            routing,
            trace,
            dead_letter: dead_letter.map(Box::new),
            redrive,
            requested,
            lost,
        })
        .boxed()
}

fn body() -> BoxedStrategy<Body> {
    let meta = prop_oneof![1 => Just(Metadata::default()), 3 => metadata()];
    (meta, vec(any::<u8>(), 0..20), vec(any::<u8>(), 0..40))
        .prop_map(|(meta, key, value)| Body::pack(&meta, &key, &value))
        .boxed()
}

fn shared_text() -> BoxedStrategy<Arc<str>> {
    text().prop_map(Arc::from).boxed()
}

fn start() -> BoxedStrategy<GroupStart> {
    prop_oneof![Just(GroupStart::Earliest), Just(GroupStart::Latest)].boxed()
}

fn origin() -> BoxedStrategy<GroupOrigin> {
    prop_oneof![Just(GroupOrigin::Requested), Just(GroupOrigin::Consumed), Just(GroupOrigin::Ephemeral)].boxed()
}

fn of_groups() -> BoxedStrategy<Event> {
    let group_of = || (topic(), group());
    prop_oneof![
        (group_of(), group_name(), start(), origin()).prop_map(|((topic, group), name, start, origin)| {
            Event::GroupCreated { topic, group, name, start, origin }
        }),
        (group_of(), origin()).prop_map(|((topic, group), origin)| Event::GroupOriginChanged { topic, group, origin }),
        group_of().prop_map(|(topic, group)| Event::GroupDeleted { topic, group }),
        group_of().prop_map(|(topic, group)| Event::GroupPaused { topic, group }),
        group_of().prop_map(|(topic, group)| Event::GroupResumed { topic, group }),
        (topic(), vec(position(), 0..5), time()).prop_map(|(topic, ends, winner_until)| Event::Purged {
            topic,
            ends: Arc::from(ends),
            winner_until
        }),
        (group_of(), vec(position(), 0..5)).prop_map(|((topic, group), targets)| Event::GroupSought {
            topic,
            group,
            targets: Arc::from(targets)
        }),
    ]
    .boxed()
}

fn of_deliveries() -> BoxedStrategy<Event> {
    prop_oneof![
        (message_ref(), token(), owner_name(), time())
            .prop_map(|(message_ref, token, owner, until)| Event::Delivered { message_ref, token, owner, until }),
        (message_ref(), of(number()), of(time())).prop_map(|(message_ref, window, winner_until)| Event::Acked {
            message_ref,
            commits: window.map(Millis),
            winner_until
        }),
        message_ref().prop_map(|message_ref| Event::Withdrawn { message_ref }),
        message_ref().prop_map(|message_ref| Event::Released { message_ref }),
        (message_ref(), of(shared_text()), time()).prop_map(|(message_ref, reason, not_before)| Event::Nacked {
            message_ref,
            reason,
            not_before
        }),
        (message_ref(), shared_text()).prop_map(|(message_ref, reason)| Event::ReasonNoted { message_ref, reason }),
        (message_ref(), time()).prop_map(|(message_ref, not_before)| Event::Expired { message_ref, not_before }),
        (message_ref(), time()).prop_map(|(message_ref, until)| Event::Extended { message_ref, until }),
        ((message_ref(), topic(), partition(), offset()), (dead_reason(), text(), time())).prop_map(
            |(places, (reason, last_error, winner_until))| {
                let (message_ref, dead_topic, dead_partition, dead_offset) = places;
                Event::DeadLettered {
                    message_ref,
                    dead_topic,
                    dead_partition,
                    dead_offset,
                    reason,
                    last_error,
                    winner_until,
                }
            }
        ),
        ((topic(), partition(), position()), (topic(), group(), partition(), offset())).prop_map(|(from, to)| {
            let (dead_topic, dead_partition, dead_position) = from;
            let (topic, group, partition, offset) = to;
            Event::Redriven { dead_topic, dead_partition, dead_position, topic, group, partition, offset }
        }),
    ]
    .boxed()
}

fn scope() -> BoxedStrategy<Scope> {
    prop_oneof![
        (topic_name(), group_name()).prop_map(|(topic, group)| Scope::Consume { topic, group }),
        Just(Scope::Tenant),
        text().prop_map(|id| Scope::Job { id }),
        text().prop_map(|id| Scope::Task { id }),
        (text(), text()).prop_map(|(principal, method)| Scope::Rpc { principal, method }),
    ]
    .boxed()
}

fn effect_identity() -> BoxedStrategy<Identity> {
    (text(), scope(), text()).prop_map(|(tenant, scope, key)| Identity::new(&tenant, scope, &key)).boxed()
}

fn status() -> BoxedStrategy<EffectStatus> {
    proptest::sample::select(&EffectStatus::ALL[..]).boxed()
}

fn outcome() -> BoxedStrategy<Outcome> {
    (status(), any::<i64>(), of(shared_text()), text())
        .prop_map(|(status, response_code, result, last_error)| Outcome { status, response_code, result, last_error })
        .boxed()
}

fn stored_result() -> BoxedStrategy<Box<StoredResult>> {
    let payload = (number(), number32()).prop_map(|(lsn, part)| PayloadId { lsn: Lsn(lsn), part });
    (of(payload), number32(), any::<[u8; 16]>())
        .prop_map(|(payload, len, hash)| Box::new(StoredResult { payload, len, hash: ResultHash(hash) }))
        .boxed()
}

fn effect() -> BoxedStrategy<Effect> {
    let details = (of(text()), any::<i64>(), text(), of(time()), vec(topic_name(), 0..3)).prop_map(
        |(request_hash, response_code, last_error, until, committed_topics)| {
            Box::new(Details { request_hash, response_code, last_error, until, committed_topics })
        },
    );
    let pin = (partition(), position(), time())
        .prop_map(|(partition, position, look_at)| Box::new(Pin { partition, position, look_at }));
    let times = (time(), number(), time(), time());
    let marks = (status(), any::<bool>(), any::<bool>(), number32());
    (marks, of(token()), times, of(owner_name()), of(stored_result()), of(details), of(pin))
        .prop_map(|(marks, token, times, owner, result, details, pin)| {
            let ((status, committed, finished, attempt), (lease_until, window, updated_at, expires_at)) =
                (marks, times);
            let window = Millis(window);
            Effect {
                status,
                committed,
                finished,
                attempt,
                token,
                lease_until,
                owner,
                result,
                details,
                window,
                updated_at,
                expires_at,
                pin,
            }
        })
        .boxed()
}

fn begun() -> BoxedStrategy<EffectBegun> {
    let lifetime =
        prop_oneof![number().prop_map(|window| Lifetime::Window(Millis(window))), time().prop_map(Lifetime::Until),];
    let rest = (of(lifetime), of(text()), of((partition(), position())));
    (effect_identity(), token(), owner_name(), time(), rest)
        .prop_map(|(identity, token, owner, until, (lifetime, request_hash, message))| EffectBegun {
            identity,
            token,
            owner,
            until,
            lifetime,
            request_hash,
            message,
        })
        .boxed()
}

fn produce_scope() -> BoxedStrategy<ProduceScope> {
    let of_tenant = tenant().prop_flat_map(|tenant| (topic_name_of(tenant), of(topic_name_of(tenant))));
    of_tenant.prop_map(|(topic, target)| ProduceScope::new(&topic, target.as_ref())).boxed()
}

/// A dedupe window, and groups that skip the message.
fn dedupe() -> BoxedStrategy<(Option<DedupeWindow>, Vec<GroupId>)> {
    let window = (produce_scope(), time()).prop_map(|(scope, expires_at)| DedupeWindow { scope, expires_at });
    of((window, vec(group(), 0..3)))
        .prop_map(|dedupe| match dedupe {
            Some((window, skipped)) => (Some(window), skipped),
            None => (None, Vec::new()),
        })
        .boxed()
}

fn completed() -> BoxedStrategy<Completed> {
    let stored = (topic(), dedupe(), body()).prop_map(|(topic, (dedupe, skipped), body)| Stored {
        topic,
        dedupe,
        skipped,
        body,
    });
    let output =
        (topic_name(), partition(), offset(), of(stored)).prop_map(|(requested_topic, partition, offset, stored)| {
            Produced { requested_topic, partition, offset, stored }
        });
    let result = (text(), text(), shared_text())
        .prop_map(|(tenant, key, json)| StepResult { key: IdentityKey::new(&tenant, &key), json });
    let ended = (of(result), number()).prop_map(|(result, window)| EffectConclusion { result, window: Millis(window) });
    (message_ref(), token(), (time(), any::<bool>()), of(ended), vec(output, 0..4), of(dead_letter_slot()))
        .prop_map(|(message_ref, token, (until, is_contested), effect, outputs, dead_letter)| Completed {
            message_ref,
            token,
            until,
            is_contested,
            effect,
            outputs,
            dead_letter,
        })
        .boxed()
}

fn dead_letter_slot() -> BoxedStrategy<DeadLetterSlot> {
    (topic(), partition(), offset(), text())
        .prop_map(|(topic, partition, offset, last_error)| DeadLetterSlot { topic, partition, offset, last_error })
        .boxed()
}

fn effect_dead_lettered() -> BoxedStrategy<EffectDeadLettered> {
    (effect_identity(), outcome(), message_ref(), dead_letter_slot(), time())
        .prop_map(|(identity, outcome, message_ref, dead_letter, winner_until)| EffectDeadLettered {
            identity,
            outcome,
            message_ref,
            dead_letter,
            winner_until,
        })
        .boxed()
}

fn cumulative_ack() -> BoxedStrategy<CumulativeAck> {
    (position(), of(number()), of(time()))
        .prop_map(|(position, window, winner_until)| CumulativeAck {
            position,
            commits: window.map(Millis),
            winner_until,
        })
        .boxed()
}

fn completion() -> BoxedStrategy<Completion> {
    let output = (topic_name(), partition(), offset(), 0..3).prop_map(|(topic, partition, offset, flag)| {
        let (duplicate, already_done) = (flag == 1, flag == 2);
        StepOutput { topic, partition, offset, duplicate, already_done }
    });
    (message_ref(), offset(), vec(output, 0..4), time())
        .prop_map(|(message_ref, offset, produced, until)| Completion {
            message_ref,
            offset,
            produced: produced.into(),
            until,
        })
        .boxed()
}

fn of_effects() -> BoxedStrategy<Event> {
    let namespace = prop_oneof![
        Just(EffectNamespace::Shared),
        (topic_name(), group_name()).prop_map(|(topic, group)| EffectNamespace::Group(topic, group)),
    ];
    prop_oneof![
        begun().prop_map(|begun| Event::EffectBegun(Box::new(begun))),
        (effect_identity(), outcome()).prop_map(|(identity, outcome)| Event::EffectFinished { identity, outcome }),
        effect_dead_lettered().prop_map(|failed| Event::EffectDeadLettered(Box::new(failed))),
        ((topic(), group(), partition()), vec(cumulative_ack(), 0..4)).prop_map(|((topic, group, partition), acks)| {
            Event::CumulativelyAcked { topic, group, partition, acks }
        }),
        (effect_identity(), time()).prop_map(|(identity, until)| Event::EffectRenewed { identity, until }),
        effect_identity().prop_map(|identity| Event::EffectForgotten { identity }),
        (namespace, number()).prop_map(|(namespace, count)| Event::EffectsExpired { namespace, count }),
        completed().prop_map(|step| Event::Completed(Box::new(step))),
        number().prop_map(|count| Event::CompletionsExpired { count }),
        number().prop_map(|count| Event::WinnersExpired { count }),
    ]
    .boxed()
}

fn adjustment() -> BoxedStrategy<WallAdjustment> {
    prop_oneof![
        any::<i64>().prop_map(|offset| WallAdjustment::Forward { offset }),
        any::<(i64, i64)>().prop_map(|(offset, target)| WallAdjustment::Slew { offset, target }),
        any::<i64>().prop_map(|offset| WallAdjustment::Rebase { offset }),
    ]
    .boxed()
}

fn wall_clock() -> BoxedStrategy<WallClock> {
    (time(), any::<i64>(), any::<i64>())
        .prop_map(|(since, a, b)| WallClock::new(since, a.max(b), a.min(b)).expect("the target is the lower one"))
        .boxed()
}

fn of_topics() -> BoxedStrategy<Event> {
    prop_oneof![
        boot().prop_map(|boot| Event::Booted { boot }),
        adjustment().prop_map(Event::WallClockAdjusted),
        (topic(), topic_name(), number32(), retention()).prop_map(|(topic, name, partitions, retention)| {
            Event::TopicCreated { topic, name, partitions, retention }
        }),
        topic().prop_map(|topic| Event::TopicDeleted { topic }),
        (topic(), retention()).prop_map(|(topic, retention)| Event::RetentionChanged { topic, retention }),
        ((topic(), partition(), offset()), body(), dedupe()).prop_map(
            |((topic, partition, offset), body, (dedupe, skipped))| Event::Produced {
                topic,
                partition,
                offset,
                body,
                dedupe,
                skipped
            }
        ),
        (topic(), partition(), position()).prop_map(|(topic, partition, through)| Event::RetentionExpired {
            topic,
            partition,
            through
        }),
        (produce_scope(), number()).prop_map(|(scope, count)| Event::DedupeExpired { scope, count }),
        (payload_id(), referrers(), body())
            .prop_map(|(from, referrers, body)| { Event::Relocated(Box::new(Relocated { from, referrers, body })) }),
        (payload_id(), referrers(), text()).prop_map(|(payload, referrers, damage)| {
            Event::PayloadLost(Box::new(PayloadLost { payload, referrers, damage }))
        }),
    ]
    .boxed()
}

fn payload_id() -> BoxedStrategy<PayloadId> {
    (number(), any::<u32>()).prop_map(|(lsn, part)| PayloadId { lsn: Lsn(lsn), part }).boxed()
}

fn referrers() -> BoxedStrategy<Vec<Referrer>> {
    let at = (topic(), partition(), position());
    let referrer =
        at.prop_map(|(topic, partition, position)| Referrer::Message(MessageAt { topic, partition, position }));
    vec(referrer, 1..4).boxed()
}

/// Any record.
pub fn record() -> BoxedStrategy<Record> {
    let event = prop_oneof![of_topics(), of_groups(), of_deliveries(), of_effects(), of_access()];
    prop_oneof![
        2 => (time(), event).prop_map(|(at, event)| Record { at, event }),
        1 => image().prop_map(|image| Record { at: Timestamp::default(), event: Event::Restored(image) }),
    ]
    .boxed()
}
