//! The offset of wall time.

/// The offset of wall time: what it was at the last adjustment, and what it falls to at half speed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WallClock {
    pub(super) adjusted_at: u64,
    pub(super) offset: i64,
    pub(super) target: i64,
}
