//! Handlers that fail in every way, against a stub: what is sent for each of them.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use driftq_client::{
    Client, HandlerError, Json, Outputs, Permanent, Produce, Retry, RunningWorker, Worker, WorkerScope,
};
use serde_json::{Value, json};

use crate::stub::{Reply, Seen, Stub};
use crate::support::{Events, client, line, soon};

const EXECUTE: &str = r#"{"decision":"EXECUTE","attempt":1,"lease_token":"e1","idempotent":true}"#;
const DONE: &str = r#"{"produced":[]}"#;

/// A broker that delivers `lines` once and agrees with everything that `other` does not answer. Each line of a batch is
/// answered as a request of its own would be.
pub(crate) async fn broker(lines: String, other: impl Fn(&Seen) -> Option<Reply> + Send + Sync + 'static) -> Stub {
    broker_with_batches(lines, |_| None, other).await
}

/// The same, where `batch` may answer a batch as a whole.
pub(crate) async fn broker_with_batches(
    lines: String,
    batch: impl Fn(&Seen) -> Option<Reply> + Send + Sync + 'static,
    other: impl Fn(&Seen) -> Option<Reply> + Send + Sync + 'static,
) -> Stub {
    let streams = AtomicUsize::new(0);
    let answer = move |seen: &Seen| {
        if let Some(reply) = other(seen) {
            return reply;
        }
        match seen.route().as_str() {
            "GET /v1/consume" if streams.fetch_add(1, Ordering::Relaxed) == 0 => Reply::OpenStream(lines.clone()),
            "GET /v1/consume" => Reply::OpenStream(String::new()),
            "POST /v1/idempotency/begin" => Reply::Json(200, EXECUTE.to_owned()),
            "POST /v1/idempotency/finish" => Reply::json(200, &json!({"ok": true})),
            "POST /v1/complete" => Reply::Json(200, DONE.to_owned()),
            "POST /v1/extend" | "POST /v1/idempotency/renew" => Reply::json(200, &json!({"lease_until": ""})),
            _ => Reply::ok(),
        }
    };
    Stub::start(move |seen| match seen.is_batch() {
        true => batch(seen)
            .unwrap_or_else(|| Reply::lines(seen.requests().iter().map(|request| answer(request).into_line()))),
        false => answer(seen),
    })
    .await
}

