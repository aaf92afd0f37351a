//! The limits of a world: mostly small, often 1.

use driftq_core::log::HEADER_BYTES;

use super::random::Source;
use crate::setup::{DefaultRetention, GroupIdle, Setup};

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;

/// The limits of a world that lasts for weeks: times as in production, and a log with space.
pub(super) fn weeks(drawn: &Setup, bounds: &mut Source) -> Setup {
    Setup {
        messages_max: drawn.messages_max.max(12),
        bytes_max: drawn.bytes_max.max(256),
        lease_ms: 30_000,
        lease_min_ms: 100,
        lease_max_ms: 12 * HOUR,
        delay_max_ms: 30 * DAY,
        dedupe_ttl_ms: 600_000,
        effect_ttl_ms: DAY,
        job_ttl_ms: 7 * DAY,
        completion_ttl_ms: 600_000,
        segment_bytes: HEADER_BYTES as u64 + 4_000,
        segment_bytes_min: HEADER_BYTES as u64 + 2_500,
        snapshot_every_bytes: bounds.pick(&[1_500, 6_000]),
        snapshot_every_segments: 3,
        rest_ms: Some(60_000),
        reserve_bytes: 400,
        retention: bounds.pick(&[
            None,
            Some(DefaultRetention { ms: Some(6 * HOUR), bytes: None }),
            Some(DefaultRetention { ms: Some(7 * DAY), bytes: Some(200) }),
        ]),
        group_idle: Some(GroupIdle { ms: HOUR, max_ms: 30 * DAY }),
        ..drawn.clone()
    }
}

pub(super) fn setup(source: &mut Source, effects: &mut Source, bounds: &mut Source, files: &mut Source) -> Setup {
    // In most worlds the log has space for what clients do, so that they get far.
    let has_space = !source.one_in(3);
    let segment = if has_space { 1 << 14 } else { source.pick(&[700, 1_200, 2_000, 4_000]) };
    // A small first segment refuses records until its successor exists.
    let first_segments: [u64; 4] =
        if has_space { [2_500, 4_000, 8_000, 1 << 20] } else { [600, 1_200, 4_000, 1 << 20] };
    Setup {
        in_flight_max: source.pick(&[1, 2, 3, 8, 1_000]),
        messages_max: source.pick(&[1, 2, 4, 12, 40]),
        bytes_max: source.pick(&[24, 64, 256, 4_096]),
        lease_ms: source.pick(&[5, 50, 500, 2_000]),
        lease_min_ms: bounds.pick(&[1, 1, 1, 10, 100]),
        lease_max_ms: bounds.pick(&[200, 2_000, 43_200_000, 43_200_000]),
        delay_max_ms: bounds.pick(&[100, 1_000, 2_592_000_000, 2_592_000_000]),
        dedupe_ttl_ms: source.pick(&[1, 100, 2_000, 10_000, 600_000]),
        dedupe_keys_max: source.pick(&[1, 2, 4, 64]),
        effect_ttl_ms: effects.pick(&[1, 100, 2_000, 60_000, 86_400_000]),
        job_ttl_ms: effects.pick(&[1, 2_000, 86_400_000]),
        effects_max: {
            // The draw of a limit that does not exist any more: seeds keep their worlds.
            effects.pick(&[1; 5]);
            effects.pick(&[1, 2, 4, 64, 64, 64, 64, 64])
        },
        result_bytes_max: effects.pick(&[4, 64, 64]),
        completion_ttl_ms: effects.pick(&[1, 2_000, 600_000]),
        completions_max: effects.pick(&[1, 2, 64, 64]),
        outputs_max: effects.pick(&[1, 3, 16]),
        topics_max: source.pick(&[2, 4, 16]),
        groups_max: source.pick(&[1, 2, 8]),
        consumers_max: source.pick(&[1, 3, 64]),
        segment_bytes: HEADER_BYTES as u64 + segment,
        segment_bytes_min: HEADER_BYTES as u64 + files.pick(&first_segments),
        snapshot_every_segments: files.pick(&[2, 3, 8]),
        rest_ms: files.pick(&[None, Some(150), Some(1_000)]),
        reserve_bytes: source.pick(&[0, 200, 400]),
        snapshot_every_bytes: source.pick(&[300, 1_500, 6_000, 1 << 20]),
        slice_bytes: source.pick(&[1, 64, 512, 4_096]),
        adaptive_credit: effects.pick(&[true, true, false]),
        retention: bounds.pick(&[
            None,
            None,
            Some(DefaultRetention { ms: None, bytes: None }),
            Some(DefaultRetention { ms: Some(500), bytes: None }),
            Some(DefaultRetention { ms: Some(5_000), bytes: Some(60) }),
        ]),
        retained_bytes_max: bounds.pick(&[None, None, Some(0), Some(400), Some(2_000)]),
        group_idle: bounds.pick(&[
            None,
            Some(GroupIdle { ms: 0, max_ms: 2_000 }),
            Some(GroupIdle { ms: 200, max_ms: 600_000 }),
        ]),
        shows_given_up: false,
    }
}
