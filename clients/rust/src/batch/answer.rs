//! What a line of an answer says.

use std::borrow::Cow;

use hyper::StatusCode;
use serde::Deserialize;

use crate::error::Error;
use crate::transport::{ErrorBody, Failure, Repeat, shown};

/// How the answer to a line begins, before its status of three digits.
const STATUS: &[u8] = b"{\"status\":";

/// The answer to a request that may be a line of a batch.
pub(crate) trait Answer: Sized + Send + 'static {
    /// Reads the body of a successful answer, or a line of one, which has the number `status` as well.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) if it is another answer.
    fn read(json: &[u8]) -> Result<Self, Error>;
}

/// The answer to a request that says no more than that it succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done;

impl Answer for Done {
    fn read(_: &[u8]) -> Result<Self, Error> {
        Ok(Self)
    }
}

/// The JSON of an answer.
pub(crate) fn read_json<'a, T: Deserialize<'a>>(json: &'a [u8], what: &str) -> Result<T, Error> {
    serde_json::from_slice(json).map_err(|error| Error::protocol(format!("{what}: {error}: {}", shown(json))))
}

/// A line of which only status and error are read.
#[derive(Deserialize)]
struct ErrorLine<'a> {
    status: u16,
    #[serde(borrow, default)]
    error: Cow<'a, str>,
    #[serde(borrow, default)]
    message: Cow<'a, str>,
    reason: Option<String>,
    decision: Option<String>,
    retry_after_ms: Option<u64>,
    committed: Option<String>,
}

/// The answer to a line, or its refusal.
pub(super) fn line_result<A: Answer>(line: &[u8]) -> Result<A, Failure> {
    let never = |error| Failure::new(error, Repeat::Never);
    if has_succeeded(line) {
        return A::read(line).map_err(never);
    }
    let answer: ErrorLine<'_> = serde_json::from_slice(line)
        .map_err(|error| never(Error::protocol(format!("an answer of a batch: {error}: {}", shown(line)))))?;
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if status.is_success() {
        return A::read(line).map_err(never);
    }
    let ErrorLine { error, message, reason, decision, retry_after_ms, committed, .. } = answer;
    let (error, message) = (error.into_owned(), message.into_owned());
    Err(Failure::of_error(status, ErrorBody { error, message, reason, decision, retry_after_ms, committed }))
}

/// Whether the line begins with a status of success. Another form of the same JSON is read in full.
fn has_succeeded(line: &[u8]) -> bool {
    matches!(line.strip_prefix(STATUS), Some([b'2', b'0'..=b'9', b'0'..=b'9', b',' | b'}', ..]))
}

/// Topic, partition and offset of an answer to a produce, or of a line of it, in the form in which the broker writes
/// it, with nothing else in it. None for any other form, which says nothing about whether it is right.
pub(crate) fn scan_stored(json: &[u8]) -> Option<(&str, u32, u64)> {
    let rest = json.strip_prefix(STATUS)?;
    let rest = rest.strip_prefix(b"200").or_else(|| rest.strip_prefix(b"\"produced\""))?;
    let rest = rest.strip_prefix(b",\"topic\":\"")?;
    let end = memchr::memchr2(b'"', b'\\', rest)?;
    let (topic, rest) = rest.split_at(end);
    let (partition, rest) = scan_number(rest.strip_prefix(b"\",\"partition\":")?)?;
    let (offset, rest) = scan_number(rest.strip_prefix(b",\"offset\":")?)?;
    if rest != b"}" {
        return None;
    }
    Some((std::str::from_utf8(topic).ok()?, u32::try_from(partition).ok()?, offset))
}

/// A number of digits, and what follows it.
fn scan_number(text: &[u8]) -> Option<(u64, &[u8])> {
    /// As many digits cannot overflow.
    const DIGITS_MAX: usize = 19;
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 || digits > DIGITS_MAX || (digits > 1 && text[0] == b'0') {
        return None;
    }
    let (number, rest) = text.split_at(digits);
    Some((number.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn answer_to_a_produce_is_scanned_in_the_brokers_form_alone() {
        let scan = |line: &str| scan_stored(line.as_bytes()).map(|(topic, at, offset)| (topic.to_owned(), at, offset));
        let line = r#"{"status":200,"topic":"a.b","partition":3,"offset":9999999999999999999}"#;
        assert_eq!(scan(line), Some(("a.b".to_owned(), 3, 9_999_999_999_999_999_999)));
        let alone = r#"{"status":"produced","topic":"t","partition":0,"offset":12}"#;
        assert_eq!(scan(alone), Some(("t".to_owned(), 0, 12)));
        for other in [
            r#"{"status":"produced","topic":"t","partition":0,"offset":12,"routing":"failed"}"#,
            r#"{"status":"duplicate","topic":"t","partition":0,"offset":12}"#,
            r#"{"status":200,"topic":"t","partition":0,"offset":7,"duplicate":true}"#,
            r#"{"status":200,"topic":"t","partition":0,"offset":99999999999999999999}"#,
            r#"{"status":200,"topic":"t","partition":4294967296,"offset":1}"#,
            r#"{"status":200,"topic":"t","partition":00,"offset":1}"#,
            r#"{"status":200,"topic":"t","partition":0,"offset":}"#,
            r#"{"status":200,"topic":"t\n","partition":0,"offset":1}"#,
            r#"{"status":200,"topic":"t","partition":0,"offset":1} "#,
            r#"{"status":404,"topic":"t","partition":0,"offset":1}"#,
            r#"{"topic":"t","partition":0,"offset":1}"#,
        ] {
            assert_eq!(scan(other), None, "{other}");
        }
    }

    #[test]
    fn status_decides_in_any_form_of_json() {
        for line in [r#"{"status":204}"#, r#"{ "status" : 200, "ok": true }"#, r#"{"ok":true,"status":200}"#] {
            assert_eq!(line_result::<Done>(line.as_bytes()).expect("success"), Done, "{line}");
        }
        let line =
            r#"{"error":"RESOURCE_EXHAUSTED","message":"full","reason":"quota","retry_after_ms":5,"status":429}"#;
        let failure = line_result::<Done>(line.as_bytes()).expect_err("refused");
        assert_eq!((failure.error.kind(), failure.repeat), (ErrorKind::Overloaded, Repeat::Any));
        assert_eq!(failure.retry_after, Some(std::time::Duration::from_millis(5)));
        for line in [r#"{"status":2000}"#, r#"{"status":"200"}"#, "{}", "200", "", r#"{"status":20"#] {
            let failure = line_result::<Done>(line.as_bytes()).expect_err("refused");
            assert_eq!(failure.repeat, Repeat::Never, "{line}");
        }
    }

    #[test]
    fn effect_in_progress_is_told_from_other_conflicts() {
        let line =
            r#"{"status":409,"error":"FAILED_PRECONDITION","message":"","decision":"IN_PROGRESS","retry_after_ms":9}"#;
        let failure = line_result::<Done>(line.as_bytes()).expect_err("refused");
        assert_eq!(failure.error.kind(), ErrorKind::InProgress);
    }
}
