//! The size of the log's files: bounded by what is live and a constant, whatever happened before.

use driftq_core::log::FileId;
use driftq_core::types::FrameNumber;

use super::catalog::{self, sentence};
use super::verdict::Verdict;

/// What a closed segment may take beyond its data: zeros that show where it ends.
const SLACK_BYTES: u64 = 2 * 4_096;

/// A segment on the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentFile {
    pub(crate) file: FileId,
    /// Bytes written to it.
    pub(crate) written: u64,
    /// Bytes it takes.
    pub(crate) allocated: u64,
}

#[doc = sentence!(segments_are_cut)]
///
/// For a world without pending I/O. The last two segments are the current and the next.
pub(crate) fn segments_are_cut(segments: &[SegmentFile]) -> Verdict {
    let closed = &segments[..segments.len().saturating_sub(2)];
    let uncut = closed.iter().find(|segment| segment.allocated > segment.written + SLACK_BYTES);
    catalog::SEGMENTS_ARE_CUT
        .holds(uncut.is_none(), || uncut.map_or_else(String::new, |segment| format!("{}: {segment:?}", segment.file)))
}

#[doc = sentence!(trimmed_behind_data)]
///
/// `end` is where the last frame of the file ends, if it has any.
pub(crate) fn trimmed_behind_data(file: FileId, len: u64, end: Option<(usize, bool)>) -> Verdict {
    let is_kept = end.is_none_or(|(end, _)| end as u64 <= len);
    catalog::TRIMMED_BEHIND_DATA.holds(is_kept, || format!("{file} is cut to {len}, its frames end at {end:?}"))
}

#[doc = sentence!(segments_are_few)]
///
/// For a world without pending I/O whose disk was not full. A snapshot is taken after `every` segments; `begun` is the
/// number of those begun since the last one.
pub(crate) fn segments_are_few(begun: u64, every: u64) -> Verdict {
    catalog::SEGMENTS_ARE_FEW
        .holds(begun <= every, || format!("{begun} segments since the last, one due every {every}"))
}

#[doc = sentence!(snapshot_is_taken)]
///
/// For a world without pending I/O whose disk was not full; `written` is the size of the frames since the last one. A
/// start does not begin it anew: what it read counts.
pub(crate) fn snapshot_is_taken(written: u64, every: u64) -> Verdict {
    catalog::SNAPSHOT_IS_TAKEN
        .holds(written == 0 || written < every, || format!("{written} bytes since the last, one due every {every}"))
}

#[doc = sentence!(covered_files_are_removed)]
///
/// For a world without pending I/O whose disk was not full: `kept` are the snapshots that the broker counts on,
/// `on_disk` the number of files, `segments` the segments to which neither refers, in order: for each where the next
/// one begins.
pub(crate) fn covered_files_are_removed(
    kept: &[FrameNumber],
    on_disk: usize,
    segments: &[(FileId, FrameNumber)],
) -> Verdict {
    let older = kept.first().filter(|_| kept.len() > 1);
    let covered = segments.iter().find(|(_, next)| older.is_some_and(|older| *next <= older.next()));
    catalog::COVERED_FILES_ARE_REMOVED.holds(kept.len() <= 2 && on_disk <= 2 && covered.is_none(), || {
        format!("snapshots {kept:?}, {on_disk} files, {covered:?} of {segments:?}")
    })
}

#[doc = sentence!(rests_small)]
///
/// For a log at rest; `largest` is the size of a segment without live messages, if there are none.
pub(crate) fn rests_small(segments: &[SegmentFile], largest: Option<u64>) -> Verdict {
    let is_small = |segment: &SegmentFile| largest.is_none_or(|largest| segment.allocated <= largest);
    let good = segments.len() <= 2 && segments.iter().all(is_small);
    catalog::RESTS_SMALL.holds(good, || format!("{segments:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::tests::fixtures::*;

    fn segments(allocated: &[u64]) -> Vec<SegmentFile> {
        let segment = |(sequence, allocated): (u64, &u64)| SegmentFile {
            file: FileId::Segment(sequence),
            written: 5_000,
            allocated: *allocated,
        };
        (1..).zip(allocated).map(segment).collect()
    }

    #[test]
    fn overdue_snapshot_or_covered_file_is_a_violation() {
        holds(snapshot_is_taken(99, 100));
        holds(snapshot_is_taken(0, 0));
        violates(catalog::SNAPSHOT_IS_TAKEN, snapshot_is_taken(100, 100));
        let kept = [FrameNumber(4), FrameNumber(8)];
        let ends = |next| [(FileId::Segment(1), FrameNumber(next))];
        holds(covered_files_are_removed(&kept, 2, &ends(6)));
        violates(catalog::COVERED_FILES_ARE_REMOVED, covered_files_are_removed(&kept, 3, &ends(6)));
        violates(catalog::COVERED_FILES_ARE_REMOVED, covered_files_are_removed(&kept, 2, &ends(5)));
    }

    #[test]
    fn uncut_or_numerous_segments_are_a_violation() {
        holds(segments_are_cut(&segments(&[5_000, 65_536, 65_536])));
        violates(catalog::SEGMENTS_ARE_CUT, segments_are_cut(&segments(&[65_536, 65_536, 65_536])));
        let file = FileId::Segment(1);
        holds(trimmed_behind_data(file, 5_000, Some((5_000, true))));
        violates(catalog::TRIMMED_BEHIND_DATA, trimmed_behind_data(file, 4_999, Some((5_000, true))));
        holds(segments_are_few(2, 2));
        violates(catalog::SEGMENTS_ARE_FEW, segments_are_few(3, 2));
        holds(rests_small(&segments(&[65_536; 2]), None));
        violates(catalog::RESTS_SMALL, rests_small(&segments(&[65_536; 2]), Some(16_384)));
        violates(catalog::RESTS_SMALL, rests_small(&segments(&[5_000; 3]), None));
    }
}