pub(crate) fn kitchen<F, R>(client: &Client, handler: impl Fn() -> F + Send + Sync + 'static) -> Worker
where
    F: Future<Output = Result<R, HandlerError>> + Send + 'static,
    R: driftq_client::HandlerResult,
{
    Worker::new(client, "t", "g", move |_, _| handler()).owner("o").grace(Duration::ZERO)
}

/// The requests for one message that a handler has, in order, without heartbeats.
async fn requests<F, R>(handler: impl Fn() -> F + Send + Sync + 'static, last: &str) -> Vec<(String, Value)>
where
    F: Future<Output = Result<R, HandlerError>> + Send + 'static,
    R: driftq_client::HandlerResult,
{
    let stub = broker(line(3, "k"), |_| None).await;
    let worker = kitchen(&client(stub.url()), handler).spawn();
    stub.wait_for_route(last).await;
    soon("the stop", worker.stop()).await.expect("stopped");
    let seen = stub.requests().into_iter().filter(|seen| seen.method == "POST");
    seen.map(|seen| (seen.target.clone(), seen.json())).collect()
}

fn routes(requests: &[(String, Value)]) -> Vec<&str> {
    requests.iter().map(|(route, _)| route.as_str()).collect()
}

#[tokio::test]
async fn result_and_messages_are_one_complete_with_the_token() {
    let requests = requests(
        || async {
            Ok(Outputs::new().result(&json!({"n": 1})).message(Produce::new("next", "v").idempotency_key("n")))
        },
        "POST /v1/complete",
    )
    .await;
    assert_eq!(routes(&requests), ["/v1/idempotency/begin", "/v1/complete"]);
    let begin = json!({
        "scope": {"kind": "consume", "topic": "t", "group": "g"}, "key": "k", "owner": "o", "lease_ms": 30_000,
        "delivery": {"partition": 0, "offset": 3, "lease_token": format!("{:024x}", 3)},
    });
    assert_eq!(requests[0].1, begin);
    let complete = json!({
        "topic": "t", "group": "g", "partition": 0, "offset": 3, "owner": "o", "lease_token": format!("{:024x}", 3),
        "result": {"n": 1}, "produce": [{"topic": "next", "value": "v", "envelope": {"idempotency_key": "n"}}],
    });
    assert_eq!(requests[1].1, complete);
}

#[tokio::test]
async fn retry_is_recorded_and_nacked_with_its_delay() {
    let requests = requests(
        || async { Err::<(), _>(Retry::new("oven is cold").after(Duration::from_secs(2)).into()) },
        "POST /v1/nack",
    )
    .await;
    assert_eq!(routes(&requests), ["/v1/idempotency/begin", "/v1/idempotency/finish", "/v1/nack"]);
    let (finish, nack) = (&requests[1].1, &requests[2].1);
    assert_eq!((&finish["status"], &finish["lease_token"]), (&json!("FAILED_RETRYABLE"), &json!("e1")));
    assert_eq!((&nack["reason"], &nack["delay_ms"]), (&json!("oven is cold"), &json!(2_000)));
}

#[tokio::test]
async fn permanent_failure_is_one_finish_that_dead_letters() {
    let requests =
        requests(|| async { Err::<(), _>(Permanent::new("no such dish").into()) }, "POST /v1/idempotency/finish").await;
    assert_eq!(routes(&requests), ["/v1/idempotency/begin", "/v1/idempotency/finish"]);
    let finish = &requests[1].1;
    assert_eq!((&finish["status"], &finish["dead_letter"]), (&json!("FAILED_FINAL"), &json!(true)));
    assert_eq!(finish["delivery"]["offset"], 3);
    assert_eq!(finish["last_error"], "no such dish");
}

#[tokio::test]
async fn panic_is_nacked_with_its_text() {
    async fn explode() -> Result<(), HandlerError> {
        panic!("the oven has {} doors", 3)
    }
    let requests = requests(explode, "POST /v1/nack").await;
    assert_eq!(requests[2].1["reason"], "the handler panicked: the oven has 3 doors");
}

#[tokio::test]
async fn other_errors_are_nacked_with_their_text() {
    let requests = requests(
        || async {
            let dish: u32 = "seven".parse()?;
            Ok(Json(dish))
        },
        "POST /v1/nack",
    )
    .await;
    assert_eq!(requests[2].1["reason"], "invalid digit found in string");
    assert_eq!(requests[2].1.get("delay_ms"), None);
}

#[tokio::test]
async fn result_that_is_no_json_is_a_permanent_failure_that_says_where() {
    let requests = requests(|| async { Ok(Json(vec![1.0, f64::NAN])) }, "POST /v1/idempotency/finish").await;
    assert_eq!(routes(&requests), ["/v1/idempotency/begin", "/v1/idempotency/finish"]);
    assert_eq!(requests[1].1["status"], "FAILED_FINAL");
    let error = requests[1].1["last_error"].as_str().expect("a text");
    assert!(error.contains("no JSON") && error.contains("$[1]"), "{error}");
}

/// Runs a worker over one message with a key, and returns what was sent after the begin that is answered like this.
async fn after_begin(begin: Reply, last: &str) -> (Vec<(String, Value)>, usize) {
    let runs = Arc::new(AtomicUsize::new(0));
    let stub = broker(line(3, "k"), move |seen| (seen.target == "/v1/idempotency/begin").then(|| begin.clone())).await;
    let worker = kitchen(&client(stub.url()), {
        let runs = Arc::clone(&runs);
        move || {
            runs.fetch_add(1, Ordering::Relaxed);
            async { Ok(()) }
        }
    });
    let worker = worker.spawn();
    stub.wait_for_route(last).await;
    soon("the stop", worker.stop()).await.expect("stopped");
    let seen = stub.requests().into_iter().filter(|seen| seen.method == "POST").skip(1);
    (seen.map(|seen| (seen.target.clone(), seen.json())).collect(), runs.load(Ordering::Relaxed))
}

#[tokio::test]
async fn replay_of_a_success_completes_with_the_stored_result_and_skips_the_handler() {
    let begin = Reply::Json(200, r#"{"decision":"REPLAY","status":"SUCCEEDED","result":{"b":1.0,"a":2}}"#.to_owned());
    let (requests, runs) = after_begin(begin, "POST /v1/complete").await;
    assert_eq!((routes(&requests), runs), (vec!["/v1/complete"], 0));
    assert_eq!(requests[0].1["result"], json!({"b": 1.0, "a": 2}));
}

#[tokio::test]
async fn replay_of_stored_messages_produces_them() {
    let result = json!({"driftq": 1, "result": 5, "produce": [{"topic": "next", "value": "v"}]});
    let begin = Reply::json(200, &json!({"decision": "REPLAY", "status": "SUCCEEDED", "result": result}));
    let (requests, _) = after_begin(begin, "POST /v1/complete").await;
    assert_eq!((&requests[0].1["result"], &requests[0].1["produce"][0]["topic"]), (&json!(5), &json!("next")));
}

#[tokio::test]
async fn replay_of_a_final_failure_dead_letters() {
    let begin = Reply::json(200, &json!({"decision": "REPLAY", "status": "FAILED_FINAL", "last_error": "no dish"}));
    let (requests, runs) = after_begin(begin, "POST /v1/nack").await;
    assert_eq!((routes(&requests), runs), (vec!["/v1/nack"], 0));
    assert_eq!((&requests[0].1["retryable"], &requests[0].1["reason"]), (&json!(false), &json!("no dish")));
}

#[tokio::test]
async fn effect_in_progress_elsewhere_releases_the_message() {
    let body =
        json!({"error": "FAILED_PRECONDITION", "message": "", "decision": "IN_PROGRESS", "retry_after_ms": 60_000});
    let (requests, runs) = after_begin(Reply::json(409, &body), "POST /v1/release").await;
    assert_eq!((routes(&requests), runs), (vec!["/v1/release"], 0));
}

#[tokio::test]
async fn stale_delivery_is_dropped_without_a_request() {
    let events = Events::default();
    let lines = format!("{}{}", line(1, "a"), line(2, ""));
    let stub = broker(lines, |seen| {
        (seen.target == "/v1/idempotency/begin").then(|| Reply::error(409, "FAILED_PRECONDITION", "stale lease"))
    })
    .await;
    let worker = kitchen(&client(stub.url()), || async { Ok(()) }).on_event(events.hook()).spawn();
    events.wait_for("completed", 1).await;
    let summary = soon("the stop", worker.stop()).await.expect("stopped");
    assert_eq!((summary.completed, summary.lost), (1, 1));
    assert_eq!(stub.requests().iter().filter(|seen| seen.method == "POST").count(), 2, "{:?}", stub.requests());
}

#[tokio::test]
async fn delivery_that_arrives_twice_is_handled_once() {
    let stub = broker(format!("{0}{0}{1}", line(1, ""), line(2, "")), |_| None).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let events = Events::default();
    let worker = kitchen(&client(stub.url()), {
        let (runs, events) = (Arc::clone(&runs), events.clone());
        move || {
            runs.fetch_add(1, Ordering::Relaxed);
            let events = events.clone();
            async move {
                // Both are in the worker before the first one ends.
                events.wait_for("received", 2).await;
                Ok(())
            }
        }
    });
    let worker = worker.on_event(events.hook()).spawn();
    events.wait_for("completed", 2).await;
    soon("the stop", worker.stop()).await.expect("stopped");
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    assert_eq!(stub.count("POST /v1/complete"), 2);
}

/// A worker whose heartbeats are answered by `beat`.
async fn with_lease<F, R>(
    lease: Duration,
    beat: impl Fn() -> Reply + Send + Sync + 'static,
    handler: impl Fn() -> F + Send + Sync + 'static,
) -> (Stub, Events, RunningWorker)
where
    F: Future<Output = Result<R, HandlerError>> + Send + 'static,
    R: driftq_client::HandlerResult,
{
    let stub = broker(line(3, "k"), move |seen| (seen.target == "/v1/extend").then(&beat)).await;
    let events = Events::default();
    let worker = kitchen(&client(stub.url()), handler).lease(lease).on_event(events.hook());
    (stub, events, worker.spawn())
}

/// Says when it is dropped.
struct Dropped(Arc<tokio::sync::Notify>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::test]
async fn lost_lease_cancels_the_handler_and_nothing_is_sent() {
    for reply in [Reply::error(409, "FAILED_PRECONDITION", "stale lease"), Reply::error(404, "NOT_FOUND", "gone")] {
        let dropped = Arc::new(tokio::sync::Notify::new());
        let (started, lease) = (Instant::now(), Duration::from_secs(2));
        let (stub, events, worker) = with_lease(lease, move || reply.clone(), {
            let dropped = Arc::clone(&dropped);
            move || {
                let guard = Dropped(Arc::clone(&dropped));
                async move {
                    let _guard = guard;
                    std::future::pending::<Result<(), HandlerError>>().await
                }
            }
        })
        .await;
        soon("the cancellation", dropped.notified()).await;
        assert!(started.elapsed() < lease, "at the first heartbeat, not when the lease has run out");
        events.wait_for("lease_lost", 1).await;
        let summary = soon("the stop", worker.stop()).await.expect("stopped");
        assert_eq!(summary.lost, 1);
        for route in ["POST /v1/complete", "POST /v1/nack", "POST /v1/release", "POST /v1/idempotency/finish"] {
            assert_eq!(stub.count(route), 0, "{route}");
        }
    }
}

#[tokio::test]
async fn heartbeats_that_get_no_answer_lose_the_lease_when_it_has_run_out() {
    let started = Instant::now();
    let (stub, events, worker) =
        with_lease(Duration::from_millis(300), || Reply::Silence, std::future::pending::<Result<(), HandlerError>>)
            .await;
    events.wait_for("lease_lost", 1).await;
    assert!(started.elapsed() >= Duration::from_millis(300), "{:?}", started.elapsed());
    assert_eq!(soon("the stop", worker.stop()).await.expect("stopped").lost, 1);
    assert_eq!(stub.count("POST /v1/release"), 0);
}

#[tokio::test]
async fn handler_that_blocks_its_runtime_keeps_its_lease_and_is_reported() {
    let stub = broker(line(3, "k"), |_| None).await;
    let (events, stop) = (Events::default(), Arc::new(tokio::sync::Notify::new()));
    let (url, hook, stopped) = (stub.url(), events.hook(), Arc::clone(&stop));
    // A runtime with one thread: the handler blocks the worker, too, but not the heartbeats.
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let blocking = || async {
                std::thread::sleep(Duration::from_millis(900));
                Ok(())
            };
            let worker = kitchen(&client(url), blocking).lease(Duration::from_millis(300)).on_event(hook);
            worker.run(stopped.notified()).await
        })
    });
    events.wait_for("completed", 1).await;
    events.wait_for("loop_blocked", 1).await;
    stop.notify_one();
    let joined = soon("the stop", tokio::task::spawn_blocking(|| thread.join())).await.expect("joined");
    assert_eq!(joined.expect("no panic").expect("stopped").completed, 1);
    assert!(events.count("lease_lost") == 0 && stub.count("POST /v1/extend") >= 3, "{:?}", events.all());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handler_that_blocks_and_loses_its_lease_is_discarded_and_reported_as_stuck() {
    let refused = || Reply::error(409, "FAILED_PRECONDITION", "stale lease");
    let (stub, events, worker) = with_lease(Duration::from_millis(300), refused, || async {
        // It cannot be cancelled.
        std::thread::sleep(Duration::from_millis(1_200));
        Ok(())
    })
    .await;
    events.wait_for("handler_stuck", 1).await;
    let summary = soon("the stop", worker.stop()).await.expect("stopped");
    assert_eq!((summary.lost, stub.count("POST /v1/complete")), (1, 0));
}

