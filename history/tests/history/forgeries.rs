//! Histories that no correct broker can have produced, at least one for every check.

use driftq_history::{Check, Phase};
use serde_json::json;

use crate::builder::{History, Item, LEASE_MS, item, timestamp, token};

/// A forged history and the violation that it must cause.
pub(crate) struct Forgery {
    /// The name of its file.
    pub(crate) name: &'static str,
    pub(crate) history: History,
    pub(crate) check: Check,
    pub(crate) sentence: &'static str,
}

/// All forgeries. Each breaks one rule and no other.
pub(crate) fn all() -> Vec<Forgery> {
    let mut all = Vec::new();
    messages(&mut all);
    leases(&mut all);
    offsets(&mut all);
    drains(&mut all);
    effects_and_steps(&mut all);
    all
}

fn forge(all: &mut Vec<Forgery>, name: &'static str, check: Check, sentence: &'static str, history: History) {
    all.push(Forgery { name, history, check, sentence });
}

/// A correct history of three messages and one consumer, for a forgery to add to.
fn correct() -> History {
    let mut history = History::new();
    history.produced(0..3);
    history.consume("w1", "g");
    history.work("w1", 0..3, 0);
    history
}

fn messages(all: &mut Vec<Forgery>) {
    let mut history = correct();
    history.produce("v3", json!({}), Some((0, 3)));
    forge(
        all,
        "lost",
        Check::Lost,
        "topic t, partition 0, offset 3, value \"v3\" was accepted and was never delivered to group g (seq 20)",
        history.drained(),
    );

    // Another message of its identity is acked, but its producer was not told that it is already done.
    let mut history = History::new();
    let keyed = || json!({"envelope": {"idempotency_key": "k"}});
    history.produce("v0", keyed(), Some((0, 0)));
    history.consume("w1", "g");
    history.deliver("w1", item(0, 0).envelope(json!({"idempotency_key": "k"})));
    history.ack("w1", 0, 0);
    history.pass(11 * 60 * 1_000);
    history.produce("v1", keyed(), Some((0, 1)));
    forge(
        all,
        "skipped-without-flag",
        Check::Lost,
        "offset 1, value \"v1\" was accepted and was never delivered to group g",
        history.drained(),
    );

    let mut history = correct();
    history.work("w1", 3..4, 3);
    forge(
        all,
        "unexpected",
        Check::Unexpected,
        "topic t, partition 0, offset 3, value \"v3\" is delivered to group g, which no call produced (seq 19)",
        history.drained(),
    );

    let mut history = correct();
    let refused = json!({"status": 429, "error": "RESOURCE_EXHAUSTED"});
    history.call("producer", "produce", Phase::Fail, json!({"topic": "t", "value": "v3"}), refused);
    history.work("w1", 3..4, 3);
    forge(
        all,
        "unexpected-after-failure",
        Check::Unexpected,
        "value \"v3\" is delivered to group g, which only a failed call was to produce (seq 19, 20 and 21)",
        history.drained(),
    );

    let mut history = History::new();
    history.produced(0..1);
    history.consume("w1", "g");
    history.deliver("w1", item(0, 1).value("v0, and more"));
    history.ack("w1", 0, 1);
    forge(
        all,
        "altered-value",
        Check::Altered,
        "topic t, partition 0, offset 0, value \"v0, and more\" is delivered to group g where \"v0\" was produced (seq 3, 4 and 6)",
        history.drained(),
    );

    let mut history = History::new();
    history.produce("v0", json!({"key": "k", "envelope": {"run_id": "r1"}}), Some((0, 0)));
    history.consume("w1", "g");
    history.deliver("w1", item(0, 1).key("k").envelope(json!({"run_id": "r2"})));
    history.ack("w1", 0, 1);
    forge(
        all,
        "altered-envelope",
        Check::Altered,
        "is delivered to group g with another run_id than it was produced with (seq 3, 4 and 6)",
        history.drained(),
    );

    let mut history = correct();
    history.pass(LEASE_MS);
    history.deliver("w1", item(1, 9).attempt(2));
    forge(
        all,
        "resurrected",
        Check::Resurrected,
        "topic t, partition 0, offset 1, value \"v1\" is delivered to group g again, attempt 2 with token 000000010000000000000009, \
         after its ack with token 000000010000000000000002 (seq 14, 15 and 19)",
        history.drained(),
    );

    let mut history = correct();
    history.drain(1);
    history.call("driver", "drain", Phase::Invoke, json!({"round": 2}), json!({}));
    history.consume("w2", "g");
    history.deliver("w2", item(2, 9).attempt(2));
    history.line("driver", "drain", Phase::Ok, json!({"round": 2}), json!({}));
    forge(
        all,
        "resurrected-in-round-2",
        Check::Resurrected,
        "offset 2, value \"v2\" is delivered to group g again, attempt 2",
        history,
    );
}

