//! Base64 with the standard alphabet and padding, for payloads that are not UTF-8.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = [0; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for position in 0..4 {
            // A chunk of n bytes makes n + 1 digits.
            if position <= chunk.len() {
                let digit = (bits >> (18 - 6 * position)) & 0x3f;
                text.push(char::from(ALPHABET[digit as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

/// The bytes, or nothing where the text is not Base64.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take_while(|&&byte| byte == b'=').count();
    if padding > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let mut bits = 0_u32;
    for (index, byte) in text[..text.len() - padding].iter().enumerate() {
        let digit = ALPHABET.iter().position(|letter| letter == byte)?;
        bits = bits << 6 | u32::try_from(digit).ok()?;
        if index % 4 == 3 {
            bytes.extend_from_slice(&bits.to_be_bytes()[1..]);
            bits = 0;
        }
    }
    match padding {
        1 => bytes.extend_from_slice(&(bits >> 2).to_be_bytes()[2..]),
        2 => bytes.push((bits >> 4).to_be_bytes()[3]),
        _ => {}
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_survive() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"\xff", "/w=="),
            (b"\xff\xfe", "//4="),
            (b"\xff\xfe\x00", "//4A"),
            (b"a b c d", "YSBiIGMgZA=="),
        ] {
            assert_eq!(encode(bytes), text);
            assert_eq!(decode(text).expect("Base64"), bytes);
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["a", "ab=", "====", "ab\n=", "a===", "=abc", "ab=c"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
