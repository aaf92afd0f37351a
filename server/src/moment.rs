//! Moments as the API spells them: RFC 3339, UTC, milliseconds.

use driftq_core::types::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;

/// Writes a moment. Any that lies beyond what can be spelled, near the end of the year 9999, is written as the last that can.
pub(crate) fn write(at: Timestamp, out: &mut Vec<u8>) {
    const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(3));
    let moment = i64::try_from(at.0).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    let printed = PRINTER.print_timestamp(&moment.unwrap_or(jiff::Timestamp::MAX), &mut *out);
    printed.expect("memory takes whatever is written");
}

/// A moment as text.
pub(crate) fn text(at: Timestamp) -> String {
    let mut out = Vec::with_capacity(24);
    write(at, &mut out);
    String::from_utf8(out).expect("digits and punctuation")
}

/// Reads RFC 3339, and nothing else that looks like a date. What lies before 1970 counts as its beginning.
pub(crate) fn parse(text: &str) -> Option<Timestamp> {
    if !has_shape(text.as_bytes()) {
        return None;
    }
    let moment: jiff::Timestamp = text.parse().ok()?;
    Some(Timestamp(u64::try_from(moment.as_millisecond()).unwrap_or(0)))
}

/// `YYYY-MM-DDTHH:MM:SS[.fraction](Z|±HH:MM)`.
fn has_shape(text: &[u8]) -> bool {
    let fits = |text: &[u8], shape: &[u8]| {
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
    fits(date, b"0000-00-00T00:00:00") && (fits(rest, b"Z") || fits(rest, b"+00:00"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_with_milliseconds_in_utc() {
        assert_eq!(text(Timestamp(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(text(Timestamp(1_766_318_400_123)), "2025-12-21T12:00:00.123Z");
        assert_eq!(text(Timestamp::MAX), "9999-12-30T22:00:00.999Z");
    }

    #[test]
    fn rfc_3339_is_read_and_nothing_else() {
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
