//! An item of a consume stream, scanned only for what an ack and the latency need, without allocation.

/// The fields of a delivered line. Strings are not unescaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Item<'a> {
    /// The partition, as digits.
    pub(crate) partition: &'a [u8],
    /// The offset, as digits.
    pub(crate) offset: &'a [u8],
    /// The delivery attempt.
    pub(crate) attempts: u64,
    /// The lease token, without its quotes.
    pub(crate) lease_token: &'a [u8],
    /// The value, without its quotes.
    pub(crate) value: &'a [u8],
}

impl<'a> Item<'a> {
    /// Scans a line; `None` if it is not a JSON object or lacks what an ack needs.
    pub(crate) fn scan(line: &'a [u8]) -> Option<Self> {
        let mut item = Item::default();
        let mut fields = Fields::of(line)?;
        while let Some((name, value)) = fields.next_field()? {
            match name {
                b"partition" => item.partition = value,
                b"offset" => item.offset = value,
                b"attempts" => item.attempts = digits(value)?,
                b"lease_token" => item.lease_token = unquoted(value)?,
                b"value" => item.value = unquoted(value)?,
                _ => {}
            }
        }
        (digits(item.partition).is_some() && digits(item.offset).is_some()).then_some(item)
    }

    /// The stamp at the beginning of the value.
    pub(crate) fn stamp(&self) -> Option<u64> {
        u64::from_str_radix(std::str::from_utf8(self.value.get(..16)?).ok()?, 16).ok()
    }
}

/// The string or number of a top-level field of a JSON object, without quotes.
pub(crate) fn text_field<'a>(object: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    let mut fields = Fields::of(object)?;
    while let Some((name, value)) = fields.next_field()? {
        if name == wanted.as_bytes() {
            return Some(unquoted(value).unwrap_or(value));
        }
    }
    None
}

/// Iterates over the fields of a JSON object without parsing their values.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn of(object: &'a [u8]) -> Option<Self> {
        Some(Self { rest: object.trim_ascii().strip_prefix(b"{")? })
    }

    /// The next name and value; `Some(None)` at the object's end, `None` if it is malformed.
    fn next_field(&mut self) -> Option<Option<(&'a [u8], &'a [u8])>> {
        let rest = self.rest.trim_ascii_start();
        let rest = rest.strip_prefix(b",").unwrap_or(rest).trim_ascii_start();
        if rest.first()? == &b'}' {
            return Some(None);
        }
        let (name, rest) = rest.split_at_checked(string_len(rest)?)?;
        let rest = rest.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let (value, rest) = rest.split_at_checked(value_len(rest)?)?;
        self.rest = rest;
        Some(Some((unquoted(name)?, value)))
    }
}

/// Bytes of the string at the front, quotes included.
fn string_len(bytes: &[u8]) -> Option<usize> {
    if bytes.first()? != &b'"' {
        return None;
    }
    let mut at = 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Bytes of the value at the front.
fn value_len(bytes: &[u8]) -> Option<usize> {
    match bytes.first()? {
        b'"' => string_len(bytes),
        b'{' | b'[' => {
            let (mut at, mut depth) = (0, 0usize);
            loop {
                match bytes.get(at)? {
                    b'"' => at += string_len(&bytes[at..])? - 1,
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth -= 1,
                    _ => {}
                }
                at += 1;
                if depth == 0 {
                    return Some(at);
                }
            }
        }
        _ => bytes.iter().position(|byte| matches!(byte, b',' | b'}' | b' ')),
    }
}

fn unquoted(value: &[u8]) -> Option<&[u8]> {
    value.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

fn digits(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_scan_skips_escapes_and_nested_values() {
        let line = br#"{"partition":3,"offset":12,"attempts":2,"key":"a\"},{","value":"00000000000000ffxx",
            "envelope":{"labels":{"}":"]\\"},"list":[1,[2]]},"last_error":"","lease_token":"t-1","failures":0}"#;
        let item = Item::scan(line).expect("an item");
        assert_eq!((item.partition, item.offset, item.attempts), (b"3".as_slice(), b"12".as_slice(), 2));
        assert_eq!(item.lease_token, b"t-1");
        assert_eq!(item.stamp(), Some(255));
    }

    #[test]
    fn truncated_line_is_not_an_item() {
        let line = br#"{"partition":3,"offset":12,"value":"x","envelope":{"a":[1]}}"#;
        assert!(Item::scan(line).is_some());
        for end in 0..line.len() {
            assert_eq!(Item::scan(&line[..end]), None, "{end}");
        }
        assert_eq!(Item::scan(br#"{"offset":12}"#), None);
        assert_eq!(Item::scan(br#"{"partition":-1,"offset":12}"#), None);
    }

    #[test]
    fn text_field_finds_top_level_field() {
        let body = br#"{"status":422,"error":"IDEMPOTENCY_MISMATCH"}"#;
        assert_eq!(text_field(body, "error"), Some(b"IDEMPOTENCY_MISMATCH".as_slice()));
        assert_eq!(text_field(body, "status"), Some(b"422".as_slice()));
        assert_eq!(text_field(body, "message"), None);
        assert_eq!(text_field(b"not json", "error"), None);
    }
}
