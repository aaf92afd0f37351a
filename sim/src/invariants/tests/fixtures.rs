//! Valid situations for the tests of checks. A test changes one thing in one of them and calls the check.

use std::collections::BTreeSet;
use std::sync::Arc;

use driftq_core::Body;
use driftq_core::command::{Command, GroupLifetime, OnDisconnect, Subscribe};
use driftq_core::faults::NoFaults;
use driftq_core::log::{LogId, LogPosition, Recovered};
use driftq_core::reply::Delivery;
use driftq_core::state::Message;
use driftq_core::types::{GroupStart, LastError, *};

use crate::actions::Action;
use crate::invariants::tracker::model::{
    GroupModel, PendingCommand, SeenDelivery, StartPoint, StoredMessage, StreamModel,
};
use crate::invariants::verdict::{Invariant, Verdict};
use crate::setup::Setup;
use crate::world::{Checks, World};

/// The verdict is a violation of this invariant.
#[track_caller]
pub(in crate::invariants) fn violates(invariant: Invariant, verdict: Verdict) {
    let violation = verdict.expect_err(invariant.sentence);
    assert!(invariant.is(&violation), "{violation} instead of {invariant}");
}

/// The verdict is no violation.
#[track_caller]
pub(in crate::invariants) fn holds(verdict: Verdict) {
    verdict.expect("no violation");
}

/// A topic name.
pub(in crate::invariants) fn topic(name: &str) -> TopicName {
    TopicName::new(name).expect("valid name")
}

/// The only group.
pub(in crate::invariants) fn group() -> GroupName {
    GroupName::new("g0").expect("valid name")
}

/// A token of the first boot.
pub(in crate::invariants) fn token(counter: u64) -> LeaseToken {
    LeaseToken { boot: Boot(1), counter }
}

/// The first delivery of the fourth message, at 100.
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
pub(in crate::invariants) fn known() -> StoredMessage {
    StoredMessage {
        number: 7,
        partition: PartitionId(0),
        position: Position(3),
        produced_at: Timestamp(50),
        visible_to: None,
        body: Body::bare(b"", b"7"),
        message: message(&Metadata::default()),
        first_seen: Lsn(9),
        trimmed_at: None,
        acknowledged: true,
        redriven: None,
        purged: None,
        payload_at: Lsn(0),
        is_lost: false,
    }
}

/// The same, as the broker stores it.
pub(in crate::invariants) fn message(meta: &Metadata) -> Message {
    let payload = PayloadRef::new(PayloadId { lsn: Lsn(9), part: 0 }, &Body::pack(meta, b"", b"7"));
    let fields = DecisionFields {
        dead_letter: meta.dead_letter.as_ref().map(|dead| dead.origin.clone()),
        redrive: meta.redrive,
        lost: meta.lost.clone(),
        ..DecisionFields::of(meta)
    };
    Message::new(Offset(3), Timestamp(50), payload, Some(Arc::new(fields)))
}

/// A stream of the only group, with a prefetch of one.
pub(in crate::invariants) fn stream() -> StreamModel {
    let request = Subscribe {
        topic: topic("t0"),
        group: group(),
        owner: OwnerName::new("w0").expect("valid name"),
        lease: None,
        prefetch: 1,
        deliveries_max: None,
        start: GroupStart::Earliest,
        on_disconnect: OnDisconnect::Keep,
        group_lifetime: GroupLifetime::Durable,
    };
    StreamModel {
        topic: TopicId(0),
        group: GroupId(0),
        request,
        lease: Millis(100),
        prefetch: 1,
        delivered: 1,
        last_token: None,
        may_be_cut: false,
        served_meanwhile: None,
        is_closed: false,
    }
}

/// That delivery, as its worker saw it.
pub(in crate::invariants) fn seen() -> SeenDelivery {
    SeenDelivery {
        consumer: ConsumerId(0),
        partition: PartitionId(0),
        attempts: 1,
        failures: 0,
        token: token(1),
        since_token: token(1),
        is_extended: false,
        lease_until: Timestamp(200),
        runs_until: Timestamp(200),
        may_be_held: true,
        not_before: Timestamp(0),
        reasons: BTreeSet::new(),
        may_be_withdrawn: false,
        is_exhausted: false,
        is_non_retryable: false,
        is_unknown: false,
        is_uncertain: false,
        crashed: false,
    }
}

/// A group that starts at the earliest message.
pub(in crate::invariants) fn model() -> GroupModel {
    let mut model = GroupModel::new(group(), Lsn(1));
    model.starts.push((Lsn(0), Lsn(1), StartPoint::Below(Offset(0))));
    model
}

/// A command decided at 100 that wrote no record.
pub(in crate::invariants) fn pending(command: Command) -> PendingCommand {
    PendingCommand {
        wall_offset: 0,
        command,
        at: Timestamp(100),
        before: Lsn(5),
        after: Lsn(5),
        no_timer_due: true,
        topic: None,
        group: None,
        stale_digest: None,
        produce: None,
        counted: None,
        claim_is_valid: None,
        cumulative: Vec::new(),
        unacked_deliveries: Vec::new(),
        acked_at_once: None,
        step: None,
        winners_full: false,
        redrive: None,
        purge: None,
    }
}

/// The fourth message as a dead letter, after two attempts.
pub(in crate::invariants) fn dead(reason: DeadReason) -> DeadLetter {
    let origin = DeadLetterOrigin {
        original_topic: topic("t0"),
        original_partition: PartitionId(0),
        original_offset: Offset(3),
        group: group(),
        attempts: 2,
        last_error: Text::default(),
        reason,
        routed_at: Timestamp(100),
    };
    DeadLetter { origin, kept: KeptForRedrive::default() }
}

/// A log of nine frames, seven of them records.
pub(in crate::invariants) fn recovered() -> Recovered {
    Recovered {
        log_id: LogId([0; 16]),
        snapshot: None,
        last: LogPosition { frame: FrameNumber(9), lsn: Lsn(7) },
        last_crc: 1,
        next_segment: 2,
        segments: Vec::new(),
        referred: Vec::new(),
        snapshots: Vec::new(),
        garbage: Vec::new(),
        notices: Vec::new(),
        clean: false,
        frames_read: 9,
        bytes_read: 900,
    }
}

/// A world after these actions.
pub(in crate::invariants) fn world(actions: &str) -> World<NoFaults> {
    let mut world = World::new(&Setup::default(), NoFaults, Checks::default()).expect("the broker starts");
    for line in actions.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let action: Action = serde_json::from_str(line).expect("valid action");
        world.apply(&action).expect("no violation");
    }
    world
}