fn leases(all: &mut Vec<Forgery>) {
    let redelivered = |second: Item| {
        let mut history = History::new();
        history.produced(0..1);
        history.consume("w1", "g");
        history.deliver("w1", item(0, 1));
        history.pass(LEASE_MS + 10);
        let n = second.token;
        history.deliver("w1", second);
        history.ack("w1", 0, n);
        history.drained()
    };
    forge(
        all,
        "attempt-repeated",
        Check::Attempts,
        "is delivered to group g as attempt 1 with token 000000010000000000000002, after attempt 1 with the older token 000000010000000000000001",
        redelivered(item(0, 2)),
    );

    let mut history = correct();
    history.produce("v3", json!({}), Some((0, 3)));
    history.work("w1", 3..4, 2);
    forge(
        all,
        "token-repeated",
        Check::Attempts,
        "token 000000010000000000000003 was used twice, with topic t, partition 0, offset 2, value \"v2\" for group g and with \
         topic t, partition 0, offset 3, value \"v3\" for group g",
        history.drained(),
    );

    let mut history = History::new();
    history.produced(0..1);
    history.consume("w1", "g");
    history.consume("w2", "g");
    history.deliver("w1", item(0, 1));
    history.pass(499);
    history.deliver("w2", item(0, 2).attempt(2));
    history.ack("w2", 0, 2);
    forge(
        all,
        "overlapping-leases",
        Check::Overlap,
        "was leased to w2 of group g 1500 ms before its lease to w1 (token 000000010000000000000001) had ended (seq 7 and 8)",
        history.drained(),
    );

    let mut history = History::new();
    history.driver("clock", json!({"offset": "-1h"}));
    history.driver("clock", json!({"settled": true}));
    history.produced(0..1);
    history.consume("w1", "g");
    history.consume("w2", "g");
    history.deliver_for("w1", item(0, 1), LEASE_MS / 2);
    history.pass(499);
    history.deliver_for("w2", item(0, 2).attempt(2), LEASE_MS / 2);
    history.ack("w2", 0, 2);
    forge(
        all,
        "overlapping-leases-at-half-speed",
        Check::Overlap,
        "was leased to w2 of group g 498 ms before its lease to w1 (token 000000010000000000000001) had ended",
        history.drained(),
    );

    let mut history = History::new();
    history.produced(0..1);
    history.consume("w1", "g");
    history.consume("w2", "g");
    history.deliver("w1", item(0, 1));
    history.pass(1_500);
    history.settle("w1", "extend", Phase::Ok, (0, 1), json!({"lease_ms": LEASE_MS}));
    history.pass(1_000);
    history.deliver("w2", item(0, 2).attempt(2));
    history.ack("w2", 0, 2);
    forge(
        all,
        "extension-ignored",
        Check::Overlap,
        "before its lease to w1 (token 000000010000000000000001) had ended",
        history.drained(),
    );

    for (name, op) in [("stale-ack", "ack"), ("stale-nack", "nack"), ("stale-extend", "extend")] {
        let mut history = History::new();
        history.produced(0..1);
        history.consume("w1", "g");
        history.consume("w2", "g");
        history.deliver("w1", item(0, 1));
        history.pass(LEASE_MS);
        history.deliver("w2", item(0, 2).attempt(2));
        history.settle("w1", op, Phase::Ok, (0, 1), json!({}));
        history.pass(LEASE_MS);
        if op != "ack" {
            history.deliver("w1", item(0, 3).attempt(3));
            history.ack("w1", 0, 3);
        }
        let sentence = match op {
            "ack" => {
                "the ack of group g with token 000000010000000000000001 was accepted although \
                 attempt 2 with token 000000010000000000000002 had been received"
            }
            "nack" => "the nack of group g with token 000000010000000000000001 was accepted although attempt 2",
            _ => "the extend of group g with token 000000010000000000000001 was accepted although attempt 2",
        };
        forge(all, name, Check::Stale, sentence, history.drained());
    }

    let mut history = History::new();
    history.produced(0..3);
    history.consume("w1", "g");
    for offset in 0..3 {
        history.deliver("w1", item(offset, offset + 1));
    }
    for offset in 0..3 {
        history.ack("w1", offset, offset + 1);
    }
    forge(
        all,
        "in-flight",
        Check::InFlight,
        "topic t, partition 0, group g: 3 messages were in flight at once, the limit is 2 (seq 12)",
        history.drained(),
    );

    let mut history = History::new();
    history.produced(0..2);
    history.consume("w1", "g");
    history.deliver("w1", item(1, 1));
    history.deliver("w1", item(0, 2));
    history.ack("w1", 0, 2);
    history.ack("w1", 1, 1);
    forge(
        all,
        "out-of-order",
        Check::Order,
        "topic t, partition 0, offset 0, value \"v0\" was first delivered to group g after offset 1 (seq 8 and 9)",
        history.drained(),
    );

    let mut history = History::new();
    history.produced(0..1);
    history.consume("w1", "g");
    history.deliver("w1", item(0, 1));
    history.entries.last_mut().expect("just written").result["lease_token"] = json!("00000001000000000000000A");
    history.settle("w1", "ack", Phase::Ok, (0, 0), json!({}));
    forge(
        all,
        "no-token",
        Check::Form,
        "\"00000001000000000000000A\" is not a lease token: lowercase hexadecimal, all of one length (seq 6)",
        history.drained(),
    );

    let mut history = correct();
    history.line("w1", "deliver", Phase::Ok, json!({"topic": "t", "group": "g"}), json!({"partition": 0}));
    forge(all, "no-offset", Check::Form, "a delivery must have its offset (seq 19)", history.drained());
}

