//! Who exports, and attributes in the form of the protocol.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;

use crate::json::hex;

/// What every request to the collector begins with.
#[derive(Clone, Debug)]
pub(super) struct Resources {
    /// The process.
    pub(super) resource: Resource,
    /// The program.
    pub(super) scope: InstrumentationScope,
}

impl Resources {
    pub(super) fn new(service_name: &str, instance: [u8; 16]) -> Self {
        let mut id = Vec::new();
        hex::<16>(u64::from_be_bytes(instance[..8].try_into().expect("eight of sixteen bytes")), &mut id);
        hex::<16>(u64::from_be_bytes(instance[8..].try_into().expect("eight of sixteen bytes")), &mut id);
        let version = env!("CARGO_PKG_VERSION");
        let attributes = vec![
            text("service.name", service_name),
            text("service.version", version),
            text("service.instance.id", String::from_utf8_lossy(&id)),
        ];
        let scope = InstrumentationScope {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: version.to_owned(),
            ..InstrumentationScope::default()
        };
        Self { resource: Resource { attributes, ..Resource::default() }, scope }
    }
}

/// An attribute whose value is a text.
pub(super) fn text(key: &str, value: impl Into<String>) -> KeyValue {
    attribute(key, Value::StringValue(value.into()))
}

/// An attribute whose value is a number.
pub(super) fn number(key: &str, value: impl TryInto<i64>) -> KeyValue {
    attribute(key, Value::IntValue(value.try_into().unwrap_or(i64::MAX)))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
