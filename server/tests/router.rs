//! The router hook against real servers on the loopback: what it follows, what it makes of every kind of failure, and what a
//! failing webhook costs.
#![allow(missing_docs, clippy::unwrap_used)]

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use driftq_core::types::{Envelope, PartitionId, RoutingDecision, TopicName};
use driftq_server::config::{RouterSettings, Rule, Webhook};
use driftq_server::router::{Question, Router, RouterFailure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// Longer than anything here takes, on a machine that is doing something else.
const EVER: Duration = Duration::from_secs(30);
/// Short enough to wait for.
const BRIEF: Duration = Duration::from_millis(50);

const LABEL_A: &str = "HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{\"label\":\"a\"}";

/// Runs a test as the daemon runs: on one thread.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let test = async { timeout(EVER * 2, test).await.expect("the test hangs") };
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// What a stub does with a request it has read whole.
enum Answer {
    /// These bytes, and on to the next request.
    Say(String),
    /// These bytes, and goodbye.
    SayAndClose(String),
    /// Nothing, for ever.
    Stall,
}

fn say(text: &str) -> Answer {
    Answer::Say(text.to_owned())
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// A webhook of the tests' own.
#[derive(Default)]
struct Seen {
    requests: RefCell<Vec<String>>,
    connections: Cell<usize>,
    arrived: Notify,
}

impl Seen {
    fn count(&self) -> usize {
        self.requests.borrow().len()
    }
}

struct Stub {
    url: String,
    seen: Rc<Seen>,
}

impl Stub {
    /// Serves with `answer`, which is told how many requests came before.
    async fn start(answer: impl Fn(usize) -> Answer + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/route?v=1", listener.local_addr().unwrap());
        let seen = Rc::new(Seen::default());
        let (shared, answer) = (Rc::clone(&seen), Rc::new(answer));
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.connections.set(shared.connections.get() + 1);
                tokio::task::spawn_local(serve(stream, Rc::clone(&shared), Rc::clone(&answer)));
            }
        });
        Self { url, seen }
    }

    fn webhook(&self) -> Webhook {
        Webhook { timeout: EVER, rest: EVER, ..Webhook::to(&self.url) }
    }
}

async fn serve(mut stream: TcpStream, seen: Rc<Seen>, answer: Rc<impl Fn(usize) -> Answer>) {
    while let Some(request) = read_request(&mut stream).await {
        let before = seen.count();
        seen.requests.borrow_mut().push(request);
        seen.arrived.notify_waiters();
        match answer(before) {
            Answer::Say(text) => stream.write_all(text.as_bytes()).await.unwrap(),
            Answer::SayAndClose(text) => return stream.write_all(text.as_bytes()).await.unwrap(),
            Answer::Stall => std::future::pending().await,
        }
    }
}

/// A request up to the end of its body, or `None` where the client hung up.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let count = stream.read(&mut chunk).await.ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&chunk[..count]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            return Some(text.into_owned());
        }
    }
}

fn router(webhook: Webhook) -> Router {
    Router::new(RouterSettings { rules: Vec::new(), webhook: Some(webhook) })
}

type Outcome = Result<Option<RoutingDecision>, RouterFailure>;

async fn ask(router: &Router) -> Outcome {
    ask_about(router, "v").await
}

async fn ask_about(router: &Router, value: &str) -> Outcome {
    let topic = TopicName::new("tasks").unwrap();
    let envelope = Envelope { run_id: Some("run".into()), ..Envelope::default() };
    router.route(Question { topic: &topic, key: "k", value, envelope: &envelope }).await
}

fn label(outcome: &Outcome) -> &str {
    &outcome.as_ref().expect("no answer").as_ref().expect("no decision").routing.label
}

