//! Contradictions of effects, completions, winners and the wall clock.

use super::*;

#[test]
fn effect_snapshot_record_contradicting_others_is_named() {
    use Image::*;
    let cases: [(&str, Change); 27] = [
        ("replay beyond the end of the partition", image!(Replayed { below, .. } => *below = Position(99))),
        ("replay beyond the end of the partition", image!(Replayed { partition, .. } => *partition = PartitionId(9))),
        ("counter out of range", image!(Group { skipped, .. } => *skipped = u64::MAX)),
        (
            "requested topics of an effect contradict its commit",
            image!(Effect { effect: driftq_core::types::Effect { details: Some(details), .. }, .. }
                if !details.committed_topics.is_empty() => details.committed_topics.truncate(1)),
        ),
        (
            "requested topics of an effect contradict its commit",
            image!(Effect { effect: driftq_core::types::Effect { details: Some(details), .. }, .. }
            if !details.committed_topics.is_empty() => {
                let again = details.committed_topics[0].clone();
                details.committed_topics.push(again);
            }),
        ),
        ("effect without a key", image!(Effect { identity, .. } => *identity = with_key(identity, ""))),
        (
            "effect without a grant or an ack",
            image!(Effect { effect, .. } if effect.token.is_some() => effect.attempt = 0),
        ),
        (
            "effect without a grant or an ack",
            image!(Effect { effect, .. } if effect.token.is_some() => effect.owner = None),
        ),
        (
            "effect without a grant or an ack",
            image!(Effect { effect, .. } if effect.token.is_some() => effect.token = None),
        ),
        (
            "effect without a grant or an ack",
            image!(Effect { effect: driftq_core::types::Effect { token: Some(token), .. }, .. } => token.boot = Boot(9)),
        ),
        (
            "effect without a grant or an ack",
            image!(Effect { effect, .. } if effect.status == EffectStatus::FailedFinal => {
                (effect.token, effect.owner, effect.committed, effect.attempt) = (None, None, true, 1);
            }),
        ),
        (
            "effect without a grant or an ack",
            image!(Effect { effect, identity } if effect.status == EffectStatus::FailedFinal
                && !matches!(identity.scope, Scope::Consume { .. }) =>
            {
                (effect.token, effect.owner, effect.committed, effect.attempt) = (None, None, false, 0);
            }),
        ),
        (
            "effect without a grant or an ack",
            image!(Effect { effect, identity } if effect.status == EffectStatus::Succeeded
                && matches!(identity.scope, Scope::Consume { .. }) =>
            {
                (effect.token, effect.owner, effect.committed, effect.attempt) = (None, None, false, 0);
                effect.finished = true;
            }),
        ),
        (
            "effect whose status contradicts its flags",
            image!(Effect { effect, .. } if effect.status == EffectStatus::InProgress => effect.finished = true),
        ),
        (
            "effect whose status contradicts its flags",
            image!(Effect { effect, .. } if effect.status == EffectStatus::FailedFinal => effect.finished = false),
        ),
        (
            "committed effect outside a consume scope",
            image!(Effect { identity, effect } if identity.scope == Scope::Tenant => effect.committed = true),
        ),
        (
            "effect of a message that was never stored",
            image!(Effect { effect: driftq_core::types::Effect { pin: Some(pin), .. }, .. } => pin.position = Position(99)),
        ),
        (
            "effect of a message that was never stored",
            image!(Effect { identity, effect } if effect.pin.is_some() && !effect.committed => identity.scope = Scope::Tenant),
        ),
        (
            "effect of a message that was never stored",
            image!(Effect { identity, effect } if effect.pin.is_some() => *identity = of_none(identity)),
        ),
        ("lease token of a later boot", image!(Completion { token, .. } => token.boot = Boot(9))),
        ("no such topic", image!(Winner { message, .. } => message.topic = TopicId(99))),
        ("no such group or partition", image!(Winner { message, .. } => message.group = GroupId(99))),
        ("no such group or partition", image!(Winner { message, .. } => message.partition = PartitionId(99))),
        ("offset not assigned yet", image!(Winner { message, .. } => message.offset = Offset(99))),
        (
            "offset not assigned yet",
            image!(Winner { message, .. } if message.topic == ORDERS => message.offset = Offset(9)),
        ),
        (
            "winner of a message that is not acked",
            image!(Winner { message: driftq_core::types::OffsetRef { topic: ORDERS, offset, .. }, .. } => *offset = Offset(0)),
        ),
        (
            "lease token of a later boot",
            image!(Winner { winner: driftq_core::types::Winner { token: Some(token), .. }, .. } => token.boot = Boot(9)),
        ),
    ];
    for (phrase, change) in cases {
        let refusal = refusal_of_snapshot(|images| make(images, change));
        assert_eq!(refusal, format!("record contradicts the state: {phrase}"));
    }
    // An effect pinned by a message that does not exist yet.
    let refusal = refusal_of_snapshot(|images| {
        let end = |record: &Record| match record.event {
            Event::Restored(Partition { topic: STEPS, partition, next_position, .. }) => {
                Some((partition, next_position))
            }
            _ => None,
        };
        let ends: std::collections::BTreeMap<_, _> = images.iter().filter_map(end).collect();
        let of_steps = |scope: &Scope| matches!(scope, Scope::Consume { topic, .. } if topic.as_str() == "steps");
        for record in images {
            if let Event::Restored(Effect { identity, effect }) = &mut record.event
                && let Some(pin) = effect.pin.as_mut().filter(|_| of_steps(&identity.scope))
            {
                pin.position = ends[&pin.partition];
            }
        }
    });
    assert_eq!(refusal, "record contradicts the state: effect of a message that was never stored");
}

