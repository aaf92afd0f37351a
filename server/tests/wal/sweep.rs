//! Damages every frame of a log in turn, and random bytes.

use super::support::*;

const TOPIC_CREATED: u8 = 2;
const PRODUCED: u8 = 9;

#[test]
fn damaged_frame_loses_no_other_message() {
    let dir = log();
    let before = messages(&state(dir.path()));
    let all = segments(dir.path());
    let mut tried = 0;
    for file in all {
        for (byte, number, kind) in frames(dir.path(), file) {
            let damaged = copy(dir.path());
            flip(damaged.path(), file, byte + 20);
            if salvage(damaged.path(), true).1.starts_with("nothing to do") {
                continue; // The frame was not proven synced: a torn tail.
            }
            tried += 1;
            let after = messages(&state(damaged.path()));
            let missing = before.difference(&after).count();
            match kind {
                PRODUCED => assert!(missing <= 1, "frame {number}: {missing} messages are missing"),
                // A topic whose name is lost cannot be kept.
                TOPIC_CREATED => assert!(missing > 0),
                _ => assert_eq!(missing, 0, "frame {number} of kind {kind}"),
            }
        }
    }
    assert!(tried > 200, "{tried}");
}

#[test]
fn salvage_after_random_damage_yields_a_log_that_opens() {
    let dirs = [log(), log_with_snapshots()];
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    for round in 0..150 {
        let dir = copy(dirs[round % 2].path());
        let all = ids(dir.path());
        for _ in 0..=random(4) {
            let file = all[random(all.len())];
            edit(dir.path(), file, |bytes| {
                let (start, len) = (random(bytes.len()), 1 + random(300));
                let end = bytes.len().min(start + len);
                bytes[start..end].iter_mut().for_each(|byte| *byte ^= 1 + random(255) as u8);
            });
        }
        let (code, text) = salvage(dir.path(), true);
        assert!(code == 0 || code == 3 && text.contains("\nlost: "), "round {round}: {code} {text}");
        state(dir.path()).check().unwrap();
    }
}
