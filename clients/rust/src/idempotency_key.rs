//! Deterministic idempotency keys. The same parts make the same key in every client of DriftQ.

use std::fmt::Write as _;

use crate::canonical::sha256_hex;
use crate::error::Error;

/// The longest key that the broker takes, in bytes.
const KEY_BYTES_MAX: usize = 255;
/// What precedes the hash of a key that would be longer.
const HASHED: &str = "sha256:";

/// A part of an idempotency key: text, an integer or a truth value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPart(String);

macro_rules! key_part_from {
    ($($type:ty),*) => {$(
        impl From<$type> for KeyPart {
            fn from(part: $type) -> Self {
                Self(part.to_string())
            }
        }
    )*};
}

key_part_from!(&str, &String, String, bool, u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

/// The idempotency key that identifies `parts`: each part percent-encoded, joined by `:`, hashed where that is longer
/// than 255 bytes. Different parts have different keys.
///
/// # Errors
/// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) without parts, or with a single empty one.
///
/// # Examples
/// ```
/// use driftq_client::idempotency_key;
///
/// assert_eq!(idempotency_key(["order".into(), 7.into(), "a/b c".into()])?, "order:7:a%2Fb%20c");
/// # Ok::<(), driftq_client::Error>(())
/// ```
pub fn idempotency_key(parts: impl IntoIterator<Item = KeyPart>) -> Result<String, Error> {
    let mut key = String::new();
    for (index, KeyPart(part)) in parts.into_iter().enumerate() {
        if index > 0 {
            key.push(':');
        }
        encode(&mut key, &part);
    }
    if key.is_empty() {
        return Err(Error::misuse("an idempotency key needs at least one part that is not empty"));
    }
    if key.len() > KEY_BYTES_MAX {
        key = format!("{HASHED}{}", sha256_hex(key.as_bytes()));
    }
    Ok(key)
}

/// Percent-encodes every byte but the unreserved ones of RFC 3986.
pub(crate) fn encode(out: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(parts: &[&str]) -> Result<String, Error> {
        idempotency_key(parts.iter().map(|part| KeyPart::from(*part)))
    }

    #[test]
    fn parts_are_encoded_so_that_none_runs_into_the_next() {
        assert_eq!(key(&["a", "b"]).expect("a key"), "a:b");
        assert_eq!(key(&["a:b"]).expect("a key"), "a%3Ab");
        assert_eq!(key(&["", ""]).expect("a key"), ":");
        assert_eq!(key(&["é%~"]).expect("a key"), "%C3%A9%25~");
    }

    #[test]
    fn long_key_is_hashed() {
        let longest = "a".repeat(255);
        assert_eq!(key(&[&longest]).expect("a key"), longest);
        let hashed = key(&[&longest, "b"]).expect("a key");
        assert_eq!(hashed, format!("sha256:{}", sha256_hex(format!("{longest}:b").as_bytes())));
    }

    #[test]
    fn nothing_is_no_key() {
        assert!(key(&[]).is_err());
        assert!(key(&[""]).is_err());
    }

    #[test]
    fn integers_and_flags_are_parts() {
        let parts = [KeyPart::from(-7), true.into(), u64::MAX.into()];
        assert_eq!(idempotency_key(parts).expect("a key"), "-7:true:18446744073709551615");
    }
}
