//! What a user sees of each bad input and fault: the texts of `docs/clients-faults.md`, all of which are met here.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use driftq_client::{HandlerError, HandlerResult, Json, Produce, Worker};
use serde_json::json;
use tokio::net::TcpListener;

use crate::handlers::broker;
use crate::log;
use crate::stub::{Reply, Seen, Stub};
use crate::support::{Events, client, line, quick, soon};

const PAGE: &str = include_str!("../../../docs/clients-faults.md");
const LONG_LEASE: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_millis(300);

/// The titles of the page and the texts that it has for Rust.
fn documented() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGE.split("\n## ").skip(1).filter_map(|section| {
        let (title, rest) = section.split_once('\n')?;
        let (_, row) = rest.split_once("| Rust | `")?;
        Some((title, row.split_once("` |")?.0))
    })
}

/// Whether a text is the one of the page, in which … stands for anything.
#[track_caller]
fn assert_shown(title: &str, text: &str) {
    let (_, expected) = documented().find(|(known, _)| *known == title).unwrap_or_else(|| panic!("no {title}: {text}"));
    let parts: Vec<_> = expected.split('…').collect();
    let mut rest = text;
    let fits = parts.iter().enumerate().all(|(n, part)| {
        let at = match n {
            0 => rest.starts_with(part).then_some(0),
            _ if n + 1 == parts.len() => rest.ends_with(part).then(|| rest.len() - part.len()),
            _ => rest.find(part),
        };
        at.inspect(|at| rest = &rest[at + part.len()..]).is_some()
    });
    assert!(fits && (parts.len() > 1 || rest.is_empty()), "{text:?} is not what the page says: {expected:?}");
}

/// The error of a call.
async fn shown(url: impl Into<String>) -> String {
    let built = quick(url).retry_for(Duration::from_millis(100)).build();
    let Ok(client) = built else { return built.expect_err("an error").to_string() };
    soon("an error", client.produce(&Produce::new("t", "v"))).await.expect_err("an error").to_string()
}

async fn answering(reply: Reply) -> String {
    let stub = Stub::replies([reply]).await;
    shown(stub.url()).await
}

/// A server whose answer to the first question of a client, that for its version, is this.
async fn with_version(reply: Reply) -> String {
    let stub = Stub::start_with_version(move |_| reply.clone()).await;
    shown(stub.url()).await
}

