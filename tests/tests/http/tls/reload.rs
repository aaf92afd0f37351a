//! New certificates while requests run on kept connections.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use driftq_tests::daemon::Signal;

use super::support::{Authority, Requests, TlsBroker, TlsClient, der, write, write_identity};
use crate::harness::wait_until;

const RELOADED: &str = "driftq_tls_reloads_total{result=\"ok\"}";
const FAILED: &str = "driftq_tls_reloads_total{result=\"failed\"}";

/// Runs requests on kept connections and on a stream, which acks nothing, while `change` runs. None of them may fail.
fn while_requests_run(broker: &TlsBroker, change: impl FnOnce()) {
    let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let client = broker.client();
    let mut stream = client.connect().expect("connected");
    assert_eq!(
        client.connect().and_then(|mut c| c.request("POST", "/v1/topics", r#"{"name":"t"}"#)).expect("made").0,
        201
    );
    stream
        .send(b"GET /v1/consume?topic=t&group=g&owner=w&prefetch=100000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("sent");
    assert_eq!(stream.head().expect("a head").status, 200);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let mut connection = client.connect().expect("connected");
            let (is_over, done) = (&is_over, &done);
            scope.spawn(move || {
                let before = connection.certificate();
                while !is_over.load(Ordering::Relaxed) {
                    let body = r#"{"topic":"t","value":"v"}"#;
                    let status = connection.request("POST", "/v1/produce", body).expect("a response").0;
                    assert_eq!(status, 200);
                    done.fetch_add(1, Ordering::Relaxed);
                }
                assert_eq!(connection.certificate(), before);
            });
        }
        wait_until("requests run", || done.load(Ordering::Relaxed) > 10);
        change();
        let so_far = done.load(Ordering::Relaxed);
        wait_until("requests still run", || done.load(Ordering::Relaxed) > so_far + 10);
        is_over.store(true, Ordering::Relaxed);
    });
    let mut delivered = 0;
    while delivered < done.load(Ordering::Relaxed) {
        let chunk = stream.chunk().expect("the stream goes on").expect("it has not ended");
        delivered += chunk.matches("\"offset\":").count() as u64;
    }
}

/// The certificate of a new connection.
fn shown(client: &TlsClient) -> Vec<u8> {
    client.connect().expect("connected").certificate()
}

#[test]
fn hangup_reloads_the_certificate_and_drops_no_request() {
    let broker = TlsBroker::ready(&["--max-in-flight", "100000"]);
    let second = broker.authority.issue("second");
    while_requests_run(&broker, || {
        // Even if the files are the same.
        broker.server.signal(Signal::HUP);
        broker.server.log_with("the TLS certificate is reloaded");
        write_identity(&broker.cert, &broker.key, &second);
        broker.server.signal(Signal::HUP);
        wait_until("it is shown", || shown(&broker.client()) == der(&second));
    });
    assert!(broker.metric(RELOADED) >= 2.0);
    assert_eq!(broker.metric("driftq_connections"), 1.0);
}

#[test]
fn changed_files_are_read_and_drop_no_request() {
    let broker = TlsBroker::ready(&["--reactors", "2", "--max-in-flight", "100000"]);
    let second = broker.authority.issue("second");
    while_requests_run(&broker, || {
        write_identity(&broker.cert, &broker.key, &second);
        wait_until("it is shown", || shown(&broker.client()) == der(&second));
        for _ in 0..8 {
            assert_eq!(shown(&broker.client()), der(&second), "every reactor shows it");
        }
    });
    assert_eq!((broker.metric(RELOADED), broker.metric(FAILED)), (1.0, 0.0));
}

#[test]
fn every_new_connection_is_served_while_certificates_change() {
    let broker = TlsBroker::ready(&[]);
    let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let client = broker.client();
    let identities = [1, 2, 3].map(|number| broker.authority.issue(&format!("number {number}")));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(client.get("/v1/readyz").expect("a handshake and a response"), 200);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for identity in &identities {
            // Between the two files, certificate and key do not belong to each other.
            write(&broker.cert, &identity.certificate);
            broker.server.signal(Signal::HUP);
            let so_far = done.load(Ordering::Relaxed);
            wait_until("connections are made", || done.load(Ordering::Relaxed) > so_far + 5);
            write(&broker.key, &identity.key);
            broker.server.signal(Signal::HUP);
            wait_until("it is shown", || shown(&broker.client()) == der(identity));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(broker.metric(RELOADED) >= 3.0 && broker.metric(FAILED) >= 1.0);
}

#[test]
fn client_does_not_resume_a_session_of_the_old_certificate() {
    let broker = TlsBroker::ready(&[]);
    let client = broker.client();
    for _ in 0..3 {
        assert_eq!(client.get("/v1/readyz").expect("a response"), 200);
    }
    let second = broker.authority.issue("second");
    write_identity(&broker.cert, &broker.key, &second);
    broker.server.log_with("the TLS certificate is reloaded");
    assert_eq!(shown(&client), der(&second));
}

#[test]
fn bad_pair_is_reported_once_and_the_old_one_stays() {
    let broker = TlsBroker::ready(&[]);
    let before = shown(&broker.client());
    let stranger = broker.authority.issue("stranger");
    write(&broker.cert, &stranger.certificate);
    let log = broker.server.log_with("the TLS certificate is not reloaded");
    assert!(log.contains("ERROR") && log.contains("does not belong to the first certificate"), "{log}");
    assert_eq!(shown(&broker.client()), before);
    broker.server.signal(Signal::HUP);
    wait_until("it is tried again", || broker.metric(FAILED) == 2.0);
    std::fs::remove_file(&broker.key).expect("removed");
    wait_until("it is missed", || broker.metric(FAILED) == 3.0);
    assert_eq!(shown(&broker.client()), before);
    write(&broker.key, &stranger.key);
    wait_until("the pair is complete", || shown(&broker.client()) == der(&stranger));
    assert_eq!((broker.metric(RELOADED), broker.metric(FAILED)), (1.0, 3.0));
    assert_eq!(broker.server.log().matches("is not reloaded").count(), 3);
}

#[test]
fn roots_of_clients_are_read_again() {
    let broker = TlsBroker::with(Authority::new("root"), "[tls]\nclient_ca = CLIENT_CA\n", &[]);
    let (addr, root) = (broker.server.addr, broker.authority.certificate());
    let first = TlsClient::with_identity(addr, &root, &broker.authority.issue("worker"));
    broker.wait_until_ready(&first);
    let other = Authority::new("another");
    let second = TlsClient::with_identity(addr, &root, &other.issue("worker"));
    assert!(second.get("/v1/readyz").is_err());
    write(&broker.cert.with_file_name("ca.crt"), &other.certificate());
    wait_until("its root is accepted", || second.get("/v1/readyz").is_ok());
    assert!(first.get("/v1/readyz").is_err(), "the old root is not");
}
