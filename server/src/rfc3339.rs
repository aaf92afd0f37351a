//! Timestamps in the API: RFC 3339, written in UTC with milliseconds.

use std::cell::Cell;

use driftq_core::types::Timestamp;

#[cfg(test)]
mod tests;

const SECOND_MS: i64 = 1_000;
const MINUTE_MS: i64 = 60 * SECOND_MS;
const DAY_MINUTES: i64 = 24 * 60;
const DAY_MS: i64 = DAY_MINUTES * MINUTE_MS;

/// 9999-12-31T23:59:59.999Z, the last time that RFC 3339 can express.
const LAST_MS: i64 = 253_402_300_799_999;

/// Appends a timestamp. One after the year 9999 is written as the last millisecond of it.
pub(crate) fn write(at: Timestamp, out: &mut Vec<u8>) {
    let at = i64::try_from(at.0).unwrap_or(LAST_MS).min(LAST_MS);
    let time = at % DAY_MS / SECOND_MS;
    let mut text = *b"0000-00-00T00:00:00.000Z";
    text[..10].copy_from_slice(&date_text(at / DAY_MS));
    set_digits(&mut text[11..13], time / 3_600);
    set_digits(&mut text[14..16], time / 60 % 60);
    set_digits(&mut text[17..19], time % 60);
    set_digits(&mut text[20..23], at % SECOND_MS);
    out.extend_from_slice(&text);
}

/// A day since 1970 as text, `0000-00-00`. The timestamps that a thread writes mostly are of the same day.
fn date_text(days: i64) -> [u8; 10] {
    thread_local! {
        static LAST: Cell<(i64, [u8; 10])> = const { Cell::new((0, *b"1970-01-01")) };
    }
    let (last_days, mut text) = LAST.get();
    if last_days != days {
        let (year, month, day) = date_of(days);
        set_digits(&mut text[..4], year);
        set_digits(&mut text[5..7], month);
        set_digits(&mut text[8..], day);
        LAST.set((days, text));
    }
    text
}

/// A timestamp as text.
pub(crate) fn format(at: Timestamp) -> String {
    let mut out = Vec::with_capacity(24);
    write(at, &mut out);
    String::from_utf8(out).expect("digits and punctuation")
}

/// Parses a time as RFC 3339 defines it, and no other date format: `T` and `Z` in either case, a fraction of any length
/// (cut to milliseconds), offsets up to 23:59.
///
/// A time before 1970 becomes 1970. A leap second, which is valid only at the end of a month in UTC, becomes the last
/// millisecond before it, since the time in milliseconds since 1970 has none.
pub(crate) fn parse(text: &str) -> Option<Timestamp> {
    let mut input = Input(text.as_bytes());
    let year = input.digits(4)?;
    let month = input.after(b"-")?.digits(2)?;
    let day = input.after(b"-")?.digits(2)?;
    let hour = input.after(b"Tt")?.digits(2)?;
    let minute = input.after(b":")?.digits(2)?;
    let second = input.after(b":")?.digits(2)?;
    let millis = if input.after(b".").is_some() { input.fraction()? } else { 0 };
    let offset_min = input.offset_min()?;
    let in_range = (1..=12).contains(&month)
        && (1..=days_in(year, month)).contains(&day)
        && (hour <= 23 && minute <= 59 && second <= 60)
        && input.0.is_empty();
    if !in_range {
        return None;
    }
    let utc_min = days_from_1970(year, month, day) * DAY_MINUTES + hour * 60 + minute - offset_min;
    let ms = match second {
        60 if is_end_of_month(utc_min) => MINUTE_MS - 1,
        60 => return None,
        second => second * SECOND_MS + millis,
    };
    Some(Timestamp(u64::try_from(utc_min * MINUTE_MS + ms).unwrap_or(0)))
}

/// The rest of the text to parse.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    /// The input after one of these characters.
    fn after(&mut self, expected: &[u8]) -> Option<&mut Self> {
        let (first, rest) = self.0.split_first()?;
        self.0 = expected.contains(first).then_some(rest)?;
        Some(self)
    }

    /// A number of exactly `count` digits.
    fn digits(&mut self, count: usize) -> Option<i64> {
        let (digits, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        let digit = |byte: &u8| byte.is_ascii_digit().then(|| i64::from(byte - b'0'));
        digits.iter().try_fold(0, |number, byte| Some(number * 10 + digit(byte)?))
    }

    /// The milliseconds of a fraction of at least one digit.
    fn fraction(&mut self) -> Option<i64> {
        let count = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, rest) = self.0.split_at(count);
        self.0 = rest;
        let first_three = digits.iter().chain(b"000").take(3);
        (count > 0).then(|| first_three.fold(0, |millis, byte| millis * 10 + i64::from(byte - b'0')))
    }

    /// The offset from UTC in minutes.
    fn offset_min(&mut self) -> Option<i64> {
        if self.after(b"Zz").is_some() {
            return Some(0);
        }
        let sign = if self.after(b"-").is_some() { -1 } else { 1 };
        if sign > 0 {
            self.after(b"+")?;
        }
        let hours = self.digits(2)?;
        let minutes = self.after(b":")?.digits(2)?;
        (hours <= 23 && minutes <= 59).then_some(sign * (hours * 60 + minutes))
    }
}

/// The number of days in a month.
fn days_in(year: i64, month: i64) -> i64 {
    let is_leap_year = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if is_leap_year => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The number of days from 1970-01-01 to a date of the Gregorian calendar; negative before.
fn days_from_1970(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is the last of its year; 400 years have 146,097 days.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The date that many days after 1970-01-01: the reverse of [`days_from_1970`].
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (0, month + 3) } else { (1, month - 9) };
    (year + year_of_era + era * 400, month, day)
}

/// Whether a minute since 1970 is the last of its month in UTC.
fn is_end_of_month(minute: i64) -> bool {
    let next_minute = minute + 1;
    next_minute.rem_euclid(DAY_MINUTES) == 0 && date_of(next_minute.div_euclid(DAY_MINUTES)).2 == 1
}

/// Fills `places` with the last digits of a number.
#[inline]
fn set_digits(places: &mut [u8], mut number: i64) {
    for place in places.iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
    }
}
