//! The words everything else is written in: numbers with meaning, names that were checked once, time, and messages.
//!
//! Nothing here decides anything. A value of one of these types is valid by construction; whoever holds one need not
//! check it again.

pub mod ids;
pub mod limits;
pub mod message;
pub mod names;
pub mod partitioner;
pub mod time;

pub use ids::{Boot, ConsumerId, GroupId, LeaseToken, Lsn, Offset, PartitionId, Position, Ticket, TopicId};
pub use limits::Limits;
pub use message::{
    DeadLetter, DeadReason, Deadline, Envelope, KeptForRedrive, Metadata, Priority, Redrive, RetryPolicy, Routing,
    RoutingDecision, Text,
};
pub use names::{GroupName, NameError, OwnerName, TopicName};
pub use time::{Millis, Timestamp};
