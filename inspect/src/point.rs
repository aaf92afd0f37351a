//! A point of a log: an LSN, a time, or a time before the end.

use std::str::FromStr;
use std::time::Duration;

use driftq_core::types::Timestamp;

/// A point of a log.
///
/// As text it is an LSN (`5120`), an RFC 3339 time (`2026-11-15T12:00:00Z`), or a duration before the last record
/// with a leading minus (`-500ms`, `-30s`, `-5m`, `-1h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogPoint {
    /// After the record with this LSN.
    Lsn(u64),
    /// After the last record decided at this time or earlier.
    Time(Timestamp),
    /// This long before the time of the last record.
    BeforeEnd(Duration),
}

/// The text is not a [`LogPoint`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is neither an LSN nor a time; write 5120, 2026-11-15T12:00:00Z or -5m")]
pub struct LogPointError(String);

impl FromStr for LogPoint {
    type Err = LogPointError;

    fn from_str(text: &str) -> Result<Self, LogPointError> {
        let refused = || LogPointError(text.to_owned());
        if let Some(before_end) = text.strip_prefix('-') {
            return duration(before_end).map(Self::BeforeEnd).ok_or_else(refused);
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().map(Self::Lsn).map_err(|_| refused());
        }
        let time: jiff::Timestamp = text.parse().map_err(|_| refused())?;
        Ok(Self::Time(Timestamp(u64::try_from(time.as_millisecond()).unwrap_or(0))))
    }
}

/// A positive whole number and its unit: `500ms`, `30s`, `5m` or `1h`.
fn duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let unit_ms = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    let ms = digits.parse::<u64>().ok()?.checked_mul(unit_ms)?;
    (ms > 0).then(|| Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lsn_time_and_duration_parse_and_other_text_is_refused() {
        for (text, point) in [
            ("5120", LogPoint::Lsn(5_120)),
            ("-500ms", LogPoint::BeforeEnd(Duration::from_millis(500))),
            ("-5m", LogPoint::BeforeEnd(Duration::from_secs(300))),
            ("2025-12-21T12:00:00.123Z", LogPoint::Time(Timestamp(1_766_318_400_123))),
            ("2025-12-21T14:00:00+02:00", LogPoint::Time(Timestamp(1_766_318_400_000))),
        ] {
            assert_eq!(text.parse(), Ok(point), "{text}");
        }
        let refused = ["", "-", "-5", "-0s", "-2d", "-1.5h", "5m", "99999999999999999999", "-99999999999999999999s"];
        for text in refused.into_iter().chain(["2025-12-21", "2025-12-21T12:00:00", "now"]) {
            assert!(text.parse::<LogPoint>().is_err(), "{text}");
        }
    }
}
