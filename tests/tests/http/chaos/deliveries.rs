//! Faults of deliveries.

use std::time::{Duration, Instant};

use driftq_tests::http::is_timeout;
use serde_json::{Value, json};

use super::support::{TestBroker, message};

const STREAM: &str = "topic=t&group=g&owner=w&wait_ms=500&lease_ms=60000";

fn broker_with(chaos: &str, messages: usize) -> TestBroker {
    let broker = TestBroker::with_chaos(chaos);
    broker.create("t");
    for number in 0..messages {
        broker.until_answered("POST", "/v1/produce", &message(&number.to_string()));
    }
    broker
}

/// The offsets of a stream's deliveries until it ends.
fn offsets(broker: &TestBroker, query: &str) -> Vec<u64> {
    let mut stream = broker.client.consume(query).expect("a response");
    let items = std::iter::from_fn(|| stream.item().expect("a stream"));
    items.map(|item| item["offset"].as_u64().expect("a number")).collect()
}

#[test]
fn delivery_is_written_twice() {
    // The produces are not to be repeated: one broker has them, and deliveries differ by seed.
    let broker = broker_with("seed=4,duplicate=0.3", 20);
    let stored = broker.values("t").len();
    let produced = broker.played("duplicate").len();
    let found = offsets(&broker, STREAM);
    let twice: Vec<u64> = found.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    let mut once = found.clone();
    once.dedup();
    assert_eq!(once, (0..stored as u64).collect::<Vec<_>>(), "in order, and none is missing");
    let played: Vec<u64> = broker.played("duplicate")[produced..]
        .iter()
        .map(|played| played["delivery"]["offset"].as_u64().expect("an offset"))
        .collect();
    assert!(twice.len() > 2);
    assert_eq!(twice, played);
}

#[test]
fn lease_ends_while_its_worker_runs_and_the_worker_is_fenced() {
    let broker = broker_with("seed=2,expire=1", 1);
    let mut stream = broker.client.consume(STREAM).expect("a response");
    let first = stream.item().expect("a stream").expect("a delivery");
    // At once, or after a part of a minute: each next attempt has another chance to be at once.
    let detail = &broker.played("expire")[0];
    assert_eq!(
        (&detail["delivery"], &detail["detail"]["of"]),
        (&json!({ "topic": "t", "group": "g", "partition": 0, "offset": 0, "attempts": 1 }), &json!("lease"))
    );
    assert_eq!(detail["detail"]["ms"], 0, "of this seed");
    let second = stream.item().expect("a stream").expect("it is redelivered");
    assert_eq!((&first["attempts"], &second["attempts"]), (&json!(1), &json!(2)));
    assert_eq!(second["last_error"], "ack_timeout");
    let ack = json!({
        "topic": "t", "group": "g", "partition": 0, "offset": 0, "owner": "w", "lease_token": first["lease_token"],
    });
    assert_eq!(broker.try_post("/v1/ack", ack.to_string()).expect("a response").status, 409);
}

#[test]
fn lease_ends_after_a_part_of_its_length() {
    let broker = broker_with("seed=1,expire=1", 10);
    let query = "topic=t&group=g&owner=w&wait_ms=2000&lease_ms=800&max=10";
    let mut stream = broker.client.consume(query).expect("a response");
    while let Some(item) = stream.item().expect("a stream") {
        assert!(item["attempts"].as_u64().is_some());
    }
    broker.wait_for_played("expire", 10);
    let played = broker.played("expire");
    let ms = |played: &Value| played["detail"]["ms"].as_u64().expect("a number");
    let late: Vec<u64> = played.iter().map(ms).filter(|ms| *ms > 0).collect();
    assert!(!late.is_empty() && late.iter().all(|ms| *ms < 800 && ms % 100 == 0), "{played:?}");
}

