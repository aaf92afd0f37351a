//! The history of one message: how it was stored, its deliveries and how each ended, and its final state.

mod deliveries;
mod history;
mod tracer;

use driftq_core::log::Storage;
use driftq_core::types::GroupName;

pub use self::history::{MessageDelivery, MessageEvent, MessageHistory};
use self::tracer::Tracer;
use crate::error::InspectError;
use crate::message_name::MessageName;
use crate::point::LogPoint;
use crate::reader::LogReader;

impl<S: Storage> LogReader<S> {
    /// The history of a message, in one group or in all, up to `at` or to the end of the log.
    ///
    /// # Errors
    /// As [`LogReader::replay`]; [`InspectError::NoSuchTopic`], [`InspectError::NoSuchMessage`].
    pub fn trace_message(
        &mut self,
        message: &MessageName,
        group: Option<&GroupName>,
        at: Option<LogPoint>,
    ) -> Result<MessageHistory, InspectError> {
        let mut tracer = Tracer::new(message, group);
        let replayed = self.replay(at, &mut tracer)?;
        tracer.finish(&replayed)
    }
}
