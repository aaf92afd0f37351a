//! The digests that a broker reported, against those of the replayed log.

use serde_json::Value;

use crate::compare::log::Log;
use crate::entry::{Entry, Phase};
use crate::report::{Check, Report};

/// A digest that the broker reported.
pub(super) struct Digest {
    pub(super) lsn: u64,
    digest: u64,
    seq: u64,
}

/// The digests in a history, by LSN.
pub(super) fn reported(entries: &[Entry], report: &mut Report) -> Vec<Digest> {
    let mut digests = Vec::new();
    for entry in entries.iter().filter(|entry| entry.op == "digest" && entry.phase == Phase::Ok) {
        let lsn = entry.result.get("lsn").and_then(Value::as_u64);
        let hex = entry.result.get("digest").and_then(Value::as_str).filter(|hex| hex.len() == 16);
        match lsn.zip(hex.and_then(|hex| u64::from_str_radix(hex, 16).ok())) {
            Some((lsn, digest)) => digests.push(Digest { lsn, digest, seq: entry.seq }),
            None => report.add_violation(Check::LogDigest, [entry.seq], || {
                "a digest must have its lsn and 16 hexadecimal digits".to_owned()
            }),
        }
    }
    digests.sort_by_key(|digest| digest.lsn);
    digests
}

/// Compares reported digests with those of the log.
pub(super) fn verify(digests: &[Digest], log: &Log, report: &mut Report) {
    let mut before_base = 0;
    for Digest { lsn, digest, seq } in digests {
        if *lsn < log.base {
            before_base += 1;
            continue;
        }
        report.count(Check::LogDigest, 1);
        match log.digests.get(lsn) {
            Some(found) if found == digest => {}
            Some(found) => report.add_violation(Check::LogDigest, [*seq], || {
                format!("at LSN {lsn} the broker reported digest {digest:016x}, and the log gives {found:016x}")
            }),
            None => report.add_violation(Check::LogDigest, [*seq], || {
                format!("the broker reported a digest at LSN {lsn}, and the log ends at LSN {}", log.last)
            }),
        }
    }
    if before_base > 0 {
        report.note(format!("{before_base} digests are from before LSN {}, where the log begins", log.base));
    }
}
