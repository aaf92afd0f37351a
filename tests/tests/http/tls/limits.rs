//! Connections per address, with and without TLS.

use super::support::{Authority, Requests, TlsBroker};
use crate::harness::{Server, wait_until};

const TWO: &str = "[http]\nconnections_per_address_max = 2\n";
const REFUSED: &str = "driftq_connections_refused_per_address_total";

#[test]
fn connection_beyond_the_limit_of_its_address_gets_503_before_it_sends() {
    let server = Server::configured(TWO, &[]);
    let mut kept = server.connect();
    assert_eq!(kept.call("GET", "/v1/readyz", &[], "").status, 200);
    let second = server.connect_raw();
    wait_until("two are open", || kept.call("GET", "/metrics", &[], "").body.contains("\ndriftq_connections 2\n"));
    let answer = server.connect_raw().rest();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(
        answer.ends_with("{\"error\":\"UNAVAILABLE\",\"message\":\"too many open connections from this address\"}")
    );
    let metrics = kept.call("GET", "/metrics", &[], "").body;
    assert!(metrics.contains(&format!("\n{REFUSED} 1\n")), "{metrics}");
    assert!(metrics.contains("\ndriftq_connections_refused_total 0\n"), "{metrics}");
    drop(second);
    wait_until("its place is free", || server.try_call("GET", "/v1/readyz", &[], "").is_ok_and(|it| it.status == 200));
}

#[test]
fn loopback_has_no_limit_of_its_own_unless_set() {
    let server = Server::configured("[http]\nconnections_max = 8\n", &[]);
    // Each is open when it has been answered.
    let open: Vec<_> = (0..8)
        .map(|_| {
            let mut connection = server.connect();
            assert_eq!(connection.call("GET", "/v1/healthz", &[], "").status, 200);
            connection
        })
        .collect();
    let answer = server.connect_raw().rest();
    assert!(answer.contains("too many open connections\""), "{answer}");
    drop(open);
}

#[test]
fn refused_connection_with_tls_is_closed() {
    let broker = TlsBroker::with(Authority::new("root"), TWO, &[]);
    let client = broker.client();
    broker.wait_until_ready(&client);
    // The one that asked for readiness may still be open.
    let mut first = None;
    wait_until("there is room", || {
        first = client.connect().ok();
        first.is_some()
    });
    let mut first = first.expect("connected");
    let mut metrics = || first.request("GET", "/metrics", "").expect("metrics").1;
    wait_until("the others are closed", || metrics().contains("\ndriftq_connections 1\n"));
    let mut second = client.connect().expect("connected");
    assert_eq!(second.request("GET", "/v1/healthz", "").expect("a response").0, 200);
    assert!(client.connect().is_err());
    drop(second);
    wait_until("its place is free", || client.connect().is_ok());
    let metrics = metrics();
    assert!(!metrics.contains(&format!("\n{REFUSED} 0\n")), "{metrics}");
}