#[test]
fn expiry_of_an_earlier_delivery_does_not_end_a_later_lease() {
    // The first attempt's lease is to end after a part of its length, the second one's is not.
    let broker = broker_with("seed=34,expire=0.5", 1);
    let mut stream = broker.client.consume("topic=t&group=g&owner=w&lease_ms=1600").expect("a response");
    let first = stream.item().expect("a stream").expect("a delivery");
    let ms = broker.played("expire")[0]["detail"]["ms"].as_u64().expect("a number");
    assert!((400..=1_000).contains(&ms), "{ms}");
    let nack = json!({
        "topic": "t", "group": "g", "partition": 0, "offset": 0, "owner": "w", "lease_token": first["lease_token"],
    });
    assert_eq!(broker.try_post("/v1/nack", nack.to_string()).expect("a response").status, 204);
    let second = stream.item().expect("a stream").expect("it is redelivered");
    assert_eq!((&second["attempts"], broker.played("expire").len()), (&json!(2), 1));
    stream.set_timeout(Duration::from_millis(ms + 300));
    let silence = stream.line().expect_err("the lease goes on");
    assert!(is_timeout(&silence), "{silence}");
}

#[test]
fn deliveries_are_held_as_long_as_it_is_listed() {
    let broker = broker_with("seed=2,delay=1", 3);
    let requests = broker.played("delay").len();
    let began = Instant::now();
    assert_eq!(offsets(&broker, "topic=t&group=g&owner=w&max=3"), [0, 1, 2]);
    let took = began.elapsed();
    let played = &broker.played("delay")[requests..];
    let held = played.iter().filter(|played| played["delivery"].is_object());
    let held: Vec<u64> = held.map(|played| played["detail"]["ms"].as_u64().expect("a number")).collect();
    assert_eq!(held.len(), 3, "{played:?}");
    assert!(took >= Duration::from_millis(held.iter().sum()), "{took:?} for {held:?}");
}

#[test]
fn consecutive_deliveries_are_swapped_and_none_is_lost() {
    let broker = broker_with("seed=3,reorder=0.3", 20);
    let mut found = offsets(&broker, STREAM);
    assert!(!found.is_sorted(), "{found:?}");
    let played = broker.played("reorder");
    let swapped: Vec<u64> = played.iter().filter_map(|played| played["delivery"]["offset"].as_u64()).collect();
    for offset in &swapped {
        let at = found.iter().position(|found| found == offset).expect("delivered");
        let later = found[..at].iter().any(|earlier| earlier > offset);
        assert!(later || at + 1 >= found.len() || swapped.contains(&(offset + 1)), "{offset} waited in {found:?}");
    }
    found.sort_unstable();
    assert_eq!(found, (0..20).collect::<Vec<_>>());
}

#[test]
fn held_delivery_comes_without_a_later_one() {
    let broker = broker_with("seed=1,reorder=1", 1);
    assert_eq!(offsets(&broker, "topic=t&group=g&owner=w&max=1"), [0]);
    let mut stream = broker.client.consume("topic=t&group=h&owner=w").expect("a response");
    assert!(stream.item().expect("a stream").is_some(), "the stream does not end, and no other delivery comes");
}

#[test]
fn stream_is_cut_in_the_middle_of_a_line() {
    let broker = broker_with("seed=1,drop-reply=0.5", 20);
    let mut cut = 0;
    for group in 0..8 {
        let target = format!("/v1/consume?topic=t&group=g{group}&owner=w&wait_ms=300&max=20");
        let answer = broker.send_raw(&broker.encode("GET", &target, "Connection: close\r\n", ""));
        let offsets = answer.matches("lease_token").count();
        if answer.ends_with("0\r\n\r\n") {
            assert_eq!(offsets, 20);
            continue;
        }
        cut += 1;
        let played = broker.played("drop-reply").pop().expect("it was cut");
        assert_eq!(played["detail"]["of"], "stream");
        let line = played["detail"]["line"].as_u64().expect("a line") as usize;
        assert_eq!(answer.matches("\"partition\"").count(), line, "{answer}");
        assert_eq!(answer.matches("}\n").count(), line - 1, "{answer}");
    }
    assert!((2..8).contains(&cut), "{cut} of 8 were cut");
}

#[test]
fn client_that_disconnects_ends_its_stream() {
    let broker = broker_with("seed=1", 1);
    let mut stream = broker.client.consume("topic=t&group=g&owner=w&release_on_disconnect=true").expect("a response");
    assert!(stream.item().expect("a stream").is_some());
    drop(stream);
    let mut next = broker.client.consume("topic=t&group=g&owner=w2").expect("a response");
    let item = next.item().expect("a stream").expect("the lease was released");
    assert_eq!(item["failures"], 0);
}
