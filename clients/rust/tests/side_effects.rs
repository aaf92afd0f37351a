//! Side effects inside a handler: once for each identity, whatever happens.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use driftq_client::{Client, Context, HandlerError, Permanent, Retry, Worker};
use serde_json::json;

use crate::broker::Broker;
use crate::support::{Events, soon};

async fn run_until(client: &Client, event: &str, count: usize, handler: Handler) -> Events {
    let events = Events::default();
    let worker = Worker::new(client, "orders", "kitchen", move |_, context| handler(context))
        .retry_delay(Duration::from_millis(10))
        .on_event(events.hook())
        .spawn();
    events.wait_for(event, count).await;
    soon("the stop", worker.stop()).await.expect("stopped");
    events
}

type Handler = Box<
    dyn Fn(Context) -> std::pin::Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send>> + Send + Sync + 'static,
>;

async fn broker_with(keys: &[&str]) -> Broker {
    let broker = Broker::start().await;
    broker.topic("orders").await;
    for key in keys {
        broker.produce("orders", key).await;
    }
    broker
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn side_effect_that_has_succeeded_is_not_run_by_the_next_attempt() {
    let broker = broker_with(&["a"]).await;
    let charges = Arc::new(AtomicUsize::new(0));
    let handler = Box::new({
        let charges = Arc::clone(&charges);
        move |context: Context| -> std::pin::Pin<Box<dyn Future<Output = _> + Send>> {
            let charges = Arc::clone(&charges);
            Box::pin(async move {
                let charge = |amount: u32| {
                    let charges = Arc::clone(&charges);
                    move || async move {
                        charges.fetch_add(1, Ordering::SeqCst);
                        Ok::<_, HandlerError>(format!("charged {amount}"))
                    }
                };
                let first: String = context.side_effect("charge", &json!({"amount": 5}), charge(5)).await?;
                let same: String = context.side_effect("charge", &json!({"amount": 5.0}), charge(5)).await?;
                let other: String = context.side_effect("charge", &json!({"amount": 6}), charge(6)).await?;
                assert_eq!((first.as_str(), same.as_str(), other.as_str()), ("charged 5", "charged 5", "charged 6"));
                if context.attempt() < 3 {
                    return Err(Retry::new("after the charge").into());
                }
                Ok(())
            })
        }
    });
    let events = run_until(&broker.client(), "completed", 1, handler).await;
    assert_eq!(charges.load(Ordering::SeqCst), 2, "one for each of the arguments");
    assert_eq!(events.count("failed retry: after the charge"), 2, "{:?}", events.all());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn side_effect_that_failed_runs_again_and_one_that_failed_for_good_does_not() {
    let broker = broker_with(&["a"]).await;
    let (tries, finals) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = Box::new({
        let (tries, finals) = (Arc::clone(&tries), Arc::clone(&finals));
        move |context: Context| -> std::pin::Pin<Box<dyn Future<Output = _> + Send>> {
            let (tries, finals) = (Arc::clone(&tries), Arc::clone(&finals));
            Box::pin(async move {
                let number: usize = context
                    .side_effect("flaky", &(), || async move {
                        match tries.fetch_add(1, Ordering::SeqCst) {
                            number @ 0..2 => Err(HandlerError::from(Retry::new(format!("try {number}")))),
                            number => Ok(number),
                        }
                    })
                    .await?;
                assert_eq!(number, 2);
                let refused: Result<(), _> = context
                    .side_effect("impossible", &(), || async move {
                        finals.fetch_add(1, Ordering::SeqCst);
                        Err(Permanent::new("never"))
                    })
                    .await;
                let error = refused.expect_err("refused");
                assert!(error.is_permanent() && error.text() == "never");
                if context.attempt() < 5 {
                    return Err(Retry::new("again").into());
                }
                Ok(())
            })
        }
    });
    run_until(&broker.client(), "completed", 1, handler).await;
    assert_eq!((tries.load(Ordering::SeqCst), finals.load(Ordering::SeqCst)), (3, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn side_effect_of_a_message_without_a_key_is_once_per_message() {
    let broker = broker_with(&[]).await;
    let client = broker.client();
    for value in ["x", "x"] {
        client.produce(&driftq_client::Produce::new("orders", value)).await.expect("produced");
    }
    let runs = Arc::new(AtomicUsize::new(0));
    let handler = Box::new({
        let runs = Arc::clone(&runs);
        move |context: Context| -> std::pin::Pin<Box<dyn Future<Output = _> + Send>> {
            let runs = Arc::clone(&runs);
            Box::pin(async move {
                let () = context
                    .side_effect("mail", &(), || async move {
                        runs.fetch_add(1, Ordering::SeqCst);
                        Ok::<_, HandlerError>(())
                    })
                    .await?;
                if context.attempt() == 1 { Err(Retry::new("once more").into()) } else { Ok(()) }
            })
        }
    });
    run_until(&client, "completed", 2, handler).await;
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}
