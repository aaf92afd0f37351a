//! Times, durations, numbers and byte strings as text.

use std::borrow::Cow;
use std::time::Duration;

use driftq_core::types::{Millis, Timestamp};
use jiff::fmt::temporal::DateTimePrinter;

/// The bytes of a key, value, reason or result that are shown where it is shortened.
const SHOWN_BYTES: usize = 120;

/// A time in RFC 3339, UTC, with milliseconds. A time past the end of the year 9999 becomes the last one that has a
/// form.
#[must_use]
pub fn timestamp(at: Timestamp) -> String {
    const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(3));
    let time = i64::try_from(at.0).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    PRINTER.timestamp_to_string(&time.unwrap_or(jiff::Timestamp::MAX))
}

/// A number with a comma between thousands.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A duration in its largest two units: `1.5 s`, `2 min 5 s`, `1 h 1 min`, `1,500 days`.
#[must_use]
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} days", grouped(seconds / 86_400)),
    }
}

/// As [`duration`], in milliseconds below one second: `700 ms`.
#[must_use]
pub fn millis(time: Millis) -> String {
    match time.0 {
        0..1_000 => format!("{} ms", time.0),
        millis => duration(Duration::from_millis(millis)),
    }
}

/// A byte string in quotes, escaped and shortened.
#[must_use]
pub fn quoted(bytes: &[u8]) -> String {
    match shortened(bytes) {
        (shown, None) => format!("{shown:?}"),
        (shown, Some(len)) => format!("{shown:?}… ({len} bytes)"),
    }
}

/// The beginning of a byte string, and its length if that is not all of it. What is not UTF-8 is replaced.
pub(super) fn shortened(bytes: &[u8]) -> (Cow<'_, str>, Option<usize>) {
    match bytes.get(..SHOWN_BYTES) {
        Some(shown) if bytes.len() > SHOWN_BYTES => {
            // The cut may fall inside a character.
            let shown = String::from_utf8_lossy(shown).trim_end_matches('\u{fffd}').to_owned();
            (shown.into(), Some(bytes.len()))
        }
        _ => (String::from_utf8_lossy(bytes), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_durations_are_grouped_by_unit() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(duration(Duration::from_millis(1_540)), "1.5 s");
        assert_eq!(duration(Duration::from_secs(125)), "2 min 5 s");
        assert_eq!(duration(Duration::from_secs(3_700)), "1 h 1 min");
        assert_eq!(duration(Duration::from_secs(86_400 * 1_500)), "1,500 days");
        assert_eq!(millis(Millis(700)), "700 ms");
        assert_eq!(millis(Millis(2_000)), "2.0 s");
    }

    #[test]
    fn long_byte_string_is_cut_at_a_character_and_its_length_shown() {
        assert_eq!(quoted(b"a\"b\n"), "\"a\\\"b\\n\"");
        assert_eq!(quoted("é".repeat(60).as_bytes()), format!("\"{}\"", "é".repeat(60)));
        assert_eq!(quoted(format!("x{}", "é".repeat(60)).as_bytes()), format!("\"x{}\"… (121 bytes)", "é".repeat(59)));
    }
}
