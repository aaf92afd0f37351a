//! A fast reader of plain JSON objects, as most requests are: texts without escapes, natural numbers, no line breaks or
//! tabs.
//!
//! It reads a subset. Whatever is not in it, malformed JSON included, is left to the general parser, which decides and
//! explains; so what this reader accepts must mean the same there.

use crate::byte_search::{find, has_control_or};

/// The longest number in digits that is read; it fits 64 bits.
const DIGITS_MAX: usize = 19;

/// The value of a plain field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlainValue<'a> {
    /// A text without escapes.
    Text(&'a str),
    /// A natural number.
    Number(u64),
}

impl<'a> PlainValue<'a> {
    /// The text, if it is one.
    pub(super) fn text(self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Number(_) => None,
        }
    }

    /// The number, if it is one that fits.
    pub(super) fn number<N: TryFrom<u64>>(self) -> Option<N> {
        match self {
            Self::Text(_) => None,
            Self::Number(number) => N::try_from(number).ok(),
        }
    }
}

/// Reads the fields of an object, which is all that `text` holds, and passes each to `field` with its name. Returns
/// `None` if the object is not plain, or `field` returned `None`.
#[inline]
pub(super) fn read_plain<'a>(
    text: &'a str,
    mut field: impl FnMut(&'a [u8], PlainValue<'a>) -> Option<()>,
) -> Option<()> {
    let text = text.trim_matches([' ', '\t', '\n', '\r']);
    if has_control_or(text.as_bytes(), [b'\\']) {
        return None;
    }
    let mut reader = Reader { text, at: 0 };
    reader.expect(b'{')?;
    loop {
        reader.skip_space();
        let name = reader.text()?;
        reader.skip_space();
        reader.expect(b':')?;
        reader.skip_space();
        let value = match reader.peek()? {
            b'"' => PlainValue::Text(reader.text()?),
            _ => PlainValue::Number(reader.number()?),
        };
        field(name.as_bytes(), value)?;
        reader.skip_space();
        match reader.next()? {
            b',' => {}
            b'}' => break,
            _ => return None,
        }
    }
    (reader.at == text.len()).then_some(())
}

/// Sets a field that must not be set yet, else returns `None`.
#[inline]
pub(super) fn set<T>(field: &mut Option<T>, value: T) -> Option<()> {
    field.replace(value).is_none().then_some(())
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    #[inline]
    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    #[inline]
    fn skip_space(&mut self) {
        while let Some(b' ') = self.peek() {
            self.at += 1;
        }
    }

    /// A text in quotes.
    #[inline]
    fn text(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let len = find(self.text.as_bytes().get(self.at..)?, b'"')?;
        let text = self.text.get(self.at..self.at + len)?;
        self.at += len + 1;
        Some(text)
    }

    fn number(&mut self) -> Option<u64> {
        let start = self.at;
        let mut number = 0;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            if self.at - start == DIGITS_MAX {
                return None;
            }
            number = number * 10 + u64::from(digit - b'0');
            self.at += 1;
        }
        let is_plain = match self.at - start {
            0 => false,
            1 => true,
            _ => self.text.as_bytes()[start] != b'0',
        };
        is_plain.then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn read(text: &str) -> Option<Vec<(String, Value)>> {
        let mut fields = Vec::new();
        read_plain(text, |name, value| {
            let value = match value {
                PlainValue::Text(text) => Value::from(text),
                PlainValue::Number(number) => Value::from(number),
            };
            fields.push((String::from_utf8(name.to_vec()).expect("names are UTF-8"), value));
            Some(())
        })?;
        Some(fields)
    }

    #[test]
    fn plain_objects_are_read() {
        let read =
            read(" {\"a\" : \"x y\", \"b\":\"\", \"é\":\"ü\",\"n\":0,\"m\" : 1234567890123456789 }\r\n").unwrap();
        let expected = [("a", "x y".into()), ("b", "".into()), ("é", "ü".into()), ("n", 0.into())];
        let expected = expected.into_iter().chain([("m", Value::from(1_234_567_890_123_456_789_u64))]);
        assert_eq!(read, expected.map(|(name, value)| (name.to_owned(), value)).collect::<Vec<_>>());
    }

    #[test]
    fn whatever_is_not_plain_is_left_to_the_general_parser() {
        let others = [
            "",
            "{",
            "{}",
            "[]",
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
            "{\"a\":true}",
            "{\"a\":\"\\n\"}",
            "{\"a\":\"\\\"\"}",
            "{\"\\u0061\":1}",
            "{\"a\":\"\u{1}\"}",
            "{\"a\":\"\n\"}",
            "{\"a\":[]}",
            "{\"a\":{}}",
            "{\"a\":\"x}",
            "{\"a\":1 \"b\":2}",
            "{,\"a\":1}",
            "\u{feff}{\"a\":1}",
            "{\"a\":\"x\"\u{a0}}",
            "{\"a\":\t1}",
            "\u{c}{\"a\":1}",
        ];
        for other in others {
            assert_eq!(read(other), None, "{other}");
        }
    }

    /// Whatever is read means the same to the general parser; tried with every object of up to six pieces.
    #[test]
    fn what_is_read_means_the_same_to_the_general_parser() {
        const PIECES: [&str; 11] = ["\"a\"", "\"b\"", "\"\\\"", "\"\"", ":", ",", "10", "01", "1.5", " ", "\u{1}"];
        let mut read_count = 0;
        for number in 0..PIECES.len().pow(6) {
            let digits = (0..6).scan(number, |rest, _| {
                let digit = *rest % PIECES.len();
                *rest /= PIECES.len();
                Some(digit)
            });
            let inner: String = digits.map(|digit| PIECES[digit]).collect();
            let text = format!("{{{inner}}}");
            let Some(fields) = read(&text) else { continue };
            read_count += 1;
            let general: serde_json::Map<String, Value> = serde_json::from_str(&text).expect("it is JSON");
            let last: serde_json::Map<String, Value> = fields.into_iter().collect();
            assert_eq!(last, general, "{text}");
        }
        assert!(read_count > 100, "only {read_count} of them are plain");
    }
}
