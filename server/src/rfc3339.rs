//! Timestamps in the API: RFC 3339, UTC, with milliseconds.

use driftq_core::types::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;

/// Appends a timestamp. One beyond what RFC 3339 can express is written as the last that can be, near the end of the
/// year 9999.
pub(crate) fn write(at: Timestamp, out: &mut Vec<u8>) {
    const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(3));
    let timestamp = i64::try_from(at.0).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    let printed = PRINTER.print_timestamp(&timestamp.unwrap_or(jiff::Timestamp::MAX), &mut *out);
    printed.expect("writing to memory does not fail");
}

/// A timestamp as text.
pub(crate) fn format(at: Timestamp) -> String {
    let mut out = Vec::with_capacity(24);
    write(at, &mut out);
    String::from_utf8(out).expect("digits and punctuation")
}

/// Parses RFC 3339, and no other date format. A time before 1970 becomes 1970.
pub(crate) fn parse(text: &str) -> Option<Timestamp> {
    if !has_shape(text.as_bytes()) {
        return None;
    }
    let timestamp: jiff::Timestamp = text.parse().ok()?;
    Some(Timestamp(u64::try_from(timestamp.as_millisecond()).unwrap_or(0)))
}

/// Whether it has the form `YYYY-MM-DDTHH:MM:SS[.fraction](Z|±HH:MM)`. Jiff accepts more.
fn has_shape(text: &[u8]) -> bool {
    let matches = |text: &[u8], shape: &[u8]| {
        text.len() == shape.len()
            && text.iter().zip(shape).all(|(byte, shape)| match shape {
                b'0' => byte.is_ascii_digit(),
                b'T' => matches!(byte, b'T' | b't'),
                b'+' => matches!(byte, b'+' | b'-'),
                b'Z' => matches!(byte, b'Z' | b'z'),
                other => byte == other,
            })
    };
    let Some((date, mut rest)) = text.split_at_checked(19) else { return false };
    if let [b'.', fraction @ ..] = rest {
        let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return false;
        }
        rest = &fraction[digits..];
    }
    matches(date, b"0000-00-00T00:00:00") && (matches(rest, b"Z") || matches(rest, b"+00:00"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_is_written_in_utc_with_milliseconds() {
        assert_eq!(format(Timestamp(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(format(Timestamp(1_766_318_400_123)), "2025-12-21T12:00:00.123Z");
        assert_eq!(format(Timestamp::MAX), "9999-12-30T22:00:00.999Z");
    }

    #[test]
    fn only_rfc_3339_is_parsed() {
        for (text, at) in [
            ("2025-12-21T12:00:00Z", 1_766_318_400_000),
            ("2025-12-21T12:00:00.5Z", 1_766_318_400_500),
            ("2025-12-21t14:00:00.123456789+02:00", 1_766_318_400_123),
            ("1969-12-31T23:59:59Z", 0),
        ] {
            assert_eq!(parse(text), Some(Timestamp(at)), "{text}");
        }
        for text in [
            "",
            "tomorrow",
            "2025-12-21",
            "2025-12-21 12:00:00Z",
            "2025-12-21T12:00:00",
            "2025-12-21T12:00Z",
            "20251221T120000Z",
            "2025-13-21T12:00:00Z",
            "2025-12-21T12:00:00.Z",
            "2025-12-21T12:00:00+0200",
            "2025-12-21T12:00:00Z[UTC]",
            "1766318400000",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
