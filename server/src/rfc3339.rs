//! Timestamps in the API: RFC 3339, UTC, with milliseconds.

use driftq_core::types::Timestamp;
use jiff::SignedDuration;
use jiff::civil::DateTime;
use jiff::fmt::temporal::DateTimePrinter;

/// The epoch in UTC.
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// Appends a timestamp. One beyond what RFC 3339 can express is written as the last that can be, at the end of the year
/// 9999.
pub(crate) fn write(at: Timestamp, out: &mut Vec<u8>) {
    const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(3));
    let millis = i64::try_from(at.0).unwrap_or(i64::MAX);
    let printed = match jiff::Timestamp::from_millisecond(millis) {
        Ok(timestamp) => PRINTER.print_timestamp(&timestamp, &mut *out),
        // The last two days of the year 9999 are no timestamp in every time zone, but a date in UTC.
        Err(_) => {
            let date = EPOCH.checked_add(SignedDuration::from_millis(millis)).unwrap_or(DateTime::MAX);
            PRINTER.print_datetime(&date, &mut *out).map(|()| out.push(b'Z'))
        }
    };
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
    let (local, offset) = text.split_at(text.len() - if text.ends_with(['Z', 'z']) { 1 } else { 6 });
    let local: DateTime = local.parse().ok()?;
    let minutes = match offset.as_bytes() {
        [sign, hours @ .., b':', tens, ones] => {
            let number = |digits: &[u8]| digits.iter().fold(0, |number, digit| 10 * number + i64::from(digit - b'0'));
            let (hours, minutes) = (number(hours), number(&[*tens, *ones]));
            if hours > 23 || minutes > 59 {
                return None;
            }
            (60 * hours + minutes) * if *sign == b'-' { -1 } else { 1 }
        }
        _ => 0,
    };
    let millis = local.duration_since(EPOCH).as_millis() - i128::from(minutes) * 60_000;
    Some(Timestamp(u64::try_from(millis.max(0)).unwrap_or(u64::MAX)))
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
        assert_eq!(format(Timestamp(253_402_300_799_000)), "9999-12-31T23:59:59.000Z");
        assert_eq!(format(Timestamp::MAX), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn only_rfc_3339_is_parsed() {
        for (text, at) in [
            ("2025-12-21T12:00:00Z", 1_766_318_400_000),
            ("2025-12-21T12:00:00.5Z", 1_766_318_400_500),
            ("2025-12-21t14:00:00.123456789+02:00", 1_766_318_400_123),
            ("1969-12-31T23:59:59Z", 0),
            ("9999-12-31T23:59:59Z", 253_402_300_799_000),
            ("2025-12-22T11:59:00+23:59", 1_766_318_400_000),
            ("2025-12-21T12:00:00-00:00", 1_766_318_400_000),
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
            "2025-12-21T12:00:00+24:00",
            "2025-12-21T12:00:00+02:60",
            "2025-02-29T12:00:00Z",
            "2025-12-21T24:00:00Z",
            "2025-12-21T12:00:00Z[UTC]",
            "1766318400000",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