#[test]
fn a_decision_is_followed_and_the_question_is_the_message() {
    run(async {
        let body = r#"{"label":"finance","target_topic":"tasks.finance","partition_override":3,"meta":{"m":"1"}}"#;
        let stub = Stub::start(move |_| Answer::Say(ok(body))).await;
        let decision = ask(&router(stub.webhook())).await.unwrap().unwrap();
        assert_eq!((&*decision.routing.label, decision.routing.meta.len()), ("finance", 1));
        assert_eq!(decision.target_topic, Some(TopicName::new("tasks.finance").unwrap()));
        assert_eq!(decision.partition_override, Some(PartitionId(3)));
        let requests = stub.seen.requests.borrow();
        let (head, body) = requests[0].split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /route?v=1 HTTP/1.1\r\n"), "{head}");
        let host = stub.url.trim_start_matches("http://").split('/').next().unwrap();
        assert!(head.contains(&format!("host: {host}")) && head.contains("content-type: application/json"), "{head}");
        assert_eq!(body, r#"{"topic":"tasks","key":"k","value":"v","envelope":{"run_id":"run"}}"#);
    });
}

#[test]
fn nothing_to_say_is_no_failure() {
    run(async {
        let stub = Stub::start(|n| say(["HTTP/1.1 204 No Content\r\n\r\n", &ok("{}")][n.min(1)])).await;
        let router = router(stub.webhook());
        for _ in 0..3 {
            assert_eq!(ask(&router).await, Ok(None));
        }
        assert_eq!(stub.seen.connections.get(), 1, "a 204 leaves the connection usable");
    });
}

#[test]
fn a_slow_webhook_costs_one_wait_and_then_rests() {
    run(async {
        let stub = Stub::start(|_| Answer::Stall).await;
        let router = router(Webhook { timeout: BRIEF, ..stub.webhook() });
        assert_eq!(ask(&router).await, Err(RouterFailure::Timeout));
        for _ in 0..100 {
            assert_eq!(ask(&router).await, Err(RouterFailure::Skipped));
        }
        assert_eq!(stub.seen.count(), 1);
    });
}

#[test]
fn after_the_rest_it_is_asked_again_and_is_well_once_it_answers() {
    run(async {
        let stub =
            Stub::start(|n| if n == 0 { say("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n") } else { say(LABEL_A) })
                .await;
        let router = router(Webhook { rest: BRIEF, ..stub.webhook() });
        assert_eq!(ask(&router).await, Err(RouterFailure::Nonsense));
        let mut outcome = ask(&router).await;
        while outcome == Err(RouterFailure::Skipped) {
            sleep(Duration::from_millis(5)).await;
            outcome = ask(&router).await;
        }
        assert_eq!(label(&outcome), "a");
        assert_eq!(stub.seen.count(), 2, "it was asked while it rested");
        assert_eq!(label(&ask(&router).await), "a");
    });
}

#[test]
fn what_is_no_decision_is_nonsense() {
    run(async {
        let long = ok(&format!(r#"{{"label":"a"{}}}"#, " ".repeat(64 << 10)));
        let unannounced = format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n11000\r\n{}\r\n0\r\n\r\n",
            " ".repeat(0x11000)
        );
        for answer in [
            "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 13\r\n\r\n{\"label\":\"a\"}".to_owned(),
            "HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n".to_owned(),
            "HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}".to_owned(),
            "garbage\r\n\r\n".to_owned(),
            format!("HTTP/1.1 204 No Content\r\nx: {}\r\n\r\n", "x".repeat(80 << 10)),
            ok(""),
            ok("garbage"),
            ok("[]"),
            ok(r#"{"label":1}"#),
            ok(r#"{"label":"a","extra":true}"#),
            ok(r#"{"partition_override":-1}"#),
            ok(r#"{"target_topic":"a b"}"#),
            long,
            unannounced,
        ] {
            let shown = answer.chars().take(60).collect::<String>();
            let stub = Stub::start(move |_| Answer::Say(answer.clone())).await;
            let router = router(stub.webhook());
            assert_eq!(ask(&router).await, Err(RouterFailure::Nonsense), "{shown}");
            assert_eq!(ask(&router).await, Err(RouterFailure::Skipped), "{shown}");
        }
    });
}

#[test]
fn an_answer_as_long_as_it_may_be_is_read() {
    run(async {
        let text = format!(r#"{{"label":"a"{}}}"#, " ".repeat((64 << 10) - 13));
        let stub = Stub::start(move |_| Answer::Say(ok(&text))).await;
        assert_eq!(label(&ask(&router(stub.webhook())).await), "a");
    });
}

#[test]
fn nobody_there_is_unreachable() {
    run(async {
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        for url in [format!("http://{closed}/"), "http://no-such-host.invalid/".to_owned(), "not a url".to_owned()] {
            let router = router(Webhook { timeout: EVER, ..Webhook::to(&url) });
            assert_eq!(ask(&router).await, Err(RouterFailure::Unreachable), "{url}");
        }
    });
}

#[test]
fn hanging_up_in_the_middle_is_unreachable() {
    run(async {
        for answer in ["", "HTTP/1.1 200 OK\r\ncontent-le", "HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{\"label\""] {
            let stub = Stub::start(move |_| Answer::SayAndClose(answer.to_owned())).await;
            assert_eq!(ask(&router(stub.webhook())).await, Err(RouterFailure::Unreachable), "{answer:?}");
            assert_eq!(stub.seen.count(), 1, "a fresh connection is not tried twice");
        }
    });
}

#[test]
fn an_answer_that_never_ends_is_a_timeout() {
    run(async {
        let stub = Stub::start(|_| say("HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{\"label\"")).await;
        let router = router(Webhook { timeout: BRIEF, ..stub.webhook() });
        assert_eq!(ask(&router).await, Err(RouterFailure::Timeout));
    });
}

#[test]
fn a_peer_that_never_reads_is_a_timeout_and_its_connection_is_closed() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let router = router(Webhook { timeout: BRIEF, rest: EVER, ..Webhook::to(url) });
        // More than the sockets' buffers hold.
        let value = "v".repeat(16 << 20);
        assert_eq!(ask_about(&router, &value).await, Err(RouterFailure::Timeout));
        let (mut peer, _) = listener.accept().await.unwrap();
        let mut rest = Vec::new();
        // An end or a reset: either way nobody holds the other end any longer.
        let _ = timeout(EVER, peer.read_to_end(&mut rest)).await.expect("the connection was left open");
        assert!(rest.len() < value.len());
    });
}

#[test]
fn connections_are_kept_and_shared_between_questions() {
    run(async {
        let stub = Stub::start(|_| say(LABEL_A)).await;
        let router = router(stub.webhook());
        for _ in 0..20 {
            assert_eq!(label(&ask(&router).await), "a");
        }
        assert_eq!((stub.seen.count(), stub.seen.connections.get()), (20, 1));
    });
}

#[test]
fn a_connection_that_went_stale_is_replaced_once_and_unnoticed() {
    run(async {
        // The second request on a connection finds it closed, before or after the client can know.
        let stub = Stub::start(|_| Answer::SayAndClose(LABEL_A.to_owned())).await;
        let router = router(stub.webhook());
        for _ in 0..20 {
            assert_eq!(label(&ask(&router).await), "a");
        }
        assert_eq!(stub.seen.connections.get(), 20);
    });
}

#[test]
fn a_kept_connection_that_dies_under_the_question_is_replaced() {
    run(async {
        // The second request is read and not answered: only a server that died in between does that.
        let stub = Stub::start(|n| if n == 1 { Answer::SayAndClose(String::new()) } else { say(LABEL_A) }).await;
        let router = router(stub.webhook());
        assert_eq!(label(&ask(&router).await), "a");
        assert_eq!(label(&ask(&router).await), "a");
        assert_eq!((stub.seen.count(), stub.seen.connections.get()), (3, 2));
    });
}

#[test]
fn more_open_questions_than_allowed_are_skipped() {
    run(async {
        let stub = Stub::start(|_| Answer::Stall).await;
        let router = Rc::new(router(stub.webhook()));
        let open: Vec<_> = (0..64)
            .map(|_| {
                let router = Rc::clone(&router);
                tokio::task::spawn_local(async move { ask(&router).await })
            })
            .collect();
        while stub.seen.count() < 64 {
            stub.seen.arrived.notified().await;
        }
        assert_eq!(ask(&router).await, Err(RouterFailure::Skipped));
        // Who goes away makes room.
        open[0].abort();
        tokio::task::yield_now().await;
        let next = timeout(BRIEF, ask(&router)).await;
        assert!(next.is_err(), "the question was not asked: {next:?}");
    });
}

#[test]
fn a_rule_that_fits_decides_and_the_webhook_is_not_asked() {
    run(async {
        let stub = Stub::start(|_| say(LABEL_A)).await;
        let rule = |topic: &str, key_prefix: &str, label: &str| Rule {
            topic: Some(TopicName::new(topic).unwrap()),
            key_prefix: Some(key_prefix.into()),
            label: label.into(),
            ..Rule::default()
        };
        let rules = vec![
            rule("other", "k", "no"),
            rule("tasks", "x", "no"),
            rule("tasks", "k", "first"),
            rule("tasks", "", "no"),
        ];
        let router = Router::new(RouterSettings { rules, webhook: Some(stub.webhook()) });
        assert!(!router.is_empty());
        assert_eq!(label(&ask(&router).await), "first");
        assert_eq!(stub.seen.count(), 0);
    });
}

#[test]
fn every_condition_of_a_rule_must_hold() {
    run(async {
        let rule = Rule {
            tenant: Some("default".into()),
            labels: [("env".into(), "prod".into()), ("tier".into(), "1".into())].into(),
            target_topic: Some(TopicName::new("t2").unwrap()),
            partition_override: Some(PartitionId(1)),
            meta: [("by".into(), "rule".into())].into(),
            ..Rule::default()
        };
        let router = Router::new(RouterSettings { rules: vec![rule], webhook: None });
        let topic = TopicName::new("t").unwrap();
        let outcome = async |tenant: Option<&str>, labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            let envelope = Envelope { tenant_id: tenant.map(Into::into), labels, ..Envelope::default() };
            router.route(Question { topic: &topic, key: "", value: "v", envelope: &envelope }).await.unwrap()
        };
        let all = [("env", "prod"), ("more", "x"), ("tier", "1")];
        for tenant in [None, Some(""), Some("default")] {
            let decision = outcome(tenant, &all).await.unwrap();
            assert_eq!(
                (decision.target_topic, decision.partition_override),
                (TopicName::new("t2").ok(), Some(PartitionId(1)))
            );
            assert_eq!(decision.routing.meta.len(), 1);
        }
        assert_eq!(outcome(Some("acme"), &all).await, None);
        assert_eq!(outcome(None, &all[..2]).await, None);
        assert_eq!(outcome(None, &[("env", "dev"), ("tier", "1")]).await, None);
        assert!(Router::new(RouterSettings::default()).is_empty());
    });
}
