//! Faults of single requests.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;

use super::support::{TestBroker, keyed, message};
use crate::harness::wait_until;

#[test]
fn duplicated_request_is_carried_out_twice_and_its_second_answer_counts() {
    let broker = TestBroker::with_chaos("seed=1,duplicate=1");
    broker.create("t");
    let produced = broker.try_post("/v1/produce", message("a")).expect("a response").json();
    assert_eq!(produced, json!({ "status": "produced", "topic": "t", "partition": 0, "offset": 1 }));
    let keyed = broker.try_post("/v1/produce", keyed("b")).expect("a response").json();
    assert_eq!((&keyed["offset"], &keyed["duplicate"]), (&json!(2), &json!(true)));
    let absent = broker.try_call("DELETE", "/v1/topics/t", &[], "").expect("a response");
    assert_eq!(absent.status, 404, "the first one deleted it");
    let played = broker.played("duplicate");
    assert_eq!(played.len(), 4, "{played:?}");
    assert_eq!(played[1]["request"], "POST /v1/produce");
    assert_eq!((&played[1]["occurrence"], &played[1]["detail"]), (&json!(1), &json!({ "of": "request" })));
}

#[test]
fn read_is_not_repeated() {
    let broker = TestBroker::with_chaos("seed=1,duplicate=1");
    assert_eq!(broker.try_call("GET", "/v1/topics", &[], "").expect("a response").status, 200);
    assert_eq!(broker.report()["played"], json!([]));
}

#[test]
fn dropped_reply_cuts_the_connection_of_a_request_that_was_carried_out() {
    let broker = TestBroker::with_chaos("seed=3,drop-reply=0.5");
    broker.create("t");
    let (mut cut, mut answered) = (0, 0);
    let values: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    for value in &values {
        match broker.send_raw(&broker.encode("POST", "/v1/produce", "Connection: close\r\n", &message(value))).as_str()
        {
            "" => cut += 1,
            answer if answer.starts_with("HTTP/1.1 200") => answered += 1,
            other => panic!("neither cut nor answered: {other}"),
        }
    }
    assert!(cut > 3 && answered > 3, "{cut} cut, {answered} answered");
    assert_eq!(broker.values("t"), values, "each was carried out once");
    let produces = broker.played("drop-reply").into_iter().filter(|played| played["request"] == "POST /v1/produce");
    assert_eq!(produces.count(), cut);
}

#[tokio::test]
async fn dropped_reply_resets_only_its_own_stream_of_http2() {
    let chaos = "seed=5,drop-reply=0.5".parse().expect("valid");
    let broker = driftq_server::testing::Broker::builder().chaos(chaos).start().await.expect("it starts");
    let socket = tokio::net::TcpStream::connect(broker.addr()).await.expect("connected");
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket));
    let (mut sender, connection) = handshake.await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let (mut reset, mut answered) = (0, 0);
    for number in 0..20 {
        let request = hyper::Request::post(format!("{}/v1/topics", broker.url()));
        let body = Full::new(Bytes::from(json!({ "name": format!("t{number}") }).to_string()));
        match sender.send_request(request.body(body).expect("a request")).await {
            Ok(response) => {
                assert_eq!(response.status(), 201);
                response.into_body().collect().await.expect("a body");
                answered += 1;
            }
            Err(_) => reset += 1,
        }
    }
    assert!(reset > 3 && answered > 3, "{reset} reset, {answered} answered");
    assert!(!connection.is_finished(), "the connection goes on");
    broker.stop().await;
}

#[test]
fn delay_holds_a_request_or_its_answer_as_long_as_it_is_listed() {
    let broker = TestBroker::with_chaos("seed=1,delay=1");
    let mut kinds = std::collections::BTreeSet::new();
    for number in 0..8 {
        let began = Instant::now();
        broker.create(&format!("t{number}"));
        let took = began.elapsed();
        let played = broker.played("delay").pop().expect("it was delayed");
        let ms = played["detail"]["ms"].as_u64().expect("a number");
        assert!((1..=250).contains(&ms) && took >= Duration::from_millis(ms), "{played} took {took:?}");
        kinds.insert(played["detail"]["of"].as_str().expect("a text").to_owned());
    }
    assert_eq!(kinds, ["answer", "request"].map(str::to_owned).into());
}

