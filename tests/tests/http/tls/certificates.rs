//! Certificates of the broker and of clients, and files that cannot be used.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use rcgen::{SanType, date_time_ymd};

use super::support::{Authority, Identity, Requests, TlsBroker, TlsClient, der, text, write, write_identity};
use crate::harness::{driftqd, wait_until};

#[test]
fn client_refuses_certificate_of_another_authority_or_that_has_expired() {
    let broker = TlsBroker::ready(&[]);
    let stranger = TlsClient::new(broker.server.addr, &Authority::new("another").certificate());
    assert!(stranger.connect().is_err());
    wait_until("its alert is counted", || broker.failed("alert") == 1.0);
    assert_eq!(broker.metric("driftq_tls_certificate_expires_timestamp_seconds"), 4_102_444_800.0);
    let expired = broker.authority.issue_with("old", |params| params.not_after = date_time_ymd(2021, 1, 1));
    let mut kept = broker.client().connect().expect("connected");
    write_identity(&broker.cert, &broker.key, &expired);
    broker.server.log_with("the certificate in");
    assert!(broker.server.log().contains("has expired"), "{}", broker.server.log());
    let refused = broker.client().connect().expect_err("it has expired");
    assert!(refused.to_string().contains("xpired"), "{refused}");
    assert_eq!(kept.request("GET", "/v1/readyz", "").expect("a response").0, 200);
}

#[test]
fn client_without_an_accepted_certificate_is_refused() {
    let toml = "[tls]\nclient_ca = CLIENT_CA\n";
    let broker = TlsBroker::with(Authority::new("root"), toml, &["--log-level", "debug"]);
    let (addr, root) = (broker.server.addr, broker.authority.certificate());
    let named = broker.authority.issue_with("worker", |params| {
        let uri = SanType::URI("spiffe://example/worker".try_into().expect("ASCII"));
        params.subject_alt_names = vec![SanType::DnsName("worker.example".try_into().expect("ASCII")), uri];
    });
    let client = TlsClient::with_identity(addr, &root, &named);
    broker.wait_until_ready(&client);
    let log = broker.server.log_with("the client has shown a certificate");
    assert!(log.contains("spiffe://example/worker") && log.contains("worker.example"), "{log}");

    let expired = broker.authority.issue_with("old", |params| params.not_after = date_time_ymd(2021, 1, 1));
    let stranger = Authority::new("another").issue("worker");
    let mut refused = vec![TlsClient::new(addr, &root)];
    refused.extend([&expired, &stranger].map(|identity| TlsClient::with_identity(addr, &root, identity)));
    for (number, client) in refused.iter().enumerate() {
        // With TLS 1.3 the client's side is complete before the broker refuses it.
        let answered = client.connect().and_then(|mut connection| connection.request("GET", "/v1/readyz", ""));
        assert!(answered.is_err(), "{number}: {answered:?}");
    }
    let failed = "driftq_tls_handshakes_failed_total{reason=\"client_certificate\"} 3\n";
    let metrics = client.connect().and_then(|mut connection| connection.request("GET", "/metrics", ""));
    assert!(metrics.expect("metrics").1.contains(failed));
}

/// The message with which a broker refuses these files.
fn refusal(cert: &Path, key: &Path, client_ca: Option<&Path>) -> String {
    let mut command = Command::new(driftqd());
    command.args(["config", "--tls-cert", text(cert), "--tls-key", text(key)]);
    if let Some(path) = client_ca {
        command.args(["--tls-client-ca", text(path)]);
    }
    let output = command.env_clear().output().expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).expect("UTF-8")
}

#[test]
fn file_that_cannot_be_used_is_named_with_its_problem_and_without_its_content() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let Identity { certificate, key } = Authority::new("root").issue("broker");
    let other = Authority::new("root").issue("other");
    let secret = key.lines().nth(1).expect("base64").to_owned();
    write(&path("cert"), &certificate);
    write(&path("key"), &key);
    write(&path("other"), &other.key);
    write(&path("empty"), "");
    write(&path("cut"), &key[..key.len() - 40]);
    write(&path("garbled"), &key.replace(&secret, &format!("{secret}?")));
    write(&path("encrypted"), &key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"));
    write(&path("no-x509"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    write(&path("begin"), &format!("-----BEGIN {secret}"));
    std::fs::create_dir(path("folder")).expect("created");
    for (cert, key, client_ca, expected) in [
        ("missing", "key", None, "tls.cert: cannot read FOLDER/missing: No such file"),
        ("cert", "missing", None, "tls.key: cannot read FOLDER/missing: No such file"),
        ("cert", "key", Some("missing"), "tls.client_ca: cannot read FOLDER/missing: No such file"),
        ("folder", "key", None, "tls.cert: FOLDER/folder: it is not a regular file"),
        ("empty", "key", None, "tls.cert: FOLDER/empty: there is no certificate in it"),
        ("key", "key", None, "tls.cert: FOLDER/key: there is no certificate in it"),
        ("no-x509", "key", None, "tls.cert: FOLDER/no-x509: the first certificate cannot be parsed"),
        ("cert", "cert", None, "tls.key: FOLDER/cert: there is no private key in it"),
        ("cert", "encrypted", None, "tls.key: FOLDER/encrypted: its private key is encrypted"),
        ("cert", "cut", None, "tls.key: FOLDER/cut: it is not valid PEM: a section has no END line"),
        ("cert", "garbled", None, "tls.key: FOLDER/garbled: it is not valid PEM: a section is not base64"),
        ("cert", "begin", None, "tls.key: FOLDER/begin: it is not valid PEM"),
        (
            "cert",
            "other",
            None,
            "tls.key: the key in FOLDER/other does not belong to the first certificate in FOLDER/cert",
        ),
        ("cert", "key", Some("empty"), "tls.client_ca: FOLDER/empty: there is no certificate in it"),
        ("cert", "key", Some("no-x509"), "tls.client_ca: FOLDER/no-x509: a certificate in it cannot be a root"),
    ] {
        let message = refusal(&path(cert), &path(key), client_ca.map(path).as_deref());
        let expected = format!("driftqd: {}", expected.replace("FOLDER", text(folder.path())));
        assert!(message.starts_with(&expected), "{message}");
        assert!(!message.contains(&secret) && !message.contains(&secret[..20]), "{message}");
    }
}

#[test]
fn key_that_others_can_read_is_warned_of() {
    let broker = TlsBroker::ready(&[]);
    assert!(!broker.server.log().contains("WARN tls.key"), "{}", broker.server.log());
    std::fs::set_permissions(&broker.key, std::fs::Permissions::from_mode(0o644)).expect("set");
    let log = broker.server.log_with("every user of this machine can read");
    assert!(log.contains("WARN tls.key") && log.contains(text(&broker.key)), "{log}");
}

#[test]
fn chain_is_sent_whole() {
    let broker = TlsBroker::ready(&[]);
    let identity = broker.authority.issue("with its root");
    let chain = format!("{}{}", identity.certificate, broker.authority.certificate());
    write_identity(&broker.cert, &broker.key, &Identity { certificate: chain, key: identity.key.clone() });
    broker.server.log_with("the TLS certificate is reloaded");
    let mut connection = broker.client().connect().expect("connected");
    assert_eq!(connection.certificate(), der(&identity));
    assert_eq!(connection.socket().conn.peer_certificates().map(<[_]>::len), Some(2));
}
