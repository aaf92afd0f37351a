//! A salvage of folders of arbitrary files.

use arbitrary::Unstructured;
use driftq_core::faults::NoFaults;
use driftq_core::log::MemoryStorage;
use driftq_server::fuzzing;
use driftq_server::wal::{Contents, Loss, WalError};

use crate::golden::{Golden, messages};
use crate::opened::Opened;
use crate::recovery::folder;

/// Salvages a log into a new one: what a planted bug replaces.
pub type Salvages = fn(&mut MemoryStorage) -> Result<Option<(Contents, Loss, MemoryStorage)>, WalError>;

/// A folder as in [`recovery`](crate::recovery()), salvaged.
///
/// It never panics; what it writes opens, is sound and can be gone on with; it holds exactly as much as the salvage says it kept; and
/// where bytes were only damaged, moved or taken away, every message in it is one that was.
pub fn salvage(data: &[u8]) {
    salvage_with(data, fuzzing::salvage);
}

/// As [`salvage`], with another salvage.
///
/// # Panics
/// If something is wrong.
pub fn salvage_with(data: &[u8], salvages: Salvages) {
    let mut input = Unstructured::new(data);
    let (mut storage, genuine) = folder(&mut input);
    let (kept, loss, mut new) = match salvages(&mut storage) {
        Ok(Some(salvaged)) => salvaged,
        Ok(None) | Err(WalError::NoIdentity | WalError::Recovery(_)) => return,
        Err(error) if !genuine => {
            // Forged numbers may leave nothing to count on with.
            return assert!(error.to_string().contains("at their end"), "a salvage in memory fails: {error}");
        }
        Err(error) => panic!("a salvage in memory fails: {error}"),
    };
    let opened = Opened::from(&mut new, &NoFaults).unwrap_or_else(|error| panic!("salvaged, and refused: {error}"));
    assert_eq!(Contents::of(&opened.state), kept, "what is said to be kept is kept");
    let ranges = loss.ranges.iter().map(|range| (range.start().0, range.end().0));
    let rising: Vec<u64> = ranges.flat_map(|(first, last)| [first, last.saturating_add(1)]).collect();
    assert!(rising.is_sorted(), "what is lost is named in order, each once: {loss:?}");
    if genuine {
        let invented: Vec<_> = messages(&opened.state).difference(&Golden::log().messages).cloned().collect();
        assert!(invented.is_empty(), "messages that never were: {invented:?}");
    }
    opened.go_on(&new);
}
