//! Fuzz targets for the server's request parsers: bodies, query strings and NDJSON batches.

use std::fmt::Write as _;

use driftq_core::command::{Ack, Claim, TokenClaim};
use driftq_core::record::{Event, Record};
use driftq_core::types::{Metadata, Offset, PartitionId, Timestamp, TopicId};
use driftq_core::{Body, Command, codec};
use driftq_server::fuzzing::{ParsedRequest, REQUESTS, batch, request};
use serde_json::{Value, json};

/// Parses a request from its number, its body and its query. Tests replace it to plant a bug.
pub type RequestParser = fn(usize, &[u8], Option<&str>) -> Result<ParsedRequest, u16>;

/// The statuses with which a parser may refuse a request.
const CLIENT_ERRORS: &[u16] = &[400, 413, 422];
/// Queries with this many parameters or more are not extended, to stay below the limit of the server.
const EXTENDED_PARAMETERS_END: usize = 32;

/// Parses the body of any request: the first byte selects the request, the rest is the body.
///
/// Checks that no parser panics or refuses with another status than a client error; that surrounding whitespace has no
/// effect; that an accepted body is a JSON object with the values of the command; that an accepted message can be
/// stored and read back; and that an accepted claim parses the same when it is encoded again.
pub fn json_bodies(data: &[u8]) {
    json_bodies_with(data, request);
}

/// [`json_bodies`] with another parser.
///
/// # Panics
/// If a check fails.
pub fn json_bodies_with(data: &[u8], parse: RequestParser) {
    let Some((number, body)) = data.split_first() else { return };
    let number = usize::from(*number);
    let parsed = parse(number, body, None);
    let padded = [b" \t\r\n", body, b"\n "].concat();
    assert_eq!(parse(number, &padded, None), parsed, "whitespace around a body changes the result");
    let request = match parsed {
        Ok(request) => request,
        Err(status) => return check_refusal(status),
    };
    let has_no_body = REQUESTS[number % REQUESTS.len()] == "list";
    if has_no_body || body.iter().all(u8::is_ascii_whitespace) {
        return;
    }
    let value: Value = serde_json::from_slice(body).expect("an accepted body is JSON");
    let fields = value.as_object().expect("an accepted body is an object");
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    match request.command {
        Some(Command::Produce(produce)) => {
            assert_eq!(text("topic").map(str::trim), Some(produce.topic.as_str()), "topic");
            assert_eq!(text("value").map(str::as_bytes), Some(produce.value()), "value");
            let metadata = Metadata { envelope: produce.envelope.clone(), ..Metadata::default() };
            check_record_round_trip(&Body::pack(&metadata, produce.key(), produce.value()));
        }
        Some(Command::Ack(Ack(claim))) => {
            assert_eq!(text("topic").map(str::trim), Some(claim.topic.as_str()), "topic");
            assert_eq!(fields.get("offset").and_then(Value::as_u64), Some(claim.offset.0), "offset");
            let encoded = claim_json(&claim).to_string();
            check_claim(&claim, parse(number, encoded.as_bytes(), None));
        }
        _ => {}
    }
}

fn check_refusal(status: u16) {
    assert!(CLIENT_ERRORS.contains(&status), "refused with {status}");
}

/// Checks that a claim, encoded again, parsed to the same claim.
fn check_claim(claim: &Claim, parsed: Result<ParsedRequest, u16>) {
    let command = parsed.map(|request| request.command);
    assert_eq!(command, Ok(Some(Command::Ack(Ack(claim.clone())))), "a claim parses differently when encoded again");
}

/// Checks that an accepted body survives the record codec.
fn check_record_round_trip(body: &Body) {
    let (topic, partition, offset) = (TopicId(0), PartitionId(0), Offset(0));
    let event = Event::Produced { topic, partition, offset, body: body.clone(), dedupe: None, skipped: Vec::new() };
    let record = Record { at: Timestamp(1), event };
    let mut bytes = Vec::new();
    codec::record::encode(&record, &mut bytes);
    let kind = codec::record::kind(&record.event);
    let decoded = codec::record::decode(kind, codec::record::VERSION, &bytes);
    assert_eq!(decoded, Ok(record), "an accepted message is read back differently");
}