fn offsets(all: &mut Vec<Forgery>) {
    let mut history = correct();
    history.produce("another", json!({}), Some((0, 2)));
    forge(
        all,
        "two-values-at-an-offset",
        Check::Offsets,
        "topic t, partition 0, offset 2 holds both \"v2\" and \"another\" (seq 8 and 20)",
        history.drained(),
    );

    let mut history = correct();
    history.deliver("w1", item(3, 4).value("v2"));
    history.ack("w1", 3, 4);
    forge(
        all,
        "two-offsets-of-a-value",
        Check::Offsets,
        "topic t, value \"v2\" is at more than one offset: 2, 3",
        history.drained(),
    );

    let mut history = History::new();
    history.produced(0..1);
    history.consume("w1", "g");
    history.deliver("w1", item(0, 1).partition(1));
    history.ack("w1", 0, 1);
    forge(
        all,
        "two-partitions",
        Check::Offsets,
        "topic t, offset 0, value \"v0\" is in partition 0 and in partition 1 (seq 4 and 6)",
        history.drained(),
    );

    let mut history = correct();
    history.produce("v5", json!({}), Some((0, 5)));
    history.work("w1", 5..6, 3);
    forge(
        all,
        "gap",
        Check::Offsets,
        "topic t: offsets 3 to 4 are missing below offset 5, value \"v5\" (seq 20)",
        history.drained(),
    );

    let keyed = || json!({"envelope": {"idempotency_key": "k"}});
    let seen = || json!({"idempotency_key": "k"});
    let mut history = History::new();
    history.produce("v0", keyed(), Some((0, 0)));
    history.produce("v1", keyed(), Some((0, 1)));
    history.consume("w1", "g");
    for offset in 0..2 {
        history.deliver("w1", item(offset, offset + 1).envelope(seen()));
        history.ack("w1", offset, offset + 1);
    }
    forge(
        all,
        "two-messages-of-a-key",
        Check::Identity,
        "topic t, tenant default, key k has two messages, at partition 0, offset 0 and at partition 0, offset 1 (seq 4 and 6)",
        history.drained(),
    );

    let mut history = History::new();
    history.produce("v0", json!({}), Some((0, 0)));
    history.produce("v1", keyed(), Some((0, 1)));
    history.produce("v2", keyed(), Some((0, 0)));
    history.entries.last_mut().expect("just written").result["duplicate"] = json!(true);
    history.consume("w1", "g");
    history.work("w1", 0..1, 0);
    history.deliver("w1", item(1, 2).envelope(seen()));
    history.ack("w1", 1, 2);
    forge(
        all,
        "duplicate-of-another",
        Check::Identity,
        "key k is answered as a duplicate of partition 0, offset 0, though its message is at partition 0, offset 1 (seq 6 and 8)",
        history.drained(),
    );

    let mut history = correct();
    history.produce("v3", keyed(), Some((0, 2)));
    history.entries.last_mut().expect("just written").result["duplicate"] = json!(true);
    forge(
        all,
        "duplicate-of-nothing",
        Check::Identity,
        "key k is answered as a duplicate of partition 0, offset 2, though no other call can have produced it",
        history.drained(),
    );
}

