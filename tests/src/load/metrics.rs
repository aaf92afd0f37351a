//! What a broker's `/metrics` says about its log.

use crate::load::error::Result;

/// Counters of the log since the process began, and its sizes now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LogCounters {
    /// Bytes appended to the log, relocated ones included.
    pub(crate) appended: u64,
    /// Bytes of payloads that were appended again to clean a segment.
    pub(crate) relocated: u64,
    /// Bytes written to snapshots.
    pub(crate) snapshots: u64,
    /// Bytes read from the log for payloads.
    pub(crate) read: u64,
    /// Bytes of all segments now.
    pub(crate) size: u64,
    /// Of these, the live ones.
    pub(crate) live: u64,
    /// The broker's estimate of the memory of its state.
    pub(crate) state: u64,
}

impl LogCounters {
    /// Reads them from the text format.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let value = |name: &str| -> Result<u64> {
            let mut values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            let value = values.next().and_then(|value| value.trim().parse().ok());
            value.ok_or_else(|| format!("the broker's metrics lack {name}").into())
        };
        Ok(Self {
            appended: value("driftq_log_bytes_total")?,
            relocated: value("driftq_log_relocated_bytes_total")?,
            snapshots: value("driftq_snapshot_bytes_total")?,
            read: value("driftq_payload_read_bytes_total")?,
            size: value("driftq_log_size_bytes")?,
            live: value("driftq_log_live_bytes")?,
            state: value("driftq_state_bytes")?,
        })
    }

    /// What was counted since an earlier time; sizes are those of now.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            appended: self.appended.saturating_sub(earlier.appended),
            relocated: self.relocated.saturating_sub(earlier.relocated),
            snapshots: self.snapshots.saturating_sub(earlier.snapshots),
            read: self.read.saturating_sub(earlier.read),
            ..*self
        }
    }

    /// Bytes appended without those that were appended again.
    pub(crate) fn records(&self) -> u64 {
        self.appended.saturating_sub(self.relocated)
    }

    /// Bytes appended and written to snapshots, for each byte of a record.
    pub(crate) fn amplification(&self) -> f64 {
        ratio(self.appended + self.snapshots, self.records())
    }
}

/// The ratio of two counts; 0 if there is nothing to compare with.
pub(crate) fn ratio(of: u64, to: u64) -> f64 {
    if to == 0 { 0.0 } else { of as f64 / to as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# TYPE driftq_log_bytes_total counter\ndriftq_log_bytes_total 300\n\
        driftq_log_relocated_bytes_total 100\ndriftq_snapshot_bytes_total 40\ndriftq_payload_read_bytes_total 5\n\
        driftq_log_size_bytes 1000\ndriftq_log_live_bytes 500\ndriftq_state_bytes_max 9\ndriftq_state_bytes 7\n";

    #[test]
    fn counters_are_read_by_whole_names() {
        let counters = LogCounters::parse(TEXT).expect("all are there");
        assert_eq!((counters.appended, counters.state, counters.live), (300, 7, 500));
        assert_eq!(counters.records(), 200);
        assert!((counters.amplification() - 1.7).abs() < 1e-9);
        assert_eq!(
            counters.since(&counters),
            LogCounters { size: 1000, live: 500, state: 7, ..LogCounters::default() }
        );
    }

    #[test]
    fn missing_counter_is_named() {
        let error = LogCounters::parse("driftq_log_bytes_total 1\n").expect_err("others are missing");
        assert!(error.to_string().contains("driftq_log_relocated_bytes_total"), "{error}");
    }
}
