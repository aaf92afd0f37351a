//! Commands of consumer streams.

use crate::types::{ConsumerId, GroupName, GroupStart, Millis, OwnerName, TopicName};

/// Connects a consumer to a group, which is created if it does not exist.
///
/// [`Subscribe::new`] has the defaults: the broker's lease, a prefetch of 100, no end, from the earliest message,
/// leases that outlive the stream. The builder methods change one of them each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    /// The topic.
    pub topic: TopicName,
    /// The group.
    pub group: GroupName,
    /// The worker's name.
    pub owner: OwnerName,
    /// How long each delivery is leased; `None` or zero for the default.
    pub lease: Option<Millis>,
    /// The most live leases this stream may hold.
    pub prefetch: u32,
    /// The most deliveries in all.
    pub deliveries_max: Option<u64>,
    /// Where the group starts if it is new.
    pub start: GroupStart,
    /// What happens to its leases when the stream disconnects.
    pub on_disconnect: OnDisconnect,
    /// What happens to the group when its last stream disconnects.
    pub group_lifetime: GroupLifetime,
}

impl Subscribe {
    /// The prefetch of a stream that does not set one.
    pub const PREFETCH_DEFAULT: u32 = 100;

    /// A stream with the defaults.
    #[must_use]
    pub fn new(topic: TopicName, group: GroupName, owner: OwnerName) -> Self {
        Self {
            topic,
            group,
            owner,
            lease: None,
            prefetch: Self::PREFETCH_DEFAULT,
            deliveries_max: None,
            start: GroupStart::default(),
            on_disconnect: OnDisconnect::default(),
            group_lifetime: GroupLifetime::default(),
        }
    }

    /// Leases each delivery for this long; zero for the broker's default.
    #[must_use]
    pub fn lease(mut self, lease: Millis) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Holds at most this many live leases.
    #[must_use]
    pub fn prefetch(mut self, prefetch: u32) -> Self {
        self.prefetch = prefetch;
        self
    }

    /// Ends after this many deliveries.
    #[must_use]
    pub fn deliveries_max(mut self, max: u64) -> Self {
        self.deliveries_max = Some(max);
        self
    }

    /// Starts a new group here.
    #[must_use]
    pub fn start(mut self, start: GroupStart) -> Self {
        self.start = start;
        self
    }

    /// Treats the group so when its last stream disconnects.
    #[must_use]
    pub fn group_lifetime(mut self, group_lifetime: GroupLifetime) -> Self {
        self.group_lifetime = group_lifetime;
        self
    }

    /// Treats the stream's leases so when it disconnects.
    #[must_use]
    pub fn on_disconnect(mut self, on_disconnect: OnDisconnect) -> Self {
        self.on_disconnect = on_disconnect;
        self
    }
}

/// What happens to a group when its last stream disconnects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupLifetime {
    /// It stays. An ephemeral group becomes one that stays.
    #[default]
    Durable,
    /// It is deleted if it is new or ephemeral. A group that exists and is not ephemeral stays.
    Ephemeral,
}

/// What happens to a stream's leases when it disconnects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDisconnect {
    /// They keep running: a lease belongs to the message, not to the connection.
    #[default]
    Keep,
    /// They are released at once.
    Release,
}

/// Changes a consumer's prefetch; 0 stops its deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetPrefetch {
    /// The consumer.
    pub consumer: ConsumerId,
    /// The most live leases it may hold.
    pub prefetch: u32,
}

/// Disconnects a consumer and applies its [`OnDisconnect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsubscribe {
    /// The consumer.
    pub consumer: ConsumerId,
}

/// Disconnects a consumer that received everything it requested; its leases keep running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseStream {
    /// The consumer.
    pub consumer: ConsumerId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builder_of_a_subscribe_sets_what_it_names() {
        let name = |text| (TopicName::new(text).unwrap(), GroupName::new(text).unwrap(), OwnerName::new(text).unwrap());
        let (topic, group, owner) = name("n");
        let built = Subscribe::new(topic.clone(), group.clone(), owner.clone())
            .lease(Millis(7))
            .prefetch(3)
            .deliveries_max(5)
            .start(GroupStart::Latest)
            .on_disconnect(OnDisconnect::Release)
            .group_lifetime(GroupLifetime::Ephemeral);
        let expected = Subscribe {
            topic,
            group,
            owner,
            lease: Some(Millis(7)),
            prefetch: 3,
            deliveries_max: Some(5),
            start: GroupStart::Latest,
            on_disconnect: OnDisconnect::Release,
            group_lifetime: GroupLifetime::Ephemeral,
        };
        assert_eq!(built, expected);
    }
}
