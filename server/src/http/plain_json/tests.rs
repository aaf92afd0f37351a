//! What the fast reader accepts means the same to the general parser, and what it does not is left to that.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::*;

/// Any plain value; an object whose fields are repeated is not.
#[derive(Debug, PartialEq)]
struct Any(Value);

impl Plain<'_> for Any {
    fn read(reader: &mut PlainReader<'_>) -> Option<Self> {
        Some(Self(match reader.peek()? {
            b'"' => reader.text()?.into(),
            b'{' => {
                let mut fields = Map::new();
                reader.object(|name, reader| {
                    let value = Any::read(reader)?.0;
                    fields.insert(name.to_owned(), value).is_none().then_some(())
                })?;
                fields.into()
            }
            b'[' => Vec::<Any>::read(reader)?.into_iter().map(|Any(value)| value).collect(),
            b't' | b'f' => bool::read(reader)?.into(),
            _ => u64::read(reader)?.into(),
        }))
    }
}

/// An object with one value as it is written.
#[derive(Debug, Default, PartialEq)]
struct Kept<'a> {
    kept: Option<Raw<'a>>,
}

#[derive(Debug, PartialEq)]
struct Raw<'a>(&'a str);

impl<'a> Plain<'a> for Raw<'a> {
    fn read(reader: &mut PlainReader<'a>) -> Option<Self> {
        reader.raw().map(Self)
    }
}

plain_object!(Kept<'a> { kept });

fn read(text: &str) -> Option<Value> {
    read_plain::<Any>(text).map(|Any(value)| value)
}

fn read_kept(text: &str) -> Option<String> {
    let Kept { kept: Some(Raw(kept)) } = read_plain::<Kept<'_>>(text)? else { return None };
    Some(kept.to_owned())
}

#[test]
fn plain_objects_are_read() {
    let text = " {\"a\" : \"x y\", \"b\":\"\", \"é\":\"ü\",\"n\":0,\"m\" : 1234567890123456789 , \"t\":true,\
        \"f\": false,\"o\": { \"p\" :1 , \"q\":{}},\"l\":[ 1 ,\"2\",[] ] }\r\n";
    let expected: Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(read(text), Some(expected));
}

#[test]
fn value_is_kept_as_it_is_written() {
    for kept in ["\"x\"", "7", "true", "{}", "[ ]", "{ \"a\" : [ null , false ],\"a\":0 }"] {
        assert_eq!(read_kept(&format!("{{\"kept\": {kept} }}")).as_deref(), Some(kept));
    }
    let nested = |depth| format!("{{\"kept\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert!(read_kept(&nested(RAW_DEPTH_MAX)).is_some());
    for other in ["null", "-1", "1.0", "[1,]", "[,1]", "{1}", "{\"a\"}", "tru", "nul", "[", "[}", "\"\\n\""] {
        assert_eq!(read_kept(&format!("{{\"kept\":{other}}}")), None, "{other}");
    }
    assert_eq!(read_kept(&nested(RAW_DEPTH_MAX + 1)), None);
    assert_eq!(read_kept("{\"kept\":1,\"kept\":1}"), None);
    assert_eq!(read_kept("{\"kept\":1,\"other\":1}"), None);
}

#[test]
fn number_that_does_not_fit_is_left_to_the_general_parser() {
    assert_eq!(read_plain::<u32>("4294967295"), Some(u32::MAX));
    assert_eq!(read_plain::<u32>("4294967296"), None);
    assert_eq!(read_plain::<i64>("9223372036854775807"), Some(i64::MAX));
    assert_eq!(read_plain::<i64>("9223372036854775808"), None);
}

#[test]
fn whatever_is_not_plain_is_left_to_the_general_parser() {
    let others = [
        "",
        "{",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1",
        "{\"a\":1,}",
        "{\"a\":1}x",
        "{a:1}",
        "{\"a\":01}",
        "{\"a\":-1}",
        "{\"a\":1.0}",
        "{\"a\":1e3}",
        "{\"a\":12345678901234567890}",
        "{\"a\":null}",
        "{\"a\":True}",
        "{\"a\":truex}",
        "{\"a\":fals}",
        "{\"a\":\"\\n\"}",
        "{\"a\":\"\\\"\"}",
        "{\"\\u0061\":1}",
        "{\"a\":\"\u{1}\"}",
        "{\"a\":\"\n\"}",
        "{\"a\":[}",
        "{\"a\":[1 2]}",
        "{\"a\":[1]]}",
        "{\"a\":{]}",
        "{\"a\":{}",
        "{\"a\":\"x}",
        "{\"a\":1 \"b\":2}",
        "{,\"a\":1}",
        "{\"a\":1,\"a\":1}",
        "\u{feff}{\"a\":1}",
        "{\"a\":\"x\"\u{a0}}",
        "{\"a\":\t1}",
        "\u{c}{\"a\":1}",
    ];
    for other in others {
        assert_eq!(read(other), None, "{other}");
    }
}

/// Whatever is read means the same to the general parser; tried with every object of up to five pieces.
#[test]
fn what_is_read_means_the_same_to_the_general_parser() {
    const PIECES: [&str; 16] =
        ["\"a\"", "\"a\":", "\"b\":", "\"\\\"", ":", ",", "10", "01", "1.5", " ", "\u{1}", "{", "}", "[", "]", "true"];
    let (mut read_count, mut kept_count) = (0, 0);
    for number in 0..PIECES.len().pow(5) {
        let digits = (0..5).scan(number, |rest, _| {
            let digit = *rest % PIECES.len();
            *rest /= PIECES.len();
            Some(digit)
        });
        let inner: String = digits.map(|digit| PIECES[digit]).collect();
        let text = format!("{{{inner}}}");
        if let Some(value) = read(&text) {
            read_count += 1;
            assert_eq!(Some(value), serde_json::from_str(&text).ok(), "{text}");
        }
        if let Some(kept) = read_plain::<Raw<'_>>(&text) {
            kept_count += 1;
            let general: &RawValue = serde_json::from_str(&text).expect("it is JSON");
            assert_eq!(kept.0, general.get());
        }
    }
    assert!(read_count > 100 && kept_count > read_count, "only {read_count} and {kept_count} of them are plain");
}
