//! Router hook against real servers on the loopback: decisions, every kind of failure, and the cost of a failing
//! webhook.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use driftq_core::types::{Envelope, PartitionId, Routing, RoutingDecision, TopicName};
use driftq_server::config::{RouterSettings, Rule, Webhook, WebhookUrl};
use driftq_server::router::{Company, RouteRequest, Router, RouterChain, RouterFailure, RouterFuture, Rules};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// Longer than any exchange takes, also on a loaded machine.
const LONG: Duration = Duration::from_secs(30);
/// Short enough to wait for.
const SHORT: Duration = Duration::from_millis(50);

const LABEL_A: &str = "HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{\"label\":\"a\"}";

/// Runs a test as the broker runs: on one thread.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let test = async { timeout(LONG * 2, test).await.expect("the test hangs") };
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// What the stub does with a request.
enum Response {
    /// Sends these bytes and waits for the next request.
    Send(String),
    /// Sends these bytes and closes the connection.
    SendAndClose(String),
    /// Sends nothing.
    Stall,
}

fn send(text: &str) -> Response {
    Response::Send(text.to_owned())
}

fn webhook(url: &str) -> Webhook {
    Webhook::new(WebhookUrl::parse(url).unwrap())
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// What the stub has received.
#[derive(Default)]
struct Received {
    requests: RefCell<Vec<String>>,
    connections: Cell<usize>,
    arrived: Notify,
}

impl Received {
    fn count(&self) -> usize {
        self.requests.borrow().len()
    }
}

/// A webhook server on the loopback.
struct Stub {
    url: String,
    received: Rc<Received>,
}

impl Stub {
    /// Serves with `respond`, whose argument is the number of earlier requests.
    async fn start(respond: impl Fn(usize) -> Response + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/route?v=1", listener.local_addr().unwrap());
        let received = Rc::new(Received::default());
        let (shared, respond) = (Rc::clone(&received), Rc::new(respond));
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.connections.set(shared.connections.get() + 1);
                tokio::task::spawn_local(serve(stream, Rc::clone(&shared), Rc::clone(&respond)));
            }
        });
        Self { url, received }
    }

    fn webhook(&self) -> Webhook {
        Webhook { timeout: LONG, cooldown: LONG, ..webhook(&self.url) }
    }
}

async fn serve(mut stream: TcpStream, received: Rc<Received>, respond: Rc<impl Fn(usize) -> Response>) {
    while let Some(request) = read_request(&mut stream).await {
        let before = received.count();
        received.requests.borrow_mut().push(request);
        received.arrived.notify_waiters();
        match respond(before) {
            Response::Send(text) => stream.write_all(text.as_bytes()).await.unwrap(),
            Response::SendAndClose(text) => return stream.write_all(text.as_bytes()).await.unwrap(),
            Response::Stall => std::future::pending().await,
        }
    }
}

/// A request up to the end of its body, or `None` if the client closed the connection.
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

fn router(webhook: Webhook) -> RouterChain {
    RouterChain::new(RouterSettings { rules: Vec::new(), webhook: Some(webhook) })
}

type RouteResult = Result<Option<RoutingDecision>, RouterFailure>;

async fn ask(router: &RouterChain) -> RouteResult {
    ask_about(router, "v").await
}

async fn ask_about(router: &RouterChain, value: &str) -> RouteResult {
    let topic = TopicName::new("tasks").unwrap();
    let envelope = Envelope { run_id: Some("run".into()), ..Envelope::default() };
    router.route(RouteRequest { topic: &topic, key: "k", value, envelope: &envelope }, Company::Alone).await
}

fn label(result: &RouteResult) -> &str {
    &result.as_ref().expect("no response").as_ref().expect("no decision").routing.label
}

