//! The verdict: every request has each of its effects and messages exactly once, in the right order, and nothing else
//! has happened.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use serde_json::Value;

use crate::evidence::{Evidence, Held};
use crate::ledger::Kind;
use crate::producer::Request;

/// Something that must not be, how often it is, and one place where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub what: String,
    /// How often.
    pub count: u64,
    /// Where, for example.
    pub example: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.count, self.what)?;
        if self.example.is_empty() { Ok(()) } else { write!(f, ", such as {}", self.example) }
    }
}

#[derive(Default)]
struct Findings(BTreeMap<String, (u64, String)>);

impl Findings {
    fn add(&mut self, what: String, count: u64, example: &str) {
        if count > 0 {
            let found = self.0.entry(what).or_insert_with(|| (0, example.to_owned()));
            found.0 += count;
        }
    }
}

/// What is wrong with a run; nothing if all is well.
pub(crate) fn verify(evidence: &Evidence) -> Vec<Finding> {
    let mut findings = Findings::default();
    let mut expected = HashSet::new();
    for request in &evidence.requests {
        for kind in Kind::ALL {
            verify_effect(evidence, request, kind, &mut findings);
            expected.insert((kind, request.identity(kind)));
        }
    }
    for (kind, identity) in evidence.effects.keys().filter(|key| !expected.contains(*key)) {
        findings.add(format!("{} of no request", kind.name()), 1, identity);
    }
    for kind in Kind::ALL {
        verify_messages(evidence, kind, &mut findings);
    }
    findings.add("dead letters".to_owned(), evidence.dead_letters, "");
    findings.add("messages not acked".to_owned(), evidence.unacked, "");
    findings.0.into_iter().map(|(what, (count, example))| Finding { what, count, example }).collect()
}

fn verify_effect(evidence: &Evidence, request: &Request, kind: Kind, findings: &mut Findings) {
    let (name, identity) = (kind.name(), request.identity(kind));
    let Some(effect) = evidence.effects.get(&(kind, identity.clone())) else {
        return findings.add(format!("{name} missing"), 1, &identity);
    };
    findings.add(format!("{name} more than once"), effect.effects.saturating_sub(1), &identity);
    let without_grant = effect.attempts.saturating_sub(evidence.grants(kind, &identity));
    findings.add(format!("{name} attempted without a grant"), without_grant, &identity);
    findings.add(format!("{name} in another trace"), u64::from(effect.trace != request.traceparent), &identity);
    let is_as_expected = expected_body(evidence, request, kind).is_some_and(|body| body == effect.body);
    findings.add(format!("{name} with wrong results of the steps before"), u64::from(!is_as_expected), &identity);
}

/// What a step asks for: the request with the results of the steps before it. Nothing if those are missing.
fn expected_body(evidence: &Evidence, request: &Request, kind: Kind) -> Option<Value> {
    let number = |of: Kind| evidence.effects.get(&(of, request.identity(of))).map(|effect| effect.number);
    let mut body = request.order.clone();
    if kind != Kind::Model {
        body["plan"] = number(Kind::Model)?.into();
    }
    if kind == Kind::Report {
        body["receipt"] = number(Kind::Charge)?.into();
    }
    Some(body)
}

