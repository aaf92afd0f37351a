//! What is left of a snapshot, in ways that no broker writes.

use driftq_core::types::{PayloadId, PayloadRef};

use super::*;

fn topic(id: u32, name: &str) -> Image {
    Image::Topic {
        topic: TopicId(id),
        name: TopicName::new(name).expect("a name"),
        partitions: 1,
        retention: Retention::default(),
        next_offset: Offset(0),
        next_group: GroupId(0),
    }
}

fn message(topic: u32, partition: u32, position: u64, offset: u64) -> Image {
    Image::Message {
        topic: TopicId(topic),
        partition: PartitionId(partition),
        position: Position(position),
        offset: Offset(offset),
        produced_at: Timestamp(1),
        acked_in: 0,
        retained: false,
        visible_to: None,
        payload: PayloadRef { id: PayloadId { lsn: Lsn(1), part: 0 }, metadata_len: 0, key_len: 1, value_len: 1 },
        fields: None,
    }
}

fn names(repaired: &Repaired) -> Vec<&str> {
    repaired.state.topics().map(|topic| topic.name().as_str()).collect()
}

#[test]
fn given_name_is_one_that_no_topic_has() {
    let images = vec![topic(0, "salvaged.1"), topic(2, "salvaged.1.2"), message(1, 0, 0, 0), message(3, 0, 0, 0)];
    let repaired = repair(images, Boot(1));
    assert_eq!(repaired.state.check(), Ok(()));
    assert_eq!(names(&repaired), ["salvaged.1", "salvaged.1.2", "salvaged.1.3", "salvaged.3"]);
    let renamed: Vec<&str> = repaired.renamed.iter().map(TopicName::as_str).collect();
    assert_eq!((renamed, repaired.unused), (vec!["salvaged.1.3", "salvaged.3"], 0));
}

#[test]
fn numbers_at_their_end_are_left_out() {
    let last = u64::MAX;
    for image in
        [message(u32::MAX, 0, 0, 0), message(0, u32::MAX, 0, 0), message(0, 0, last, 0), message(0, 0, 0, last)]
    {
        for named in [true, false] {
            let images = named.then(|| topic(0, "t")).into_iter().chain([image.clone(), message(0, 0, 1, 7)]);
            let repaired = repair(images.collect(), Boot(1));
            assert_eq!(repaired.state.check(), Ok(()), "{image:?}");
        }
    }
    let run = RunImage { start: Position(3), end: Position(last), last_offset: Offset(last) };
    let partition = PartitionId(0);
    let acked = Image::AckedRun { topic: TopicId(0), group: GroupId(u32::MAX), partition, run };
    let trimmed = Image::TrimmedRun { topic: TopicId(0), partition, run };
    let repaired = repair(vec![acked, trimmed, message(0, 0, 1, 7)], Boot(u32::MAX));
    assert_eq!(repaired.state.check(), Ok(()));
}