#[tokio::test]
async fn wrong_key() {
    assert_shown("Wrong key", &with_version(Reply::error(401, "UNAUTHENTICATED", "the key is not known")).await);
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn certificate_that_is_not_trusted() {
    let (url, _) = crate::tls::start().await;
    // Where the system trusts no certificates at all, that is told when the client is made.
    let Ok(client) = quick(url).build() else { return };
    let error = soon("an error", client.produce(&Produce::new("t", "v"))).await.expect_err("refused");
    assert_shown("Certificate that is not trusted", &error.to_string());
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn https_to_a_server_without_tls() {
    let url = crate::tls::start_without_tls().await;
    let client = quick(url).ca_pem(crate::tls::CERTIFICATE).build().expect("a client");
    let error = soon("an error", client.produce(&Produce::new("t", "v"))).await.expect_err("refused");
    assert_shown("https to a server without TLS", &error.to_string());
}

#[tokio::test]
async fn url_without_scheme() {
    assert_shown("URL without scheme", &shown("localhost:8080").await);
}

#[tokio::test]
async fn url_at_which_nothing_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    assert_shown("URL at which nothing listens", &shown(url).await);
}

#[tokio::test]
async fn url_of_another_server() {
    let headers = "content-type: text/html\r\n".to_owned();
    let page = Reply::Raw { status: 404, headers, body: b"<html>Welcome</html>".to_vec() };
    assert_shown("URL of another server", &with_version(page).await);
}

#[tokio::test]
async fn server_that_speaks_no_http() {
    let banner = Reply::Bytes(b"SSH-2.0-OpenSSH_9.9\r\n".to_vec());
    assert_shown("Server that speaks no HTTP", &with_version(banner).await);
}

#[tokio::test]
async fn server_of_another_version() {
    let version = Reply::json(200, &json!({"version": "9.1.0", "api": "v2"}));
    assert_shown("Server of another version", &with_version(version).await);
}

#[tokio::test]
async fn overloaded_for_longer_than_retry_for() {
    let full = json!({
        "error": "RESOURCE_EXHAUSTED", "message": "the broker has too many messages", "reason": "overloaded",
        "retry_after_ms": 700,
    });
    assert_shown("429 for longer than `retry_for`", &answering(Reply::json(429, &full)).await);
}

#[tokio::test]
async fn unavailable_for_longer_than_retry_for() {
    let refused = json!({"error": "UNAVAILABLE", "message": "the log is recovering", "committed": "no"});
    assert_shown("503 that says it did nothing", &answering(Reply::json(503, &refused)).await);
}

#[tokio::test]
async fn unavailable_that_may_have_done_it() {
    let unknown = Reply::error(503, "UNAVAILABLE", "the log has failed");
    assert_shown("503 that may have done it", &answering(unknown).await);
}

/// A worker of its own topic, so that its log is told from those of other tests.
fn kitchen<F, R>(url: String, topic: &str, events: &Events, handler: impl Fn() -> F + Send + Sync + 'static) -> Worker
where
    F: Future<Output = Result<R, HandlerError>> + Send + 'static,
    R: HandlerResult,
{
    let worker = Worker::new(&client(url), topic, "g", move |_, _| handler());
    worker.owner("o").grace(Duration::ZERO).lease(LEASE).on_event(events.hook())
}

/// The text that the broker is given for a message whose handler fails.
async fn last_error<F, R>(handler: impl Fn() -> F + Send + Sync + 'static) -> String
where
    F: Future<Output = Result<R, HandlerError>> + Send + 'static,
    R: HandlerResult,
{
    let stub = broker(line(3, "k"), |_| None).await;
    // The trace of a panic can take longer to print than a short lease lasts.
    let worker = kitchen(stub.url(), "t", &Events::default(), handler).lease(LONG_LEASE).spawn();
    let finish = stub.wait_for_route("POST /v1/idempotency/finish").await;
    soon("the stop", worker.stop()).await.expect("stopped");
    finish.json()["last_error"].as_str().expect("a text").to_owned()
}

#[tokio::test]
async fn stream_cut_in_a_line() {
    log::collect();
    let was_cut = AtomicBool::new(false);
    let stub = broker(String::new(), move |seen: &Seen| {
        let is_first = seen.target.starts_with("/v1/consume") && !was_cut.swap(true, Ordering::Relaxed);
        is_first.then(|| Reply::CutStream(format!("{}{}", line(0, ""), &line(1, "")[..40])))
    })
    .await;
    let events = Events::default();
    let worker = kitchen(stub.url(), "cut", &events, || async { Ok(()) }).spawn();
    events.wait_for("disconnected", 1).await;
    soon("the stop", worker.stop()).await.expect("stopped");
    let lines = log::lines_with(&stub.url());
    let line = lines.iter().find(|line| line.contains("disconnected")).unwrap_or_else(|| panic!("{lines:#?}"));
    assert_shown("Stream cut in the middle of a line", line);
}

#[tokio::test]
async fn handler_that_panics() {
    async fn explode() -> Result<(), HandlerError> {
        panic!("the oven has {} doors", 3)
    }
    assert_shown("Handler that panics or raises", &last_error(explode).await);
}

#[tokio::test]
async fn handler_that_returns_no_json() {
    let prices = || async { Ok(Json(vec![1.5, f64::NAN])) };
    assert_shown("Handler that returns no JSON", &last_error(prices).await);
}

#[tokio::test]
async fn handler_that_blocks_its_runtime() {
    log::collect();
    let stub = broker(line(3, "k"), |_| None).await;
    let (events, stop) = (Events::default(), Arc::new(tokio::sync::Notify::new()));
    let (url, worker_events, stopped) = (stub.url(), events.clone(), Arc::clone(&stop));
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let blocking = || async {
                std::thread::sleep(3 * LEASE);
                Ok(())
            };
            kitchen(url, "blocked", &worker_events, blocking).run(stopped.notified()).await
        })
    });
    events.wait_for("loop_blocked", 1).await;
    stop.notify_one();
    let joined = soon("the stop", tokio::task::spawn_blocking(|| thread.join())).await.expect("joined");
    joined.expect("no panic").expect("stopped");
    let lines = log::lines_with("handlers block");
    assert_shown("Handler that blocks the event loop", lines.first().expect("a line"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handler_that_ignores_its_cancellation() {
    log::collect();
    let refused = || Reply::error(409, "FAILED_PRECONDITION", "stale lease");
    let stub = broker(line(3, "k"), move |seen| (seen.target == "/v1/extend").then(refused)).await;
    let events = Events::default();
    let stubborn = || async {
        std::thread::sleep(4 * LEASE);
        Ok(())
    };
    let worker = kitchen(stub.url(), "stuck", &events, stubborn).spawn();
    events.wait_for("handler_stuck", 1).await;
    soon("the stop", worker.stop()).await.expect("stopped");
    let lines = log::lines_with("stuck/0/3");
    let line = lines.iter().find(|line| line.contains("ignores")).unwrap_or_else(|| panic!("{lines:#?}"));
    assert_shown("Handler that ignores its cancellation", line);
}

#[test]
fn page_has_no_text_that_is_not_met_here() {
    let source = include_str!("faults.rs");
    let met: BTreeSet<_> = source.split("assert_shown(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let met: BTreeSet<_> = met.into_iter().filter(|title| !title.ends_with('\\')).collect();
    assert_eq!(met, documented().map(|(title, _)| title).collect());
}
