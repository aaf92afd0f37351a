//! What the broker answers is what its OpenAPI document says: every answer that the tests of this program read is
//! compared with it.

mod schema;
mod walk;

use std::sync::OnceLock;

use driftq_tests::http::Reply;
use serde::de::IgnoredAny;
use serde_json::Value;

use self::schema::Schema;

/// The document.
pub fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(|| serde_json::from_str(driftq_server::openapi::document()).expect("JSON"))
}

/// The path of the document that a target has.
fn documented_path(target: &str) -> Option<&'static str> {
    let path = target.split('?').next().unwrap_or_default();
    let matches = |template: &str| {
        let (mut parts, mut named) = (path.split('/'), template.split('/'));
        loop {
            match (parts.next(), named.next()) {
                (None, None) => return true,
                (Some(part), Some(name)) if name.starts_with('{') && !part.is_empty() || part == name => {}
                _ => return false,
            }
        }
    };
    let paths = document()["paths"].as_object().expect("paths");
    paths.keys().map(String::as_str).find(|template| matches(template))
}

/// The media type of an answer, and the schema that the document gives it, if the operation has one.
fn schema_of(method: &str, target: &str, status: u16, media_type: &str) -> Result<&'static Value, String> {
    let error = || &document()["components"]["schemas"]["Error"];
    let operation = documented_path(target).and_then(|path| document()["paths"][path].get(method.to_lowercase()));
    let Some(operation) = operation else {
        return if status >= 400 { Ok(error()) } else { Err("the operation is not in the document".into()) };
    };
    let responses = &operation["responses"];
    let response = match responses.get(status.to_string()) {
        None if status < 400 => return Err(format!("status {status} is not in the document")),
        None => &responses["default"],
        Some(response) => response,
    };
    let response = match response["$ref"].as_str().and_then(|reference| reference.strip_prefix('#')) {
        Some(pointer) => document().pointer(pointer).expect("it resolves"),
        None => response,
    };
    let schema = response["content"].get(media_type).and_then(|content| content.get("schema"));
    schema.ok_or_else(|| format!("{media_type} with status {status} is not in the document"))
}

/// The JSON of a body; nothing if it has a number that the tests cannot hold.
fn parsed(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok().or_else(|| {
        serde_json::from_str::<IgnoredAny>(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        None
    })
}

/// Compares an answer with the document.
///
/// # Panics
/// If it differs.
#[track_caller]
pub fn assert_documented(method: &str, target: &str, reply: &Reply) {
    if reply.body.is_empty() || method == "HEAD" {
        return;
    }
    let media_type = reply.header("content-type").unwrap_or_default().split(';').next().unwrap_or_default();
    let differences = match schema_of(method, target, reply.status, media_type) {
        Err(difference) => vec![difference],
        Ok(schema) => {
            let schema = Schema { document: document(), schema };
            let bodies = match media_type {
                "application/json" => vec![parsed(&reply.body)],
                "application/x-ndjson" => reply.body.lines().filter(|line| !line.is_empty()).map(parsed).collect(),
                _ => vec![Some(Value::from(&*reply.body))],
            };
            bodies.iter().flatten().flat_map(|body| schema.differences(body, "$")).collect()
        }
    };
    assert!(differences.is_empty(), "{method} {target}: {differences:#?}\n{reply:?}");
}

/// Compares a line of a stream with the document.
///
/// # Panics
/// If it differs.
#[track_caller]
pub fn assert_item_documented(item: &Value) {
    let schema = &document()["components"]["schemas"]["Item"];
    let differences = Schema { document: document(), schema }.differences(item, "$");
    assert!(differences.is_empty(), "GET /v1/consume: {differences:#?}\n{item}");
}
