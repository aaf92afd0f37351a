//! Durations, sizes and counts as people write and read them.

use std::time::Duration;

const DURATION_UNITS: &[(&str, u64)] =
    &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000), ("w", 604_800_000)];

const BYTE_UNITS: &[(&str, u64)] = &[
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// A duration such as `250ms`, `30s`, `5m`, `2h` or `7d`; `0` needs no unit.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let hint = || "a duration is a number and a unit: 250ms, 30s, 5m, 2h, 7d".to_owned();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (number, unit) = split(text).ok_or_else(hint)?;
    let scale = scale_of(unit, DURATION_UNITS).ok_or_else(hint)?;
    number.checked_mul(scale).map(Duration::from_millis).ok_or_else(|| "the duration is too long".to_owned())
}

/// A size such as `4096`, `64KiB` or `1GB`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let hint = || "a size is a number of bytes, or a number and a unit: 64KiB, 10MB, 1GiB".to_owned();
    let (number, unit) = split(text).ok_or_else(hint)?;
    let scale = if unit.is_empty() { 1 } else { scale_of(unit, BYTE_UNITS).ok_or_else(hint)? };
    number.checked_mul(scale).ok_or_else(|| "the size is too large".to_owned())
}

fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim_start()))
}

fn scale_of(unit: &str, units: &[(&str, u64)]) -> Option<u64> {
    units.iter().find_map(|(name, scale)| (*name == unit).then_some(*scale))
}

/// Milliseconds as the two largest units: `1.5s`, `2m 5s`, `3d 4h`.
pub(crate) fn millis(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis}ms"),
        1_000..60_000 => with_decimal(millis, 1_000) + "s",
        60_000..3_600_000 => pair(millis / 1_000, 60, "m", "s"),
        3_600_000..86_400_000 => pair(millis / 60_000, 60, "h", "m"),
        _ => pair(millis / 3_600_000, 24, "d", "h"),
    }
}

fn pair(small_count: u64, per_large: u64, large: &str, small: &str) -> String {
    let (whole, rest) = (small_count / per_large, small_count % per_large);
    if rest == 0 { format!("{whole}{large}") } else { format!("{whole}{large} {rest}{small}") }
}

/// Bytes in the unit that leaves at most four digits.
pub(crate) fn bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let Some(index) = (0..units.len()).rev().find(|index| bytes >= 1 << (10 * (index + 1))) else {
        return format!("{bytes} B");
    };
    format!("{} {}", with_decimal(bytes, 1 << (10 * (index + 1))), units[index])
}

/// The quotient with one decimal below 100 unless that is zero.
fn with_decimal(number: u64, unit: u64) -> String {
    let (whole, tenth) = (number / unit, number % unit * 10 / unit);
    if whole >= 100 || tenth == 0 { whole.to_string() } else { format!("{whole}.{tenth}") }
}

/// Seconds as a latency: `85µs`, `4.2ms`, `1.3s`.
pub(crate) fn latency(seconds: f64) -> String {
    if seconds >= 1.0 {
        format!("{seconds:.1}s")
    } else if seconds >= 0.001 {
        format!("{:.1}ms", seconds * 1e3)
    } else {
        format!("{:.0}µs", seconds * 1e6)
    }
}

/// A count with commas between thousands.
pub(crate) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rate, rounded: exact below ten, whole above.
pub(crate) fn rate(per_second: f64) -> String {
    if per_second > 0.0 && per_second < 10.0 {
        return format!("{per_second:.1}");
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is not negative")]
    let whole = per_second.max(0.0).round() as u64;
    count(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_parsed() {
        for (text, millis) in [("0", 0), ("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("7d", 604_800_000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for (text, bytes) in [("0", 0), ("4096", 4096), ("64KiB", 65_536), ("1GB", 1_000_000_000), ("2 MiB", 2 << 20)] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "s", "10", "-1s", "1.5s", "5 minutes", "99999999999999999d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        for text in ["", "KiB", "-1", "1 kib", "99999999999GiB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn figures_are_short() {
        assert_eq!([0, 999, 1_000, 1_500, 65_000].map(millis), ["0ms", "999ms", "1s", "1.5s", "1m 5s"]);
        assert_eq!([3_600_000, 90_000_000, 604_800_000].map(millis), ["1h", "1d 1h", "7d"]);
        assert_eq!([0, 1_023, 1_024, 1_536, 1 << 30].map(bytes), ["0 B", "1023 B", "1 KiB", "1.5 KiB", "1 GiB"]);
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 0.5, 12.6, 12_345.0].map(rate), ["0", "0.5", "13", "12,345"]);
        assert_eq!([0.000_085, 0.0042, 1.25].map(latency), ["85µs", "4.2ms", "1.2s"]);
    }
}
