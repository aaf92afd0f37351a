//! Records and images about keys, tenants and the audit that contradict what was before.

use driftq_core::record::{Event, Image, Record};
use driftq_core::state::State;
use driftq_core::types::*;

use crate::keys_scenario::keys_log;
use crate::scenario::{ReadLog, without_snapshots};

/// Why the state refuses these records, in order.
fn refusal_of(records: impl IntoIterator<Item = Record>) -> String {
    let mut state = State::default();
    let refused = records.into_iter().find_map(|record| state.apply(&record).err());
    refused.expect("one is refused").0.to_owned()
}

fn replayed() -> Vec<Record> {
    ReadLog::from(&without_snapshots(&keys_log())).replayed.into_iter().map(|(_, record, _)| record).collect()
}

fn restored() -> Vec<Record> {
    ReadLog::from(&keys_log()).restored
}

/// All records, the first that `change` applies to changed; it returns whether it did.
fn changed(mut records: Vec<Record>, mut change: impl FnMut(&mut Event) -> bool) -> Vec<Record> {
    assert!(records.iter_mut().any(|record| change(&mut record.event)), "no record matches");
    records
}

/// All records, the first that `is` selects followed by itself.
fn repeated(mut records: Vec<Record>, is: impl Fn(&Event) -> bool) -> Vec<Record> {
    let at = records.iter().position(|record| is(&record.event)).expect("no record matches");
    records.insert(at + 1, records[at].clone());
    records
}

fn of_key(change: impl Fn(&mut Key)) -> impl FnMut(&mut Event) -> bool {
    move |event| match event {
        Event::KeyCreated(key) => {
            change(key);
            true
        }
        _ => false,
    }
}

#[test]
fn record_about_keys_or_tenants_impossible_after_earlier_ones_is_named() {
    let key_exists = "key exists, or has no grants, or was never valid";
    let refused = |change: fn(&mut Key)| refusal_of(changed(replayed(), of_key(change)));
    assert_eq!(refused(|key| key.tenant = TenantId(9)), "key of a tenant that is not registered");
    assert_eq!(refused(|key| key.grants = [].into()), key_exists);
    assert_eq!(refused(|key| key.expires_at = Some(key.created_at)), key_exists);
    assert_eq!(refused(|key| key.created_at = Timestamp(1)), "key that is not new");
    assert_eq!(refusal_of(repeated(replayed(), |event| matches!(event, Event::KeyRevoked { .. }))), "no such key");
    let bound = |event: &Event| matches!(event, Event::KeyBound { certificate_san: Some(_), .. });
    assert_eq!(refusal_of(repeated(replayed(), bound)), "two keys bound to one certificate");
    let created = |event: &Event| matches!(event, Event::TenantCreated { .. });
    assert_eq!(refusal_of(repeated(replayed(), created)), "number of a tenant was given before");
    let deleted = |event: &Event| matches!(event, Event::TenantDeleted { .. });
    assert_eq!(refusal_of(repeated(replayed(), deleted)), "no such tenant");
    let with_keys = changed(replayed(), |event| match event {
        Event::TenantDeleted { tenant } => {
            *tenant = TenantId(1);
            true
        }
        _ => false,
    });
    assert_eq!(refusal_of(with_keys), "deletion of a tenant that is not empty");
    let unregistered: Vec<_> = replayed().into_iter().filter(|record| !created(&record.event)).collect();
    assert_eq!(refusal_of(unregistered), "key of a tenant that is not registered");
}

#[test]
fn image_of_keys_or_tenants_that_contradicts_another_is_named() {
    let image = |is: fn(&Image) -> bool| move |event: &Event| matches!(event, Event::Restored(image) if is(image));
    let repeat = |is: fn(&Image) -> bool| refusal_of(repeated(restored(), image(is)));
    assert_eq!(repeat(|image| matches!(image, Image::Access { .. })), "two images of the numbers of tenants");
    assert_eq!(repeat(|image| matches!(image, Image::Tenant { .. })), "tenant exists, or its number is not given yet");
    assert_eq!(repeat(|image| matches!(image, Image::Key(_))), "key exists, or has no grants, or was never valid");
    assert_eq!(repeat(|image| matches!(image, Image::Audit(_))), "audited commands out of order, or too many");
    let without = |is: fn(&Image) -> bool| {
        let is = image(is);
        refusal_of(restored().into_iter().filter(|record| !is(&record.event)))
    };
    let no_numbers = without(|image| matches!(image, Image::Access { .. }));
    assert_eq!(no_numbers, "tenant exists, or its number is not given yet");
    let no_tenants = without(|image| matches!(image, Image::Tenant { .. }));
    assert_eq!(no_tenants, "key of a tenant that is not registered");
    let no_tenants_or_keys = without(|image| matches!(image, Image::Tenant { .. } | Image::Key(_)));
    assert_eq!(no_tenants_or_keys, "topic of a tenant that is not registered");
}
