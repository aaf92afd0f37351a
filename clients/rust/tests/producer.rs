//! Batches: what waits while one is on the wire, and what becomes of a batch that fails.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use driftq_client::{ErrorKind, Produce, Producer, ProducerOptions};
use serde_json::json;

use crate::broker::Broker;
use crate::stub::{Reply, Seen, Stub};
use crate::support::{client, soon};

fn answers(seen: &Seen, answer: impl Fn(usize, &str) -> serde_json::Value) -> Reply {
    Reply::lines(seen.body.lines().enumerate().map(|(index, line)| answer(index, line)))
}

fn stored(offset: usize) -> serde_json::Value {
    json!({"status": 200, "topic": "t", "partition": 0, "offset": offset})
}

async fn enqueue_all(producer: &Producer, messages: &[Produce]) -> Vec<Result<u64, ErrorKind>> {
    let mut pending = Vec::new();
    for message in messages {
        pending.push(producer.enqueue(message).await.expect("room"));
    }
    let mut results = Vec::new();
    for answer in pending {
        results.push(soon("an answer", answer).await.map(|produced| produced.offset).map_err(|error| error.kind()));
    }
    results
}

fn options(change: impl FnOnce(&mut ProducerOptions)) -> ProducerOptions {
    let mut options = ProducerOptions::default();
    options.retry_for = Duration::from_secs(5);
    change(&mut options);
    options
}

