//! Settings of the export, and what of them is sent and shown.

use super::broker::{Broker, PRODUCER};
use super::collector::{Behavior, Collector, wait_until};

#[test]
fn headers_and_the_path_of_the_endpoint_are_sent() {
    let collector = Collector::start(Behavior::Accepts);
    let endpoint = format!("{}/tenant/a/", collector.endpoint);
    let flags =
        ["--otlp-header", "Authorization=Bearer SECRET=", "--otlp-header", "x-scope=b", "--otlp-interval-ms", "100"];
    let broker = Broker::start(&endpoint, &flags);
    broker.post("/v1/topics", Some(PRODUCER), r#"{"name":"t"}"#);
    let paths = || collector.exports().into_iter().map(|export| export.path).collect::<Vec<_>>();
    wait_until(|| {
        let paths = paths();
        ["/tenant/a/v1/traces", "/tenant/a/v1/metrics"].iter().all(|path| paths.iter().any(|found| found == path))
    });
    for export in collector.exports() {
        let head = export.head.to_ascii_lowercase();
        for line in ["authorization: bearer secret=", "x-scope: b", "content-type: application/x-protobuf"] {
            assert!(head.lines().any(|found| found == line), "{line}: {head}");
        }
        assert!(head.starts_with("post ") && head.contains("\r\nuser-agent: driftqd/"), "{head}");
    }
    let (_, shown) = broker.get("/v1/config");
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["otlp"]["headers"], serde_json::json!({ "authorization": "…", "x-scope": "…" }));
    assert!(!broker.log().contains("SECRET"));
}

#[test]
fn without_an_endpoint_nothing_is_exported_or_counted() {
    // A broker needs an endpoint to be started here; a variable that is empty counts as none.
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_driftqd"))
        .args(["config"])
        .env_clear()
        .env("DRIFTQ_OTLP_ENDPOINT", "")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("[otlp]") && !text.contains("endpoint"), "{text}");
}
