//! The operations of the API: method, path template and the permission that each needs. Metrics and spans name them by
//! the first two.

use driftq_core::types::Verb;

/// What a request needs once there are keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// Nothing: everyone may send it.
    Open,
    /// Any key.
    AnyKey,
    /// A key with a grant of the verb. On which topics is decided by the core, which knows those that the request ends
    /// up at.
    Verb(Verb),
}

impl Permission {
    /// Whether the request is audited: what the core audits, and nothing else.
    pub(crate) fn is_audited(self) -> bool {
        matches!(self, Self::Verb(Verb::Operate | Verb::Admin))
    }
}

/// Spells the permissions of the table below.
macro_rules! permission {
    (open) => {
        Permission::Open
    };
    (key) => {
        Permission::AnyKey
    };
    ($verb:ident) => {
        Permission::Verb(Verb::$verb)
    };
}

/// Declares [`Endpoint`] with the method, the path template and the permission of each.
macro_rules! endpoints {
    ($($name:ident $method:literal $path:literal $permission:ident;)*) => {
        /// An operation of the API. It says nothing of a request but its method and the template of its path.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Endpoint {
            $(#[doc = concat!("`", $method, " ", $path, "`")] $name,)*
            /// A request that was refused before it had a route.
            Unknown,
        }

        impl Endpoint {
            /// All of them. The position of each is its number as an integer.
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)* Self::Unknown];

            /// The method; nothing for [`Endpoint::Unknown`].
            pub(crate) const fn method(self) -> &'static str {
                match self {
                    $(Self::$name => $method,)*
                    Self::Unknown => "",
                }
            }

            /// What a request needs.
            pub(crate) const fn permission(self) -> Permission {
                match self {
                    $(Self::$name => permission!($permission),)*
                    // It has no handler.
                    Self::Unknown => Permission::Open,
                }
            }

            /// The template of the path.
            pub(crate) const fn path(self) -> &'static str {
                match self {
                    $(Self::$name => $path,)*
                    Self::Unknown => "unknown",
                }
            }
        }
    };
}

endpoints! {
    Healthz "GET" "/v1/healthz" open;
    Readyz "GET" "/v1/readyz" open;
    Version "GET" "/v1/version" key;
    Config "GET" "/v1/config" Inspect;
    Digest "GET" "/v1/digest" Admin;
    Chaos "GET" "/v1/chaos" Inspect;
    OpenApi "GET" "/v1/openapi.json" key;
    Metrics "GET" "/metrics" Inspect;
    ListTopics "GET" "/v1/topics" Inspect;
    CreateTopic "POST" "/v1/topics" Operate;
    DescribeTopic "GET" "/v1/topics/{topic}" Inspect;
    ChangeTopic "PATCH" "/v1/topics/{topic}" Operate;
    DeleteTopic "DELETE" "/v1/topics/{topic}" Operate;
    PurgeTopic "POST" "/v1/topics/{topic}/purge" Operate;
    Produce "POST" "/v1/produce" Produce;
    Consume "GET" "/v1/consume" Consume;
    Ack "POST" "/v1/ack" Consume;
    AckCumulative "POST" "/v1/ack-cumulative" Consume;
    Nack "POST" "/v1/nack" Consume;
    Extend "POST" "/v1/extend" Consume;
    Release "POST" "/v1/release" Consume;
    ListGroups "GET" "/v1/groups" Inspect;
    CreateGroup "POST" "/v1/groups" Operate;
    DeleteGroup "DELETE" "/v1/groups" Operate;
    Seek "POST" "/v1/groups/seek" Operate;
    Pause "POST" "/v1/groups/pause" Operate;
    Resume "POST" "/v1/groups/resume" Operate;
    ExpireLease "POST" "/v1/groups/expire" Operate;
    Peek "GET" "/v1/peek" Inspect;
    Redrive "POST" "/v1/dlq/redrive" Operate;
    Complete "POST" "/v1/complete" Consume;
    Begin "POST" "/v1/idempotency/begin" Effects;
    Finish "POST" "/v1/idempotency/finish" Effects;
    Reacquire "POST" "/v1/idempotency/reacquire" Effects;
    Renew "POST" "/v1/idempotency/renew" Effects;
    GetEffect "GET" "/v1/idempotency" Effects;
    ForgetEffect "DELETE" "/v1/idempotency" Effects;
    ListEffects "GET" "/v1/idempotency/list" Effects;
    CreateKey "POST" "/v1/keys" Admin;
    ListKeys "GET" "/v1/keys" Admin;
    RevokeKey "DELETE" "/v1/keys" Admin;
    RevokeKeyById "DELETE" "/v1/keys/{id}" Admin;
    BindKey "POST" "/v1/keys/bind" Admin;
    CreateTenant "POST" "/v1/tenants" Admin;
    ListTenants "GET" "/v1/tenants" Admin;
    DeleteTenant "DELETE" "/v1/tenants" Admin;
    ListAudit "GET" "/v1/audit" Admin;
}
