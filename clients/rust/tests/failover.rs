//! Clients with several URLs.

use driftq_client::{Client, Produce};
use serde_json::json;
use tokio::net::TcpListener;

use crate::stub::{Reply, Stub};
use crate::support::{client, quick, soon};

fn produced() -> Reply {
    Reply::Json(200, r#"{"topic":"t","partition":0,"offset":1}"#.to_owned())
}

fn with_header(status: u16, header: &str, body: &str) -> Reply {
    let headers = format!("content-type: application/json\r\n{header}\r\n");
    Reply::Raw { status, headers, body: body.as_bytes().to_vec() }
}

fn both(one: &Stub, other: &Stub) -> Client {
    quick(one.url()).url(other.url()).build().expect("a client")
}

async fn produce(client: &Client, times: usize) {
    for _ in 0..times {
        soon("the answer", client.produce(&Produce::new("t", "v").idempotency_key("k"))).await.expect("produced");
    }
}

#[tokio::test]
async fn next_url_is_used_when_the_first_one_refuses_and_stays_in_use() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let dead = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let stub = Stub::replies([produced()]).await;
    let client = quick(dead).url(stub.url()).build().expect("a client");
    produce(&client, 3).await;
    assert_eq!(stub.seen().len(), 3);
}

#[tokio::test]
async fn unavailable_server_sends_requests_to_the_next_url() {
    let ill =
        Stub::replies([Reply::json(503, &json!({"error": "UNAVAILABLE", "message": "", "committed": "no"}))]).await;
    let well = Stub::replies([produced()]).await;
    produce(&both(&ill, &well), 3).await;
    assert_eq!((ill.seen().len(), well.seen().len()), (1, 3));
}

#[tokio::test]
async fn leader_that_an_answer_names_is_preferred() {
    let leader = Stub::replies([produced()]).await;
    let hint = format!("DriftQ-Leader: {}", leader.url());
    let body = r#"{"topic":"t","partition":0,"offset":1}"#;
    let follower = Stub::replies([with_header(200, &hint, body)]).await;
    produce(&both(&follower, &leader), 3).await;
    assert_eq!((follower.seen().len(), leader.seen().len()), (1, 2));
}

#[tokio::test]
async fn leader_that_is_none_of_the_urls_is_not_followed() {
    let stranger = Stub::replies([produced()]).await;
    let hint = format!("DriftQ-Leader: {}", stranger.url());
    let body = r#"{"topic":"t","partition":0,"offset":1}"#;
    let follower = Stub::replies([with_header(200, &hint, body)]).await;
    produce(&client(follower.url()), 2).await;
    assert_eq!((follower.seen().len(), stranger.seen().len()), (2, 0));
}

#[tokio::test]
async fn redirect_is_followed_once_and_without_the_key_to_a_stranger() {
    let stranger = Stub::replies([produced()]).await;
    let location = format!("location: {}/v1/produce", stranger.url());
    let redirecting = Stub::replies([with_header(307, &location, "")]).await;
    let client = quick(redirecting.url()).key("secret").build().expect("a client");
    produce(&client, 1).await;
    assert!(redirecting.seen()[0].headers.contains("authorization"));
    let seen = stranger.seen().remove(0);
    assert_eq!((seen.route().as_str(), seen.headers.contains("authorization")), ("POST /v1/produce", false));

    let leader = Stub::replies([produced()]).await;
    let location = format!("location: {}/v1/produce", leader.url());
    let redirecting = Stub::replies([with_header(307, &location, "")]).await;
    let client = quick(redirecting.url()).url(leader.url()).key("secret").build().expect("a client");
    produce(&client, 2).await;
    assert!(leader.seen()[0].headers.contains("authorization"), "one of the URLs gets the key");
    assert_eq!((redirecting.seen().len(), leader.seen().len()), (1, 2));
}

#[tokio::test]
async fn server_that_redirects_to_one_that_redirects_is_a_protocol_error() {
    let first = Stub::replies([with_header(307, "location: http://127.0.0.1:1/", "")]).await;
    let location = format!("location: {}/v1/produce", first.url());
    let second = Stub::replies([with_header(307, &location, "")]).await;
    let error = client(second.url()).produce(&Produce::new("t", "v")).await.expect_err("refused");
    assert_eq!(error.kind(), driftq_client::ErrorKind::Protocol, "{error}");
}