/// Parses the query of any request: the first byte selects the request, the rest is the query.
///
/// Checks that no parser panics or refuses with another status than a client error; that unknown parameters have no
/// effect; and that a claim in a query equals the same claim in a body, and in a query with every byte escaped.
pub fn query(data: &[u8]) {
    query_with(data, request);
}

/// [`query`] with another parser.
///
/// # Panics
/// If a check fails.
pub fn query_with(data: &[u8], parse: RequestParser) {
    let Some((number, query)) = data.split_first() else { return };
    // A URI that hyper accepts is valid UTF-8.
    let Ok(query) = std::str::from_utf8(query) else { return };
    let number = usize::from(*number);
    let parsed = parse(number, b"", Some(query));
    if query.split('&').count() < EXTENDED_PARAMETERS_END {
        let extended = format!("{query}&zzz=1&&=");
        assert_eq!(parse(number, b" \n", Some(&extended)), parsed, "an unknown parameter changes the result");
    }
    match parsed {
        Err(status) => check_refusal(status),
        Ok(ParsedRequest { command: Some(Command::Ack(Ack(claim))), .. }) => {
            check_claim(&claim, parse(number, claim_json(&claim).to_string().as_bytes(), None));
            check_claim(&claim, parse(number, b"", Some(&escaped_claim_query(&claim))));
        }
        Ok(_) => {}
    }
}

/// Parses a batch of NDJSON lines: the first byte selects acks or produces, the rest are the lines.
///
/// Checks that the parser does not panic; that every line that is not blank has a result, the same as alone in a batch;
/// and that the result equals that of the same body in a single request.
///
/// # Panics
/// If a check fails.
pub fn ndjson(data: &[u8]) {
    let Some((selector, lines)) = data.split_first() else { return };
    let acks = selector % 2 == 1;
    let results = batch(acks, lines);
    let single = REQUESTS.iter().position(|name| *name == if acks { "ack" } else { "produce" }).unwrap_or(0);
    let mut count = 0;
    for line in lines.split(|byte| *byte == b'\n') {
        let alone = batch(acks, line);
        if line.iter().all(u8::is_ascii_whitespace) {
            assert_eq!(alone, [], "a blank line has a result");
            continue;
        }
        assert_eq!(alone, results[count..=count], "a line parses differently alone");
        let command = request(single, line, None).map(|request| request.command);
        assert_eq!(command, results[count].clone().map(Some), "a line parses differently as the body of a request");
        count += 1;
    }
    assert_eq!(count, results.len(), "the number of results is not that of the lines");
}

/// A claim as a JSON object.
fn claim_json(claim: &Claim) -> Value {
    let mut value = json!({
        "topic": claim.topic.as_str(),
        "group": claim.group.as_str(),
        "partition": claim.partition.0,
        "offset": claim.offset.0,
        "owner": claim.owner.as_str(),
    });
    if let Some(token) = token_text(claim) {
        value["lease_token"] = token.into();
    }
    value
}

/// A claim as a query string with every byte of its texts percent-encoded.
fn escaped_claim_query(claim: &Claim) -> String {
    let mut query = format!("partition={}&offset={}", claim.partition.0, claim.offset.0);
    let token = token_text(claim);
    let texts = [
        ("topic", Some(claim.topic.as_str())),
        ("group", Some(claim.group.as_str())),
        ("owner", Some(claim.owner.as_str())),
        ("lease_token", token.as_deref()),
    ];
    for (name, text) in texts {
        let Some(text) = text else { continue };
        let _ = write!(query, "&{name}=");
        for byte in text.bytes() {
            let _ = write!(query, "%{byte:02X}");
        }
    }
    query
}

/// The lease token as a client sends it. An unreadable token becomes another unreadable one.
fn token_text(claim: &Claim) -> Option<String> {
    match &claim.token {
        TokenClaim::Shown(token) => Some(token.to_string()),
        TokenClaim::Absent => None,
        TokenClaim::Unreadable => Some("?".to_owned()),
    }
}
