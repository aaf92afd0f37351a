//! Situations made up by hand, each good as it stands. A test takes one, spoils one thing in it, and shows it to a law.

use std::collections::BTreeSet;

use driftq_core::Body;
use driftq_core::command::{Command, OnDisconnect, Subscribe};
use driftq_core::faults::NoFaults;
use driftq_core::log::{LogId, Recovered};
use driftq_core::record::GroupStart;
use driftq_core::reply::Delivery;
use driftq_core::state::entry::LastError;
use driftq_core::state::partition::Message;
use driftq_core::types::*;

use crate::actions::Action;
use crate::invariants::tracker::model::{Asked, GroupModel, Known, Seen, Start, Stream};
use crate::invariants::verdict::{Invariant, Verdict};
use crate::setup::Setup;
use crate::world::{Checks, World};

/// It is this law that is broken.
#[track_caller]
pub(in crate::invariants) fn breaks(invariant: Invariant, verdict: Verdict) {
    let violation = verdict.expect_err(invariant.sentence);
    assert!(invariant.is(&violation), "{violation} instead of {invariant}");
}

/// Nothing is wrong.
#[track_caller]
pub(in crate::invariants) fn fine(verdict: Verdict) {
    verdict.expect("nothing is wrong here");
}

/// A topic's name.
pub(in crate::invariants) fn topic(name: &str) -> TopicName {
    TopicName::new(name).expect("a name")
}

/// The only group there is.
pub(in crate::invariants) fn group() -> GroupName {
    GroupName::new("g0").expect("a name")
}

/// A token of the first boot.
pub(in crate::invariants) fn token(counter: u64) -> LeaseToken {
    LeaseToken { boot: Boot(1), counter }
}

/// The first delivery of the fourth message, handed out at 100.
pub(in crate::invariants) fn delivery() -> Delivery {
    Delivery {
        partition: PartitionId(0),
        offset: Offset(3),
        attempts: 1,
        failures: 0,
        last_error: LastError::Nothing,
        token: token(1),
        lease_until: Timestamp(200),
        produced_at: Timestamp(50),
        body: Body::bare(b"", b"7"),
    }
}

/// The fourth message, accepted at 50.
pub(in crate::invariants) fn known() -> Known {
    Known {
        number: 7,
        partition: PartitionId(0),
        position: Position(3),
        produced_at: Timestamp(50),
        visible_to: None,
        body: Body::bare(b"", b"7"),
        since: Lsn(9),
        gone: None,
        released: true,
        redriven: None,
    }
}

/// The same, as the broker keeps it.
pub(in crate::invariants) fn message(meta: &Metadata) -> Message {
    Message { offset: Offset(3), produced_at: Timestamp(50), body: Body::pack(meta, b"", b"7"), done_in: 0 }
}

/// A stream of the only group that wants one message.
pub(in crate::invariants) fn stream() -> Stream {
    let asked = Subscribe {
        topic: topic("t0"),
        group: group(),
        owner: OwnerName::new("w0").expect("a name"),
        lease: None,
        prefetch: 1,
        deliveries_max: None,
        start: GroupStart::Earliest,
        on_disconnect: OnDisconnect::Keep,
    };
    Stream { topic: TopicId(0), group: GroupId(0), asked, lease: Millis(100), prefetch: 1, given: 1, gone: false }
}

/// What a worker knows of that delivery.
pub(in crate::invariants) fn seen() -> Seen {
    Seen {
        consumer: ConsumerId(0),
        partition: PartitionId(0),
        attempts: 1,
        failures: 0,
        token: token(1),
        lease_until: Timestamp(200),
        open: true,
        not_before: Timestamp(0),
        reasons: BTreeSet::new(),
        vague: false,
        unsure: false,
        crashed: false,
    }
}

/// A group that was made to start at the beginning.
pub(in crate::invariants) fn book() -> GroupModel {
    let mut book = GroupModel::new(group(), Lsn(1));
    book.starts.push((Lsn(0), Lsn(1), Start::Below(Offset(0))));
    book
}

/// A command that was decided at 100 and left no record.
pub(in crate::invariants) fn asked(command: Command) -> Asked {
    Asked {
        command,
        at: Timestamp(100),
        before: Lsn(5),
        after: Lsn(5),
        quiet: true,
        topic: None,
        group: None,
        untouched: None,
        produce: None,
        counted: None,
        rightful: None,
        undone: Vec::new(),
        skips: 0,
        step: None,
    }
}

/// The fourth message as a dead letter, after two attempts.
pub(in crate::invariants) fn dead(reason: DeadReason) -> DeadLetter {
    DeadLetter {
        original_topic: topic("t0"),
        original_partition: PartitionId(0),
        original_offset: Offset(3),
        group: group(),
        attempts: 2,
        last_error: Text::default(),
        reason,
        routed_at: Timestamp(100),
        kept: KeptForRedrive::default(),
    }
}

/// A log of nine frames.
pub(in crate::invariants) fn recovered() -> Recovered {
    Recovered {
        log_id: LogId([0; 16]),
        snapshot: None,
        last_lsn: Lsn(9),
        last_crc: 1,
        next_segment: 2,
        segments: Vec::new(),
        snapshots: Vec::new(),
        garbage: Vec::new(),
        notices: Vec::new(),
        clean: false,
        frames_read: 9,
        bytes_read: 900,
    }
}

/// A world in which these steps were taken.
pub(in crate::invariants) fn world(actions: &str) -> World<NoFaults> {
    let mut world = World::new(&Setup::default(), NoFaults, Checks::default()).expect("a good start");
    for line in actions.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let action: Action = serde_json::from_str(line).expect("a step");
        world.apply(&action).expect("a good step");
    }
    world
}
