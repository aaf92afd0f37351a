//! `load produce --tls` and over `https`, and `load crowd`, against the real broker.

use std::path::Path;

use driftq_tests::daemon::{Launcher, driftqd};
use rcgen::CertifiedKey;
use tempfile::TempDir;

use super::{assert_empty, load, path_str, wait_for};

#[test]
fn produce_with_tls_is_compared_with_plain_in_one_run() {
    let disk = TempDir::new().expect("a folder");
    let program = driftqd().expect("built");
    let args = ["produce", "--tls", "--seconds", "1", "--connections", "4", "--driftqd", path_str(&program)];
    let run = load(&[&args[..], &["--dir", path_str(disk.path())]].concat());
    run.expect_success();
    for name in ["plain    ", "tls      "] {
        assert!(
            run.stdout.lines().any(|line| line.starts_with(name) && line.ends_with("messages/s")),
            "{}",
            run.stdout
        );
    }
    let ratio: f64 = run.last_line().strip_prefix("ratio ").and_then(|text| text.parse().ok()).expect("a ratio");
    assert!(ratio > 0.01, "{ratio}");
    assert_empty(disk.path());
}

/// A broker with TLS, and the file of its certificate.
fn broker(folder: &Path) -> (driftq_tests::daemon::Daemon, String) {
    let CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("made");
    let (cert_path, key_path) = (folder.join("tls.crt"), folder.join("tls.key"));
    std::fs::write(&cert_path, cert.pem()).expect("written");
    std::fs::write(&key_path, signing_key.serialize_pem()).expect("written");
    let args = ["--log-level", "debug", "--tls-cert", path_str(&cert_path), "--tls-key", path_str(&key_path)];
    let program = driftqd().expect("built");
    let mut daemon =
        Launcher::new(&program, &folder.join("data"), &folder.join("log")).args(&args).launch().expect("started");
    daemon.wait_until_listening().expect("it listens");
    wait_for("it is ready", || daemon.log().contains("ready").then_some(()));
    (daemon, path_str(&cert_path).to_owned())
}

#[test]
fn running_broker_with_tls_is_driven_if_its_certificate_is_trusted() {
    let folder = TempDir::new().expect("a folder");
    let (daemon, cert) = broker(folder.path());
    let url = format!("https://{}", daemon.addr());
    let produce =
        |more: &[&str]| load(&[&["produce", "--seconds", "0.3", "--connections", "2", "--url", &url], more].concat());
    produce(&["--ca", &cert]).expect_success();
    produce(&["--insecure"]).expect_success();
    let (_other, other) = {
        let other = TempDir::new().expect("a folder");
        let CertifiedKey { cert, .. } = rcgen::generate_simple_self_signed(["other".to_owned()]).expect("made");
        let path = other.path().join("other.crt");
        std::fs::write(&path, cert.pem()).expect("written");
        (other, path_str(&path).to_owned())
    };
    for (more, expected) in [
        (&["--ca", &*other][..], "invalid peer certificate"),
        (&[], "add --ca FILE"),
        (&["--ca", "nowhere"], "nowhere"),
    ] {
        let run = produce(more);
        assert!(run.code == Some(1) && run.stderr.contains(expected), "{more:?}: {}", run.stderr);
    }
    let run = load(&["consume", "--url", &url, "--insecure"]);
    assert!(run.code == Some(1) && run.stderr.contains("this mode speaks plain HTTP"), "{}", run.stderr);
}

#[test]
fn crowd_of_each_kind_is_opened_and_measured() {
    let disk = TempDir::new().expect("a folder");
    let args = ["crowd", "--connections", "60", "--seconds", "0.2", "--turns", "2", "--rate", "100"];
    let program = driftqd().expect("built");
    let run = load(&[&args[..], &["--driftqd", path_str(&program), "--dir", path_str(disk.path())]].concat());
    run.expect_success();
    for kind in ["silent", "head", "body", "hello", "tls"] {
        let line = format!("{kind:<8} 60 connections, of which at the end 60, 60 were open");
        assert!(run.stdout.lines().any(|found| found == line), "{kind}: {}", run.stdout);
    }
    assert_eq!(run.stdout.matches("RSS + ").count(), 5, "{}", run.stdout);
    assert_eq!(run.stdout.matches("goal 2.00: ").count(), 5, "{}", run.stdout);
    assert_empty(disk.path());
}
