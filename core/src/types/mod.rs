//! Shared types: ids, validated names, time, messages, identities and effects.
//!
//! These types make no decisions. A value is validated when it is constructed and never again.

mod body;
mod claim;
mod decision_fields;
mod delivery_state;
pub(crate) mod effect;
pub(crate) mod identity;
mod identity_key;
mod ids;
mod limits;
mod message;
pub mod metadata;
pub(crate) mod names;
pub(crate) mod partitioner;
mod payload;
mod produce_scope;
mod result;
mod result_hash;
mod step;
mod time;
mod topic_settings;
mod wall_clock;
mod winner;
mod work_limits;

pub use body::Body;
pub use claim::{Claim, TokenClaim};
pub use decision_fields::DecisionFields;
pub use delivery_state::{DeliveryState, LastError, Phase};
pub use effect::{Details, Effect, EffectStatus, Lifetime, Outcome, Pin};
pub use identity::{EffectNamespace, Identity, Scope, ScopeKind};
pub use identity_key::IdentityKey;
pub use ids::{
    Boot, ConsumerId, FrameNumber, GroupId, LeaseToken, Lsn, MessageRef, Offset, PartitionId, Position, Ticket,
    TokenParseError, TopicId,
};
pub use limits::{
    ERROR_TEXT_BYTES_CEILING, Limits, MESSAGE_BYTES_CEILING, PARTITIONS_CEILING, RESULT_BYTES_CEILING,
    RETAINED_MESSAGE_OVERHEAD,
};
pub use message::{
    DEFAULT_TENANT, DeadLetter, DeadLetterOrigin, DeadReason, Deadline, Envelope, KeptForRedrive, MAX_BACKOFF_DEFAULT,
    MessageFlags, Metadata, Priority, RedriveOrigin, RetryPolicy, Routing, RoutingDecision, Text,
};
pub use names::{Escaped, GroupName, NameError, OwnerName, TopicName};
pub use payload::{PayloadId, PayloadRef};
pub use produce_scope::ProduceScope;
pub use result::StoredResult;
pub use result_hash::ResultHash;
pub use step::{Completion, StepOutput};
pub use time::{Millis, Now, Timestamp};
pub use topic_settings::{GroupOrigin, GroupStart, Retention, Setting};
pub use wall_clock::{WallAdjustment, WallClock};
pub use winner::{OffsetRef, Winner};
pub use work_limits::WorkLimits;
