//! `[otlp]`: where spans and metrics are exported to, and how much of them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hyper::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::address::WebhookUrl;
use super::chaos::Probability;
use super::number::{DAY_MS, Int};

/// What an endpoint must be.
const ENDPOINT_EXPECTED: &str = "a URL of the form http://host[:port][/path] without a query";
/// Longest name of the service, in bytes.
const SERVICE_NAME_BYTES_MAX: usize = 255;
/// Headers that the export sets itself.
const RESERVED_HEADERS: [HeaderName; 5] = [CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING];

/// Export of spans and metrics over OTLP/HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a section")]
pub struct OtlpSettings {
    /// URL of the collector, to which `/v1/traces` and `/v1/metrics` are appended. Without one nothing is exported.
    #[serde(deserialize_with = "endpoint", skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<WebhookUrl>,
    /// What the collector's user sees as the name of the service.
    #[serde(deserialize_with = "service_name")]
    pub service_name: String,
    /// Of the requests without a valid `traceparent`, so many are recorded. Those with one are recorded if it is
    /// sampled.
    #[serde(deserialize_with = "ratio")]
    pub sample_ratio: Probability,
    /// Time between two exports of the metrics.
    #[serde(rename = "interval_ms", with = "Int::<100, DAY_MS>")]
    pub interval: Duration,
    /// Headers of every request to the collector.
    #[serde(skip_serializing_if = "OtlpHeaders::is_empty")]
    pub headers: OtlpHeaders,
}

/// Headers by their names in lower case. The values may be secrets, so the debug form has only the names.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, String>")]
pub struct OtlpHeaders(BTreeMap<String, String>);

impl From<BTreeMap<String, String>> for OtlpHeaders {
    fn from(headers: BTreeMap<String, String>) -> Self {
        Self(headers.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect())
    }
}

impl OtlpHeaders {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The same with `…` for every value.
    pub(super) fn without_values(&self) -> Self {
        Self(self.0.keys().map(|name| (name.clone(), "…".to_owned())).collect())
    }
}

impl fmt::Debug for OtlpHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl OtlpSettings {
    /// The problem with the headers, if there is one. It never has the value of one.
    pub(super) fn problem(&self) -> Option<String> {
        self.headers.0.iter().find_map(|(name, value)| {
            let problem = match (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
                (Err(_), _) => "is not the name of a header",
                (Ok(name), _) if RESERVED_HEADERS.contains(&name) => "is set by the export itself",
                (Ok(_), Err(_)) => "has a value with characters that a header must not have",
                (Ok(_), Ok(_)) => return None,
            };
            Some(format!("otlp.headers: {name:?} {problem}"))
        })
    }

    /// The problem with a program that was built without the export.
    pub(super) fn missing_feature(&self) -> Option<&'static str> {
        const PROBLEM: &str = "otlp.endpoint needs a driftqd that was built with OTLP export: \
                               cargo build --release -p driftq-server --features otlp";
        (self.endpoint.is_some() && !cfg!(feature = "otlp")).then_some(PROBLEM)
    }
}

impl Default for OtlpSettings {
    fn default() -> Self {
        Self {
            endpoint: None,
            service_name: "driftqd".to_owned(),
            sample_ratio: Probability::ONE,
            interval: Duration::from_secs(60),
            headers: OtlpHeaders::default(),
        }
    }
}

fn endpoint<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<WebhookUrl>, D::Error> {
    let url = String::deserialize(deserializer)?;
    let parsed = WebhookUrl::parse(url.trim()).filter(|url| !url.path.contains('?'));
    parsed.map(Some).ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&url), &ENDPOINT_EXPECTED))
}

fn service_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    let is_valid = !name.trim().is_empty() && name.len() <= SERVICE_NAME_BYTES_MAX && !name.contains(char::is_control);
    match is_valid {
        true => Ok(name),
        false => {
            let expected = "a text of 1 to 255 bytes that is not blank and has no control characters";
            Err(D::Error::invalid_value(Unexpected::Str(&name), &expected))
        }
    }
}

/// A number from 0 to 1, as an integer too.
fn ratio<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Probability, D::Error> {
    struct Ratio;

    impl Visitor<'_> for Ratio {
        type Value = Probability;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number from 0 to 1")
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<Probability, E> {
            Probability::new(value).ok_or_else(|| E::invalid_value(Unexpected::Float(value), &self))
        }

        fn visit_i64<E: Error>(self, value: i64) -> Result<Probability, E> {
            let ratio = Probability::new(value as f64);
            ratio.ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
        }
    }

    deserializer.deserialize_f64(Ratio)
}
