//! Canonical JSON (RFC 8785) and the hash of a request. The bytes are the same in every client of DriftQ.

use std::cmp::Ordering;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Number, Value};
use sha2::{Digest as _, Sha256};

use crate::error::Error;
use crate::strict;

/// The largest integer that every JSON implementation represents exactly.
const INTEGER_MAX: u64 = (1 << 53) - 1;
/// Numbers below 10 to this power are written without an exponent.
const PLAIN_EXPONENT_MAX: i32 = 21;
/// Numbers of at least 10 to this power are written without an exponent.
const PLAIN_EXPONENT_MIN: i32 = -6;

/// The canonical JSON text of a value: sorted names, no space, numbers as ECMAScript writes them.
///
/// # Errors
/// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse), with the path of the value, where a value is no JSON (NaN, an
/// infinity, bytes, a map whose keys are no text) or is a whole number beyond ±(2^53 − 1), of whatever type.
///
/// # Examples
/// ```
/// let value = serde_json::json!({"b": 1.0, "a": [1e-7, "é"]});
/// assert_eq!(driftq_client::canonical_json(&value)?, r#"{"a":[1e-7,"é"],"b":1}"#);
/// # Ok::<(), driftq_client::Error>(())
/// ```
pub fn canonical_json<T: Serialize + ?Sized>(value: &T) -> Result<String, Error> {
    let value = strict::to_value(value)?;
    let mut out = String::new();
    write_value(&mut out, &value, &mut String::from("$"))?;
    Ok(out)
}

/// The hash of a request, as `begin` compares it: the SHA-256 of the [canonical JSON](canonical_json) of `value` in
/// lower-case hexadecimal digits.
///
/// # Errors
/// As [`canonical_json`].
pub fn request_hash<T: Serialize + ?Sized>(value: &T) -> Result<String, Error> {
    Ok(sha256_hex(canonical_json(value)?.as_bytes()))
}

/// The [`request_hash`] of a value that is given as JSON text.
///
/// # Errors
/// As [`canonical_json`], and if the text is no JSON.
pub fn request_hash_of_text(json: &str) -> Result<String, Error> {
    let value: Value = serde_json::from_str(json).map_err(|error| Error::misuse(format!("no JSON: {error}")))?;
    request_hash(&value)
}

pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let mut text = String::with_capacity(digest.len() * 2);
    for byte in digest {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn write_value(out: &mut String, value: &Value, path: &mut String) -> Result<(), Error> {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Number(number) => write_number(out, number, path)?,
        Value::String(text) => write_text(out, text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                let end = path.len();
                let _ = write!(path, "[{index}]");
                write_value(out, item, path)?;
                path.truncate(end);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by(|(one, _), (other, _)| compare_utf16(one, other));
            out.push('{');
            for (index, (name, field)) in fields.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_text(out, name);
                out.push(':');
                let end = path.len();
                path.push('.');
                path.push_str(name);
                write_value(out, field, path)?;
                path.truncate(end);
            }
            out.push('}');
        }
    }
    Ok(())
}

/// The order of names in canonical JSON: by UTF-16 code units, which differs from that of UTF-8 above U+FFFF.
fn compare_utf16(one: &str, other: &str) -> Ordering {
    one.encode_utf16().cmp(other.encode_utf16())
}

fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            control if control < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

fn write_number(out: &mut String, number: &Number, path: &str) -> Result<(), Error> {
    if let Some(integer) = number.as_i64() {
        if integer.unsigned_abs() > INTEGER_MAX {
            return Err(beyond(path));
        }
        let _ = write!(out, "{integer}");
    } else if number.is_u64() {
        return Err(beyond(path));
    } else if let Some(float) = number.as_f64() {
        // In some languages 1e30 is an integer.
        if float.fract() == 0.0 && float.abs() > INTEGER_MAX as f64 {
            return Err(beyond(path));
        }
        write_float(out, float);
    }
    Ok(())
}

fn beyond(path: &str) -> Error {
    Error::misuse(format!("{path}: a whole number beyond ±(2^53 − 1) is not exact in every client; give it as text"))
}

