//! Fields of requests about deliveries: ack, cumulative ack, nack, extend and release.

use driftq_core::command::{AckCumulative, Claim, Nack, Retry, TokenClaim};
use driftq_core::types::{Offset, PartitionId, Text};
use serde::Deserialize;

use super::error::ApiError;
use super::fields::{Fields, Str, millis, required};
use super::plain_json::{plain_object, read_plain};
use super::query::Query;
use super::requester::Names;

/// Declares a request about one delivery: the fields of its claim, and further ones.
macro_rules! claim_fields {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty = $from:expr),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name<'a> {
            #[serde(borrow)]
            topic: Option<Str<'a>>,
            #[serde(borrow)]
            group: Option<Str<'a>>,
            partition: Option<u32>,
            offset: Option<u64>,
            #[serde(borrow)]
            owner: Option<Str<'a>>,
            #[serde(borrow)]
            lease_token: Option<Str<'a>>,
            $(pub(crate) $field: $type,)*
        }

        impl<'a> Fields<'a> for $name<'a> {
            fn from_query(query: &'a Query<'a>) -> Result<Self, ApiError> {
                Ok(Self {
                    topic: query.text("topic")?.map(Str::from),
                    group: query.text("group")?.map(Str::from),
                    partition: query.value("partition")?,
                    offset: query.value("offset")?,
                    owner: query.text("owner")?.map(Str::from),
                    lease_token: query.text("lease_token")?.map(Str::from),
                    $($field: ($from)(query)?,)*
                })
            }

            fn from_plain(text: &'a str) -> Option<Self> {
                read_plain(text)
            }
        }

        plain_object!($name<'a> { topic, group, partition, offset, owner, lease_token, $($field,)* });

        impl $name<'_> {
            /// The delivery that it is about, and its owner.
            pub(crate) fn claim(&self, names: &Names) -> Result<Claim, ApiError> {
                Ok(Claim {
                    topic: names.topic(required("topic", self.topic.as_deref())?)?,
                    group: names.group(required("group", self.group.as_deref())?)?,
                    partition: PartitionId(required("partition", self.partition)?),
                    offset: Offset(required("offset", self.offset)?),
                    owner: names.owner(required("owner", self.owner.as_deref())?)?,
                    token: TokenClaim::read(self.lease_token.as_deref()),
                })
            }
        }
    };
}

claim_fields! {
    /// `POST /v1/ack` and `/v1/release`.
    AckFields {}
}
claim_fields! {
    /// `POST /v1/nack`.
    NackFields {
        reason: Option<String> = |query: &Query<'_>| query.text("reason").map(|text| text.map(str::to_owned)),
        delay_ms: Option<i64> = |query: &Query<'_>| query.value("delay_ms"),
        retryable: Option<bool> = |query: &Query<'_>| query.flag("retryable"),
    }
}

impl NackFields<'_> {
    /// The nack.
    pub(crate) fn nack(self, names: &Names) -> Result<Nack, ApiError> {
        let claim = self.claim(names)?;
        let retry = match (self.retryable, millis("delay_ms", self.delay_ms)?) {
            (Some(false), None) => Retry::Never,
            (Some(false), Some(_)) => {
                return Err(ApiError::invalid("retryable: false dead-letters the message, so it takes no delay_ms"));
            }
            (_, delay) => Retry::after(delay),
        };
        Ok(Nack { claim, reason: Text::from(self.reason.unwrap_or_default()), retry })
    }
}

claim_fields! {
    /// `POST /v1/ack-cumulative`. A token names one delivery, so there is none.
    AckCumulativeFields {}
}

impl AckCumulativeFields<'_> {
    /// The cumulative ack.
    pub(crate) fn ack(&self, names: &Names) -> Result<AckCumulative, ApiError> {
        if self.lease_token.is_some() {
            return Err(ApiError::invalid("a cumulative ack takes no lease_token; use /v1/ack for one delivery"));
        }
        let Claim { topic, group, partition, offset, owner, .. } = self.claim(names)?;
        Ok(AckCumulative { topic, group, partition, offset, owner })
    }
}

claim_fields! {
    /// `POST /v1/extend`.
    ExtendFields {
        lease_ms: Option<i64> = |query: &Query<'_>| query.value("lease_ms"),
    }
}
