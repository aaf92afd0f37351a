//! How many bytes a queued message takes.

use super::*;

#[test]
fn queued_message_takes_less_than_six_bytes() {
    const COUNT: u64 = 1_000_000;
    let mut map = MessageMap::default();
    let mut random = Random(1);
    let (mut lsn, mut time) = (1, 1_700_000_000_000);
    for position in 0..COUNT {
        lsn += 1 + random.below(4);
        time += u64::from(random.one_in(5));
        let id = PayloadId { lsn: Lsn(lsn), part: 0 };
        let payload = PayloadRef { id, metadata_len: 12, key_len: 8, value_len: 200 };
        map.insert(Position(position), Message::new(Offset(position), Timestamp(time), payload, None));
    }
    let bytes = map.memory() as f64 / COUNT as f64;
    println!("{bytes:.2} bytes per queued message of 200 bytes, {} per slot", size_of::<Slot>());
    assert!(bytes < 6.0, "{bytes}");
}
