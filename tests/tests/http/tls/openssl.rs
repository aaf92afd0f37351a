//! Certificates, renegotiation and early data with another implementation of TLS than the broker's: `openssl s_client`.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use driftq_tests::daemon::KillOnDrop;
use rcgen::date_time_ymd;

use super::handshakes::{has_openssl, openssl};
use super::support::{Authority, Identity, Requests, TlsBroker, TlsClient, text, write, write_identity};
use crate::harness::wait_until;

/// Skips the test where there is no openssl.
macro_rules! need_openssl {
    ($what:literal) => {
        if !has_openssl() {
            println!(concat!("skipped: ", $what, ", because there is no openssl"));
            return;
        }
    };
}

/// Whether a client that verifies what it is shown, with these arguments, completes a handshake.
fn verifies(broker: &TlsBroker, arguments: &[&str]) -> (bool, String) {
    let root = broker.cert.with_file_name("ca.crt");
    let (is_accepted, text) = openssl(broker, &[&["-CAfile", text(&root), "-verify_return_error"], arguments].concat());
    (is_accepted && text.contains("Verification: OK"), text)
}

#[test]
fn openssl_verifies_the_certificate_and_refuses_another_name_and_one_that_has_expired() {
    need_openssl!("verification by openssl");
    let broker = TlsBroker::ready(&[]);
    for version in ["-tls1_2", "-tls1_3"] {
        let (is_verified, text) = verifies(&broker, &[version, "-verify_hostname", "localhost"]);
        assert!(is_verified, "{version}: {text}");
        let (is_verified, text) = verifies(&broker, &[version, "-verify_hostname", "other.example"]);
        assert!(!is_verified && text.contains("hostname mismatch"), "{version}: {text}");
    }
    let expired = broker.authority.issue_with("old", |params| params.not_after = date_time_ymd(2021, 1, 1));
    write_identity(&broker.cert, &broker.key, &expired);
    broker.server.log_with("has expired");
    for version in ["-tls1_2", "-tls1_3"] {
        let (is_verified, text) = verifies(&broker, &[version]);
        assert!(!is_verified && text.contains("certificate has expired"), "{version}: {text}");
    }
}

#[test]
fn openssl_refuses_a_certificate_of_another_authority() {
    need_openssl!("verification by openssl");
    let broker = TlsBroker::ready(&[]);
    write(&broker.cert.with_file_name("ca.crt"), &Authority::new("another").certificate());
    let (is_verified, text) = verifies(&broker, &[]);
    assert!(!is_verified && text.contains("verify error"), "{text}");
}

#[test]
fn certificate_of_a_client_is_required_and_verified_by_either_version() {
    need_openssl!("certificates of clients from openssl");
    let broker = TlsBroker::with(Authority::new("root"), "[tls]\nclient_ca = CLIENT_CA\n", &[]);
    let worker = broker.authority.issue("worker");
    broker.wait_until_ready(&TlsClient::with_identity(broker.server.addr, &broker.authority.certificate(), &worker));
    let expired = broker.authority.issue_with("old", |params| params.not_after = date_time_ymd(2021, 1, 1));
    let early = broker.authority.issue_with("early", |params| params.not_before = date_time_ymd(2099, 1, 1));
    let stranger = Authority::new("another").issue("worker");
    // A request is sent, since with TLS 1.3 the handshake is complete for the client before the broker refuses it.
    let answered = |identity: Option<&Identity>, version: &str| {
        let (cert, key) = (broker.cert.with_file_name("c.crt"), broker.cert.with_file_name("c.key"));
        let mut arguments = vec![version];
        if let Some(identity) = identity {
            write_identity(&cert, &key, identity);
            arguments.extend(["-cert", text(&cert), "-key", text(&key)]);
        }
        request(&broker, &arguments).contains("HTTP/1.1 200")
    };
    for version in ["-tls1_2", "-tls1_3"] {
        assert!(answered(Some(&worker), version), "{version}");
        for (name, refused) in
            [("none", None), ("expired", Some(&expired)), ("early", Some(&early)), ("stranger", Some(&stranger))]
        {
            assert!(!answered(refused, version), "{version}: {name}");
        }
    }
}

/// What a client prints that sends a request for `readyz` and waits for the end of the connection.
fn request(broker: &TlsBroker, arguments: &[&str]) -> String {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &broker.server.addr.to_string(), "-ign_eof"]).args(arguments);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("openssl runs");
    // The broker may refuse the client first.
    let request = b"GET /v1/readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut input = child.stdin.take().expect("piped");
    let _ = input.write_all(request);
    let output = child.wait_with_output().expect("it ends");
    drop(input);
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn renegotiation_is_not_answered_and_costs_others_nothing() {
    need_openssl!("renegotiation");
    let broker = TlsBroker::with(Authority::new("root"), "[http]\nhead_timeout_ms = 500\n", &[]);
    broker.wait_until_ready(&broker.client());
    let mut command = Command::new("openssl");
    command.args(["s_client", "-tls1_2", "-connect", &broker.server.addr.to_string()]);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = KillOnDrop(child.expect("openssl runs"));
    let mut input = child.0.stdin.take().expect("piped");
    // A line of this one character is a command of s_client. The broker does not answer it: the connection is idle.
    input.write_all(b"R\n").expect("written");
    wait_until("it is closed", || child.0.try_wait().expect("it runs").is_some());
    let (mut text, mut errors) = (String::new(), String::new());
    child.0.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
    child.0.stderr.take().expect("piped").read_to_string(&mut errors).expect("text");
    assert!(text.contains("Cipher is ECDHE"), "the first handshake is complete: {text}{errors}");
    let (_, after) = errors.split_once("RENEGOTIATING").or(text.split_once("RENEGOTIATING")).expect("it was asked for");
    assert!(!after.contains("verify return"), "no second certificate is shown: {after}");
    assert_eq!(broker.client().get("/v1/readyz").expect("a response"), 200);
}

#[test]
fn early_data_which_could_be_replayed_is_not_accepted() {
    need_openssl!("early data");
    let broker = TlsBroker::ready(&[]);
    let session = broker.cert.with_file_name("session");
    let early = broker.cert.with_file_name("early");
    write(&early, "POST /v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 13\r\n\r\n{\"name\":\"rp\"}");
    let first = request(&broker, &["-tls1_3", "-sess_out", text(&session)]);
    assert!(first.contains("HTTP/1.1 200"), "{first}");
    let second = request(&broker, &["-tls1_3", "-sess_in", text(&session), "-early_data", text(&early)]);
    assert!(!second.contains("Early data was accepted"), "{second}");
    let mut connection = broker.client().connect().expect("connected");
    assert_eq!(connection.request("GET", "/v1/topics/rp", "").expect("a response").0, 404);
}
