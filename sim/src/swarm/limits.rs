//! The limits of a world: mostly small, often 1.

use driftq_core::log::HEADER_BYTES;

use super::random::Source;
use crate::setup::{DefaultRetention, GroupIdle, Setup, TextLimits};
use crate::work::Work;

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

pub(super) fn setup(
    source: &mut Source,
    effects: &mut Source,
    bounds: &mut Source,
    files: &mut Source,
    work: &mut Source,
) -> Setup {
    // In most worlds the log has space for what clients do, so that they get far.
    let has_space = !source.one_in(3);
    let segment = if has_space { 1 << 14 } else { source.pick(&[700, 1_200, 2_000, 4_000]) };
    // A small first segment refuses records until its successor exists.
    let first_segments: [u64; 4] =
        if has_space { [2_500, 4_000, 8_000, 1 << 20] } else { [600, 1_200, 4_000, 1 << 20] };
    let mut setup = Setup {
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
        memory_bytes: None,
        read_steps: false,
        read_ahead_bytes: 0,
        clean_spare_segments: 0,
        scrub_ms: None,
        rots: false,
        state_bytes_max: None,
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
        work: draw_work(work),
        texts: draw_texts(work),
        shows_given_up: false,
    };
    if has_space && work.one_in(8) {
        // For messages longer than a page of the disk.
        setup.bytes_max = 20_000;
    }
    setup
}

/// In most worlds nearly every delivery reads its payload from the log.
pub(super) fn memory(source: &mut Source) -> Option<u64> {
    source.pick(&[None, Some(0), Some(0), Some(300), Some(3_000)])
}

/// In every fourth world nothing is read ahead; in others a few messages, or all.
pub(super) fn read_ahead(source: &mut Source) -> u64 {
    source.pick(&[0, 250, 1_000, 4 << 20])
}

/// In every sixth world the state soon takes as much memory as it may.
pub(super) fn state_memory(source: &mut Source) -> Option<u64> {
    source.pick(&[None, None, None, None, None, Some(20_000), None, None, None, None, None, Some(60_000)])
}

/// In most worlds the log is cleaned as soon as it can be; in every third it is scrubbed every few seconds.
pub(super) fn cleaning(source: &mut Source) -> (u64, Option<u64>) {
    (source.pick(&[0, 0, 0, 1, 8]), source.pick(&[None, None, None, None, Some(3_000), Some(40_000)]))
}

/// In every third world, lengths that the texts of most requests stay within.
fn draw_texts(source: &mut Source) -> Option<TextLimits> {
    source.one_in(3).then(|| TextLimits {
        key: source.pick(&[7, 9, 40]),
        message: source.pick(&[60, 90, 200]),
        identity: source.pick(&[6, 7, 30]),
        id: source.pick(&[9, 12, 50]),
        metadata: source.pick(&[50, 90, 150]),
        error: source.pick(&[11, 15, 60]),
        partitions: source.pick(&[3, 4]),
    })
}

/// In every second world, each limit is that of production or from 1 to 4.
fn draw_work(source: &mut Source) -> Option<Work> {
    if source.one_in(2) {
        return None;
    }
    let production = Work::default();
    let mut draw = |production: usize| if source.one_in(2) { 1 + source.below(4) as usize } else { production };
    Some(Work {
        timers: draw(production.timers),
        swept: draw(production.swept as usize) as u64,
        dispatched: draw(production.dispatched),
        turn: draw(production.turn),
        reclaims: draw(production.reclaims),
        frees: draw(production.frees),
        groups: draw(production.groups),
        redriven: draw(production.redriven as usize) as u64,
        acked: draw(production.acked),
        seen: draw(production.seen),
        page: draw(production.page),
        page_bytes: draw(production.page_bytes),
        examined: draw(production.examined),
        unacked: draw(production.unacked),
        parts: draw(production.parts),
        // Less than the head of a frame is slow.
        read_bytes: if source.one_in(24) { 13 } else { source.pick(&[0, 0, 0, 100, 700, 3_000]) },
    })
}