/// Writes a finite number as `Number.prototype.toString` of ECMAScript does. The digits are the shortest that read back
/// as the same number, which is what the standard library produces, too, but for [ties](even_in_tie).
fn write_float(out: &mut String, number: f64) {
    assert!(number.is_finite(), "numbers of JSON are finite");
    if number == 0.0 {
        // Also of -0.
        out.push('0');
        return;
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let digits = even_in_tie(number.abs(), digits, exponent);
    // The number is 0.digits · 10^point.
    let point = exponent.parse::<i32>().unwrap_or(0) + 1;
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    out.push_str(sign);
    if count <= point && point <= PLAIN_EXPONENT_MAX {
        out.push_str(&digits);
        (count..point).for_each(|_| out.push('0'));
    } else if 0 < point && point <= PLAIN_EXPONENT_MAX {
        let (whole, fraction) = digits.split_at(point.unsigned_abs() as usize);
        let _ = write!(out, "{whole}.{fraction}");
    } else if PLAIN_EXPONENT_MIN < point && point <= 0 {
        out.push_str("0.");
        (point..0).for_each(|_| out.push('0'));
        out.push_str(&digits);
    } else {
        let (first, rest) = digits.split_at(1);
        out.push_str(first);
        if !rest.is_empty() {
            let _ = write!(out, ".{rest}");
        }
        let _ = write!(out, "e{}{}", if point > 0 { '+' } else { '-' }, (point - 1).abs());
    }
}

/// More digits than the exact decimal form of any number has.
const EXACT_DIGITS: usize = 800;
/// As many digits as tell whether the exact form is worth its time.
const FIRST_DIGITS: usize = 18;

/// Where a number is exactly between two shortest forms, ECMAScript takes the one whose last digit is even, the
/// standard library the larger one.
fn even_in_tie(number: f64, digits: String, exponent: &str) -> String {
    let Some((last, start)) = digits.as_bytes().split_last() else { return digits };
    let is_tie = |places: usize| {
        let exact = format!("{number:.places$e}");
        let exact = exact.split_once('e').map_or("", |(mantissa, _)| mantissa).replace('.', "");
        let rest = exact.get(digits.len()..).unwrap_or_default();
        rest.strip_prefix('5').is_some_and(|zeros| zeros.bytes().all(|digit| digit == b'0'))
    };
    if last.is_multiple_of(2) || !is_tie(FIRST_DIGITS) || !is_tie(EXACT_DIGITS) {
        return digits;
    }
    let even = format!("{}{}", String::from_utf8_lossy(start), char::from(last - 1));
    let (whole, fraction) = even.split_at(1);
    let is_same = format!("{whole}.{fraction}e{exponent}").parse() == Ok(number);
    if is_same { even } else { digits }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn float(number: f64) -> String {
        let mut out = String::new();
        write_float(&mut out, number);
        out
    }

    #[test]
    fn floats_are_written_as_ecmascript_writes_them() {
        let bits = |bits: u64| float(f64::from_bits(bits));
        // The table of RFC 8785, appendix B.
        for (number, text) in [
            (0x0000_0000_0000_0000, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
            (0x4340_0000_0000_0000, "9007199254740992"),
            (0xc340_0000_0000_0000, "-9007199254740992"),
            (0x4430_0000_0000_0000, "295147905179352830000"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
            (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
            (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0x41b3_de43_5555_5554, "333333333.33333325"),
            (0x41b3_de43_5555_5555, "333333333.3333333"),
            (0x41b3_de43_5555_5556, "333333333.3333334"),
            (0x41b3_de43_5555_5557, "333333333.33333343"),
            (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
        ] {
            assert_eq!(bits(number), text, "{number:x}");
        }
    }

    #[test]
    fn names_are_sorted_by_utf16_code_units() {
        let value = json!({"\u{20ac}": 1, "\r": 2, "\u{fb33}": 3, "1": 4, "\u{1f600}": 5, "\u{80}": 6, "\u{f6}": 7});
        let expected = "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"\u{f6}\":7,\"\u{20ac}\":1,\"\u{1f600}\":5,\"\u{fb33}\":3}";
        assert_eq!(canonical_json(&value).expect("JSON"), expected);
    }

    #[test]
    fn control_characters_are_escaped_and_others_are_not() {
        let text = canonical_json("\u{20ac}$\u{f}\nA'B\"\\\"/\u{7f}\u{2028}").expect("JSON");
        assert_eq!(text, "\"\u{20ac}$\\u000f\\nA'B\\\"\\\\\\\"/\u{7f}\u{2028}\"");
    }

    #[test]
    fn integer_beyond_two_to_53_is_misuse_with_its_path() {
        assert_eq!(canonical_json(&9_007_199_254_740_991_u64).expect("exact"), "9007199254740991");
        for value in [json!({"a": [0, 9_007_199_254_740_992_u64]}), json!({"a": [0, -1e300]})] {
            let error = canonical_json(&value).expect_err("too large");
            assert!(error.message().starts_with("$.a[1]: a whole number beyond"), "{error}");
        }
    }

    #[test]
    fn not_a_number_is_misuse_with_its_path() {
        let error = canonical_json(&vec![("x", f64::NAN)]).expect_err("no JSON");
        assert!(error.message().starts_with("$[0][1]: "), "{error}");
    }

    #[test]
    fn hash_is_that_of_the_canonical_text() {
        let hash = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
        assert_eq!(request_hash_of_text(" { } ").expect("JSON"), hash);
        let one = request_hash(&json!({"a": 1, "b": 2.0})).expect("JSON");
        assert_eq!(one, request_hash_of_text("{\"b\": 2, \"a\": 1.0}").expect("JSON"));
    }
}