#[test]
fn effect_log_record_impossible_after_earlier_ones_is_named() {
    let cases: [(&str, Change); 24] = [
        ("lease token of another boot", change!(Event::EffectBegun(begun) => begun.token.boot = Boot(0))),
        ("effect without a key", change!(Event::EffectBegun(begun) => begun.identity = with_key(&begun.identity, ""))),
        ("new effect without a lifetime", change!(Event::EffectBegun(begun) => begun.lifetime = None)),
        (
            "effect of a message that was never stored",
            change!(Event::EffectBegun(begun) if begun.message.is_some() => begun.message = Some((FIRST, Position(99)))),
        ),
        (
            "effect of a message that was never stored",
            change!(Event::EffectBegun(begun) if begun.message.is_none() => begun.message = Some((FIRST, Position(0)))),
        ),
        (
            "effect of a message that was never stored",
            change!(Event::EffectBegun(begun) if begun.message.is_some() => begun.identity = of_none(&begun.identity)),
        ),
        ("no such effect", change!(Event::EffectFinished { identity, .. } => *identity = with_key(identity, "other"))),
        (
            "finish of an effect that has ended",
            change!(Event::EffectFinished { outcome, .. } => outcome.status = EffectStatus::InProgress),
        ),
        (
            "dead letter of an effect of another group, or that did not fail",
            change!(Event::EffectDeadLettered(failed) => failed.outcome.status = EffectStatus::Succeeded),
        ),
        (
            "dead letter of an effect of another group, or that did not fail",
            change!(Event::EffectDeadLettered(failed) => failed.identity = of_none(&failed.identity)),
        ),
        ("no such effect", change!(Event::EffectRenewed { identity, .. } => *identity = with_key(identity, "other"))),
        ("no such effect", change!(Event::EffectForgotten { identity } => *identity = with_key(identity, "other"))),
        ("expiry of effects within their window", change!(Event::EffectsExpired { count, .. } => *count += 1)),
        (
            "no such effect table",
            change!(Event::EffectsExpired { namespace, .. } => {
                *namespace = EffectNamespace::Group(TopicName::new("x").expect("a name"), GroupName::new("y").expect("a name"));
            }),
        ),
        (
            "commit of a message without an idempotency key",
            change!(Event::Acked { commits, .. } => *commits = Some(Millis(1))),
        ),
        ("no such delivery", change!(Event::Completed(step) => step.message_ref.position = Position(0))),
        ("step completed under a stale lease token", change!(Event::Completed(step) => step.token.counter += 1)),
        ("offset is not the next", change!(Event::Completed(step) => step.outputs[0].offset.0 += 1)),
        ("no such partition", change!(Event::Completed(step) => step.outputs[2].partition = PartitionId(2))),
        (
            "dedupe window of a message without an idempotency key",
            change!(Event::Completed(step) => {
                let stored = step.outputs[0].stored.as_mut().expect("is new");
                stored.body = driftq_core::Body::pack(&Metadata::default(), b"", b"v");
            }),
        ),
        ("expiry of more completions than are stored", change!(Event::CompletionsExpired { count } => *count += 1)),
        ("expiry of more winners than are remembered", change!(Event::WinnersExpired { count } => *count += 1)),
        (
            "adjustment of another wall clock",
            change!(Event::WallClockAdjusted(WallAdjustment::Forward { offset }) => *offset = -1),
        ),
        (
            "adjustment of another wall clock",
            change!(Event::WallClockAdjusted(WallAdjustment::Slew { offset, .. }) => *offset += 1),
        ),
    ];
    for (phrase, change) in cases {
        let refusal = refusal_of_log(|records| make(records, change));
        assert_eq!(refusal, format!("record contradicts the state: {phrase}"));
    }
    let again = |of: fn(&Event) -> bool| {
        refusal_of_log(move |records| {
            let at = records.iter().position(|record| of(&record.event)).expect("no event matches");
            records.insert(at + 1, records[at].clone());
        })
    };
    let not_newer = "record contradicts the state: grant with a token that is not newer";
    assert_eq!(again(|event| matches!(event, Event::EffectBegun(_))), not_newer);
    let ended = "record contradicts the state: finish of an effect that has ended";
    assert_eq!(again(|event| matches!(event, Event::EffectFinished { .. })), ended);
    assert_eq!(again(|event| matches!(event, Event::Completed(_))), "record contradicts the state: no such delivery");
    // An effect that ended, finally or retryably, does not end again.
    for before in [EffectStatus::Succeeded, EffectStatus::FailedRetryable, EffectStatus::FailedFinal] {
        for then in [EffectStatus::Succeeded, EffectStatus::FailedRetryable] {
            let twice = refusal_of_log(|records| {
                let of = |record: &Record| matches!(&record.event, Event::EffectFinished { .. });
                let at = records.iter().position(of).expect("one ends");
                records.insert(at + 1, records[at].clone());
                for (record, status) in records[at..].iter_mut().zip([before, then]) {
                    if let Event::EffectFinished { outcome, .. } = &mut record.event {
                        outcome.status = status;
                    }
                }
            });
            assert_eq!(twice, ended, "{before:?}, then {then:?}");
        }
    }
    // The end of an effect at the end of its window, and past it.
    for late in [Timestamp(1_700_000_600_000), Timestamp(1_800_000_000_000)] {
        let refusal = refusal_of_log(|records| {
            let of = |record: &Record| matches!(&record.event, Event::EffectFinished { .. });
            let at = records.iter().position(of).expect("one ends");
            records.truncate(at + 1);
            records[at].at = late;
        });
        assert_eq!(refusal, "record contradicts the state: no such effect");
    }
    // A grant after the end of the effect.
    let refusal = refusal_of_log(|records| {
        let of = |record: &Record| matches!(&record.event, Event::EffectFinished { outcome, .. } if outcome.status == EffectStatus::Succeeded);
        let at = records.iter().position(of).expect("one succeeds");
        let Event::EffectFinished { identity, .. } = records[at].event.clone() else { return };
        let begun = |record: &&Record| matches!(&record.event, Event::EffectBegun(begun) if begun.identity == identity);
        let mut again = records.iter().find(begun).expect("was begun").clone();
        if let Event::EffectBegun(begun) = &mut again.event {
            begun.token.counter += 1_000;
        }
        records.insert(at + 1, again);
    });
    assert_eq!(refusal, "record contradicts the state: grant of an effect with a final outcome");
}

/// The same identity with another key.
fn with_key(identity: &Identity, key: &str) -> Identity {
    Identity::new(identity.tenant(), identity.scope.clone(), key)
}

/// The same identity in a group that does not exist.
fn of_none(identity: &Identity) -> Identity {
    let Scope::Consume { topic, .. } = &identity.scope else { panic!("an effect of a group") };
    let group = GroupName::new("missing").expect("a name");
    Identity::new(identity.tenant(), Scope::Consume { topic: topic.clone(), group }, identity.key())
}
