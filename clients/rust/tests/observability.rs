//! Spans, logs and the metrics hook of a worker.

use std::sync::{Arc, Mutex};

use driftq_client::{Event, HandlerError, Retry, Worker};
use tracing::Span;

use crate::handlers::broker;
use crate::log;
use crate::support::{Events, client, line, soon};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A delivery with a trace and with a payload that no log may have.
fn traced(number: u64) -> String {
    let text = line(number, "").replace("\"value\":\"v\"", "\"value\":\"very-secret\"");
    text.replace("\"partition\":0", &format!("\"partition\":0,\"trace\":\"{TRACE}\""))
}

#[tokio::test]
async fn handler_runs_in_one_span_with_the_parent_of_its_message() {
    log::collect();
    let events = Events::default();
    let stub = broker(traced(3), |_| None).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let worker = Worker::new(&client(stub.url()), "spans", "g", {
        let seen = Arc::clone(&seen);
        move |_, _| {
            let seen = Arc::clone(&seen);
            async move {
                seen.lock().expect("not poisoned").push(Span::current().metadata().map(tracing::Metadata::name));
                Err::<(), _>(HandlerError::from(Retry::new("the oven is cold")))
            }
        }
    });
    let worker = worker.on_event(events.hook()).spawn();
    events.wait_for("failed", 1).await;
    soon("the stop", worker.stop()).await.expect("stopped");
    let spans = log::spans_with("spans/0/3");
    let [(span, entered)] = &spans[..] else { panic!("one span for one run: {spans:?}") };
    for field in [
        "driftq.handle ",
        "messaging.system=\"driftq\"",
        "messaging.destination.name=\"spans\"",
        "messaging.message.id=spans/0/3",
        "driftq.attempt=1",
        &format!("traceparent=\"{TRACE}\""),
    ] {
        assert!(span.contains(field), "{field}: {span}");
    }
    assert!(*entered > 0, "the handler ran in it");
    let failed = log::lines_with("spans/0/3");
    assert!(failed.iter().any(|line| line.contains("kind=\"retry\" error=\"the oven is cold\"")), "{failed:?}");
    assert!(failed.iter().all(|line| !line.contains("very-secret")), "{failed:?}");
}

#[tokio::test]
async fn tracer_opens_the_span_and_gets_the_trace_of_the_message() {
    let events = Events::default();
    let stub = broker(traced(4), |_| None).await;
    let traces = Arc::new(Mutex::new(Vec::new()));
    let worker = Worker::new(&client(stub.url()), "t", "g", |_, _| async { Ok(()) }).on_event(events.hook()).tracer({
        let traces = Arc::clone(&traces);
        move |message| {
            traces.lock().expect("not poisoned").push(message.trace.clone());
            Span::none()
        }
    });
    let worker = worker.spawn();
    events.wait_for("completed", 1).await;
    soon("the stop", worker.stop()).await.expect("stopped");
    assert_eq!(*traces.lock().expect("not poisoned"), [Some(TRACE.to_owned())]);
}

#[tokio::test]
async fn hook_gets_name_and_time_of_every_step_for_metrics() {
    let events = Events::default();
    let seconds = Arc::new(Mutex::new(None));
    let stub = broker(line(5, "k"), |_| None).await;
    let worker = Worker::new(&client(stub.url()), "t", "g", |_, _| async { Ok(()) }).on_event({
        let (hook, seconds) = (events.hook(), Arc::clone(&seconds));
        move |event| {
            if let Event::Completed { elapsed, .. } = event {
                *seconds.lock().expect("not poisoned") = Some(*elapsed);
            }
            hook(event);
        }
    });
    let worker = worker.spawn();
    events.wait_for("completed", 1).await;
    soon("the stop", worker.stop()).await.expect("stopped");
    assert_eq!(events.all()[..4], ["connected", "received", "began EXECUTE", "completed"]);
    assert!(seconds.lock().expect("not poisoned").is_some());
}
