//! Shared types: ids, validated names, time, messages, identities and effects.
//!
//! These types make no decisions. A value is validated when it is constructed and never again.

pub mod body;
pub mod claim;
pub mod delivery_state;
pub mod effect;
pub mod identity;
pub mod identity_key;
pub mod ids;
pub mod limits;
pub mod message;
pub mod metadata;
pub mod names;
pub mod partitioner;
pub mod step;
pub mod time;
pub mod topic_settings;

pub use body::Body;
pub use claim::{Claim, TokenClaim};
pub use delivery_state::{DeliveryState, LastError, Phase};
pub use effect::{Details, Effect, EffectStatus, Lifetime, Outcome, Pin};
pub use identity::{EffectNamespace, Identity, Scope};
pub use identity_key::IdentityKey;
pub use ids::{Boot, ConsumerId, GroupId, LeaseToken, Lsn, MessageRef, Offset, PartitionId, Position, Ticket, TopicId};
pub use limits::Limits;
pub use message::{
    DeadLetter, DeadReason, Deadline, Envelope, KeptForRedrive, Metadata, Priority, RedriveOrigin, RetryPolicy,
    Routing, RoutingDecision, Text,
};
pub use names::{GroupName, NameError, OwnerName, TopicName};
pub use step::{Completion, StepOutput};
pub use time::{Millis, Timestamp};
pub use topic_settings::{GroupStart, Retention};
