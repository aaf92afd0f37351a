//! Batches of what a worker sends: what waits while one is on the wire, and what becomes of a batch or a line that
//! fails.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use driftq_client::{HandlerError, Outputs, Produce, Retry, Summary};
use serde_json::{Value, json};

use crate::handlers::{broker, broker_with_batches, kitchen};
use crate::stub::{Reply, Seen, Stub};
use crate::support::{Events, client, line, soon};

/// So many messages, delivered at once.
const MESSAGES: u64 = 12;
const COMPLETE: &str = "/v1/complete";

fn deliveries() -> String {
    (0..MESSAGES).map(|number| line(number, &format!("k{number}"))).collect()
}

/// Works until all messages have ended as `event` says.
async fn work<F>(
    stub: &Stub,
    event: &str,
    count: u64,
    handler: impl Fn() -> F + Send + Sync + 'static,
) -> (Summary, Events)
where
    F: Future<Output = Result<Outputs, HandlerError>> + Send + 'static,
{
    let events = Events::default();
    let worker = kitchen(&client(stub.url()), handler).concurrency(MESSAGES as usize).on_event(events.hook()).spawn();
    events.wait_for(event, count as usize).await;
    (soon("the stop", worker.stop()).await.expect("stopped"), events)
}

async fn nothing_to_say() -> Result<Outputs, HandlerError> {
    Ok(Outputs::new())
}

fn offsets(requests: &[Seen], target: &str) -> Vec<u64> {
    let requests = requests.iter().filter(|seen| seen.target == target);
    let offset = |body: Value| body["offset"].as_u64().or(body["delivery"]["offset"].as_u64()).expect("an offset");
    requests.map(|seen| offset(seen.json())).collect()
}

/// Says yes once.
#[derive(Default)]
struct Once(AtomicBool);

impl Once {
    fn now(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }
}

/// The requests of a route that were batches, and those that were not.
fn batched_and_alone(stub: &Stub, target: &str) -> (Vec<Seen>, Vec<Seen>) {
    stub.seen().into_iter().filter(|seen| seen.target == target).partition(Seen::is_batch)
}

#[tokio::test]
async fn begins_and_completes_that_wait_go_together_in_order() {
    let stub = broker(deliveries(), |_| None).await;
    let (summary, _) = work(&stub, "completed", MESSAGES, nothing_to_say).await;
    assert_eq!(summary.completed, MESSAGES);
    for target in ["/v1/idempotency/begin", COMPLETE] {
        let mut all = offsets(&stub.requests(), target);
        let (batched, _) = batched_and_alone(&stub, target);
        assert!(!batched.is_empty(), "{target}");
        assert!(batched.iter().all(|batch| offsets(&batch.requests(), target).is_sorted()), "{batched:#?}");
        all.sort_unstable();
        assert_eq!(all, (0..MESSAGES).collect::<Vec<_>>(), "{target}");
    }
}

#[tokio::test]
async fn refused_line_ends_as_it_would_alone_and_others_are_completed() {
    let stub = broker(deliveries(), |seen| {
        let offset = || seen.json()["offset"].as_u64();
        match seen.target.as_str() {
            COMPLETE if offset() == Some(3) => Some(Reply::error(409, "FAILED_PRECONDITION", "stale lease")),
            COMPLETE if offset() == Some(5) => Some(Reply::error(413, "PAYLOAD_TOO_LARGE", "the result is too large")),
            "/v1/idempotency/begin" if seen.json()["delivery"]["offset"] == 7 => Some(Reply::json(
                200,
                &json!({"decision": "REPLAY", "status": "FAILED_FINAL", "last_error": "no such dish"}),
            )),
            _ => None,
        }
    })
    .await;
    let (summary, events) = work(&stub, "completed", MESSAGES - 3, nothing_to_say).await;
    assert_eq!((summary.completed, summary.lost, summary.failed), (MESSAGES - 3, 1, 2), "{:?}", events.all());
    assert_eq!(events.count("failed permanent: the result is too large"), 1);
    assert_eq!(events.count("failed permanent: no such dish"), 1);
    assert_eq!(stub.count("POST /v1/complete"), MESSAGES as usize - 1, "nothing is sent twice");
}

#[tokio::test]
async fn overloaded_line_is_sent_again_alone() {
    let first = Once::default();
    let stub = broker(deliveries(), move |seen| {
        let is_refused = seen.target == COMPLETE && seen.json()["offset"] == 3 && first.now();
        is_refused.then(|| {
            let refusal =
                json!({"error": "RESOURCE_EXHAUSTED", "message": "", "reason": "memory", "retry_after_ms": 1});
            Reply::json(429, &refusal)
        })
    })
    .await;
    let (summary, events) = work(&stub, "completed", MESSAGES, nothing_to_say).await;
    assert_eq!((summary.completed, events.count("request_retried")), (MESSAGES, 1));
    let (_, alone) = batched_and_alone(&stub, COMPLETE);
    assert!(alone.iter().any(|seen| seen.json()["offset"] == 3), "{alone:#?}");
    assert_eq!(stub.count("POST /v1/complete"), MESSAGES as usize + 1);
}

