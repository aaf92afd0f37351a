//! Every check must be seen to fail: with a wrong function or a planted bug in its place, some input of the corpus, or one made from it,
//! must make the target panic.

use driftq_core::command::Ack;
use std::panic::{AssertUnwindSafe, catch_unwind};

use driftq_core::Command;
use driftq_core::codec::record as codec;
use driftq_core::command::Claim;
use driftq_core::faults::{Fault, Planted};
use driftq_core::log::frame::encode_with;
use driftq_core::log::{FileId, Head, Storage};
use driftq_core::types::Offset;
use driftq_fuzz::{
    commands_with, frame_with, json_bodies_with, query_with, record_with, recovery_with, salvage_with, segment_with,
    snapshot_with,
};
use driftq_server::fuzzing::{request, salvage};

use crate::inputs::{Numbers, inputs};

/// How many inputs are tried beyond the corpus before a bug counts as missed.
const TRIES: usize = 3_000;

/// What the target says when it is run with a bug, on the first input that shows it.
#[track_caller]
fn caught(name: &str, target: impl Fn(&[u8])) -> String {
    found(name, target).unwrap_or_else(|| panic!("{name}: the bug is not caught"))
}

/// What the target says on the first input that it panics on, if there is one.
fn found(name: &str, target: impl Fn(&[u8])) -> Option<String> {
    let inputs = inputs(name);
    let mut numbers = Numbers(0x5851_f42d_4c95_7f2d);
    let made = (0..TRIES).map(|_| numbers.made_from(&inputs)).collect::<Vec<_>>();
    for data in inputs.iter().map(|(_, data)| data).chain(&made) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(data))) {
            let said = panic.downcast_ref::<String>().cloned();
            return Some(
                said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default(),
            );
        }
    }
    None
}

#[test]
#[ignore = "tells which bugs in the broker the corpus of lives catches, and takes a while"]
fn which_bugs_in_the_broker_are_caught() {
    let missed = Fault::ALL.iter().filter(|bug| found("commands", |data| commands_with(data, Some(**bug))).is_none());
    let missed: Vec<_> = missed.map(|bug| bug.name()).collect();
    println!("{} of {} are caught; missed: {}", Fault::ALL.len() - missed.len(), Fault::ALL.len(), missed.join(", "));
}

#[test]
fn a_frame_that_is_written_in_another_version_is_caught() {
    let said = caught("frame", |data| {
        frame_with(data, |out, seed, head, payload| {
            let head = Head { version: head.version.wrapping_add(1), ..*head };
            encode_with(out, seed, &head, |out| out.extend_from_slice(payload)).unwrap();
        });
    });
    assert!(said.contains("a frame is written as it was read"), "{said}");
}

#[test]
fn a_record_that_is_spelled_otherwise_is_caught() {
    caught("record", |data| {
        record_with(data, |record, out| {
            codec::encode(record, out);
            out.push(0);
        });
    });
}

#[test]
fn a_recovery_that_takes_rot_for_a_torn_tail_is_caught() {
    let bug = Planted(Fault::RotTakenForTornTail);
    let said = caught("segment", |data| segment_with(data, &bug));
    assert!(said.contains("is proven synced"), "{said}");
    let said = caught("recovery", |data| recovery_with(data, &bug));
    assert!(said.contains("is proven synced"), "{said}");
}

#[test]
fn a_replay_that_forgets_is_caught() {
    for bug in [Fault::AttemptsForgottenOnReplay, Fault::DedupeDroppedOnReplay, Fault::EffectLostOnReplay] {
        caught("segment", |data| segment_with(data, &Planted(bug)));
    }
    caught("snapshot", |data| snapshot_with(data, &Planted(Fault::AttemptsForgottenOnReplay)));
}

#[test]
fn a_parser_that_blames_itself_is_caught() {
    let said = caught("json_bodies", |data| {
        json_bodies_with(data, |number, body, query| request(number, body, query).map_err(|_| 500));
    });
    assert!(said.contains("refused with 500"), "{said}");
}

#[test]
fn a_parser_that_alters_a_message_is_caught() {
    caught("json_bodies", |data| {
        json_bodies_with(data, |number, body, query| {
            let mut understood = request(number, body, query)?;
            if let Some(Command::Produce(produce)) = &mut understood.command {
                produce.value.push(b'!');
            }
            Ok(understood)
        });
    });
}

#[test]
fn a_query_that_is_read_otherwise_than_a_body_is_caught() {
    let said = caught("query", |data| {
        query_with(data, |number, body, query| {
            let mut understood = request(number, body, query)?;
            if let (Some(Command::Ack(Ack(claim))), Some(_)) = (&mut understood.command, query) {
                *claim = Claim { offset: Offset(claim.offset.0.wrapping_add(1)), ..claim.clone() };
            }
            Ok(understood)
        });
    });
    assert!(said.contains("however it is written"), "{said}");
}

#[test]
fn bugs_in_the_broker_are_caught() {
    let bugs = [Fault::AckNotKept, Fault::BodyTruncated, Fault::ReleaseBeforeSync, Fault::SkipTokenCheck];
    let more = [Fault::HighestAckWatermark, Fault::AppendAfterTornTail, Fault::TakeoverKeepsToken];
    for bug in bugs.into_iter().chain(more) {
        caught("commands", |data| commands_with(data, Some(bug)));
    }
}

#[test]
fn a_salvage_that_says_it_kept_more_is_caught() {
    let said = caught("salvage", |data| {
        salvage_with(data, |storage| {
            Ok(salvage(storage)?.map(|(mut kept, loss, new)| {
                kept.messages += 1;
                (kept, loss, new)
            }))
        });
    });
    assert!(said.contains("what is said to be kept is kept"), "{said}");
}

#[test]
fn a_salvage_that_leaves_half_a_log_is_caught() {
    let said = caught("salvage", |data| {
        salvage_with(data, |storage| {
            Ok(salvage(storage)?.map(|(kept, loss, mut new)| {
                let files = new.list().unwrap();
                files.iter().filter(|info| matches!(info.file, FileId::Segment(_))).for_each(|info| {
                    new.take_file(info.file);
                });
                (kept, loss, new)
            }))
        });
    });
    assert!(said.contains("salvaged, and refused"), "{said}");
}

/// Without a bug the same inputs pass, so that what is caught above is the bug.
#[test]
fn without_a_bug_nothing_is_caught() {
    assert_eq!(found("segment", driftq_fuzz::segment), None);
    assert_eq!(found("commands", driftq_fuzz::commands), None);
}