fn drains(all: &mut Vec<Forgery>) {
    let mut history = correct();
    history.produce("v3", json!({}), Some((0, 3)));
    history.deliver("w1", item(3, 4));
    forge(
        all,
        "not-drained",
        Check::Drained,
        "topic t, partition 0, offset 3, value \"v3\" was delivered to group g and neither acked nor seen as a dead letter (seq 21)",
        history.drained(),
    );

    let mut history = correct();
    history.drain(1);
    forge(all, "no-second-round", Check::Drained, "drain round 2 never began", history);

    let mut history = correct();
    history.produce("v3", json!({}), None);
    history.drain(1);
    history.line("driver", "drain", Phase::Invoke, json!({"round": 2}), json!({}));
    history.consume("w2", "g");
    history.deliver("w2", item(3, 4));
    history.ack("w2", 3, 4);
    history.line("driver", "drain", Phase::Ok, json!({"round": 2}), json!({}));
    forge(
        all,
        "first-seen-in-round-2",
        Check::Drained,
        "topic t, partition 0, offset 3, value \"v3\" is delivered to group g in drain round 2 (seq 23 and 25)",
        history,
    );
}

fn effects_and_steps(all: &mut Vec<Forgery>) {
    let identity = |more: serde_json::Value| {
        let mut args = json!({"scope": {"kind": "job", "id": "j"}, "key": "k"});
        args.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        args
    };
    let begin = |history: &mut History, client: &str, n: u64, attempt: u64| {
        let until = timestamp(history.now + LEASE_MS);
        let result = json!({"decision": "EXECUTE", "attempt": attempt, "lease_token": token(n), "lease_until": until});
        history.call(client, "begin", Phase::Ok, identity(json!({"owner": client, "lease_ms": LEASE_MS})), result);
    };
    let finish = |history: &mut History, client: &str, n: u64| {
        let args = identity(json!({"lease_token": token(n), "status": "SUCCEEDED", "result": {"sent": 1}}));
        history.call(client, "finish", Phase::Ok, args, json!({"ok": true}));
    };

    let mut history = correct();
    begin(&mut history, "a", 10, 1);
    finish(&mut history, "a", 10);
    history.pass(LEASE_MS);
    begin(&mut history, "b", 11, 2);
    forge(
        all,
        "effect-again",
        Check::Effects,
        "tenant default, scope {\"id\":\"j\",\"kind\":\"job\"}, key k: token 00000001000000000000000b was granted although \
         token 00000001000000000000000a had finished it as SUCCEEDED (seq 21, 22 and 24)",
        history.drained(),
    );

    let mut history = correct();
    begin(&mut history, "a", 10, 1);
    begin(&mut history, "b", 11, 2);
    finish(&mut history, "b", 11);
    forge(
        all,
        "two-grants",
        Check::Effects,
        "was granted 1998 ms before the grant of token 00000001000000000000000a had ended (seq 20 and 22)",
        history.drained(),
    );

    let mut history = correct();
    begin(&mut history, "a", 10, 1);
    history.pass(LEASE_MS);
    begin(&mut history, "b", 11, 1);
    forge(
        all,
        "grant-not-rising",
        Check::Effects,
        "attempt 1 with token 00000001000000000000000b was granted after attempt 1 with token 00000001000000000000000a",
        history.drained(),
    );

    let mut history = correct();
    begin(&mut history, "a", 10, 1);
    finish(&mut history, "a", 10);
    let replay = json!({"decision": "REPLAY", "status": "SUCCEEDED", "result": {"sent": 2}});
    history.call("b", "begin", Phase::Ok, identity(json!({"owner": "b"})), replay);
    forge(
        all,
        "replay-of-another-result",
        Check::Effects,
        "SUCCEEDED was replayed with a result that no finish recorded: {\"sent\":2}",
        history.drained(),
    );

    let produce = json!({"produce": [{"topic": "t", "value": "v1"}, {"topic": "t", "value": "v2"}]});
    let step = |phase: Phase| {
        let mut history = History::new();
        history.produced(0..1);
        history.consume("w1", "g");
        history.deliver("w1", item(0, 1));
        history.settle("w1", "complete", phase, (0, 1), produce.clone());
        history
    };
    let mut history = step(Phase::Ok);
    let answer = json!({"produced": [{"topic": "t", "partition": 0, "offset": 1}]});
    history.entries.last_mut().expect("just written").result = answer;
    history.work("w1", 1..2, 1);
    forge(
        all,
        "step-answer-incomplete",
        Check::Steps,
        "the complete of topic t, partition 0, offset 0 by group g was to produce 2 messages and its answer has 1 (seq 7 and 8)",
        history.drained(),
    );

    let mut history = step(Phase::Info);
    history.work("w1", 1..2, 1);
    forge(
        all,
        "half-a-step",
        Check::Steps,
        "the complete of topic t, partition 0, offset 0 by group g produced \"v1\" and not \"v2\" (seq 7 and 8)",
        history.drained(),
    );

    let mut history = step(Phase::Fail);
    history.work("w1", 1..2, 1);
    history.ack("w1", 0, 1);
    forge(
        all,
        "step-that-failed",
        Check::Steps,
        "value \"v1\" is delivered to group g, which only a failed complete was to produce (seq 7, 8 and 9)",
        history.drained(),
    );

    let mut history = step(Phase::Info);
    history.work("w1", 1..3, 1);
    history.pass(LEASE_MS);
    history.deliver("w1", item(0, 9).attempt(2));
    history.ack("w1", 0, 9);
    forge(
        all,
        "step-without-its-ack",
        Check::Steps,
        "by group g produced \"v1\", and its message was delivered again as attempt 2",
        history.drained(),
    );
}
