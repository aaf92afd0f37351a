//! Fuzz target for salvage: folders with arbitrary contents.

use arbitrary::Unstructured;
use driftq_core::faults::NoFaults;
use driftq_core::log::MemoryStorage;
use driftq_core::state::Topic;
use driftq_core::types::TopicName;
use driftq_inspect::PayloadReader;
use driftq_server::fuzzing;
use driftq_server::wal::{Contents, Loss, WalError};

use crate::folder::{Folder, Origin};
use crate::golden::{GoldenLog, stored_messages};
use crate::recovered_log::RecoveredLog;

/// Salvages a log into a new one. Tests replace it to plant a bug.
pub type SalvageFn = fn(&mut MemoryStorage) -> Result<Option<(Contents, Loss, MemoryStorage)>, WalError>;

/// Salvages a folder as [`recovery`](crate::recovery()) builds it.
///
/// Checks that the salvage does not panic; that the new log recovers, is consistent, holds exactly what is reported as
/// kept and the bytes of all its messages, and that a broker starts on it. If files were only damaged, renamed or
/// removed, it holds no message that never existed; a topic may have another name than its own only if that is
/// reported.
pub fn salvage(data: &[u8]) {
    salvage_with(data, fuzzing::salvage);
}

/// [`salvage`] with another implementation.
///
/// # Panics
/// If a check fails.
pub fn salvage_with(data: &[u8], salvage: SalvageFn) {
    let Folder { mut storage, origin } = Folder::read(&mut Unstructured::new(data));
    let (kept, loss, mut salvaged) = match salvage(&mut storage) {
        Ok(Some(result)) => result,
        Ok(None) | Err(WalError::NoIdentity | WalError::Recovery(_)) => return,
        // A forged header can leave no frame number to continue with.
        Err(error) if origin == Origin::Forged && error.to_string().contains("at their end") => return,
        Err(error) => panic!("a salvage in memory fails: {error}"),
    };
    let recovered = RecoveredLog::recover(&mut salvaged, &NoFaults);
    let log = recovered.unwrap_or_else(|error| panic!("recovery refuses a salvaged log: {error}"));
    assert_eq!(Contents::of(&log.state), kept, "a salvaged log holds other contents than reported");
    check_ranges(&loss);
    let golden = GoldenLog::get();
    let mut payloads = PayloadReader::new(&mut salvaged, &log.report);
    let payload = |id| payloads.read(id).unwrap_or_else(|error| panic!("a message is kept without its bytes: {error}"));
    // A topic that lost its name is the one with its number. Any other must have its own name.
    let messages = stored_messages(&log.state, |topic| renamed_from(golden, &loss, topic), payload);
    // A forged snapshot can be whole and name no topic.
    if origin == Origin::Genuine {
        assert!(loss.renamed.is_empty() || loss.images > 0, "a topic is renamed and its image is not lost: {loss:?}");
        let unknown: Vec<_> = messages.difference(&golden.messages).cloned().collect();
        assert!(unknown.is_empty(), "a salvaged log holds messages that never existed: {unknown:?}");
    }
    log.check_restarts(&salvaged);
}

/// The name that a topic had.
fn renamed_from<'a>(golden: &'a GoldenLog, loss: &Loss, topic: &'a Topic) -> &'a TopicName {
    match golden.topic_names.get(&topic.id()) {
        Some(original) if loss.renamed.contains(topic.name()) => original,
        _ => topic.name(),
    }
}

/// Checks that the lost ranges are in order and do not overlap.
fn check_ranges(loss: &Loss) {
    let ranges = loss.ranges.iter().map(|range| (range.start().0, range.end().0));
    let bounds: Vec<u64> = ranges.flat_map(|(first, last)| [first, last.saturating_add(1)]).collect();
    assert!(bounds.is_sorted(), "lost ranges overlap or are out of order: {loss:?}");
}
