//! The bytes of messages, read from the segments to which a state refers.

use driftq_core::command::Produce;
use driftq_core::log::{FileId, MemoryStorage};
use driftq_core::pipeline::inspect;
use driftq_core::types::{Lsn, PayloadId, Retention};
use driftq_inspect::{PayloadError, PayloadReader};

use crate::harness::{TestBroker, limited, topic};

/// The values of all messages of a topic, in the order of their offsets.
fn values(disk: &MemoryStorage, name: &str) -> Result<Vec<String>, PayloadError> {
    let mut disk = disk.clone();
    let (state, recovered) = inspect(&mut disk, None).unwrap();
    let mut payloads = PayloadReader::new(&mut disk, &recovered);
    let partitions = state.topic_named(&topic(name)).unwrap().partitions();
    let messages = partitions.flat_map(|(_, partition)| partition.messages()).map(|(_, message)| message);
    let read = messages.map(|message| Ok((message.offset, message.body(&payloads.read(message.payload.id)?))));
    let mut read = read.collect::<Result<Vec<_>, _>>()?;
    read.sort_by_key(|(offset, _)| *offset);
    Ok(read.iter().map(|(_, body)| String::from_utf8_lossy(body.value()).into_owned()).collect())
}

fn value(number: usize) -> String {
    format!("{number} {}", "x".repeat(number * 97 % 3_000))
}

/// A log of several segments with snapshots, and the values of its messages.
fn log() -> (TestBroker<MemoryStorage>, Vec<String>) {
    let mut broker = TestBroker::new();
    broker.create_topic("orders", 3, Retention::default());
    for number in 0..60 {
        broker.produce_with(Produce::new(topic("orders"), format!("k{number}"), value(number)));
        if number % 25 == 24 {
            broker.snapshot();
        }
    }
    (broker, (0..60).map(value).collect())
}

#[test]
fn payloads_of_all_segments_are_read_before_and_behind_a_snapshot() {
    let (mut broker, expected) = log();
    assert_eq!(values(&broker.disk, "orders").unwrap(), expected);
    broker.crash();
    assert_eq!(values(&broker.disk, "orders").unwrap(), expected);
}

#[test]
fn payloads_of_outputs_and_dead_letters_are_read_by_part_and_origin() {
    let mut broker = TestBroker::new();
    broker.create_topic("orders", 1, Retention::default());
    broker.create_topic("outputs", 1, Retention::default());
    broker.create_group("orders", "g");
    broker.produce("orders");
    let first = broker.receive("orders", "g", "w");
    let claim = broker.claim("orders", "g", "w", &first);
    let outputs = ["one", "two", "three"];
    broker.complete(claim, outputs.iter().map(|value| Produce::new(topic("outputs"), "", *value)).collect());
    let mut poison = limited("orders", 1);
    poison.set_value("poison");
    broker.produce_with(poison);
    let failed = broker.receive("orders", "g", "w");
    broker.nack("orders", "g", "w", &failed, "no");
    broker.snapshot();
    assert_eq!(values(&broker.disk, "outputs").unwrap(), outputs);
    assert_eq!(values(&broker.disk, "dlq.orders").unwrap(), ["poison"]);
}

#[test]
fn payload_that_is_not_there_is_named() {
    let (broker, _) = log();
    let mut disk = broker.disk.clone();
    let (state, recovered) = inspect(&mut disk, None).unwrap();
    let read = |disk: &mut MemoryStorage, lsn, part| {
        PayloadReader::new(disk, &recovered).read(PayloadId { lsn, part }).expect_err("not there")
    };
    let behind = recovered.last.lsn.next();
    assert_eq!(read(&mut disk, behind, 0), PayloadError::NoSegment(behind));
    let partition = state.topic_named(&topic("orders")).unwrap().partitions().next().unwrap().1;
    let id = partition.messages().next().unwrap().1.payload.id;
    let absent = PayloadId { part: 7, ..id };
    assert_eq!(read(&mut disk, absent.lsn, absent.part), PayloadError::NoPart(absent));
    let boot = PayloadId { lsn: Lsn(1), part: 0 };
    assert_eq!(read(&mut disk, boot.lsn, 0), PayloadError::NoPart(boot), "a record without a message");
    let segment = recovered.segments.iter().find(|segment| segment.lsns.contains(&id.lsn)).unwrap();
    let (file, entry) = (FileId::Segment(segment.sequence), segment.index.find(id.lsn).unwrap());
    disk.bytes_mut(file).unwrap().flip(8 * (entry.position as usize + 33));
    assert!(matches!(read(&mut disk, id.lsn, id.part), PayloadError::Damaged { lsn, .. } if lsn == id.lsn));
    disk.take_file(file);
    assert!(matches!(read(&mut disk, id.lsn, id.part), PayloadError::Storage { .. }));
}
