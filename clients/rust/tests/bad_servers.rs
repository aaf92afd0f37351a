//! Servers that are none, refuse, or are overloaded.

use std::time::{Duration, Instant};

use driftq_client::{Claim, Client, Error, ErrorKind, Produce};
use serde_json::json;
use tokio::net::TcpListener;

use crate::stub::{Reply, Stub};
use crate::support::{Events, client, quick, soon};

const PRODUCED: &str = r#"{"status":"produced","topic":"t","partition":0,"offset":7}"#;

fn produced() -> Reply {
    Reply::Json(200, PRODUCED.to_owned())
}

fn plain() -> Produce {
    Produce::new("t", "v")
}

fn keyed() -> Produce {
    plain().idempotency_key("k")
}

async fn produce_error(stub: &Stub, message: &Produce) -> Error {
    let client = quick(stub.url()).retry_for(Duration::from_millis(300)).build().expect("a client");
    soon("an error", client.produce(message)).await.expect_err("an error")
}

#[tokio::test]
async fn wrong_key_is_unauthenticated_and_not_sent_again() {
    let stub = Stub::replies([Reply::error(401, "UNAUTHENTICATED", "unknown key")]).await;
    let error = produce_error(&stub, &keyed()).await;
    assert_eq!((error.kind(), error.status(), error.code()), (ErrorKind::Unauthenticated, 401, "UNAUTHENTICATED"));
    assert!(!error.retry_is_safe());
    assert_eq!(stub.seen().len(), 1);
}

#[tokio::test]
async fn key_is_shown_to_the_server_and_to_nothing_else() {
    let stub = Stub::replies([produced()]).await;
    let client = quick(stub.url()).key("very-secret").build().expect("a client");
    client.produce(&plain()).await.expect("produced");
    let seen = stub.seen().remove(0);
    assert!(seen.headers.contains("authorization: bearer very-secret"), "{}", seen.headers);
    assert!(seen.headers.contains("user-agent: driftq-rust/0.1.0 contract/1"), "{}", seen.headers);
    assert!(!format!("{client:?}").contains("secret"));
}

#[tokio::test]
async fn forbidden_and_missing_are_told_apart() {
    let stub = Stub::replies([Reply::error(403, "PERMISSION_DENIED", "no")]).await;
    assert_eq!(produce_error(&stub, &keyed()).await.kind(), ErrorKind::PermissionDenied);
    let stub = Stub::replies([Reply::error(404, "NOT_FOUND", "topic \"t\" does not exist")]).await;
    assert_eq!(produce_error(&stub, &keyed()).await.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn wrong_url_is_a_protocol_error_that_shows_what_came() {
    let html = |status| Reply::Raw {
        status,
        headers: "content-type: text/html\r\n".to_owned(),
        body: b"<html>Welcome to nginx</html>".to_vec(),
    };
    for status in [200, 404] {
        let stub = Stub::start_with_version(move |_| html(status)).await;
        let error = produce_error(&stub, &keyed()).await;
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert!(error.message().contains("Welcome to nginx") && error.message().contains("DriftQ"), "{error}");
        assert!(!error.retry_is_safe());
        assert!(stub.seen().is_empty(), "no request but the one for the version");
    }
}

#[tokio::test]
async fn server_that_speaks_no_http_is_a_protocol_error() {
    let stub = Stub::start_with_version(|_| Reply::Bytes(b"SSH-2.0-OpenSSH_9.9\r\n".to_vec())).await;
    let error = produce_error(&stub, &keyed()).await;
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
}

#[tokio::test]
async fn server_of_another_version_is_a_protocol_error_that_names_both() {
    let version = || Reply::json(200, &json!({"version": "9.1.0", "api": "v2"}));
    let stub = Stub::start_with_version(move |_| version()).await;
    let error = produce_error(&stub, &keyed()).await;
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(error.message().contains("API v1") && error.message().contains("9.1.0 has API v2"), "{error}");
    assert!(stub.seen().is_empty());
}

#[tokio::test]
async fn answer_without_its_fields_is_a_protocol_error() {
    for body in ["{}", "not json", "[]", "{\"partition\":\"0\",\"offset\":1}"] {
        let stub = Stub::replies([Reply::Json(200, body.to_owned())]).await;
        let error = produce_error(&stub, &keyed()).await;
        assert_eq!(error.kind(), ErrorKind::Protocol, "{body}");
        assert_eq!(stub.seen().len(), 1, "{body}");
    }
}

#[tokio::test]
async fn url_without_scheme_is_misuse() {
    for url in ["localhost:8080", "", "/v1"] {
        let error = Client::builder().url(url).build().expect_err("misuse");
        assert_eq!((error.kind(), error.status()), (ErrorKind::Misuse, 0), "{url}");
    }
    assert_eq!(Client::builder().build().expect_err("misuse").kind(), ErrorKind::Misuse);
    assert_eq!(Client::builder().url("http://h").key("a\nb").build().expect_err("misuse").kind(), ErrorKind::Misuse);
}

#[tokio::test]
async fn overload_is_waited_for_as_long_as_the_server_asks() {
    let refused = Reply::Raw {
        status: 429,
        headers: "content-type: application/json\r\nretry-after: 1\r\n".to_owned(),
        body: br#"{"error":"RESOURCE_EXHAUSTED","message":"full","reason":"overloaded","retry_after_ms":700}"#.to_vec(),
    };
    let stub = Stub::replies([refused.clone(), produced()]).await;
    let events = Events::default();
    let client = quick(stub.url()).on_event(events.hook()).build().expect("a client");
    let asked = Instant::now();
    assert_eq!(client.produce(&plain()).await.expect("produced").offset, 7);
    assert!(asked.elapsed() >= Duration::from_secs(1), "{:?}", asked.elapsed());
    assert_eq!(events.count("request_retried"), 1);

    let stub = Stub::replies([refused]).await;
    let error = produce_error(&stub, &plain()).await;
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Overloaded, Some("overloaded")));
    assert_eq!(error.retry_after(), Some(Duration::from_millis(700)));
    assert!(error.retry_is_safe());
}

