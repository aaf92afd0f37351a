//! Texts: the codes that clients compare, the names that operators read, and what refusals and reports say.

use super::test_broker::*;
use driftq_core::Refusal;
use driftq_core::log::{FileId, HeaderError, LogId, RecoveryError, SnapshotError, StorageFault};
use driftq_core::reply::{Blocked, FullPartition, Overload, TopicSetting};
use driftq_core::state::InconsistentState;
use driftq_core::types::*;

#[test]
fn codes_are_those_of_the_api() {
    let statuses = ["IN_PROGRESS", "SUCCEEDED", "FAILED_FINAL", "FAILED_RETRYABLE"];
    assert_eq!(EffectStatus::ALL.map(EffectStatus::as_str), statuses);
    assert_eq!(EffectStatus::ALL.map(EffectStatus::as_v1), ["PENDING", "COMMITTED", "FAILED", "FAILED"]);
    assert_eq!(ScopeKind::ALL.map(ScopeKind::as_str), ["consume", "tenant", "job", "task", "rpc"]);
    let reasons = [DeadReason::MaxAttempts, DeadReason::DeadlineExceeded, DeadReason::NonRetryable];
    assert_eq!(reasons.map(DeadReason::as_str), ["max_attempts", "deadline_exceeded", "non_retryable"]);
    let overloads = [Overload::Backlog, Overload::DeadLetters, Overload::DedupeKeys, Overload::Effects];
    assert_eq!(overloads.map(Overload::code), ["overloaded", "dlq_full", "dedupe_full", "quota"]);
    let overloads = [Overload::Objects, Overload::Log, Overload::Memory];
    assert_eq!(overloads.map(Overload::code), ["too_many", "log_busy", "memory"]);
}

#[test]
fn refusal_names_the_limit_and_the_group_that_holds_it_up() {
    let text = |full| Refusal::Overloaded { reason: Overload::Backlog, retry_after: Millis(1), full }.to_string();
    let full = |group| Some(Box::new(FullPartition { topic: topic("t"), partition: PartitionId(3), group }));
    assert_eq!(text(None), "partition buffer is full");
    assert_eq!(text(full(None)), "partition buffer is full: partition 3 of topic \"t\" has no group");
    let held = "partition buffer is full: group \"g\" has not acked all of partition 3 of topic \"t\"";
    assert_eq!(text(full(Some(group("g")))), held);
    let differing = vec![TopicSetting::Partitions(3), TopicSetting::RetentionAge(Some(Millis(5)))];
    assert!(Refusal::TopicExists { differing }.to_string().contains("3 partitions"));
    let settings = [TopicSetting::RetentionAge(Some(Millis(5))), TopicSetting::RetentionBytes(None)];
    assert_eq!(settings.map(|setting| setting.to_string()), ["retention_ms 5", "unlimited retention_bytes"]);
    assert_eq!(Blocked::Paused.as_str(), "the group is paused");
}

#[test]
fn lease_token_is_read_as_it_is_written() {
    for (boot, counter) in [(0, 0), (1, 0x0123_4567_89ab_cdef), (u32::MAX, 0xfedc_ba98_7654_3210)] {
        let token = LeaseToken { boot: Boot(boot), counter };
        assert_eq!(TokenClaim::read(Some(&token.to_string())), TokenClaim::Shown(token));
    }
    assert_eq!(TokenClaim::read(None), TokenClaim::Absent);
    assert_eq!(TokenClaim::read(Some("0123")), TokenClaim::Unreadable);
}

#[test]
fn name_in_a_line_is_quoted_unless_it_is_plain() {
    for name in ["orders", "a.b_c:d/e@f-9", "Z"] {
        assert_eq!(Escaped(name).to_string(), name);
    }
    for (name, quoted) in [("", "\"\""), ("a b", "\"a b\""), ("a\nb", "\"a\\nb\""), ("é", "\"é\"")] {
        assert_eq!(Escaped(name).to_string(), quoted);
    }
    let one = ProduceScope::new(&topic("t"), None);
    let other = ProduceScope::new(&topic("t"), Some(&topic("u")));
    assert_eq!([one, other].map(|scope| scope.to_string()), ["t", "t for u"]);
}

#[test]
fn times_have_their_unit() {
    assert_eq!((Timestamp(7).to_string(), Millis(8).to_string()), ("7ms".to_owned(), "8 ms".to_owned()));
    assert_eq!(LogId([0xa5; 16]).to_string(), "a5".repeat(16));
}

#[test]
fn report_names_the_file_and_what_is_wrong_with_it() {
    let storage = |file| RecoveryError::Storage { doing: "reading", file, fault: StorageFault::NotFound }.to_string();
    assert!(storage(None).starts_with("reading: no such file"));
    assert!(storage(Some(FileId::Segment(2))).starts_with("reading wal-00000000000000000002.seg: no such file"));
    let late = |damaged| {
        let (file, first_frame, needed) = (FileId::Segment(2), FrameNumber(9), FrameNumber(5));
        RecoveryError::StartsTooLate { file, first_frame, needed, damaged }.to_string()
    };
    assert!(late(None).contains("needed from frame 5 on. "));
    let damaged = late(Some((FrameNumber(4), SnapshotError::Header(HeaderError::BadMagic))));
    let since = ", since snap-00000000000000000004.snap is damaged (the header's signature is wrong). ";
    assert!(damaged.contains(since), "{damaged}");
    let inconsistent = InconsistentState {
        topic: Some(topic("t")),
        partition: Some(PartitionId(3)),
        group: Some(group("g")),
        what: "offsets decrease",
    };
    assert_eq!(inconsistent.to_string(), "topic t, partition 3, group g, offsets decrease");
}