#[tokio::test]
async fn task_of_a_handler_is_told_of_the_cancellation() {
    let refused = || Reply::error(409, "FAILED_PRECONDITION", "stale lease");
    let stub = broker(line(3, ""), move |seen| (seen.target == "/v1/extend").then(refused)).await;
    let told = Arc::new(tokio::sync::Notify::new());
    let worker = Worker::new(&client(stub.url()), "t", "g", {
        let told = Arc::clone(&told);
        move |_, context| {
            let told = Arc::clone(&told);
            async move {
                tokio::spawn(async move {
                    context.cancelled().await;
                    told.notify_one();
                });
                std::future::pending::<Result<(), HandlerError>>().await
            }
        }
    });
    let worker = worker.lease(Duration::from_millis(300)).spawn();
    soon("the cancellation", told.notified()).await;
    soon("the stop", worker.stop()).await.expect("stopped");
}

#[tokio::test]
async fn deadline_of_the_envelope_ends_the_handler() {
    let mut item: Value = serde_json::from_str(&line(3, "")).expect("an item");
    item["envelope"]["deadline"] = json!("2026-01-01T00:00:00Z");
    let stub = broker(format!("{item}\n"), |_| None).await;
    let worker = kitchen(&client(stub.url()), std::future::pending::<Result<(), HandlerError>>).spawn();
    let nack = stub.wait_for_route("POST /v1/nack").await.json();
    assert_eq!(nack["reason"], "deadline exceeded");
    soon("the stop", worker.stop()).await.expect("stopped");
}