#[test]
fn decision_of_webhook_is_returned() {
    run(async {
        let body = r#"{"label":"finance","target_topic":"tasks.finance","partition_override":3,"meta":{"m":"1"}}"#;
        let stub = Stub::start(move |_| Response::Send(ok(body))).await;
        let decision = ask(&router(stub.webhook())).await.unwrap().unwrap();
        assert_eq!((&*decision.routing.label, decision.routing.meta.len()), ("finance", 1));
        assert_eq!(decision.target_topic, Some(TopicName::new("tasks.finance").unwrap()));
        assert_eq!(decision.partition_override, Some(PartitionId(3)));
        let requests = stub.received.requests.borrow();
        let (head, body) = requests[0].split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /route?v=1 HTTP/1.1\r\n"), "{head}");
        let host = stub.url.trim_start_matches("http://").split('/').next().unwrap();
        assert!(head.contains(&format!("host: {host}")) && head.contains("content-type: application/json"), "{head}");
        assert_eq!(body, r#"{"topic":"tasks","key":"k","value":"v","envelope":{"run_id":"run"}}"#);
    });
}

#[test]
fn no_content_is_no_decision_and_keeps_the_connection() {
    run(async {
        let stub = Stub::start(|n| send(["HTTP/1.1 204 No Content\r\n\r\n", &ok("{}")][n.min(1)])).await;
        let router = router(stub.webhook());
        for _ in 0..3 {
            assert_eq!(ask(&router).await, Ok(None));
        }
        assert_eq!(stub.received.connections.get(), 1, "a 204 leaves the connection usable");
    });
}

#[test]
fn timeout_opens_the_circuit() {
    run(async {
        let stub = Stub::start(|_| Response::Stall).await;
        let router = router(Webhook { timeout: SHORT, ..stub.webhook() });
        assert_eq!(ask(&router).await, Err(RouterFailure::Timeout));
        for _ in 0..100 {
            assert_eq!(ask(&router).await, Err(RouterFailure::Skipped));
        }
        assert_eq!(stub.received.count(), 1);
    });
}

#[test]
fn webhook_is_asked_again_after_the_cooldown() {
    run(async {
        let stub =
            Stub::start(
                |n| if n == 0 { send("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n") } else { send(LABEL_A) },
            )
            .await;
        let router = router(Webhook { cooldown: SHORT, ..stub.webhook() });
        assert_eq!(ask(&router).await, Err(RouterFailure::InvalidResponse));
        let mut result = ask(&router).await;
        while result == Err(RouterFailure::Skipped) {
            sleep(Duration::from_millis(5)).await;
            result = ask(&router).await;
        }
        assert_eq!(label(&result), "a");
        assert_eq!(stub.received.count(), 2, "it was asked during the cooldown");
        assert_eq!(label(&ask(&router).await), "a");
    });
}

#[test]
fn malformed_response_is_an_invalid_response() {
    run(async {
        let long = ok(&format!(r#"{{"label":"a"{}}}"#, " ".repeat(64 << 10)));
        let unannounced = format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n11000\r\n{}\r\n0\r\n\r\n",
            " ".repeat(0x11000)
        );
        for response in [
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
            ok(r#"{"target_topic":"a\u0001b"}"#),
            long,
            unannounced,
        ] {
            let shown = response.chars().take(60).collect::<String>();
            let stub = Stub::start(move |_| Response::Send(response.clone())).await;
            let router = router(stub.webhook());
            assert_eq!(ask(&router).await, Err(RouterFailure::InvalidResponse), "{shown}");
            assert_eq!(ask(&router).await, Err(RouterFailure::Skipped), "{shown}");
        }
    });
}

#[test]
fn response_of_maximum_length_is_accepted() {
    run(async {
        let text = format!(r#"{{"label":"a"{}}}"#, " ".repeat((64 << 10) - 13));
        let stub = Stub::start(move |_| Response::Send(ok(&text))).await;
        assert_eq!(label(&ask(&router(stub.webhook())).await), "a");
    });
}

#[test]
fn refused_connection_is_unreachable() {
    run(async {
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        for url in [format!("http://{closed}/"), "http://no-such-host.invalid/".to_owned()] {
            let router = router(Webhook { timeout: LONG, ..webhook(&url) });
            assert_eq!(ask(&router).await, Err(RouterFailure::Unreachable), "{url}");
        }
    });
}

#[test]
fn connection_closed_within_the_response_is_unreachable() {
    run(async {
        for response in ["", "HTTP/1.1 200 OK\r\ncontent-le", "HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{\"label\""]
        {
            let stub = Stub::start(move |_| Response::SendAndClose(response.to_owned())).await;
            assert_eq!(ask(&router(stub.webhook())).await, Err(RouterFailure::Unreachable), "{response:?}");
            assert_eq!(stub.received.count(), 1, "a fresh connection is not tried twice");
        }
    });
}

#[test]
fn incomplete_response_times_out() {
    run(async {
        let stub = Stub::start(|_| send("HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{\"label\"")).await;
        let router = router(Webhook { timeout: SHORT, ..stub.webhook() });
        assert_eq!(ask(&router).await, Err(RouterFailure::Timeout));
    });
}

#[test]
fn peer_that_never_reads_times_out_and_is_disconnected() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let router = router(Webhook { timeout: SHORT, cooldown: LONG, ..webhook(&url) });
        // More than the sockets' buffers hold.
        let value = "v".repeat(16 << 20);
        assert_eq!(ask_about(&router, &value).await, Err(RouterFailure::Timeout));
        let (mut peer, _) = listener.accept().await.unwrap();
        let mut rest = Vec::new();
        // An end or a reset: the client has closed the connection either way.
        let _ = timeout(LONG, peer.read_to_end(&mut rest)).await.expect("the connection was left open");
        assert!(rest.len() < value.len());
    });
}

#[test]
fn connection_is_reused() {
    run(async {
        let stub = Stub::start(|_| send(LABEL_A)).await;
        let router = router(stub.webhook());
        for _ in 0..20 {
            assert_eq!(label(&ask(&router).await), "a");
        }
        assert_eq!((stub.received.count(), stub.received.connections.get()), (20, 1));
    });
}

#[test]
fn closed_kept_connection_is_replaced() {
    run(async {
        // The second request on a connection finds it closed, before or after the client can know.
        let stub = Stub::start(|_| Response::SendAndClose(LABEL_A.to_owned())).await;
        let router = router(stub.webhook());
        for _ in 0..20 {
            assert_eq!(label(&ask(&router).await), "a");
        }
        assert_eq!(stub.received.connections.get(), 20);
    });
}

#[test]
fn kept_connection_closed_during_the_request_is_replaced() {
    run(async {
        // The second request is read and gets no response, as if the server had crashed.
        let stub = Stub::start(|n| if n == 1 { Response::SendAndClose(String::new()) } else { send(LABEL_A) }).await;
        let router = router(stub.webhook());
        assert_eq!(label(&ask(&router).await), "a");
        assert_eq!(label(&ask(&router).await), "a");
        assert_eq!((stub.received.count(), stub.received.connections.get()), (3, 2));
    });
}

#[test]
fn requests_beyond_the_concurrency_limit_are_skipped() {
    run(async {
        let stub = Stub::start(|_| Response::Stall).await;
        let router = Rc::new(router(stub.webhook()));
        let open: Vec<_> = (0..64)
            .map(|_| {
                let router = Rc::clone(&router);
                tokio::task::spawn_local(async move { ask(&router).await })
            })
            .collect();
        while stub.received.count() < 64 {
            stub.received.arrived.notified().await;
        }
        assert_eq!(ask(&router).await, Err(RouterFailure::Skipped));
        // A cancelled request makes room for another.
        open[0].abort();
        tokio::task::yield_now().await;
        let next = timeout(SHORT, ask(&router)).await;
        assert!(next.is_err(), "the request was skipped: {next:?}");
    });
}

#[test]
fn matching_rule_decides_without_the_webhook() {
    run(async {
        let stub = Stub::start(|_| send(LABEL_A)).await;
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
        let router = RouterChain::new(RouterSettings { rules, webhook: Some(stub.webhook()) });
        assert!(!router.is_empty());
        assert_eq!(label(&ask(&router).await), "first");
        assert_eq!(stub.received.count(), 0);
    });
}

#[test]
fn rule_matches_only_if_every_condition_holds() {
    run(async {
        let rule = Rule {
            tenant: Some("default".into()),
            labels: [("env".into(), "prod".into()), ("tier".into(), "1".into())].into(),
            target_topic: Some(TopicName::new("t2").unwrap()),
            partition_override: Some(PartitionId(1)),
            meta: [("by".into(), "rule".into())].into(),
            ..Rule::default()
        };
        let router = RouterChain::new(RouterSettings { rules: vec![rule], webhook: None });
        let topic = TopicName::new("t").unwrap();
        let decide = async |tenant: Option<&str>, labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            let envelope = Envelope { tenant_id: tenant.map(Into::into), labels, ..Envelope::default() };
            router
                .route(RouteRequest { topic: &topic, key: "", value: "v", envelope: &envelope }, Company::Alone)
                .await
                .unwrap()
        };
        let all = [("env", "prod"), ("more", "x"), ("tier", "1")];
        for tenant in [None, Some(""), Some("default")] {
            let decision = decide(tenant, &all).await.unwrap();
            assert_eq!(
                (decision.target_topic, decision.partition_override),
                (TopicName::new("t2").ok(), Some(PartitionId(1)))
            );
            assert_eq!(decision.routing.meta.len(), 1);
        }
        assert_eq!(decide(Some("acme"), &all).await, None);
        assert_eq!(decide(None, &all[..2]).await, None);
        assert_eq!(decide(None, &[("env", "dev"), ("tier", "1")]).await, None);
        assert!(RouterChain::new(RouterSettings::default()).is_empty());
    });
}

