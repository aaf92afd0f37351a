//! The record codec: round trips, and decoding of damaged and arbitrary bytes.

use std::collections::BTreeSet;

use driftq_core::Body;
use driftq_core::codec::record;
use driftq_core::record::Record;
use driftq_core::types::{Metadata, metadata};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::arbitrary;
use super::runner::{run_cases, runner};

/// Every kind of a log record and of a snapshot record.
/// The kinds of records, then those of images.
pub fn all_kinds() -> impl Iterator<Item = u8> {
    let unused = [22, 33, 34, 36, 37, 38, 42];
    (1..=53).filter(move |kind| !unused.contains(kind)).chain(0x80..=0x8E).chain(0x94..=0x98)
}

fn encoded(record: &Record) -> (u8, Vec<u8>) {
    let mut bytes = Vec::new();
    record::encode(record, &mut bytes);
    (record::kind(&record.event), bytes)
}

fn encoded_metadata(meta: &Metadata) -> Vec<u8> {
    let mut bytes = Vec::new();
    metadata::encode(meta, &mut bytes);
    bytes
}

/// Bytes that decode are the bytes that [`record::encode`] writes.
fn is_canonical(kind: u8, bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(found) = record::decode(kind, record::VERSION, bytes) {
        let (again_kind, again) = encoded(&found);
        prop_assert_eq!((kind, bytes), (again_kind, &again[..]), "{:?}", found);
    }
    Ok(())
}

fn metadata_is_canonical(bytes: &[u8]) -> Result<(), TestCaseError> {
    let found = metadata::decode(bytes);
    if let Ok(found) = &found {
        prop_assert_eq!(bytes, encoded_metadata(found), "{:?}", found);
    }
    // A body validates its metadata without decoding it; later decoding must not fail.
    let body = Body::unpack(bytes, bytes.len() as u32, 0);
    prop_assert_eq!(body.is_ok(), found.is_ok());
    if let (Ok(body), Ok(found)) = (body, found) {
        prop_assert_eq!(body.metadata(), found);
    }
    Ok(())
}

/// Calls `check` with every proper prefix of `bytes` and with every single bit flipped.
fn damaged(bytes: &[u8], mut check: impl FnMut(&[u8]) -> Result<(), TestCaseError>) -> Result<(), TestCaseError> {
    for len in 0..bytes.len() {
        check(&bytes[..len])?;
    }
    let mut bytes = bytes.to_vec();
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        check(&bytes)?;
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    Ok(())
}

#[test]
fn record_round_trips() {
    run_cases(2_000, arbitrary::record(), |record| {
        let (kind, bytes) = encoded(record);
        prop_assert_eq!(record::decode(kind, record::VERSION, &bytes), Ok(record.clone()));
        Ok(())
    });
}

#[test]
fn metadata_round_trips() {
    run_cases(2_000, arbitrary::metadata(), |meta| {
        let bytes = encoded_metadata(meta);
        prop_assert_eq!(metadata::decode(&bytes), Ok(meta.clone()));
        metadata_is_canonical(&bytes)
    });
}

#[test]
fn arbitrary_records_cover_every_kind() {
    let mut runner = runner(1);
    let records = (0..2_000).map(|_| arbitrary::record().new_tree(&mut runner).unwrap().current());
    let kinds: BTreeSet<u8> = records.map(|record| record::kind(&record.event)).collect();
    assert_eq!(kinds, all_kinds().collect());
}

#[test]
fn arbitrary_bytes_never_panic_decoder_and_decode_canonically() {
    let bytes = prop_oneof![vec(any::<u8>(), 0..60), vec(prop_oneof![0..20_u8, Just(b'a'), Just(0x80)], 0..60)];
    run_cases(2_000, bytes, |bytes| {
        for kind in 0..=u8::MAX {
            is_canonical(kind, bytes)?;
            for version in [0, 2, u8::MAX] {
                prop_assert!(record::decode(kind, version, bytes).is_err(), "an unknown version decodes");
            }
        }
        metadata_is_canonical(bytes)
    });
}

#[test]
fn damaged_record_never_panics_decoder_and_decodes_canonically() {
    run_cases(300, arbitrary::record(), |record| {
        let (kind, bytes) = encoded(record);
        damaged(&bytes, |bytes| is_canonical(kind, bytes))?;
        for other in all_kinds() {
            is_canonical(other, &bytes)?;
        }
        Ok(())
    });
}

#[test]
fn damaged_metadata_never_panics_decoder_and_decodes_canonically() {
    run_cases(150, arbitrary::metadata(), |meta| damaged(&encoded_metadata(meta), metadata_is_canonical));
}

/// Regression: the name was trimmed while decoding, so two encodings decoded to the same metadata.
#[test]
fn dead_letter_group_with_trailing_space_is_refused() {
    let bytes = [16, 11, 1, b't', 0, 0, 2, b'g', b' ', 0, 0, 1, 0];
    assert!(metadata::decode(&bytes).is_err());
    let bytes = [16, 10, 1, b't', 0, 0, 1, b'g', 0, 0, 1, 0];
    assert!(metadata::decode(&bytes).is_ok());
}

/// Asserts that metadata of exactly these bytes is refused, also by a body, and that its first `valid` bytes are not.
#[track_caller]
fn assert_refused_after(bytes: &[u8], valid: usize) {
    for (bytes, is_valid) in [(&bytes[..valid], true), (bytes, false)] {
        assert_eq!(metadata::decode(bytes).is_ok(), is_valid, "{bytes:?}");
        assert_eq!(Body::unpack(bytes, bytes.len() as u32, 0).is_ok(), is_valid, "{bytes:?}");
    }
}

#[test]
fn metadata_with_a_repeated_or_misplaced_field_is_refused() {
    assert_refused_after(&[1, 1, b'a', 1, 1, b'a'], 3);
    assert_refused_after(&[2, 1, b'a', 1, 1, b'a'], 3);
    let label = |name: u8| [12, 3, 1, name, 0];
    assert_refused_after(&[label(b'a'), label(b'a')].concat(), 5);
    assert_refused_after(&[label(b'b'), label(b'a')].concat(), 5);
    assert_refused_after(&[label(b'a'), label(b'c'), label(b'b')].concat(), 10);
    let priority = [10, 1, 5];
    assert_refused_after(&[&label(b'a')[..], &priority].concat(), 5);
}

#[test]
fn metadata_field_with_a_trailing_byte_is_refused() {
    assert!(metadata::decode(&[10, 1, 5]).is_ok());
    assert_refused_after(&[10, 2, 5, 0], 0);
    assert_refused_after(&[7, 2, 1, 0], 0);
}

#[test]
fn dead_letter_with_a_repeated_or_misplaced_kept_field_is_refused() {
    let dead_letter = |kept: &[u8]| {
        let fields = [&[1, b't', 0, 0, 1, b'g', 0, 0, 1, 0], kept].concat();
        [&[16, fields.len() as u8], &fields[..]].concat()
    };
    let (target, partition) = ([6, 1, b't'], [7, 1, 3]);
    assert!(metadata::decode(&dead_letter(&[target, partition].concat())).is_ok());
    assert_refused_after(&dead_letter(&[target, target].concat()), 0);
    assert_refused_after(&dead_letter(&[partition, target].concat()), 0);
    assert_refused_after(&dead_letter(&[target, partition, partition].concat()), 0);
}
