//! Audit: what was done by administrators and operators, and what was refused to them.

use std::net::IpAddr;

use super::caller::Principal;
use super::key::KeyId;
use super::names::{GroupName, TenantName};
use super::tenant::TenantId;
use super::time::Timestamp;
use super::topic_name::TopicName;

/// A command that needs the verb `operate` or `admin`, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Who sent it; never [`Principal::Trusted`].
    pub who: Principal,
    /// The tenant in which the caller acts.
    pub tenant: TenantId,
    /// The address it came from.
    pub from: Option<IpAddr>,
    /// What was asked for.
    pub action: AuditAction,
    /// What it is about.
    pub target: AuditTarget,
    /// What came of it.
    pub result: AuditResult,
}

/// An audited command in the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its number: one more than that of the entry before.
    pub number: u64,
    /// When it was decided.
    pub at: Timestamp,
    /// What was done.
    pub audit: Audit,
}

impl AuditEntry {
    /// The most entries in the state; older ones are forgotten.
    pub const COUNT_MAX: usize = 10_000;
}

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $code:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The code used in APIs.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// The number in records.
            pub(crate) const fn code(self) -> u8 {
                match self {
                    $(Self::$variant => $code,)*
                }
            }

            /// What has this number in records.
            pub(crate) fn of_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// The kind of an audited command.
    AuditAction {
        /// A topic is created.
        CreateTopic = 1 "create_topic",
        /// The retention of a topic is changed.
        ChangeRetention = 2 "change_retention",
        /// A topic is deleted.
        DeleteTopic = 3 "delete_topic",
        /// The messages of a topic are removed.
        Purge = 4 "purge",
        /// Dead letters are redriven.
        Redrive = 5 "redrive",
        /// A group is created.
        CreateGroup = 6 "create_group",
        /// A group is deleted.
        DeleteGroup = 7 "delete_group",
        /// The progress of a group is set.
        Seek = 8 "seek",
        /// A group is paused.
        Pause = 9 "pause",
        /// A group is resumed.
        Resume = 10 "resume",
        /// A lease is ended.
        ExpireLease = 11 "expire_lease",
        /// The topics of another tenant are listed.
        ListTopics = 12 "list_topics",
        /// A key is created.
        CreateKey = 13 "create_key",
        /// A key is revoked.
        RevokeKey = 14 "revoke_key",
        /// A key is bound to a certificate.
        BindKey = 15 "bind_key",
        /// Keys are listed.
        ListKeys = 16 "list_keys",
        /// A tenant is registered.
        CreateTenant = 17 "create_tenant",
        /// A tenant is deleted.
        DeleteTenant = 18 "delete_tenant",
        /// Tenants are listed.
        ListTenants = 19 "list_tenants",
        /// The audit is read.
        ListAudit = 20 "list_audit",
    }
}

codes! {
    /// What came of an audited command.
    AuditResult {
        /// It succeeded.
        Done = 0 "ok",
        /// The key was unknown, expired or revoked.
        Unauthenticated = 1 "unauthenticated",
        /// A grant was missing.
        PermissionDenied = 2 "permission_denied",
        /// What it names does not exist.
        NotFound = 3 "not_found",
        /// It contradicts what exists.
        Conflict = 4 "conflict",
        /// A limit was reached, or the log has no space.
        Overloaded = 5 "overloaded",
        /// Something in it was not valid.
        Invalid = 6 "invalid",
    }
}

/// What an audited command is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditTarget {
    /// Nothing in particular.
    Nothing,
    /// A topic.
    Topic(TopicName),
    /// A group of a topic.
    Group(TopicName, GroupName),
    /// A key.
    Key(KeyId),
    /// A tenant.
    Tenant(TenantName),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_as_they_are_written() {
        for action in AuditAction::ALL {
            assert_eq!(AuditAction::of_code(action.code()), Some(*action));
        }
        for result in AuditResult::ALL {
            assert_eq!(AuditResult::of_code(result.code()), Some(*result));
        }
        assert_eq!((AuditAction::of_code(0), AuditResult::of_code(7)), (None, None));
    }
}