#[tokio::test]
async fn unavailable_server_that_has_done_nothing_is_asked_again() {
    let refused = Reply::json(503, &json!({"error": "UNAVAILABLE", "message": "recovering", "committed": "no"}));
    let stub = Stub::replies([refused.clone(), refused.clone(), produced()]).await;
    client(stub.url()).produce(&plain()).await.expect("produced");
    assert_eq!(stub.seen().len(), 3);

    let stub = Stub::replies([refused]).await;
    let error = produce_error(&stub, &plain()).await;
    assert_eq!((error.kind(), error.status()), (ErrorKind::Unavailable, 503));
    assert!(error.retry_is_safe());
}

#[tokio::test]
async fn unknown_outcome_is_repeated_only_with_an_idempotency_key() {
    let unknown = Reply::error(503, "UNAVAILABLE", "the log has failed");
    let half =
        Reply::Bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\ncontent-type: application/json\r\n\r\n{".to_vec());
    for reply in [unknown, Reply::Cut, half] {
        let stub = Stub::replies([reply.clone(), produced()]).await;
        let error = produce_error(&stub, &plain()).await;
        assert_eq!(error.kind(), ErrorKind::Unknown, "{reply:?}");
        assert!(!error.retry_is_safe());
        assert_eq!(stub.seen().len(), 1, "{reply:?}");

        let stub = Stub::replies([reply.clone(), produced()]).await;
        client(stub.url()).produce(&keyed()).await.expect("produced");
        assert_eq!(stub.seen().len(), 2, "{reply:?}");
    }
}

#[tokio::test]
async fn claim_without_a_token_is_not_repeated() {
    let claim = |token: Option<&str>| Claim {
        topic: "t".into(),
        group: "g".into(),
        partition: 0,
        offset: 1,
        owner: "o".into(),
        lease_token: token.map(ToOwned::to_owned),
    };
    let stub = Stub::replies([Reply::Cut, Reply::ok()]).await;
    let error = client(stub.url()).ack(&claim(None)).await.expect_err("unknown");
    assert_eq!((error.kind(), error.retry_is_safe()), (ErrorKind::Unknown, false));

    let stub = Stub::replies([Reply::Cut, Reply::ok()]).await;
    client(stub.url()).ack(&claim(Some("1"))).await.expect("acked");
    assert_eq!(stub.seen().len(), 2);
    assert_eq!(stub.seen()[0].body, stub.seen()[1].body);
}

#[tokio::test]
async fn silent_server_times_out_with_an_unknown_outcome() {
    let stub = Stub::replies([Reply::Silence]).await;
    let client = quick(stub.url()).timeout(Duration::from_millis(200)).build().expect("a client");
    let error = soon("the timeout", client.produce(&plain())).await.expect_err("timeout");
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert!(error.message().contains("200ms"), "{error}");
}

#[tokio::test]
async fn errors_of_the_request_and_of_the_disk_are_not_repeated() {
    let cases = [
        (400, ErrorKind::Invalid, false),
        (405, ErrorKind::Invalid, false),
        (413, ErrorKind::Invalid, false),
        (422, ErrorKind::Invalid, false),
        (500, ErrorKind::Unknown, true),
        (507, ErrorKind::StorageFull, true),
    ];
    for (status, kind, is_safe) in cases {
        let stub = Stub::replies([Reply::error(status, "CODE", "no"), produced()]).await;
        let error = produce_error(&stub, &keyed()).await;
        assert_eq!((error.kind(), error.retry_is_safe()), (kind, is_safe), "{status}");
        assert_eq!(stub.seen().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn conflicts_are_told_apart() {
    let cases = [
        (json!({"error": "FAILED_PRECONDITION", "message": "stale lease"}), ErrorKind::StaleLease),
        (json!({"error": "FAILED_PRECONDITION", "message": "not owner"}), ErrorKind::StaleLease),
        (json!({"error": "ALREADY_EXISTS", "message": "the topic has 3 partitions"}), ErrorKind::Conflict),
        (
            json!({"error": "FAILED_PRECONDITION", "message": "elsewhere", "decision": "IN_PROGRESS", "retry_after_ms": 5}),
            ErrorKind::InProgress,
        ),
    ];
    for (body, kind) in cases {
        let stub = Stub::replies([Reply::json(409, &body)]).await;
        let error = produce_error(&stub, &keyed()).await;
        assert_eq!(error.kind(), kind, "{body}");
        assert_eq!(error.retry_is_safe(), kind == ErrorKind::InProgress);
    }
}

#[tokio::test]
async fn refused_connection_is_unavailable_and_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let events = Events::default();
    let client = quick(url).retry_for(Duration::from_millis(500)).on_event(events.hook()).build().expect("a client");
    let error = soon("an error", client.produce(&plain())).await.expect_err("refused");
    assert_eq!((error.kind(), error.status()), (ErrorKind::Unavailable, 0));
    assert!(error.retry_is_safe());
    assert!(events.count("request_retried") >= 2, "{:?}", events.all());
}
