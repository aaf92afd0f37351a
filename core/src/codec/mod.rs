//! Records and snapshot images to bytes and back. One codec serves the log and snapshots.

mod access;
mod chunk;
mod decision_fields;
mod effects;
mod fields;
pub(crate) mod image;
mod payloads;
pub mod record;

use crate::types::Identity;
pub use crate::wire::Malformed;
use crate::wire::Reader;

/// The bytes of an identity as records contain it.
#[must_use]
pub fn encode_identity(identity: &Identity) -> Vec<u8> {
    let mut out = Vec::new();
    effects::put_identity(&mut out, identity);
    out
}

/// Reads what [`encode_identity`] wrote.
///
/// # Errors
/// [`Malformed`] for any other bytes.
pub fn decode_identity(bytes: &[u8]) -> Result<Identity, Malformed> {
    let mut reader = Reader::new(bytes);
    let identity = effects::identity(&mut reader)?;
    reader.finish()?;
    Ok(identity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Event, Image, Record, RunImage};
    use crate::types::{
        Body, Boot, GroupName, Metadata, Offset, PartitionId, Position, ProduceScope, Scope, TenantId, Timestamp,
        TopicId, TopicName, metadata,
    };
    use crate::wire::put_bytes;

    #[test]
    fn scope_has_one_form() {
        let read = |topic: &[u8], destination: &[u8]| {
            let mut bytes = Vec::new();
            put_bytes(&mut bytes, topic);
            put_bytes(&mut bytes, destination);
            fields::scope(&mut Reader::new(&bytes))
        };
        let (topic, other) = (TopicName::new("t").unwrap(), TopicName::new("u").unwrap());
        assert_eq!(read(b"t", b""), Ok(ProduceScope::new(&topic, None)));
        assert_eq!(read(b"t", b"u"), Ok(ProduceScope::new(&topic, Some(&other))));
        assert_eq!(read(b"t", b"t"), Err(Malformed("destination is the requested topic")));
    }

    #[test]
    fn scope_has_one_tenant() {
        let seven = |name: &str| TopicName::of(TenantId(7), name).unwrap();
        let scope = ProduceScope::new(&seven("t"), Some(&seven("u")));
        let mut bytes = Vec::new();
        fields::put_scope(&mut bytes, &scope);
        assert_eq!(bytes, b"\x03\x01\x17t\x03\x01\x17u");
        assert_eq!(fields::scope(&mut Reader::new(&bytes)), Ok(scope));
        let same = ProduceScope::new(&seven("t"), None);
        assert_eq!(fields::scope(&mut Reader::new(b"\x03\x01\x17t\x00")), Ok(same));
        let mixed = Err(Malformed("topics of two tenants in one scope"));
        for bytes in [&b"\x03\x01\x17t\x01t"[..], b"\x01t\x03\x01\x17t", b"\x03\x01\x17t\x03\x01\x18t"] {
            assert_eq!(fields::scope(&mut Reader::new(bytes)), mixed);
        }
        let requested = Some(ProduceScope { topic: seven("t"), destination: TopicName::new("t").unwrap() });
        let mut bytes = Vec::new();
        metadata::encode(&Metadata { requested, ..Metadata::default() }, &mut bytes);
        let malformed = Malformed("topics of two tenants in one scope");
        assert_eq!(
            (metadata::decode(&bytes), Body::unpack(&bytes, bytes.len() as u32, 0)),
            (Err(malformed), Err(malformed))
        );
    }

    #[test]
    fn identities_in_topics_of_two_tenants_differ() {
        let consumed = |tenant, name: &str| {
            let (topic, group) = (TopicName::of(TenantId(tenant), name).unwrap(), GroupName::new("g").unwrap());
            Identity::new("t", Scope::Consume { topic, group }, "k")
        };
        let identities =
            [consumed(0, "t"), consumed(7, "t"), consumed(0x17, "t"), consumed(7, "7t"), consumed(0, "7t")];
        let mut encoded: Vec<_> = identities.iter().map(encode_identity).collect();
        for (identity, bytes) in identities.iter().zip(&encoded) {
            assert_eq!(decode_identity(bytes).as_ref(), Ok(identity));
        }
        encoded.sort();
        encoded.dedup();
        assert_eq!(encoded.len(), identities.len());
    }

    #[test]
    fn identity_round_trips_and_refuses_other_bytes() {
        let (topic, group) = (TopicName::new("t").unwrap(), GroupName::new("g").unwrap());
        for scope in [
            Scope::Tenant,
            Scope::Rpc { principal: "p".into(), method: "m".into() },
            Scope::Job { id: "j".into() },
            Scope::Task { id: "i".into() },
            Scope::Consume { topic, group },
        ] {
            let identity = Identity::new("tenant", scope, "key");
            let mut bytes = encode_identity(&identity);
            assert_eq!(decode_identity(&bytes).as_ref(), Ok(&identity));
            assert!(decode_identity(&bytes[..bytes.len() - 1]).is_err());
            bytes.push(0);
            assert!(decode_identity(&bytes).is_err(), "a byte too many");
        }
    }

    #[test]
    fn record_with_a_byte_too_many_is_malformed() {
        let run = RunImage { start: Position(2), end: Position(3), last_offset: Offset(9) };
        let image = Image::TrimmedRun { topic: TopicId(1), partition: PartitionId(0), run };
        for event in [Event::Booted { boot: Boot(3) }, Event::Restored(image)] {
            let kind = record::kind(&event);
            let mut bytes = Vec::new();
            let written = Record { at: Timestamp::default(), event };
            record::encode(&written, &mut bytes);
            assert_eq!(record::decode(kind, record::VERSION, &bytes).as_ref(), Ok(&written));
            bytes.push(0);
            assert!(record::decode(kind, record::VERSION, &bytes).is_err());
        }
    }

    #[test]
    fn empty_run_in_a_snapshot_is_malformed() {
        for (end, is_run) in [(1, false), (2, false), (3, true)] {
            let run = RunImage { start: Position(2), end: Position(end), last_offset: Offset(9) };
            let event = Event::Restored(Image::TrimmedRun { topic: TopicId(1), partition: PartitionId(0), run });
            let kind = record::kind(&event);
            let mut bytes = Vec::new();
            record::encode(&Record { at: Timestamp::default(), event }, &mut bytes);
            assert_eq!(record::decode(kind, record::VERSION, &bytes).is_ok(), is_run);
        }
    }
}