#[tokio::test]
async fn batch_that_is_cut_in_the_middle_repeats_only_lines_without_an_answer() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ncontent-length: 9999\r\n\r\n";
    let cut = Arc::new(Mutex::new(Vec::new()));
    let stub = broker_with_batches(
        deliveries(),
        {
            let cut = Arc::clone(&cut);
            move |seen| {
                let mut cut = cut.lock().expect("not poisoned");
                if seen.target != COMPLETE || !cut.is_empty() {
                    return None;
                }
                *cut = offsets(&seen.requests(), COMPLETE);
                // The answer of the first line arrives, that of the second is cut.
                let lines = "{\"status\":200,\"produced\":[]}\n{\"status\":200,\"prod";
                Some(Reply::Bytes(format!("{HEAD}{lines}").into_bytes()))
            }
        },
        |_| None,
    )
    .await;
    let (summary, events) = work(&stub, "completed", MESSAGES, nothing_to_say).await;
    let cut = cut.lock().expect("not poisoned").clone();
    assert!(cut.len() >= 2, "{cut:?}");
    assert_eq!((summary.completed, events.count("request_retried")), (MESSAGES, cut.len() - 1));
    let all = offsets(&stub.requests(), COMPLETE);
    let sent = |offset: &u64| all.iter().filter(|sent| *sent == offset).count();
    assert_eq!(sent(&cut[0]), 1, "its answer had arrived");
    assert!(cut[1..].iter().all(|offset| sent(offset) == 2), "{cut:?} of {all:?}");
}

#[tokio::test]
async fn batch_that_is_refused_as_a_whole_is_repeated() {
    for body in [json!({"error": "UNAVAILABLE", "message": "", "committed": "no"}), json!({"error": "", "message": ""})]
    {
        let first = Once::default();
        let batch =
            move |seen: &Seen| (seen.target == "/v1/idempotency/begin" && first.now()).then(|| Reply::json(503, &body));
        let stub = broker_with_batches(deliveries(), batch, |_| None).await;
        let (summary, _) = work(&stub, "completed", MESSAGES, nothing_to_say).await;
        assert_eq!(summary.completed, MESSAGES);
    }
}

#[tokio::test]
async fn batch_without_an_answer_does_not_hold_up_the_next_one() {
    let (has_begun, begun) = tokio::sync::watch::channel(false);
    let first = Once::default();
    let stub = broker(deliveries(), move |seen| {
        let is_silent = seen.target == COMPLETE && first.now();
        is_silent.then(|| {
            has_begun.send_replace(true);
            Reply::Silence
        })
    })
    .await;
    let is_first = Once::default();
    let handler = move || {
        let (is_first, mut begun) = (is_first.now(), begun.clone());
        async move {
            if !is_first {
                // The others complete while the request of the first one has no answer.
                begun.wait_for(|begun| *begun).await?;
            }
            Ok(Outputs::new())
        }
    };
    let events = Events::default();
    let worker = kitchen(&client(stub.url()), handler).concurrency(MESSAGES as usize).on_event(events.hook()).spawn();
    events.wait_for("completed", MESSAGES as usize - 1).await;
    assert_eq!(events.count("request_retried"), 0, "the first one still waits");
    drop(worker);
}

#[tokio::test]
async fn nacks_and_finishes_go_together() {
    let stub = broker(deliveries(), |_| None).await;
    let fail = || async { Err(Retry::new("busy").after(Duration::from_secs(1)).into()) };
    let (summary, _) = work(&stub, "failed retry", MESSAGES, fail).await;
    assert_eq!(summary.failed, MESSAGES);
    for target in ["/v1/idempotency/finish", "/v1/nack"] {
        let (batched, _) = batched_and_alone(&stub, target);
        assert!(!batched.is_empty(), "{target}");
    }
    let nacks: Vec<_> = stub.requests().into_iter().filter(|seen| seen.target == "/v1/nack").collect();
    assert_eq!(nacks.len(), MESSAGES as usize);
    assert!(nacks.iter().all(|nack| nack.json()["delay_ms"] == 1_000 && nack.json()["reason"] == "busy"));
}

#[tokio::test]
async fn complete_with_a_trace_and_messages_is_a_request_of_its_own() {
    let lines: String = (0..MESSAGES)
        .map(|number| {
            let mut item: Value = serde_json::from_str(&line(number, "")).expect("JSON");
            if number == 4 {
                item["trace"] = json!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
            }
            format!("{item}\n")
        })
        .collect();
    let stub = broker(lines, |_| None).await;
    let produce = || async { Ok(Outputs::new().message(Produce::new("next", "v"))) };
    work(&stub, "completed", MESSAGES, produce).await;
    let (_, alone) = batched_and_alone(&stub, COMPLETE);
    let traced: Vec<_> = alone.iter().filter(|seen| seen.headers.contains("traceparent: 00-0af7")).collect();
    assert_eq!(traced.len(), 1);
    assert_eq!(traced[0].json()["offset"], 4);
}
