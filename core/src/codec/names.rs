//! Decoding of names. A name that changes when it is trimmed is never written, so it is refused.

use super::Malformed;
use crate::types::{GroupName, OwnerName, TopicName};

pub(super) fn owner(text: &str) -> Result<OwnerName, Malformed> {
    OwnerName::new(text).ok().filter(|name| name.as_str() == text).ok_or(Malformed("not an owner name"))
}

pub(super) fn group_name(text: &str) -> Result<GroupName, Malformed> {
    GroupName::new(text).ok().filter(|name| name.as_str() == text).ok_or(Malformed("not a group name"))
}

pub(super) fn topic_name(text: &str) -> Result<TopicName, Malformed> {
    TopicName::new(text).ok().filter(|name| name.as_str() == text).ok_or(Malformed("not a topic name"))
}