fn verify_messages(evidence: &Evidence, kind: Kind, findings: &mut Findings) {
    let topic = kind.topic();
    let mut by_run: HashMap<&str, Vec<&Held>> = HashMap::new();
    for held in evidence.messages.get(&kind).into_iter().flatten() {
        by_run.entry(&held.run_id).or_default().push(held);
    }
    for request in &evidence.requests {
        let held = by_run.remove(&*request.id).unwrap_or_default();
        findings.add(format!("messages of {topic} missing"), u64::from(held.is_empty()), &request.id);
        findings.add(format!("messages of {topic} more than once"), (held.len() as u64).saturating_sub(1), &request.id);
        let strays = held.iter().filter(|held| held.traceparent != request.traceparent).count();
        findings.add(format!("messages of {topic} in another trace"), strays as u64, &request.id);
    }
    for (run, held) in by_run {
        findings.add(format!("messages of {topic} of no request"), held.len() as u64, run);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::ledger::Recorded;
    use crate::random::Random;

    /// What two requests leave behind when all is well. One of them was charged under a second grant.
    fn evidence() -> Evidence {
        let mut random = Random::new(1, 0);
        let mut evidence = Evidence::default();
        for number in 0..2 {
            let request = Request::new(number, Instant::now(), &mut random);
            for kind in Kind::ALL {
                let identity = request.identity(kind);
                let attempts = if kind == Kind::Charge { number + 1 } else { 1 };
                let grants = if kind == Kind::Charge { &mut evidence.side_effects } else { &mut evidence.handlers };
                grants.insert((kind, identity.clone()), attempts);
                let number = evidence.effects.len() as u64;
                let body = expected_body(&evidence, &request, kind).expect("the steps before are there");
                let trace = request.traceparent.clone();
                let effect = Recorded { number, attempts, effects: 1, body, trace, at: Instant::now() };
                evidence.effects.insert((kind, identity), effect);
                let held = Held { run_id: request.id.clone(), traceparent: request.traceparent.clone() };
                evidence.messages.entry(kind).or_default().push(held);
            }
            evidence.requests.push(request);
        }
        evidence
    }

    /// What is found after `change`.
    fn found(change: impl FnOnce(&mut Evidence)) -> Vec<String> {
        let mut evidence = evidence();
        change(&mut evidence);
        verify(&evidence).iter().map(ToString::to_string).collect()
    }

    fn effect(evidence: &mut Evidence, kind: Kind) -> &mut Recorded {
        let identity = evidence.requests[1].identity(kind);
        evidence.effects.get_mut(&(kind, identity)).expect("recorded")
    }

    #[test]
    fn run_without_defect_has_no_findings() {
        assert_eq!(found(|_| {}), [""; 0]);
    }

    #[test]
    fn missing_effect_is_found() {
        let found = found(|evidence| {
            let identity = evidence.requests[1].identity(Kind::Report);
            evidence.effects.remove(&(Kind::Report, identity));
        });
        assert_eq!(found, ["1: report missing, such as request-1:report"]);
    }

    #[test]
    fn effect_that_happened_twice_is_found() {
        assert_eq!(
            found(|evidence| effect(evidence, Kind::Charge).effects = 2),
            ["1: charge more than once, such as request-1:tool"]
        );
    }

    #[test]
    fn attempt_without_a_grant_is_found() {
        let expected = ["1: charge attempted without a grant, such as request-1:tool"];
        assert_eq!(found(|evidence| effect(evidence, Kind::Charge).attempts = 3), expected);
    }

    #[test]
    fn result_of_another_attempt_and_foreign_trace_are_found() {
        let found = found(|evidence| {
            effect(evidence, Kind::Report).body["receipt"] = 999.into();
            effect(evidence, Kind::Report).trace.clear();
        });
        let expected = ["report in another trace", "report with wrong results of the steps before"]
            .map(|what| format!("1: {what}, such as request-1:report"));
        assert_eq!(found, expected);
    }

    #[test]
    fn effect_of_no_request_is_found() {
        let found = found(|evidence| {
            let stray = effect(evidence, Kind::Model).clone();
            evidence.effects.insert((Kind::Model, "request-7:plan".to_owned()), stray);
        });
        assert_eq!(found, ["1: model of no request, such as request-7:plan"]);
    }

    #[test]
    fn missing_doubled_and_foreign_messages_are_found() {
        let found = found(|evidence| {
            let held = evidence.messages.get_mut(&Kind::Charge).expect("a topic");
            held[0].run_id = held[1].run_id.clone();
            held.push(Held { run_id: "x".to_owned(), traceparent: String::new() });
        });
        let expected = [
            "1: messages of tool in another trace, such as request-1",
            "1: messages of tool missing, such as request-0",
            "1: messages of tool more than once, such as request-1",
            "1: messages of tool of no request, such as x",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn dead_letters_and_unacked_messages_are_found() {
        let found = found(|evidence| (evidence.dead_letters, evidence.unacked) = (2, 3));
        assert_eq!(found, ["2: dead letters", "3: messages not acked"]);
    }
}
