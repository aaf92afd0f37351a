//! The date of an HTTP answer as seconds since 1970, to compare clocks.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Seconds since 1970 on the clock of this machine.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Seconds since 1970 of a date such as `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(super) fn parse(text: &str) -> Option<u32> {
    let mut parts = text.split_once(", ")?.1.split([' ', ':']);
    let mut number = || parts.next()?.parse::<u32>().ok();
    let day = number()?;
    let month = {
        let name = parts.next()?;
        u32::try_from(MONTHS.iter().position(|month| *month == name)?).ok()? + 1
    };
    let mut number = || parts.next()?.parse::<u32>().ok();
    let (year, hour, minute, second) = (number()?, number()?, number()?, number()?);
    if !(1970..=2105).contains(&year) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    Some(days_since_1970(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second)
}

/// Days of the Gregorian calendar, counted in years that begin in March, so that the leap day is the last one.
fn days_since_1970(year: u32, month: u32, day: u32) -> u32 {
    /// Days from 1 March of the year 0 to 1 January 1970.
    const EPOCH: u32 = 719_468;
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days_before_month = (153 * month + 2) / 5;
    year * 365 + year / 4 - year / 100 + year / 400 + days_before_month + day - 1 - EPOCH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_http_are_parsed() {
        for (text, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
            ("Tue, 29 Feb 2000 12:00:00 GMT", 951_825_600),
            ("Wed, 01 Mar 2000 00:00:00 GMT", 951_868_800),
            ("Thu, 19 Nov 2026 04:20:09 GMT", 1_795_062_009),
        ] {
            assert_eq!(parse(text), Some(seconds), "{text}");
        }
        for text in
            ["", "yesterday", "Sun, 06 Foo 1994 08:49:37 GMT", "Sun, 06 Nov 1994", "Sun, 06 Nov 1994 99:00:00 GMT"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
