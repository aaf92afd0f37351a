//! Durations and times as scenario files write them: `500ms`, `30s`, `10m`, `1h30m`, `7d`; times as `+30s` after the
//! start.

use driftq_core::types::{Millis, Timestamp};

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// A day prints as `24h`, longer spans as days and hours.
const DAYS_FROM: u64 = 2 * 86_400_000;

pub fn parse_duration(text: &str) -> Result<Millis, String> {
    let wrong = || format!("\"{text}\" is not a duration; write 500ms, 30s, 10m, 24h or 7d");
    let (mut total, mut rest) = (0_u64, text);
    while !rest.is_empty() || text.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let unit = tail.split(|c: char| c.is_ascii_digit()).next().ok_or_else(wrong)?;
        let (_, factor) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let span = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(wrong)?;
        total = total.checked_add(span).ok_or_else(wrong)?;
        rest = &tail[unit.len()..];
    }
    Ok(Millis(total))
}

pub fn print_duration(span: Millis) -> String {
    if span.0 == 0 {
        return "0s".to_owned();
    }
    let (mut rest, mut printed) = (span.0, String::new());
    for (name, factor) in UNITS {
        if (name == "d" && span.0 < DAYS_FROM) || rest < factor {
            continue;
        }
        printed += &format!("{}{name}", rest / factor);
        rest %= factor;
    }
    printed
}

pub fn parse_time(start: Timestamp, text: &str) -> Result<Timestamp, String> {
    let after = text.strip_prefix('+').ok_or_else(|| format!("\"{text}\" is not a time; write +30s"))?;
    Ok(start.after(parse_duration(after)?))
}

pub fn print_time(start: Timestamp, time: Timestamp) -> String {
    format!("+{}", print_duration(time.since(start)))
}

#[test]
fn durations_parse_and_print() {
    for (text, span) in [("0s", 0), ("500ms", 500), ("30s", 30_000), ("10m", 600_000), ("24h", 86_400_000)] {
        assert_eq!((parse_duration(text), print_duration(Millis(span))), (Ok(Millis(span)), text.to_owned()));
    }
    for (text, span) in [("1m30s", 90_000), ("7d", 604_800_000), ("2d1h", 176_400_000), ("1s734ms", 1_734)] {
        assert_eq!((parse_duration(text), print_duration(Millis(span))), (Ok(Millis(span)), text.to_owned()));
    }
    for text in ["", "30", "s", "30x", "-1s", "1 s", "99999999999999999999s"] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
}
