//! Shared types: ids, validated names, time, messages, identities and effects.
//!
//! These types make no decisions. A value is validated when it is constructed and never again.

mod audit;
mod body;
mod caller;
mod claim;
mod decision_fields;
mod delivery_state;
pub(crate) mod effect;
mod grant;
pub(crate) mod identity;
mod identity_key;
mod ids;
mod key;
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
mod tenant;
mod time;
mod topic_name;
mod topic_settings;
mod wall_clock;
mod winner;
mod work_limits;

pub use audit::{Audit, AuditAction, AuditEntry, AuditResult, AuditTarget};
pub use body::Body;
pub use caller::{Caller, Principal};
pub use claim::{Claim, TokenClaim};
pub use decision_fields::DecisionFields;
pub use delivery_state::{DeliveryState, LastError, Phase};
pub use effect::{Details, Effect, EffectStatus, Lifetime, Outcome, Pin};
pub use grant::{Grant, GrantError, TopicPattern, Verb, Verbs};
pub use identity::{EffectNamespace, Identity, Scope, ScopeKind};
pub use identity_key::IdentityKey;
pub use ids::{
    Boot, ConsumerId, FrameNumber, GroupId, LeaseToken, Lsn, MessageRef, Offset, PartitionId, Position, Ticket,
    TokenParseError, TopicId,
};
pub use key::{Key, KeyDigest, KeyId, KeyIdError};
pub use limits::{
    ERROR_TEXT_BYTES_CEILING, Limits, MESSAGE_BYTES_CEILING, PARTITIONS_CEILING, RESULT_BYTES_CEILING,
    RETAINED_MESSAGE_OVERHEAD,
};
pub use message::{
    DEFAULT_TENANT, DeadLetter, DeadLetterOrigin, DeadReason, Deadline, Envelope, KeptForRedrive, MAX_BACKOFF_DEFAULT,
    MessageFlags, Metadata, Priority, RedriveOrigin, RetryPolicy, Routing, RoutingDecision, Text,
};
pub use names::{CertificateSan, Escaped, GroupName, KeyName, NameError, OwnerName, TenantName};
pub use payload::{PayloadId, PayloadRef};
pub use produce_scope::ProduceScope;
pub use result::StoredResult;
pub use result_hash::ResultHash;
pub use step::{Completion, StepOutput};
pub use tenant::TenantId;
pub use time::{Millis, Now, Timestamp};
pub use topic_name::TopicName;
pub use topic_settings::{GroupOrigin, GroupStart, Retention, Setting};
pub use wall_clock::{WallAdjustment, WallClock};
pub use winner::{OffsetRef, Winner};
pub use work_limits::WorkLimits;
