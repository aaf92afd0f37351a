//! `[otlp]`: its sources, and what is refused without showing a secret.

use std::time::Duration;

use driftq_server::config::WebhookUrl;

use super::config::{file, load, refused_file};

#[test]
fn otlp_settings_come_from_every_source_and_headers_are_added() {
    let defaults = file("").unwrap().otlp;
    assert_eq!((defaults.endpoint, defaults.interval), (None, Duration::from_secs(60)));
    assert_eq!((defaults.service_name.as_str(), defaults.sample_ratio.as_f64()), ("driftqd", 1.0));
    let text = "[otlp]\nservice_name = \"a\"\nsample_ratio = 0\n[otlp.headers]\nX-One = \"1\"\nx-two = \"2\"\n";
    let env = [
        ("DRIFTQ_OTLP_HEADER", "x-two=b, Authorization = Bearer a=b"),
        ("DRIFTQ_OTLP_SAMPLE_RATIO", "0.25"),
        ("DRIFTQ_OTLP_SERVICE_NAME", "b"),
    ];
    let otlp = load("--otlp-interval-ms 100 --otlp-sample-ratio 1", &env, Some(text)).unwrap().otlp;
    assert_eq!((otlp.service_name.as_str(), otlp.sample_ratio.as_f64()), ("b", 1.0));
    assert_eq!(otlp.interval, Duration::from_millis(100));
    let headers: Vec<_> = otlp.headers.iter().collect();
    assert_eq!(headers, [("authorization", "Bearer a=b"), ("x-one", "1"), ("x-two", "b")]);
    let flag = load("--otlp-header x-two=c --otlp-header x-three=d,e", &[], Some(text)).unwrap().otlp;
    assert_eq!(flag.headers.iter().collect::<Vec<_>>(), [("x-one", "1"), ("x-three", "d,e"), ("x-two", "c")]);
}

#[test]
fn invalid_otlp_setting_is_refused_and_the_value_of_a_header_is_not_shown() {
    for (text, expected) in [
        ("endpoint = \"https://a\"", "expected a URL of the form http://host[:port][/path] without a query"),
        ("endpoint = \"http://a/?key=b\"", "without a query"),
        ("service_name = \" \"", "a text of 1 to 255 bytes"),
        ("sample_ratio = 1.5", "floating point `1.5`, expected a number from 0 to 1"),
        ("sample_ratio = -1", "integer `-1`, expected a number from 0 to 1"),
        ("sample_ratio = nan", "expected a number from 0 to 1"),
        ("interval_ms = 99", "a whole number from 100 to"),
        ("headers = { \"a b\" = \"SECRET\" }", "otlp.headers: \"a b\" is not the name of a header"),
        ("headers = { Host = \"SECRET\" }", "otlp.headers: \"host\" is set by the export itself"),
        ("headers = { a = \"SECRET\\n\" }", "otlp.headers: \"a\" has a value with characters"),
    ] {
        let message = refused_file(&format!("[otlp]\n{text}\n"));
        assert!(message.contains(expected) && !message.contains("SECRET"), "{message}");
    }
    let message = load("--otlp-header SECRET", &[], None).unwrap_err();
    assert_eq!(message, "--otlp-header: expected NAME=VALUE");
    let message = load("--otlp-sample-ratio often", &[], None).unwrap_err();
    assert!(message.starts_with("--otlp-sample-ratio: invalid type: string \"often\""), "{message}");
    let settings = file("[otlp.headers]\na = \"SECRET\"\n").unwrap();
    assert!(!settings.to_public_json().contains("SECRET") && settings.to_toml().contains("SECRET"));
    assert!(!format!("{settings:?}").contains("SECRET"));
}

#[test]
fn endpoint_needs_a_program_with_the_export() {
    let loaded = load("--otlp-endpoint http://127.0.0.1:4318", &[], None);
    match cfg!(feature = "otlp") {
        true => assert_eq!(loaded.unwrap().otlp.endpoint, WebhookUrl::parse("http://127.0.0.1:4318")),
        false => assert!(loaded.unwrap_err().contains("cargo build --release -p driftq-server --features otlp")),
    }
}