#[tokio::test]
async fn result_that_the_broker_refuses_is_a_permanent_failure() {
    let stub = broker(line(3, "k"), |seen| {
        (seen.target == "/v1/complete").then(|| Reply::error(413, "PAYLOAD_TOO_LARGE", "the result has 70000 bytes"))
    })
    .await;
    let worker = kitchen(&client(stub.url()), || async { Ok(()) }).spawn();
    let finish = stub.wait_for_route("POST /v1/idempotency/finish").await.json();
    assert_eq!(
        (&finish["status"], &finish["last_error"]),
        (&json!("FAILED_FINAL"), &json!("the result has 70000 bytes"))
    );
    soon("the stop", worker.stop()).await.expect("stopped");
}

#[tokio::test]
async fn lost_answer_of_a_complete_is_asked_for_again_with_the_same_body() {
    let first = std::sync::atomic::AtomicBool::new(true);
    let stub = broker(line(3, "k"), move |seen| {
        (seen.target == "/v1/complete" && first.swap(false, Ordering::Relaxed)).then_some(Reply::Cut)
    })
    .await;
    let events = Events::default();
    let worker = kitchen(&client(stub.url()), || async { Ok(json!({"a": 1})) }).on_event(events.hook()).spawn();
    events.wait_for("completed", 1).await;
    assert_eq!(soon("the stop", worker.stop()).await.expect("stopped").completed, 1);
    let bodies: Vec<_> =
        stub.requests().into_iter().filter(|seen| seen.target == "/v1/complete").map(|seen| seen.body).collect();
    assert_eq!(bodies.len(), 2);
    assert_eq!(bodies[0], bodies[1]);
}

