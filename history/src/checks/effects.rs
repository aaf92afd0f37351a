//! Effects of the idempotency store: one grant at a time, and none after success.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::parsed::{
    CallResult, EffectCall, EffectOp, ParsedHistory, SettleCall, SettleOp, is_dead_letter_topic, millis, text,
};
use crate::report::{Check, Report};

/// The shortest window of an effect: that of one committed by the ack of a produced message.
const WINDOW_MS_MIN: u64 = 10 * 60 * 1000;

/// A begin that was answered with EXECUTE.
struct Grant<'f, 'a> {
    token: &'a str,
    attempt: u64,
    call: &'f EffectCall<'a>,
}

pub(super) fn check(history: &ParsedHistory<'_>, report: &mut Report) {
    report.count(Check::Effects, history.effects.len());
    let mut identities: BTreeMap<&str, Vec<&EffectCall<'_>>> = BTreeMap::new();
    for call in &history.effects {
        identities.entry(&call.identity).or_default().push(call);
    }
    let mut tokens: BTreeMap<&str, u64> = BTreeMap::new();
    for (identity, calls) in &identities {
        let mut grants: Vec<Grant<'_, '_>> = calls.iter().filter_map(|call| grant(call)).collect();
        for grant in &grants {
            let seq = grant.call.span.last();
            if let Some(before) = tokens.insert(grant.token, seq) {
                report.add_violation(Check::Effects, [before, seq], || {
                    format!("{identity}: token {} was used twice", grant.token)
                });
            }
        }
        grants.sort_by_key(|grant| grant.token);
        if !may_be_forgotten(history, calls) {
            attempts_increase(history, identity, &grants, report);
            no_grant_after_success(identity, calls, &grants, report);
        }
        one_at_a_time(history, identity, calls, &grants, report);
        replayed(identity, calls, report);
    }
}

fn grant<'f, 'a>(call: &'f EffectCall<'a>) -> Option<Grant<'f, 'a>> {
    let is_granted =
        call.op == EffectOp::Begin && call.ended_as == CallResult::Ok && text(call.result, "decision") == "EXECUTE";
    let attempt = call.result.get("attempt").and_then(Value::as_u64).unwrap_or(0);
    is_granted.then(|| Grant { token: text(call.result, "lease_token"), attempt, call })
}

/// Whether the store may have dropped the effect during the history.
fn may_be_forgotten(history: &ParsedHistory<'_>, calls: &[&EffectCall<'_>]) -> bool {
    let (mut first, mut last) = (u64::MAX, 0);
    let (mut from, mut to) = (u64::MAX, 0);
    for call in calls {
        (first, last) = (first.min(call.span.t), last.max(call.span.t));
        (from, to) = (from.min(call.span.invoked), to.max(call.span.last()));
    }
    let has_own_window =
        |call: &&EffectCall<'_>| call.args.get("ttl_ms").is_some() || call.args.get("expires_at").is_some();
    last - first >= WINDOW_MS_MIN || calls.iter().any(has_own_window) || history.clock_changed_between(from, to)
}

fn attempts_increase(history: &ParsedHistory<'_>, identity: &str, grants: &[Grant<'_, '_>], report: &mut Report) {
    for pair in grants.windows(2).filter(|pair| pair[0].token < pair[1].token && pair[0].attempt >= pair[1].attempt) {
        if acked_as_dead_letter_before(history, pair[1].call) {
            continue;
        }
        report.add_violation(Check::Effects, [pair[0].call.span.last(), pair[1].call.span.last()], || {
            let [old, new] =
                [&pair[0], &pair[1]].map(|grant| format!("attempt {} with token {}", grant.attempt, grant.token));
            format!("{identity}: {new} was granted after {old}")
        });
    }
}