#[test]
fn reordered_request_waits_for_a_later_one() {
    const CHAOS: &str = "seed=1,reorder=0.5";
    let values: Vec<String> = (0..12).map(|number| number.to_string()).collect();
    let trial = TestBroker::with_chaos(CHAOS);
    trial.create("t");
    let is_reordered = |value: &String| {
        let before = trial.played("reorder").len();
        trial.until_answered("POST", "/v1/produce", &message(value));
        trial.played("reorder").len() > before
    };
    let (slow, fast): (Vec<&String>, Vec<&String>) = values.iter().partition(|value| is_reordered(value));
    assert!(slow.len() > 2 && fast.len() > 2, "{slow:?}");
    let broker = TestBroker::with_chaos(CHAOS);
    broker.create("t");
    // Where the machine is slow, the second one may come too late.
    let is_overtaken = |(slow, fast): (&&String, &&String)| {
        let played = broker.played("reorder").len();
        std::thread::scope(|scope| {
            scope.spawn(|| broker.until_answered("POST", "/v1/produce", &message(slow)));
            broker.wait_for_played("reorder", played + 1);
            broker.until_answered("POST", "/v1/produce", &message(fast));
        });
        broker.values("t").ends_with(&[(*fast).clone(), (*slow).clone()])
    };
    assert!(slow.iter().zip(&fast).any(is_overtaken), "{:?}", broker.values("t"));
}

#[test]
fn exempt_requests_suffer_nothing() {
    let broker = TestBroker::with_chaos("seed=1,duplicate=1,drop-reply=1,delay=1,reorder=1,restart=1");
    for path in ["/v1/healthz", "/v1/version", "/metrics", "/v1/chaos", "/v1/chaos?after=7"] {
        assert_eq!(broker.try_call("GET", path, &[], "").expect("a response").status, 200, "{path}");
    }
    let version = broker.try_call("GET", "/v1/version", &[], "").expect("a response").json();
    assert_eq!(version["wal_enabled"], false, "nothing survives the process");
    assert_eq!(broker.report()["played"], json!([]));
}

#[test]
fn report_begins_after_a_number_and_refuses_what_is_none() {
    let broker = TestBroker::with_chaos("seed=9,duplicate=1");
    (0..3).for_each(|number| broker.create(&format!("t{number}")));
    let numbers = |target: &str| -> Vec<u64> {
        let reply = broker.try_call("GET", target, &[], "").expect("a response").json();
        reply["played"].as_array().expect("a list").iter().map(|played| played["n"].as_u64().expect("n")).collect()
    };
    assert_eq!(numbers("/v1/chaos"), [1, 2, 3]);
    assert_eq!(numbers("/v1/chaos?after=1"), [2, 3]);
    assert_eq!(numbers("/v1/chaos?after=3"), [] as [u64; 0]);
    let report = broker.report();
    assert_eq!((&report["settings"]["seed"], &report["counts"]["duplicate"]), (&json!(9), &json!(3)));
    let refused = broker.try_call("GET", "/v1/chaos?after=x", &[], "").expect("a response");
    assert_eq!((refused.status, &refused.json()["error"]), (400, &json!("INVALID_ARGUMENT")));
    let refused = broker.try_call("POST", "/v1/chaos", &[], "").expect("a response");
    assert_eq!((refused.status, refused.header("allow")), (405, Some("GET")));
}

#[test]
fn broker_without_chaos_has_no_report() {
    let broker = TestBroker::start(driftq_server::testing::Broker::builder());
    let reply = broker.try_call("GET", "/v1/chaos", &[], "").expect("a response");
    assert_eq!((reply.status, &reply.json()["error"]), (404, &json!("NOT_FOUND")));
    broker.stop();
}

#[test]
fn request_is_carried_out_although_its_client_gave_up() {
    let broker = TestBroker::with_chaos("seed=1,delay=1");
    broker.create("t");
    // One whose request is held, and not its answer.
    let is_held = |value: &u64| {
        let mut connection = broker.connect_raw();
        let played = broker.played("delay").len();
        let request = broker.encode("POST", "/v1/produce", "", &message(&value.to_string()));
        connection.send(request.as_bytes()).expect("sent");
        broker.wait_for_played("delay", played + 1);
        broker.played("delay")[played]["detail"]["of"] == "request"
    };
    let held = (0..20).find(is_held).expect("half of them are").to_string();
    wait_until("the message", || broker.values("t").contains(&held));
}

#[test]
fn body_beyond_the_limit_is_refused_before_it_is_known() {
    let chaos = "seed=1,drop-reply=1".parse().expect("valid");
    let config = "[http]\nbody_bytes_max = 1024";
    let broker = TestBroker::start(driftq_server::testing::Broker::builder().chaos(chaos).config(config));
    let refused = broker.try_post("/v1/produce", "x".repeat(1_025)).expect("a response");
    assert_eq!((refused.status, &refused.json()["error"]), (413, &json!("PAYLOAD_TOO_LARGE")));
    assert!(refused.header("x-request-id").is_some());
}