#[tokio::test]
async fn complete_is_repeated_until_the_lease_has_run_out_and_no_longer() {
    let stub = broker(format!("{}{}", line(1, ""), line(2, "")), |seen| {
        let is_first = seen.body.contains("\"offset\":1");
        (is_first && seen.method == "POST")
            .then(|| Reply::json(503, &json!({"error": "UNAVAILABLE", "message": "", "committed": "no"})))
    })
    .await;
    let events = Events::default();
    let worker = kitchen(&client(stub.url()), || async { Ok(()) });
    let worker = worker.concurrency(1).lease(Duration::from_millis(500)).on_event(events.hook()).spawn();
    events.wait_for("lease_lost", 1).await;
    events.wait_for("completed", 1).await;
    let summary = soon("the stop", worker.stop()).await.expect("stopped");
    assert_eq!((summary.completed, summary.lost), (1, 1));
    let completes = stub.requests().into_iter().filter(|seen| seen.target == "/v1/complete");
    let offsets: Vec<_> = completes.map(|seen| seen.json()["offset"].clone()).collect();
    assert!(offsets.len() > 2 && offsets.iter().rev().skip(1).all(|offset| *offset == 1), "{offsets:?}");
}

#[tokio::test]
async fn shutdown_releases_what_has_not_begun_and_gives_back_what_has() {
    let lines: String = (0..4).map(|number| line(number, &format!("k{number}"))).collect();
    let stub = broker(lines, |_| None).await;
    let events = Events::default();
    let worker = kitchen(&client(stub.url()), std::future::pending::<Result<(), HandlerError>>)
        .concurrency(2)
        .on_event(events.hook())
        .spawn();
    events.wait_for("received", 4).await;
    events.wait_for("began", 2).await;
    let summary = soon("the stop", worker.stop_within(Duration::from_millis(50))).await.expect("stopped");
    assert_eq!((summary.released, stub.count("POST /v1/release")), (4, 4));
    let finishes: Vec<_> = stub.requests().into_iter().filter(|seen| seen.target == "/v1/idempotency/finish").collect();
    assert_eq!(finishes.len(), 2, "only two had begun");
    for finish in finishes {
        let finish = finish.json();
        assert_eq!((&finish["status"], &finish["last_error"]), (&json!("FAILED_RETRYABLE"), &json!("shutdown")));
    }
}

