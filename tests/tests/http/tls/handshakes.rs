//! Versions, cipher suites and protocols; requests without TLS; handshakes that do not end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use tokio_rustls::TlsConnector;

use super::support::{Authority, Requests, TlsBroker, TlsClient};
use crate::harness::{TIMEOUT, wait_until};

/// The first bytes of a ClientHello: a record that is announced and does not come.
const BEGINNING: &[u8] = &[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];

/// Whether `openssl s_client` completes a handshake with these arguments, and what it prints.
pub(super) fn openssl(broker: &TlsBroker, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &broker.server.addr.to_string()]).args(arguments);
    let output = command.stdin(Stdio::null()).output().expect("openssl runs");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (text.contains("Cipher is ") && !text.contains("Cipher is (NONE)"), text)
}

pub(super) fn has_openssl() -> bool {
    Command::new("openssl").arg("version").output().is_ok_and(|output| output.status.success())
}

#[test]
fn versions_1_2_and_1_3_are_spoken() {
    let broker = TlsBroker::ready(&[]);
    for version in [&TLS12, &TLS13] {
        let client = TlsClient::with_version(broker.server.addr, &broker.authority.certificate(), version);
        let mut connection = client.connect().expect("connected");
        for _ in 0..3 {
            assert_eq!(connection.request("GET", "/v1/readyz", "").expect("a response").0, 200);
        }
        assert_eq!(connection.socket().conn.protocol_version(), Some(version.version));
    }
}

#[test]
fn old_versions_and_weak_ciphers_are_refused() {
    if !has_openssl() {
        println!("skipped: old versions and weak ciphers, because there is no openssl");
        return;
    }
    let broker = TlsBroker::ready(&[]);
    for accepted in [&["-tls1_3"][..], &["-tls1_2"], &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"]] {
        let (is_accepted, text) = openssl(&broker, accepted);
        assert!(is_accepted, "{accepted:?}: {text}");
    }
    for refused in [
        &["-tls1", "-cipher", "ALL:@SECLEVEL=0"][..],
        &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"],
        &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA"],
        &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-SHA384"],
        &["-tls1_2", "-cipher", "AES128-GCM-SHA256"],
        &["-tls1_2", "-cipher", "NULL:@SECLEVEL=0"],
        &["-tls1_2", "-cipher", "ADH:AECDH:@SECLEVEL=0"],
    ] {
        let (is_accepted, text) = openssl(&broker, refused);
        assert!(!is_accepted, "{refused:?}: {text}");
    }
    assert!(broker.failed("incompatible") >= 4.0);
}

#[test]
fn protocol_is_chosen_by_alpn() {
    let broker = TlsBroker::ready(&[]);
    for (offered, chosen) in [
        (&["http/1.1"][..], Some("http/1.1")),
        (&["http/1.1", "h2"], Some("h2")),
        (&["spdy/3", "http/1.1"], Some("http/1.1")),
        (&[], None),
    ] {
        let mut client = broker.client();
        client.config.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
        let mut connection = client.connect().expect("connected");
        assert_eq!(connection.socket().conn.alpn_protocol(), chosen.map(str::as_bytes), "{offered:?}");
        if chosen != Some("h2") {
            assert_eq!(connection.request("GET", "/v1/readyz", "").expect("a response").0, 200);
        }
    }
    let mut client = broker.client();
    client.config.alpn_protocols = vec![b"spdy/3".to_vec()];
    assert!(client.connect().is_err(), "no protocol in common");
    assert_eq!(broker.failed("incompatible"), 1.0);
}

#[test]
fn http2_is_served() {
    let broker = TlsBroker::ready(&[]);
    let mut config = broker.client().config;
    config.alpn_protocols = vec![b"h2".to_vec()];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let socket = tokio::net::TcpStream::connect(broker.server.addr).await.expect("connected");
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await.expect("a handshake");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let io = TokioIo::new(stream);
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.expect("HTTP/2");
        let connection = tokio::spawn(connection);
        for target in ["/v1/readyz", "/v1/openapi.json"] {
            let request = Request::get(format!("https://localhost{target}")).body(Empty::<bytes::Bytes>::new());
            let response = sender.send_request(request.expect("a request")).await.expect("a response");
            assert_eq!(response.status(), 200);
            let body = response.into_body().collect().await.expect("a body").to_bytes();
            assert!(body.starts_with(b"{"), "{target}");
        }
        drop(sender);
        connection.await.expect("it ends").expect("without an error");
    });
}