/// Whether the ack of a dead letter of the effect's identity may have committed the effect before `grant`. An effect
/// that only an ack ended is kept as long as its produce would be a duplicate. A dead letter is no produce, so the
/// store drops the effect with the running grant, and each group of the source has a dead letter of its own.
fn acked_as_dead_letter_before(history: &ParsedHistory<'_>, grant: &EffectCall<'_>) -> bool {
    let Some(scope) = grant.args.get("scope").filter(|scope| text(scope, "kind") == "consume") else { return false };
    let (topic, group, key) = (text(scope, "topic"), text(scope, "group"), text(grant.args, "key"));
    let is_of_identity = |settle: &SettleCall<'_>| {
        let message = history.messages.get(&(settle.topic, settle.at.offset));
        message.and_then(|known| known.identity).is_some_and(|(_, its)| its == key)
    };
    is_dead_letter_topic(topic)
        && history.settles.iter().any(|settle| {
            (settle.op, settle.topic, settle.group) == (SettleOp::Ack, topic, group)
                && settle.ended_as.is_possible()
                && settle.span.invoked < grant.span.last()
                && is_of_identity(settle)
        })
}

fn no_grant_after_success(identity: &str, calls: &[&EffectCall<'_>], grants: &[Grant<'_, '_>], report: &mut Report) {
    let succeeded = |call: &&&EffectCall<'_>| {
        call.op == EffectOp::Finish && call.ended_as == CallResult::Ok && text(call.args, "status") == "SUCCEEDED"
    };
    for finish in calls.iter().filter(succeeded) {
        let token = text(finish.args, "lease_token");
        if let Some(again) = grants.iter().find(|grant| grant.token > token) {
            let mut seqs = finish.span.seqs();
            seqs.push(again.call.span.last());
            return report.add_violation(Check::Effects, seqs, || {
                format!(
                    "{identity}: token {} was granted although token {token} had finished it as SUCCEEDED",
                    again.token
                )
            });
        }
    }
}

fn one_at_a_time(
    history: &ParsedHistory<'_>,
    identity: &str,
    calls: &[&EffectCall<'_>],
    grants: &[Grant<'_, '_>],
    report: &mut Report,
) {
    for pair in grants.windows(2) {
        let (earlier, later) = (&pair[0], &pair[1]);
        // The newest delivery of a message takes over its effect immediately.
        let takes_over = later.call.args.get("delivery").is_some_and(|delivery| !delivery.is_null());
        let requested = later.call.args.get("lease_ms").and_then(Value::as_u64).filter(|lease| *lease > 0);
        let began = requested
            .or(history.setup.lease_ms)
            .and_then(|lease| millis(later.call.result, "lease_until")?.checked_sub(lease));
        let (Some(end), Some(began)) = (millis(earlier.call.result, "lease_until"), began) else { continue };
        let (from, to) = (earlier.call.span.invoked, later.call.span.last());
        // A finish ends a grant; a renew may shorten it.
        let may_end = |call: &&EffectCall<'_>| {
            let is_its = text(call.args, "lease_token") == earlier.token;
            call.op != EffectOp::Begin && is_its && call.ended_as.is_possible() && call.span.invoked < to
        };
        if began < end
            && !takes_over
            && !calls.iter().any(may_end)
            && !history.clock_changed_between(from.min(to), from.max(to))
        {
            report.add_violation(Check::Effects, [earlier.call.span.last(), to], || {
                let (old, new) = (earlier.token, later.token);
                format!(
                    "{identity}: token {new} was granted {} ms before the grant of token {old} had ended",
                    end - began
                )
            });
        }
    }
}

/// A replayed result is one that a finish recorded. Effects of messages may also end by an ack or a complete.
fn replayed(identity: &str, calls: &[&EffectCall<'_>], report: &mut Report) {
    for begin in calls.iter().filter(|call| call.op == EffectOp::Begin && call.ended_as == CallResult::Ok) {
        let kind = begin.args.get("scope").map_or("", |scope| text(scope, "kind"));
        if text(begin.result, "decision") != "REPLAY" || kind == "consume" {
            continue;
        }
        let stored = begin.result.get("result").unwrap_or(&Value::Null);
        let recorded_it = |call: &&EffectCall<'_>| {
            let same_status = text(call.args, "status") == text(begin.result, "status");
            let same_result = call.args.get("result").unwrap_or(&Value::Null) == stored;
            call.op == EffectOp::Finish && call.ended_as.is_possible() && same_status && same_result
        };
        if !calls.iter().any(recorded_it) {
            report.add_violation(Check::Effects, begin.span.seqs(), || {
                let status = text(begin.result, "status");
                format!("{identity}: {status} was replayed with a result that no finish recorded: {stored}")
            });
        }
    }
}
