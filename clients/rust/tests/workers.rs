//! Workers against a real broker.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use driftq_client::{Claim, Client, Consume, HandlerError, Outputs, Permanent, Produce, Retry, RetryPolicy, Worker};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::broker::Broker;
use crate::support::{Events, quick, soon};

/// What handlers have seen: `key/attempt`.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<Vec<String>>>);

impl Runs {
    fn add(&self, text: String) {
        self.0.lock().expect("not poisoned").push(text);
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().expect("not poisoned").clone()
    }
}

fn worker<F, R>(client: &Client, handler: impl Fn(String, u32) -> F + Send + Sync + 'static) -> Worker
where
    F: Future<Output = Result<R, HandlerError>> + Send + 'static,
    R: driftq_client::HandlerResult,
{
    Worker::new(client, "orders", "kitchen", move |message, context| {
        handler(message.text().unwrap_or_default().to_owned(), context.attempt())
    })
    .grace(Duration::from_secs(1))
}

/// The result that is stored for a message.
async fn result_of(client: &Client, key: &str) -> Value {
    use driftq_client::{BrokerStore, Identity, Scope, Store as _};
    let identity = Identity::new(Scope::consume("orders", "kitchen"), key);
    let effect = BrokerStore::new(client).get(&identity).await.expect("an answer").expect("an effect");
    effect.result.map_or(Value::Null, |result| serde_json::from_str(result.get()).expect("JSON"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_handled_once_with_their_results_and_next_messages() {
    let broker = Broker::start().await;
    broker.topic("orders").await;
    broker.topic("receipts").await;
    for number in 0..50 {
        broker.produce("orders", &format!("o{number}")).await;
    }
    let (events, client, runs) = (Events::default(), broker.client(), Runs::default());
    let worker = worker(&client, {
        let runs = runs.clone();
        move |key, attempt| {
            runs.add(format!("{key}/{attempt}"));
            async move {
                let receipt = Produce::new("receipts", format!("for {key}")).idempotency_key(&key);
                Ok(Outputs::new().result(&json!({"done": key})).message(receipt))
            }
        }
    });
    let worker = worker.on_event(events.hook()).spawn();
    events.wait_for("completed", 50).await;
    let summary = soon("the stop", worker.stop()).await.expect("stopped");
    assert_eq!((summary.completed, summary.failed, summary.lost, summary.released), (50, 0, 0, 0));
    let mut runs = runs.all();
    runs.sort();
    runs.dedup();
    assert_eq!(runs.len(), 50);
    assert_eq!(result_of(&client, "o7").await, json!({"done": "o7"}));
    assert_eq!(client.peek("receipts", 0, 0, 100).await.expect("messages").len(), 50);
    let group = client.topic("orders").await.expect("a topic").groups.remove(0);
    assert_eq!((group.partitions[0].lag, group.partitions[0].in_flight), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_attempt_is_delivered_again_and_runs_again() {
    let broker = Broker::start().await;
    broker.topic("orders").await;
    broker.produce("orders", "a").await;
    let (events, runs) = (Events::default(), Runs::default());
    let worker = worker(&broker.client(), {
        let runs = runs.clone();
        move |key, attempt| {
            runs.add(format!("{key}/{attempt}"));
            async move {
                match attempt {
                    1 => Err(Retry::new("busy").after(Duration::from_millis(50)).into()),
                    2 => panic!("broken"),
                    _ => Ok(json!(attempt)),
                }
            }
        }
    });
    let worker = worker.on_event(events.hook()).spawn();
    events.wait_for("completed", 1).await;
    assert_eq!(soon("the stop", worker.stop()).await.expect("stopped").failed, 2);
    assert_eq!(runs.all(), ["a/1", "a/2", "a/3"]);
    assert_eq!(events.all().iter().filter(|event| event.starts_with("began")).count(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permanent_failure_and_last_attempt_become_dead_letters() {
    let broker = Broker::start().await;
    broker.topic("orders").await;
    let client = broker.client();
    broker.produce("orders", "permanent").await;
    let plain = Produce::new("orders", "permanent without a key");
    let tired = Produce::new("orders", "tired").idempotency_key("tired").retry_policy(RetryPolicy::max_attempts(2));
    for message in [plain, tired] {
        client.produce(&message).await.expect("produced");
    }
    let events = Events::default();
    let worker = worker(&client, |key, _| async move {
        if key.starts_with("permanent") {
            return Err::<(), _>(Permanent::new("no such dish").into());
        }
        Err(Retry::new("again").into())
    });
    let worker = worker.on_event(events.hook()).spawn();
    events.wait_for("failed permanent", 2).await;
    events.wait_for("failed retry", 2).await;
    soon("the stop", worker.stop()).await.expect("stopped");
    let dead = client.peek("dlq.orders", 0, 0, 10).await.expect("messages");
    let mut dead: Vec<_> = dead
        .iter()
        .map(|message| {
            let dlq = message.envelope.dlq.as_ref().expect("where it comes from");
            (message.text().expect("text").to_owned(), dlq.reason.clone(), dlq.last_error.clone())
        })
        .collect();
    dead.sort();
    let row = |key: &str, reason: &str, error: &str| (key.to_owned(), reason.to_owned(), error.to_owned());
    assert_eq!(
        dead,
        [
            row("permanent", "non_retryable", "no such dish"),
            row("permanent without a key", "non_retryable", "no such dish"),
            row("tired", "max_attempts", "again"),
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_message_of_an_identity_replays_and_skips_the_handler() {
    let broker = Broker::start().await;
    broker.topic("orders").await;
    let client = broker.client();
    // Not the same asked-for topic, so that the broker stores both: the identity of the work is the same all the same.
    let message = Produce::new("orders", "a").idempotency_key("a");
    client.produce(&message).await.expect("produced");
    broker.topic("others").await;
    let other = Produce::new("others", "a").idempotency_key("a").target_topic("orders");
    client.produce(&other).await.expect("produced");
    let (events, runs) = (Events::default(), Runs::default());
    let worker = worker(&client, {
        let runs = runs.clone();
        move |key, attempt| {
            runs.add(format!("{key}/{attempt}"));
            async { Ok(json!({"baked": true})) }
        }
    });
    let worker = worker.concurrency(1).on_event(events.hook()).spawn();
    events.wait_for("completed", 2).await;
    soon("the stop", worker.stop()).await.expect("stopped");
    assert_eq!(runs.all(), ["a/1"]);
    assert_eq!((events.count("began EXECUTE"), events.count("began REPLAY")), (1, 1), "{:?}", events.all());
    assert_eq!(result_of(&client, "a").await, json!({"baked": true}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_keep_a_message_for_longer_than_its_lease() {
    let broker = Broker::start().await;
    broker.topic("orders").await;
    broker.produce("orders", "slow").await;
    let (events, runs) = (Events::default(), Runs::default());
    let worker = worker(&broker.client(), {
        let runs = runs.clone();
        move |key, attempt| {
            runs.add(format!("{key}/{attempt}"));
            async {
                tokio::time::sleep(Duration::from_millis(2_500)).await;
                Ok(())
            }
        }
    });
    let worker = worker.lease(Duration::from_secs(1)).on_event(events.hook()).spawn();
    events.wait_for("completed", 1).await;
    soon("the stop", worker.stop()).await.expect("stopped");
    assert_eq!((runs.all(), events.count("lease_lost")), (vec!["slow/1".to_owned()], 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_lease_cancels_the_handler_and_the_next_delivery_runs() {
    let broker = Broker::start().await;
    broker.topic("orders").await;
    broker.produce("orders", "a").await;
    let client = broker.client();
    let (events, runs) = (Events::default(), Runs::default());
    let worker = worker(&client, {
        let runs = runs.clone();
        move |key, attempt| {
            runs.add(format!("{key}/{attempt}"));
            async move {
                if attempt == 1 {
                    std::future::pending::<()>().await;
                }
                Ok(json!(attempt))
            }
        }
    });
    let worker = worker.lease(Duration::from_millis(1_500)).on_event(events.hook()).spawn();
    events.wait_for("began", 1).await;
    client.expire_lease("orders", "kitchen", 0, 0).await.expect("expired");
    events.wait_for("completed", 1).await;
    events.wait_for("lease_lost", 1).await;
    let summary = soon("the stop", worker.stop()).await.expect("stopped");
    assert_eq!((summary.completed, summary.lost), (1, 1));
    assert_eq!(runs.all(), ["a/1", "a/2"]);
    assert_eq!(result_of(&client, "a").await, json!(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_leaves_no_lease_and_counts_no_failure() {
    let broker = Broker::start().await;
    broker.topic("orders").await;
    for number in 0..10 {
        broker.produce("orders", &format!("o{number}")).await;
    }
    let client = broker.client();
    let events = Events::default();
    let worker = worker(&client, |_, _| std::future::pending::<Result<(), HandlerError>>());
    let worker = worker.concurrency(4).on_event(events.hook()).spawn();
    events.wait_for("began", 4).await;
    let summary = soon("the stop", worker.stop_within(Duration::from_millis(50))).await.expect("stopped");
    assert_eq!((summary.released, summary.lost), (4, 0));
    // They are delivered again at once, without a failure, and their effects can be begun.
    let mut consumer = client.consume(&Consume::new("orders", "kitchen", "other").max(10));
    for _ in 0..10 {
        let message = soon("a message", consumer.next()).await.expect("no error").expect("a message");
        assert_eq!((message.failures, message.last_error.as_str()), (0, ""));
        client.ack(&Claim::new(&message, "kitchen", "other")).await.expect("acked");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_one_key_are_handled_one_after_the_other_in_order() {
    let broker = Broker::start().await;
    broker.topic("orders").await;
    let client = broker.client();
    let producer = client.producer();
    let keys = ["a", "b", "c"];
    let mut pending = Vec::new();
    for number in 0..60_usize {
        let key = keys[number % keys.len()];
        pending.push(producer.enqueue(&Produce::new("orders", format!("{key}{number}")).key(key)).await.expect("room"));
    }
    for answer in pending {
        answer.await.expect("produced");
    }
    let (events, runs) = (Events::default(), Runs::default());
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let worker = worker(&client, {
        let (runs, running, most) = (runs.clone(), Arc::clone(&running), Arc::clone(&most));
        move |value, _| {
            let (runs, running, most) = (runs.clone(), Arc::clone(&running), Arc::clone(&most));
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                runs.add(format!("begin {value}"));
                tokio::time::sleep(Duration::from_millis(2)).await;
                runs.add(format!("end {value}"));
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
        }
    });
    let worker = worker.per_key_order().on_event(events.hook()).spawn();
    events.wait_for("completed", 60).await;
    soon("the stop", worker.stop()).await.expect("stopped");
    for (index, key) in keys.into_iter().enumerate() {
        let of_key: Vec<_> = runs.all().into_iter().filter(|run| run.contains(&format!(" {key}"))).collect();
        let expected: Vec<_> = (0..60)
            .filter(|number| number % keys.len() == index)
            .flat_map(|number| [format!("begin {key}{number}"), format!("end {key}{number}")])
            .collect();
        assert_eq!(of_key, expected);
    }
    assert!(most.load(Ordering::SeqCst) > 1, "different keys run at the same time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_handlers_run_than_asked_for() {
    let broker = Broker::start().await;
    broker.topic("orders").await;
    for number in 0..20 {
        broker.produce("orders", &format!("o{number}")).await;
    }
    let events = Events::default();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let worker = worker(&broker.client(), {
        let most = Arc::clone(&most);
        move |_, _| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(5)).await;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
        }
    });
    let worker = worker.concurrency(3).on_event(events.hook()).spawn();
    events.wait_for("completed", 20).await;
    soon("the stop", worker.stop()).await.expect("stopped");
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_goes_on_after_a_crash_of_the_broker() {
    let mut broker = Broker::start().await;
    broker.topic("orders").await;
    broker.produce("orders", "before").await;
    let (events, runs, gate) = (Events::default(), Runs::default(), Arc::new(Notify::new()));
    let worker = worker(&broker.client(), {
        let (runs, gate) = (runs.clone(), Arc::clone(&gate));
        move |key, attempt| {
            runs.add(format!("{key}/{attempt}"));
            let gate = Arc::clone(&gate);
            async move {
                if key == "before" {
                    gate.notified().await;
                }
                Ok(())
            }
        }
    });
    let worker = worker.on_event(events.hook()).spawn();
    events.wait_for("began", 1).await;
    broker.crash().await;
    gate.notify_one();
    events.wait_for("completed", 1).await;
    broker.produce("orders", "after").await;
    events.wait_for("completed", 2).await;
    let summary = soon("the stop", worker.stop()).await.expect("stopped");
    assert_eq!((summary.completed, runs.all()), (2, vec!["before/1".to_owned(), "after/1".to_owned()]));
    assert!(events.count("disconnected") >= 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_with_two_urls_uses_the_one_that_answers() {
    let broker = Broker::start().await;
    broker.topic("orders").await;
    broker.produce("orders", "a").await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let dead = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let client = quick(dead).url(broker.url()).build().expect("a client");
    let events = Events::default();
    let worker = worker(&client, |_, _| async { Ok(()) }).on_event(events.hook()).spawn();
    events.wait_for("completed", 1).await;
    soon("the stop", worker.stop()).await.expect("stopped");
}

#[tokio::test]
async fn worker_of_an_unknown_topic_ends_with_an_error() {
    let broker = Broker::start().await;
    let run = worker(&broker.client(), |_, _| async { Ok(()) }).run(std::future::pending());
    let error = soon("the end", run).await.expect_err("no topic");
    assert_eq!(error.kind(), driftq_client::ErrorKind::NotFound);
}
