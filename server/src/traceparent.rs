//! `traceparent`, the header of the W3C recommendation *Trace Context*.

/// Longest header that is kept, in bytes. A later version may add fields.
const BYTES_MAX: usize = 256;
/// Bytes of the fields that every version has.
const FIELDS_BYTES: usize = 55;

/// A valid `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceParent {
    pub(crate) trace_id: [u8; 16],
    pub(crate) parent_id: [u8; 8],
    /// Whether the caller records its part of the trace.
    pub(crate) is_sampled: bool,
}

impl TraceParent {
    /// Parses a header. `None` for what the recommendation says to ignore: version `ff`, digits other than `0-9a-f`, an
    /// id of zeros, another length than the version has.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let fields = text.as_bytes();
        if fields.len() < FIELDS_BYTES || fields.len() > BYTES_MAX {
            return None;
        }
        let [version] = hex(&fields[..2])?;
        let ends = match version {
            0xff => false,
            0 => fields.len() == FIELDS_BYTES,
            // Fields that a later version adds are separated like the others.
            _ => fields.get(FIELDS_BYTES).is_none_or(|byte| *byte == b'-'),
        };
        if !ends || [fields[2], fields[35], fields[52]] != [b'-'; 3] {
            return None;
        }
        let (trace_id, parent_id, [flags]) = (hex(&fields[3..35])?, hex(&fields[36..52])?, hex(&fields[53..55])?);
        let has_ids = trace_id != [0; 16] && parent_id != [0; 8];
        has_ids.then_some(Self { trace_id, parent_id, is_sampled: flags & 1 == 1 })
    }
}

/// The bytes that lower-case hexadecimal digits stand for.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn fields_are_read() {
        let found = TraceParent::parse(VALID).expect("valid");
        assert_eq!(found.trace_id[..3], [0x4b, 0xf9, 0x2f]);
        assert_eq!(found.trace_id[15], 0x36);
        assert_eq!(found.parent_id, [0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
        assert!(found.is_sampled);
        assert!(!TraceParent::parse(&VALID.replace("-01", "-00")).expect("valid").is_sampled);
        assert!(
            TraceParent::parse(&VALID.replace("-01", "-ff")).expect("valid").is_sampled,
            "unknown flags are ignored"
        );
    }

    #[test]
    fn later_version_may_have_more_fields() {
        let later = format!("cc{}", &VALID[2..]);
        for valid in [later.clone(), format!("{later}-what-the-future-will-be-like")] {
            assert!(TraceParent::parse(&valid).is_some(), "{valid}");
        }
        for invalid in [format!("{later}."), format!("{later}-{}", "x".repeat(BYTES_MAX)), format!("{VALID}-x")] {
            assert_eq!(TraceParent::parse(&invalid), None, "{invalid}");
        }
    }

    #[test]
    fn what_is_invalid_is_ignored() {
        let replaced = |from: &str, to: &str| VALID.replacen(from, to, 1);
        for invalid in [
            String::new(),
            "x".to_owned(),
            replaced("00-4b", "ff-4b"),
            replaced("00-4b", "0-4b"),
            replaced("00-4b", "0G-4b"),
            replaced("4bf9", "4BF9"),
            replaced("4bf9", "4bfg"),
            replaced("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            replaced("00f067aa0ba902b7", &"0".repeat(16)),
            replaced("00f067aa0ba902b7", "00F067aa0ba902b7"),
            replaced("-01", "-1"),
            replaced("-01", "_01"),
            replaced("-01", "-0x"),
            replaced("-01", ""),
            format!("{VALID} "),
            format!("{VALID}01"),
            VALID.replace('-', ""),
            "é".repeat(28),
        ] {
            assert_eq!(TraceParent::parse(&invalid), None, "{invalid:?}");
        }
    }
}