#[tokio::test]
async fn another_scope_is_finished_with_the_messages_and_then_completed() {
    let stub = broker(line(3, "k"), |_| None).await;
    let worker =
        kitchen(&client(stub.url()), || async { Ok(Outputs::new().result(&7).message(Produce::new("n", "v"))) })
            .scope(WorkerScope::Other(driftq_client::Scope::job("j")))
            .spawn();
    stub.wait_for_route("POST /v1/complete").await;
    soon("the stop", worker.stop()).await.expect("stopped");
    let begin = stub.wait_for_route("POST /v1/idempotency/begin").await.json();
    assert_eq!((&begin["scope"], begin.get("delivery")), (&json!({"kind": "job", "id": "j"}), None));
    let finish = stub.wait_for_route("POST /v1/idempotency/finish").await.json();
    let stored = json!({"driftq": 1, "result": 7, "produce": [{"topic": "n", "value": "v"}]});
    assert_eq!((&finish["status"], &finish["result"]), (&json!("SUCCEEDED"), &stored));
    let complete = stub.wait_for_route("POST /v1/complete").await.json();
    assert_eq!((&complete["result"], &complete["produce"][0]["topic"]), (&json!(7), &json!("n")));
}

#[tokio::test]
async fn message_of_a_finished_effect_that_cannot_be_completed_becomes_a_dead_letter() {
    let stub = broker(line(3, "k"), |seen| {
        (seen.target == "/v1/complete")
            .then(|| Reply::error(400, "INVALID_ARGUMENT", "the topic has no such partition"))
    })
    .await;
    let worker = kitchen(&client(stub.url()), || async { Ok(json!(7)) })
        .scope(WorkerScope::Other(driftq_client::Scope::Tenant))
        .spawn();
    let nack = stub.wait_for_route("POST /v1/nack").await.json();
    assert_eq!((&nack["retryable"], &nack["reason"]), (&json!(false), &json!("the topic has no such partition")));
    soon("the stop", worker.stop()).await.expect("stopped");
    assert_eq!(stub.count("POST /v1/idempotency/finish"), 1, "it has succeeded");
}

#[tokio::test]
async fn worker_ends_with_the_error_of_a_stream_that_would_be_refused_again() {
    let stub = broker(String::new(), |seen| {
        (seen.route() == "GET /v1/consume").then(|| Reply::error(401, "UNAUTHENTICATED", "unknown key"))
    })
    .await;
    let run = kitchen(&client(stub.url()), || async { Ok(()) }).run(std::future::pending());
    let error = soon("the end", run).await.expect_err("refused");
    assert_eq!(error.kind(), driftq_client::ErrorKind::Unauthenticated);
}

/// Its begin is repeated until a whole lease has passed since the first try.
#[tokio::test]
async fn side_effect_whose_grant_came_after_a_whole_lease_is_renewed_before_it_runs() {
    const LEASE: Duration = Duration::from_millis(600);
    let (first, renewals) = (std::sync::OnceLock::<Instant>::new(), Arc::new(AtomicUsize::new(0)));
    let renewed = Arc::clone(&renewals);
    let stub = broker(line(3, "k"), move |seen| match seen.route().as_str() {
        "POST /v1/idempotency/begin" if seen.json()["scope"]["kind"] == "task" => {
            let is_late = first.get_or_init(Instant::now).elapsed() > LEASE;
            Some(if is_late { Reply::Json(200, EXECUTE.replace("e1", "late")) } else { Reply::Cut })
        }
        "POST /v1/idempotency/renew" if seen.json()["lease_token"] == "late" => {
            renewed.fetch_add(1, Ordering::SeqCst);
            None
        }
        _ => None,
    })
    .await;
    let before = Arc::new(AtomicUsize::new(0));
    let seen_by_effect = Arc::clone(&before);
    let worker = Worker::new(&client(stub.url()), "t", "g", move |_, context| {
        let (renewals, before) = (Arc::clone(&renewals), Arc::clone(&seen_by_effect));
        async move {
            let effect = || async {
                before.store(renewals.load(Ordering::SeqCst), Ordering::SeqCst);
                Ok::<_, HandlerError>(())
            };
            context.side_effect("mail", &(), effect).await
        }
    })
    .lease(LEASE)
    .spawn();
    stub.wait_for_route("POST /v1/complete").await;
    soon("the stop", worker.stop()).await.expect("stopped");
    assert_eq!(before.load(Ordering::SeqCst), 1);
    let finish = stub.seen().into_iter().find(|seen| seen.route() == "POST /v1/idempotency/finish").expect("a finish");
    assert_eq!((&finish.json()["lease_token"], &finish.json()["status"]), (&json!("late"), &json!("SUCCEEDED")));
}