#[test]
fn request_without_tls_is_told_so() {
    let broker = TlsBroker::ready(&[]);
    for request in ["GET /v1/readyz HTTP/1.1\r\nHost: localhost\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let answer = broker.server.send_raw(request.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
        assert!(answer.ends_with("this port takes TLS only: use an https:// URL\"}"), "{answer}");
    }
    assert_eq!(broker.failed("plain_http"), 2.0);
    let _ = broker.server.send_raw(b"\x16\x03\x01\x00\x04nope");
    let _ = broker.server.send_raw(b"\x00\x01\x02\x03\x04\x05\x06\x07");
    wait_until("both are counted", || broker.failed("malformed") == 2.0);
    drop(broker.server.connect_raw());
    wait_until("it is counted", || broker.failed("closed") >= 1.0);
}

#[test]
fn handshake_that_is_too_slow_is_cut() {
    let broker = TlsBroker::with(Authority::new("root"), "[tls]\nhandshake_timeout_ms = 500\n", &[]);
    broker.wait_until_ready(&broker.client());
    let begun = Instant::now();
    let mut sockets: Vec<TcpStream> =
        (0..2).map(|_| TcpStream::connect(broker.server.addr).expect("connected")).collect();
    sockets[1].write_all(BEGINNING).expect("sent");
    for socket in &mut sockets {
        socket.set_read_timeout(Some(TIMEOUT)).expect("set");
        assert!(socket.read(&mut [0]).is_ok_and(|read| read == 0), "it is closed");
        let took = begun.elapsed();
        assert!((500..4_000).contains(&took.as_millis()), "{took:?}");
    }
    assert_eq!(broker.failed("timeout"), 2.0);
    // A byte now and then does not prolong it.
    let (begun, mut socket) = (Instant::now(), TcpStream::connect(broker.server.addr).expect("connected"));
    let end = begun + TIMEOUT;
    let mut bytes = BEGINNING.iter().chain(std::iter::repeat(&0));
    while Instant::now() < end && socket.write_all(&[*bytes.next().expect("endless")]).is_ok() {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[test]
fn stalled_handshakes_do_not_stop_others() {
    let toml = "[tls]\nhandshakes_max = 100\n";
    let broker = TlsBroker::with(Authority::new("root"), toml, &["--reactors", "2"]);
    let client = broker.client();
    broker.wait_until_ready(&client);
    let mut kept = client.connect().expect("connected");
    let stall = |_| {
        let mut socket = TcpStream::connect(broker.server.addr).expect("connected");
        socket.write_all(BEGINNING).expect("sent");
        socket
    };
    let stalled: Vec<TcpStream> = (0..200).map(stall).collect();
    let begun = Instant::now();
    for _ in 0..20 {
        assert_eq!(kept.request("GET", "/v1/readyz", "").expect("a response").0, 200);
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "open connections go on: {:?}", begun.elapsed());
    // Twice as many as there may be: each waits for a second at most per round of those before it.
    let begun = Instant::now();
    for _ in 0..5 {
        assert_eq!(client.get("/v1/readyz").expect("a response"), 200);
    }
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    assert!(broker.metric("driftq_tls_handshakes") <= 100.0);
    assert!(broker.failed("displaced") >= 100.0);
    drop(stalled);
    wait_until("their places are free", || broker.metric("driftq_tls_handshakes") == 0.0);
}

#[test]
fn stop_does_not_wait_for_handshakes() {
    let mut broker = TlsBroker::ready(&[]);
    let mut socket = TcpStream::connect(broker.server.addr).expect("connected");
    socket.write_all(BEGINNING).expect("sent");
    wait_until("it has begun", || broker.metric("driftq_tls_handshakes") == 1.0);
    let begun = Instant::now();
    assert_eq!(broker.server.terminate().code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}
