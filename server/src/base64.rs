//! Base64 with the standard alphabet and padding (RFC 4648, section 4), for payloads that are not UTF-8.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends `bytes` in Base64.
pub(crate) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let [one, two, three] = [0, 1, 2].map(|at| u32::from(group.get(at).copied().unwrap_or(0)));
        let bits = one << 16 | two << 8 | three;
        let digits = [18, 12, 6, 0].map(|shift| ALPHABET[(bits >> shift) as usize & 63]);
        out.extend_from_slice(&digits[..=group.len()]);
        out.extend_from_slice(&b"=="[..3 - group.len()]);
    }
}

/// The bytes of `text`; `None` unless it is exactly what [`encode`] writes for them.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (groups, []) = text.as_chunks::<4>() else { return None };
    for (number, group) in groups.iter().enumerate() {
        let padding = group.iter().rev().take_while(|digit| **digit == b'=').count();
        if padding > 2 || (padding > 0 && number + 1 < groups.len()) {
            return None;
        }
        let mut bits = 0;
        for digit in &group[..4 - padding] {
            bits = bits << 6 | value(*digit)?;
        }
        bits <<= 6 * padding;
        let [_, group @ ..] = bits.to_be_bytes();
        let (kept, dropped) = group.split_at(3 - padding);
        if dropped.iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend_from_slice(kept);
    }
    Some(bytes)
}

fn value(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        encode(bytes, &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn vectors_of_the_rfc_are_encoded_and_decoded() {
        let vectors = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, coded) in vectors {
            assert_eq!(encoded(plain.as_bytes()), coded);
            assert_eq!(decode(coded).as_deref(), Some(plain.as_bytes()));
        }
        assert_eq!(encoded(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn anything_but_the_canonical_form_is_refused() {
        for text in
            ["Z", "Zg", "Zg=", "Zg===", "=Zg=", "Zg==Zg==", "Zh==", "Zm9=", "Zm8", "Z-_v", "Zg==\n", " Zg==", "Zm9v="]
        {
            assert_eq!(decode(text), None, "{text:?}");
        }
    }

    #[test]
    fn all_short_byte_strings_and_every_length_round_trip() {
        let short = (0..=255_u8).flat_map(|one| (0..=255_u8).map(move |two| vec![one, two]));
        let long = (0..200_usize).map(|len| (0..len).map(|at| (at * 151 + len) as u8).collect::<Vec<_>>());
        for bytes in short.chain((0..=255).map(|byte| vec![byte])).chain(long) {
            assert_eq!(decode(&encoded(&bytes)), Some(bytes));
        }
    }

    #[test]
    fn whatever_is_decoded_is_encoded_to_the_same_text() {
        let digits = b"AQgwz9+/=-";
        let texts = (0..digits.len().pow(4)).map(|number| {
            let digit = |place: u32| char::from(digits[number / digits.len().pow(place) % digits.len()]);
            String::from_iter([digit(3), digit(2), digit(1), digit(0)])
        });
        let decoded = texts.filter_map(|text| Some((decode(&text)?, text)));
        let count = decoded.inspect(|(bytes, text)| assert_eq!(encoded(bytes), *text)).count();
        // Without padding 8^4; with one 8^2 times the digits whose last two bits are 0; with two 8 times the last four.
        assert_eq!(count, 8_usize.pow(4) + 8 * 8 * 4 + 8 * 4);
    }
}
