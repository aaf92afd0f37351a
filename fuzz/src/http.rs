//! Requests: bodies, queries and the lines of batches, through the server's own parsers.

use driftq_core::command::Ack;
use std::fmt::Write as _;

use driftq_core::command::{Claim, TokenClaim};
use driftq_core::record::{Event, Record};
use driftq_core::types::{Metadata, Offset, PartitionId, Timestamp, TopicId};
use driftq_core::{Body, Command, codec};
use driftq_server::fuzzing::{ParsedRequest, REQUESTS, batch, request};
use serde_json::{Value, json};

/// Reads a request: its number, its body, its query. What a planted bug replaces.
pub type Reads = fn(usize, &[u8], Option<&str>) -> Result<ParsedRequest, u16>;

/// The refusals a request can be read to.
const REFUSALS: &[u16] = &[400, 413, 422];

/// The bodies of all requests of the API: the first byte says which, the rest is the body.
///
/// No bytes make a parser panic or answer otherwise than with a refusal of the sender; blanks around a body make no difference; what is
/// read is a JSON object; and what a produce is read to can be stored and read back.
pub fn json_bodies(data: &[u8]) {
    json_bodies_with(data, request);
}

/// As [`json_bodies`], with other parsers.
///
/// # Panics
/// If something is wrong.
pub fn json_bodies_with(data: &[u8], reads: Reads) {
    let Some((number, body)) = data.split_first() else { return };
    let number = usize::from(*number);
    let read = reads(number, body, None);
    let padded = [b" \t\r\n", body, b"\n "].concat();
    assert_eq!(reads(number, &padded, None), read, "blanks around a body mean nothing");
    let understood = match read {
        Ok(understood) => understood,
        Err(status) => return assert!(REFUSALS.contains(&status), "refused with {status}"),
    };
    if body.iter().all(u8::is_ascii_whitespace) {
        return;
    }
    let value: Value = serde_json::from_slice(body).expect("what is read is JSON");
    let fields = value.as_object().expect("and an object");
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    match understood.command {
        Some(Command::Produce(produce)) => {
            assert_eq!(text("topic").map(str::trim), Some(produce.topic.as_str()));
            assert_eq!(text("value").map(str::as_bytes), Some(&produce.value[..]));
            let meta = Metadata { envelope: produce.envelope.clone(), ..Metadata::default() };
            stored(&Body::pack(&meta, &produce.key, &produce.value));
        }
        Some(Command::Ack(Ack(claim))) => {
            assert_eq!(text("topic").map(str::trim), Some(claim.topic.as_str()));
            assert_eq!(fields.get("offset").and_then(Value::as_u64), Some(claim.offset.0));
            let spelled = json_of(&claim).to_string();
            let again = reads(number, spelled.as_bytes(), None).map(|understood| understood.command);
            assert_eq!(again, Ok(Some(Command::Ack(Ack(claim)))), "a claim reads the same when it is written anew");
        }
        _ => {}
    }
}

/// What is accepted can be written to the log and read from it.
fn stored(body: &Body) {
    let (topic, partition, offset) = (TopicId(0), PartitionId(0), Offset(0));
    let event = Event::Produced { topic, partition, offset, body: body.clone(), dedupe: None };
    let record = Record { at: Timestamp(1), event };
    let mut bytes = Vec::new();
    codec::record::encode(&record, &mut bytes);
    let kind = codec::record::kind(&record.event);
    assert_eq!(codec::record::decode(kind, codec::record::VERSION, &bytes), Ok(record), "stored as it was sent");
}

/// Query strings, for every request that can be written as one: the first byte says which.
///
/// No query makes a parser panic or answer otherwise than with a refusal of the sender; parameters nobody knows make no difference; and a
/// claim that is read from a query is the same when it is read from a body, and from another spelling of the query.
pub fn query(data: &[u8]) {
    query_with(data, request);
}

/// As [`query`], with other parsers.
///
/// # Panics
/// If something is wrong.
pub fn query_with(data: &[u8], reads: Reads) {
    let Some((number, query)) = data.split_first() else { return };
    // What hyper lets through in a URI is ASCII, or at least UTF-8.
    let Ok(query) = std::str::from_utf8(query) else { return };
    let number = usize::from(*number);
    let read = reads(number, b"", Some(query));
    if query.split('&').count() < 32 {
        let more = format!("{query}&zzz=1&&=");
        assert_eq!(reads(number, b" \n", Some(&more)), read, "what nobody asks for is ignored");
    }
    match read {
        Err(status) => assert!(REFUSALS.contains(&status), "refused with {status}"),
        Ok(ParsedRequest { command: Some(Command::Ack(Ack(claim))), .. }) => {
            let by_body = reads(number, json_of(&claim).to_string().as_bytes(), None);
            let by_query = reads(number, b"", Some(&query_of(&claim)));
            for again in [by_body, by_query] {
                let again = again.map(|understood| understood.command);
                assert_eq!(
                    again,
                    Ok(Some(Command::Ack(Ack(claim.clone())))),
                    "a claim reads the same however it is written"
                );
            }
        }
        Ok(_) => {}
    }
}

/// A batch of NDJSON lines: the first byte says of what.
///
/// No lines make the parser panic; every line that is not blank has its answer, by itself and wherever it stands; and a line is read as
/// the same body of a single request is.
///
/// # Panics
/// If something is wrong.
pub fn ndjson(data: &[u8]) {
    let Some((which, lines)) = data.split_first() else { return };
    let acks = which % 2 == 1;
    let answers = batch(acks, lines);
    let single = REQUESTS.iter().position(|name| *name == if acks { "ack" } else { "produce" }).unwrap_or(0);
    let mut asked = 0;
    for line in lines.split(|byte| *byte == b'\n') {
        let alone = batch(acks, line);
        if line.iter().all(u8::is_ascii_whitespace) {
            assert_eq!(alone, [], "a blank line asks nothing");
            continue;
        }
        assert_eq!(alone, answers[asked..=asked], "a line means the same by itself");
        let whole = request(single, line, None).map(|understood| understood.command);
        assert_eq!(whole, answers[asked].clone().map(Some), "and as the body of a request");
        asked += 1;
    }
    assert_eq!(asked, answers.len(), "every line has its answer");
}

/// A claim as a JSON object.
fn json_of(claim: &Claim) -> Value {
    let mut value = json!({
        "topic": claim.topic.as_str(),
        "group": claim.group.as_str(),
        "partition": claim.partition.0,
        "offset": claim.offset.0,
        "owner": claim.owner.as_str(),
    });
    if let Some(token) = token_of(claim) {
        value["lease_token"] = token.into();
    }
    value
}

/// A claim as a query in which every byte of a text is escaped.
fn query_of(claim: &Claim) -> String {
    let mut query = format!("partition={}&offset={}", claim.partition.0, claim.offset.0);
    let token = token_of(claim);
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

/// A token as clients write it; what cannot be read as one stays so.
fn token_of(claim: &Claim) -> Option<String> {
    match &claim.token {
        TokenClaim::Shown(token) => Some(token.to_string()),
        TokenClaim::Absent => None,
        TokenClaim::Unreadable => Some("?".to_owned()),
    }
}