#[tokio::test]
async fn what_waits_is_sent_as_one_batch_of_bounded_size() {
    let offset = AtomicUsize::new(0);
    let stub = Stub::start(move |seen| answers(seen, |_, _| stored(offset.fetch_add(1, Ordering::Relaxed)))).await;
    let producer = client(stub.url()).producer_with(options(|options| options.batch_messages = 10));
    let messages: Vec<_> = (0..25).map(|number| Produce::new("t", format!("v{number}"))).collect();
    let results = enqueue_all(&producer, &messages).await;
    assert_eq!(results, (0..25).map(Ok).collect::<Vec<_>>());
    let sizes: Vec<_> = stub.seen().iter().map(|seen| seen.body.lines().count()).collect();
    assert!(sizes.iter().all(|size| *size <= 10) && sizes.len() <= 4, "{sizes:?}");
    let order: String = stub.seen().into_iter().map(|seen| seen.body).collect();
    let values: Vec<_> = order.lines().map(|line| line.split('"').nth(7).expect("a value").to_owned()).collect();
    assert_eq!(values, (0..25).map(|number| format!("v{number}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn refused_line_is_sent_again_alone_and_others_are_answered() {
    let is_first = Mutex::new(true);
    let stub = Stub::start(move |seen| {
        if std::mem::take(&mut *is_first.lock().expect("not poisoned")) {
            return answers(seen, |index, _| match index {
                1 => json!({"status": 429, "error": "RESOURCE_EXHAUSTED", "message": "full", "retry_after_ms": 1}),
                2 => json!({"status": 404, "error": "NOT_FOUND", "message": "no topic"}),
                3 => json!({"status": 503, "error": "UNAVAILABLE", "message": "", "committed": "no"}),
                index => stored(index),
            });
        }
        Reply::json(200, &json!({"topic": "t", "partition": 0, "offset": 100}))
    })
    .await;
    let producer = client(stub.url()).producer_with(options(|options| options.linger = Duration::from_millis(200)));
    let messages: Vec<_> = (0..5).map(|number| Produce::new("t", format!("v{number}"))).collect();
    let results = enqueue_all(&producer, &messages).await;
    assert_eq!(results, [Ok(0), Ok(100), Err(ErrorKind::NotFound), Ok(100), Ok(4)]);
    let alone: Vec<_> = stub.seen().iter().skip(1).map(|seen| seen.json()["value"].clone()).collect();
    assert_eq!(alone.len(), 2);
    assert!(alone.contains(&json!("v1")) && alone.contains(&json!("v3")));
}

#[tokio::test]
async fn cut_batch_repeats_only_messages_with_an_idempotency_key() {
    let count = AtomicUsize::new(0);
    let stub = Stub::start(move |seen| match count.fetch_add(1, Ordering::Relaxed) {
        0 => {
            // The answer of the first line arrives, that of the second is cut.
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ncontent-length: 999\r\n\r\n";
            Reply::Bytes(format!("{head}{}\n{{\"status\":2", stored(0)).into_bytes())
        }
        _ => answers(seen, |index, _| stored(50 + index)),
    })
    .await;
    let producer = client(stub.url()).producer_with(options(|options| options.linger = Duration::from_millis(200)));
    let plain = |value: &str| Produce::new("t", value);
    let messages =
        [plain("a"), plain("b"), plain("c").idempotency_key("c"), plain("d"), plain("e").idempotency_key("e")];
    let results = enqueue_all(&producer, &messages).await;
    assert_eq!(results, [Ok(0), Err(ErrorKind::Unknown), Ok(50), Err(ErrorKind::Unknown), Ok(51)]);
    let again = &stub.seen()[1].body;
    assert!(again.contains("\"c\"") && again.contains("\"e\"") && !again.contains("\"a\""), "{again}");
}

#[tokio::test]
async fn cut_batch_that_is_repeated_has_only_lines_without_an_answer_in_order() {
    let count = AtomicUsize::new(0);
    let stub = Stub::start(move |seen| match count.fetch_add(1, Ordering::Relaxed) {
        0 => {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ncontent-length: 999\r\n\r\n";
            Reply::Bytes(format!("{head}{}\n{}\n", stored(0), stored(1)).into_bytes())
        }
        _ => answers(seen, |index, _| stored(50 + index)),
    })
    .await;
    let producer = client(stub.url()).producer_with(options(|options| options.linger = Duration::from_millis(200)));
    let messages = ["a", "b", "c", "d"].map(|value| Produce::new("t", value).idempotency_key(value));
    assert_eq!(enqueue_all(&producer, &messages).await, [Ok(0), Ok(1), Ok(50), Ok(51)]);
    let again: Vec<_> = stub.seen()[1].requests().iter().map(|line| line.json()["value"].clone()).collect();
    assert_eq!(again, ["c", "d"]);
}

#[tokio::test]
async fn batch_that_has_had_no_effect_is_repeated_as_a_whole() {
    let count = AtomicUsize::new(0);
    let stub = Stub::start(move |seen| match count.fetch_add(1, Ordering::Relaxed) {
        0 => Reply::json(503, &json!({"error": "UNAVAILABLE", "message": "", "committed": "no"})),
        1 => Reply::json(429, &json!({"error": "RESOURCE_EXHAUSTED", "message": "", "reason": "memory"})),
        _ => answers(seen, |index, _| stored(index)),
    })
    .await;
    let producer = client(stub.url()).producer_with(options(|options| options.linger = Duration::from_millis(200)));
    let results = enqueue_all(&producer, &[Produce::new("t", "a"), Produce::new("t", "b")]).await;
    assert_eq!(results, [Ok(0), Ok(1)]);
}

#[tokio::test]
async fn producing_waits_while_too_many_wait() {
    let stub = Stub::replies([Reply::Silence]).await;
    let producer = client(stub.url()).producer_with(options(|options| options.max_pending = 2));
    let first = producer.enqueue(&Produce::new("t", "a")).await.expect("room");
    let _second = producer.enqueue(&Produce::new("t", "b")).await.expect("room");
    let message = Produce::new("t", "c");
    let third = tokio::time::timeout(Duration::from_millis(200), producer.enqueue(&message)).await;
    assert!(third.is_err(), "there is no room for a third message");
    drop(first);
}

#[tokio::test]
async fn messages_reach_a_broker_in_order_and_duplicates_are_told() {
    let broker = Broker::start().await;
    let client = broker.client();
    broker.topic("t").await;
    let producer = client.producer();
    let messages: Vec<_> =
        (0..2_500).map(|n| Produce::new("t", format!("{n}")).idempotency_key(format!("k{n}"))).collect();
    let results = enqueue_all(&producer, &messages).await;
    let offsets: Vec<u64> = results.into_iter().map(|offset| offset.expect("produced")).collect();
    assert!(offsets.is_sorted(), "{offsets:?}");
    assert!(producer.produce(&messages[7]).await.expect("produced").duplicate);
    producer.flush().await;
    let peeked = client.peek("t", 0, 0, 1_000).await.expect("messages");
    let values: Vec<_> = peeked.iter().map(|message| message.text().expect("text").to_owned()).collect();
    assert_eq!(values, (0..1_000).map(|n| n.to_string()).collect::<Vec<_>>());
}
