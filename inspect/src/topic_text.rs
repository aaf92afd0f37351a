//! Topics as texts that people write and read: the name, and before it the tenant, if it is not the default tenant.

use driftq_core::types::{NameError, TenantId, TopicName};

/// The text of a topic: its name, or `#7:orders` of the tenant with the number 7. Two topics never have the same text:
/// a topic of the default tenant whose name looks like that has `#0:` before it.
#[must_use]
pub fn topic_text(topic: &TopicName) -> String {
    match (topic.tenant(), split(topic.as_str())) {
        (TenantId::DEFAULT, None) => topic.as_str().to_owned(),
        (tenant, _) => format!("#{tenant}:{}", topic.as_str()),
    }
}

/// Reads what [`topic_text`] returns.
///
/// # Errors
/// [`NameError`] if the name is not valid.
pub fn parse_topic(text: &str) -> Result<TopicName, NameError> {
    match split(text) {
        Some((tenant, name)) => TopicName::of(tenant, name),
        None => TopicName::new(text),
    }
}

/// The tenant and the name in a text that begins with a tenant.
fn split(text: &str) -> Option<(TenantId, &str)> {
    let (number, name) = text.strip_prefix('#')?.split_once(':')?;
    let tenant = number.parse().ok().filter(|tenant: &u32| tenant.to_string() == number)?;
    Some((TenantId(tenant), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_topic_names_its_tenant_and_round_trips() {
        for (tenant, name, text) in [
            (0, "orders", "orders"),
            (0, "my topic", "my topic"),
            (0, "#orders", "#orders"),
            (0, "#07:orders", "#07:orders"),
            (0, "#+7:orders", "#+7:orders"),
            (0, "#7:orders", "#0:#7:orders"),
            (0, "#4294967296:orders", "#4294967296:orders"),
            (7, "orders", "#7:orders"),
            (7, "#7:orders", "#7:#7:orders"),
            (u32::MAX, "my topic", "#4294967295:my topic"),
        ] {
            let topic = TopicName::of(TenantId(tenant), name).unwrap();
            assert_eq!(topic_text(&topic), text);
            assert_eq!(parse_topic(text), Ok(topic));
        }
        assert!(parse_topic("#7:").is_err() && parse_topic("#0: ").is_err());
    }
}
