//! The text of a key, `dq_<id>_<secret>`: what a client shows, and what a new key is.

use std::fs::File;
use std::io::{self, Read};

use driftq_core::types::{KeyDigest, KeyId};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// What every key begins with, so that scanners for leaked secrets recognise it.
const PREFIX: &[u8] = b"dq_";
/// Characters of an id.
const ID_CHARS: usize = KeyId::LEN;
/// Characters of a secret: 32 bytes in base64url without padding.
const SECRET_CHARS: usize = 43;
const SECRET_BYTES: usize = 32;
/// Characters of the whole text.
const TEXT_CHARS: usize = PREFIX.len() + ID_CHARS + 1 + SECRET_CHARS;

const ID_ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
const SECRET_ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The digest of a secret: SHA-256 of its 43 characters.
fn digest_of(secret: &[u8]) -> KeyDigest {
    KeyDigest(Sha256::digest(secret).into())
}

/// A key that a client shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShownKey {
    pub(crate) id: KeyId,
    digest: KeyDigest,
}

impl ShownKey {
    /// What is stored of its secret.
    pub(crate) fn digest(&self) -> KeyDigest {
        self.digest
    }

    /// Whether its secret is the one that has this digest. Takes the same time whatever it is.
    pub(crate) fn has_digest(&self, digest: &KeyDigest) -> bool {
        self.digest.0.ct_eq(&digest.0).into()
    }

    /// Parses a key. Nothing but the text that [`NewKey`] makes is one.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let text: &[u8; TEXT_CHARS] = text.try_into().ok()?;
        let (id, secret) = text.strip_prefix(PREFIX)?.split_at(ID_CHARS);
        let secret = secret.strip_prefix(b"_")?;
        if !secret.iter().all(|byte| SECRET_ALPHABET.contains(byte)) {
            return None;
        }
        let id = std::str::from_utf8(id).ok()?.parse().ok()?;
        Some(Self { id, digest: digest_of(secret) })
    }
}

/// A key that did not exist before.
pub(crate) struct NewKey {
    pub(crate) id: KeyId,
    pub(crate) digest: KeyDigest,
    /// Shown once, and not kept.
    pub(crate) text: String,
}

impl NewKey {
    /// A key of random numbers.
    ///
    /// # Errors
    /// If the system has none.
    pub(crate) fn random() -> io::Result<Self> {
        let mut random = File::open("/dev/urandom")?;
        let id = random_id(&mut random)?;
        let mut bytes = [0; SECRET_BYTES];
        random.read_exact(&mut bytes)?;
        let secret = encode(&bytes);
        let digest = digest_of(secret.as_bytes());
        let text = format!("dq_{id}_{secret}");
        let id = id.parse().expect("its characters are those of ids");
        Ok(Self { id, digest, text })
    }
}

/// Characters of an id, each as likely as the others.
fn random_id(random: &mut impl Read) -> io::Result<String> {
    // The largest multiple of 36 that is a byte: those beyond would make some characters likelier.
    const FAIR: u8 = 252;
    let mut id = String::with_capacity(ID_CHARS);
    while id.len() < ID_CHARS {
        let mut byte = [0];
        random.read_exact(&mut byte)?;
        if byte[0] < FAIR {
            id.push(char::from(ID_ALPHABET[usize::from(byte[0]) % ID_ALPHABET.len()]));
        }
    }
    Ok(id)
}

/// Base64url without padding.
fn encode(bytes: &[u8; SECRET_BYTES]) -> String {
    let digit = |bits: u32| char::from(SECRET_ALPHABET[(bits & 63) as usize]);
    let mut text = String::with_capacity(SECRET_CHARS);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        (0..=chunk.len()).for_each(|at| text.push(digit(bits >> (18 - 6 * at))));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_key_is_parsed_and_every_other_text_is_refused() {
        let new = NewKey::random().expect("random numbers");
        assert_eq!(new.text.len(), TEXT_CHARS);
        let shown = ShownKey::parse(new.text.as_bytes()).expect("a key");
        assert_eq!(shown.id, new.id);
        assert!(shown.has_digest(&new.digest));
        let text = new.text.as_str();
        let with = |at: usize, byte: char| format!("{}{byte}{}", &text[..at], &text[at + 1..]);
        for wrong in [
            String::new(),
            "dq_".to_owned(),
            text[..TEXT_CHARS - 1].to_owned(),
            format!("{text}A"),
            format!(" {text}"),
            with(0, 'D'),
            with(3, 'A'),
            with(3, '_'),
            with(14, '-'),
            with(15, '-'),
            with(16, '+'),
            with(TEXT_CHARS - 1, '='),
            with(TEXT_CHARS - 1, '/'),
        ] {
            assert!(ShownKey::parse(wrong.as_bytes()).is_none(), "{wrong}");
        }
        let mut bytes = text.as_bytes().to_vec();
        bytes[20] = 0xff;
        assert!(ShownKey::parse(&bytes).is_none());
    }

    #[test]
    fn every_character_of_the_secret_counts() {
        let text = NewKey::random().expect("random numbers").text;
        let digest = ShownKey::parse(text.as_bytes()).expect("a key").digest;
        for at in TEXT_CHARS - SECRET_CHARS..TEXT_CHARS {
            let mut other = text.clone().into_bytes();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            let other = ShownKey::parse(&other).expect("a key");
            assert!(!other.has_digest(&digest), "character {at}");
        }
    }

    #[test]
    fn secret_is_base64url_without_padding() {
        let mut bytes = [0; SECRET_BYTES];
        assert_eq!(encode(&bytes), "A".repeat(43));
        bytes[31] = 1;
        assert_eq!(encode(&bytes), format!("{}E", "A".repeat(42)));
        assert_eq!(encode(&[0xff; SECRET_BYTES]), format!("{}8", "_".repeat(42)));
    }

    #[test]
    fn characters_of_an_id_are_equally_likely() {
        let every_byte: Vec<u8> = (0..=255).collect();
        let mut source = every_byte.iter().copied().cycle().take(256 * 12).collect::<std::collections::VecDeque<_>>();
        let mut counts = [0_u32; 36];
        while let Ok(id) = random_id(&mut source) {
            for byte in id.bytes() {
                counts[ID_ALPHABET.iter().position(|known| *known == byte).expect("of the alphabet")] += 1;
            }
        }
        assert_eq!(counts.iter().min(), counts.iter().max(), "{counts:?}");
    }

    #[test]
    fn keys_differ_and_their_debug_form_has_no_secret() {
        let (one, other) = (NewKey::random().expect("random"), NewKey::random().expect("random"));
        assert!(one.id != other.id && one.text != other.text);
        let shown = ShownKey::parse(one.text.as_bytes()).expect("a key");
        assert!(!format!("{shown:?}").contains(&one.text[16..]));
    }
}
