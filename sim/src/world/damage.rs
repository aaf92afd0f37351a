//! Damage to the medium of a stopped broker, and what a start makes of it.

use std::ops::Range;

use driftq_core::faults::Faults;
use driftq_core::log::frame::FOOTER;
use driftq_core::log::{FileId, Recovered, SegmentHeader, SegmentReader};
use driftq_core::state::State;
use driftq_core::types::{FrameNumber, PayloadId};

use super::state::World;
use crate::actions::Damage;
use crate::coverage::Point;
use crate::disk::Disk;
use crate::invariants::Violation;
use crate::invariants::durability::{
    damage_is_detected, read_error_is_refused, refusal_is_needed, sound_log_accepted, whole_snapshots_are_kept,
};
use crate::invariants::payloads::live_payloads;
use crate::sim_storage::SimStorage;

impl<F: Faults, S: SimStorage> World<F, S> {
    /// Damages the disk of a stopped broker.
    pub(super) fn damage(&mut self, damage: Damage) {
        if self.broker.is_some() {
            return;
        }
        self.counters.events += 1;
        self.disk.damage(damage);
    }

    /// Inverts a bit of a live payload of a running broker.
    pub(super) fn rot(&mut self, payload: u8, bit: u16) {
        let Some(broker) = self.broker.as_ref().filter(|_| self.setup.rots) else { return };
        let live: Vec<_> = live_payloads(broker.state()).into_keys().collect();
        let Some(nth) = usize::from(payload).checked_rem(live.len()) else { return };
        let frame = self.shadow.frame_of(live[nth].lsn).filter(|frame| frame.at.frame <= self.shadow.durable());
        let Some((file, range)) = frame.map(|frame| (frame.file, frame.range.clone())) else { return };
        if self.disk.model().is_hit(file, &range) {
            return;
        }
        let before = self.disk.model().files().take_while(|(found, _)| *found != file);
        let start: usize = before.map(|(_, bytes)| bytes.len()).sum();
        let bit = (start + range.start) * 8 + usize::from(bit) % (range.len() * 8);
        self.counters.events += 1;
        self.disk.damage(Damage::Flip { bit: bit as u32 });
        self.coverage.hit(Point::PayloadRotten);
    }

    /// The live payloads whose records the disk has lost.
    pub(super) fn rotten_payloads(&self) -> Vec<(PayloadId, FileId, Range<usize>)> {
        let live = self.broker.iter().flat_map(|broker| live_payloads(broker.state()).into_keys());
        let rotten = live.filter_map(|payload| {
            let frame = self.shadow.frame_of(payload.lsn);
            let frame = frame.filter(|frame| self.disk.model().is_hit(frame.file, &frame.range))?;
            Some((payload, frame.file, frame.range.clone()))
        });
        rotten.collect()
    }

    /// What a start would find. Damage that it must refuse, or that nothing proves, is undone by an operator.
    pub(super) fn recoverable(&mut self) -> Result<(State, Recovered), Violation> {
        let (state, found) = match self.disk.model().is_injured() {
            true => self.recoverable_from_damage()?,
            false => sound_log_accepted(self.disk.inspect_recovery(&self.faults))?,
        };
        whole_snapshots_are_kept(&self.disk.model().usable_snapshots(), &found)?;
        self.disk.model_mut().note_found_damage();
        Ok((state, found))
    }

    fn recoverable_from_damage(&mut self) -> Result<(State, Recovered), Violation> {
        let disk = self.disk.model();
        let mut whole = disk.clone();
        whole.heal();
        let (state, undamaged) = sound_log_accepted(whole.inspect_recovery(&self.faults))?;
        match self.disk.inspect_recovery(&self.faults) {
            Err(error) => {
                refusal_is_needed(self.may_refuse(disk, undamaged.last.frame), &error)?;
                self.coverage.hit(Point::DamageUndone);
            }
            Ok((after, found)) => {
                let is_outlived = found.last == undamaged.last && after.digest() == state.digest();
                if !is_outlived {
                    read_error_is_refused(disk.is_only_unreadable(), &found)?;
                    damage_is_detected(found.last.frame, self.proven(disk, undamaged.last.frame), &found)?;
                }
                if !is_outlived && found.last.frame < self.shadow.durable() {
                    // The documented limit: no client may rely on it, so an operator restores what clients have seen.
                    self.coverage.hit(Point::DamageInWindow);
                } else if !self.setup.rots && hits_payloads(disk, &whole, &found) {
                    self.coverage.hit(Point::DamagedPayloads);
                } else {
                    let fell_back = found.snapshot.map(|at| at.frame) < undamaged.snapshot.map(|at| at.frame);
                    self.coverage.hit(match is_outlived {
                        false => Point::DamagedTailCut,
                        true if fell_back => Point::SnapshotFallback,
                        true => Point::DamageOutlived,
                    });
                    if self.setup.rots && hits_payloads(disk, &whole, &found) {
                        self.coverage.hit(Point::StartedWithRot);
                    }
                    return Ok((after, found));
                }
            }
        }
        self.disk.heal();
        Ok((state, undamaged))
    }

    /// Whether a start may refuse the damage of `disk`, whose log would end at `last` without it.
    pub(super) fn may_refuse(&self, disk: &Disk, last: FrameNumber) -> bool {
        disk.may_refuse(|file, range| self.shadow.holds_frames(file, range, last))
    }

    /// How far undamaged data proves a log that ends at `last` without the damage to have been synced.
    ///
    /// Not by what its frames record, which the broker wrote, but by what they must record.
    pub(super) fn proven(&self, disk: &Disk, last: FrameNumber) -> FrameNumber {
        let frames = self.shadow.frames().iter().filter(|frame| frame.at.frame <= last);
        let undamaged = frames.filter(|frame| !disk.is_hit(frame.file, &frame.range)).map(|frame| frame.proves);
        let names = disk.files().filter_map(|(name, _)| match name {
            FileId::Snapshot(frame) => Some(frame),
            _ => None,
        });
        undamaged.chain(names).max().unwrap_or_default()
    }
}

/// Whether the damage of a disk on which a broker starts is to a record in a segment to which its snapshot refers; the
/// disk is `whole` without it. Rather than have the broker fail when it delivers a payload, an operator restores it. A
/// damaged footer stays, unless it cannot be read: reads of payloads before it would fail.
fn hits_payloads(disk: &Disk, whole: &Disk, found: &Recovered) -> bool {
    found.referred.iter().any(|segment| {
        let Some(bytes) = whole.bytes(segment.file()) else { return false };
        let Ok(header) = SegmentHeader::decode(bytes) else { return false };
        let mut reader = SegmentReader::new(&header, bytes);
        while let Some(frame) = reader.next().filter(|frame| frame.head.number <= segment.last.frame) {
            let range = reader.position() - frame.size()..reader.position();
            let file = segment.file();
            if frame.head.kind != FOOTER && disk.is_hit(file, &range) || disk.is_unreadable(file, &range) {
                return true;
            }
        }
        false
    })
}