/// A router of a user's own: decides by the key, or fails.
#[derive(Debug)]
struct ByKey;

impl Router for ByKey {
    fn route<'a>(&'a self, request: RouteRequest<'a>, _: Company) -> RouterFuture<'a> {
        let answer = match request.key {
            "" => Ok(None),
            "fail" => Err(RouterFailure::InvalidResponse),
            key => Ok(Some(RoutingDecision {
                routing: Routing { label: key.into(), meta: Default::default() },
                target_topic: None,
                partition_override: None,
            })),
        };
        Box::pin(std::future::ready(answer))
    }
}

#[test]
fn chain_asks_any_routers_in_order_until_one_decides_or_fails() {
    run(async {
        let rule = Rule { tenant: Some("default".into()), label: "rule".into(), ..Rule::default() };
        let chain = RouterChain::of(vec![Box::new(ByKey), Box::new(Rules::new(vec![rule]))]);
        let topic = TopicName::new("t").unwrap();
        let envelope = Envelope::default();
        let decide = async |key: &str| {
            let request = RouteRequest { topic: &topic, key, value: "v", envelope: &envelope };
            chain.route(request, Company::Alone).await.map(|decision| decision.unwrap().routing.label.to_string())
        };
        assert_eq!(decide("mine").await.as_deref(), Ok("mine"));
        assert_eq!(decide("").await.as_deref(), Ok("rule"));
        assert_eq!(decide("fail").await, Err(RouterFailure::InvalidResponse));
        assert!(RouterChain::of(Vec::new()).is_empty());
    });
}
