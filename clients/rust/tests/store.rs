//! The broker's idempotency store, and the other requests of the client, against a real broker.

use std::sync::Arc;
use std::time::Duration;

use driftq_client::{
    Begin, Begun, BrokerStore, Claim, Consume, CreateTopic, EffectStatus, ErrorKind, Failing, Finish, Identity,
    Produce, Redrive, Scope, SeekTo, Store,
};
use serde_json::value::RawValue;

use crate::broker::Broker;
use crate::support::soon;

fn identity(key: &str) -> Identity {
    Identity::new(Scope::rpc("alice", "/payments/charge"), key)
}

fn raw(json: &str) -> Option<Box<RawValue>> {
    Some(RawValue::from_string(json.to_owned()).expect("JSON"))
}

#[tokio::test]
async fn store_of_the_broker_passes_the_cases_of_every_store() {
    let mut broker = Broker::start().await;
    let store = Arc::new(BrokerStore::new(&broker.client()));
    crate::store_cases::run_all(store, async || broker.crash().await).await;
}

#[tokio::test]
async fn effect_is_granted_once_and_replayed_byte_for_byte() {
    let broker = Broker::start().await;
    let store = BrokerStore::new(&broker.client());
    let begin = Begin::new(identity("k"), "w1").lease(Duration::from_secs(5)).request_hash("h");
    let Begun::Execute(grant) = store.begin(&begin).await.expect("begun") else { panic!("not granted") };
    assert!(matches!(store.begin(&begin).await, Ok(Begun::InProgress { retry_after }) if !retry_after.is_zero()));
    let other = begin.clone().request_hash("other");
    assert_eq!(store.begin(&other).await.expect_err("mismatch").kind(), ErrorKind::Invalid);
    store.renew(&identity("k"), &grant.lease_token, Duration::from_secs(5)).await.expect("renewed");
    let finish =
        Finish::new(identity("k"), &grant.lease_token, EffectStatus::Succeeded).result(raw("{\"b\": 1.0,\"a\":2}"));
    store.finish(&finish).await.expect("finished");
    store.finish(&finish).await.expect("the same again");
    let Begun::Replay(ended) = store.begin(&begin).await.expect("begun") else { panic!("not replayed") };
    assert_eq!(ended.result.expect("a result").get(), "{\"b\": 1.0,\"a\":2}");
    let contradiction = Finish::new(identity("k"), &grant.lease_token, EffectStatus::FailedFinal);
    assert_eq!(store.finish(&contradiction).await.expect_err("ended otherwise").kind(), ErrorKind::Conflict);
    assert_eq!(store.get(&identity("k")).await.expect("an answer").expect("known").status, EffectStatus::Succeeded);
    assert!(store.forget(&identity("k")).await.expect("forgotten"));
    assert!(!store.forget(&identity("k")).await.expect("not known"));
    assert!(store.get(&identity("k")).await.expect("an answer").is_none());
}

#[tokio::test]
async fn retryable_effect_is_reacquired_and_fences_the_first_owner() {
    let broker = Broker::start().await;
    let store = BrokerStore::new(&broker.client());
    let begin = Begin::new(identity("k"), "w1");
    let Begun::Execute(first) = store.begin(&begin).await.expect("begun") else { panic!("not granted") };
    let failed = Finish::new(identity("k"), &first.lease_token, EffectStatus::FailedRetryable).last_error("busy");
    store.finish(&failed).await.expect("finished");
    let Begun::Retryable { last_error, .. } = store.begin(&begin).await.expect("begun") else {
        panic!("not retryable")
    };
    assert_eq!(last_error, "busy");
    let second = store.reacquire(&identity("k"), "w2", Duration::ZERO).await.expect("granted");
    assert!(second.attempt == 2 && second.lease_token > first.lease_token);
    let late = Finish::new(identity("k"), &first.lease_token, EffectStatus::Succeeded);
    assert_eq!(store.finish(&late).await.expect_err("stale").kind(), ErrorKind::StaleLease);
}

#[tokio::test]
async fn deliveries_are_settled_in_every_way() {
    let broker = Broker::start().await;
    let client = broker.client();
    let topic = client.create_topic(&CreateTopic::new("t").partitions(1)).await.expect("created");
    assert_eq!((topic.name.as_str(), topic.partitions), ("t", 1));
    assert_eq!(client.topics().await.expect("topics"), ["t"]);
    let other = client.create_topic(&CreateTopic::new("t").partitions(3)).await.expect_err("other settings");
    assert_eq!(other.kind(), ErrorKind::Conflict);
    for value in ["a", "b", "c", "d"] {
        client.produce(&Produce::new("t", value)).await.expect("produced");
    }
    let mut consumer = client.consume(&Consume::new("t", "g", "o"));
    let mut next = async || soon("a message", consumer.next()).await.expect("no error").expect("a message");
    let (a, b, c, d) = (next().await, next().await, next().await, next().await);
    let claim = |message| Claim::new(message, "g", "o");
    client.ack(&claim(&a)).await.expect("acked");
    client.extend(&claim(&b), Duration::from_secs(60)).await.expect("extended");
    client.release(&claim(&b)).await.expect("released");
    let again = next().await;
    assert_eq!((again.offset, again.attempts, again.failures), (b.offset, 2, 0));
    assert_eq!(client.ack(&claim(&b)).await.expect_err("stale").kind(), ErrorKind::StaleLease);
    client.nack(&claim(&c), &Failing::retryable("cold")).await.expect("nacked");
    let again = next().await;
    assert_eq!((again.offset, again.failures, again.last_error.as_str()), (c.offset, 1, "cold"));
    client.nack(&claim(&d), &Failing::permanent("no")).await.expect("dead-lettered");
    assert_eq!(client.redrive("t", &Redrive::All { limit: None }).await.expect("redriven"), 1);
    let redriven = next().await;
    assert_eq!((redriven.text().expect("text"), redriven.attempts), ("d", 1));
    let mut cumulative = claim(&redriven);
    cumulative.lease_token = None;
    client.ack_cumulative(&cumulative).await.expect("acked");
    let groups = client.topic("t").await.expect("a topic").groups;
    assert_eq!(groups[0].partitions[0].lag, 0);
    client.seek("t", "g", &SeekTo::Earliest).await.expect("sought");
    assert_eq!(next().await.offset, a.offset);
    client.set_paused("t", "g", true).await.expect("paused");
    assert_eq!(client.groups("t").await.expect("groups"), ["g"]);
    client.delete_group("t", "g").await.expect("deleted");
    client.delete_topic("t").await.expect("deleted");
}

#[tokio::test]
async fn binary_payload_and_strange_names_survive() {
    let broker = Broker::start().await;
    let client = broker.client();
    let name = "orders/eu & more?";
    client.create_topic(&CreateTopic::new(name)).await.expect("created");
    let produce = Produce::new(name, &b"\x00\xff\xfe"[..]).key("k").label("a", "b").priority(3);
    client.produce(&produce).await.expect("produced");
    let mut consumer = client.consume(&Consume::new(name, "g/1", "o 1").max(1));
    let message = soon("a message", consumer.next()).await.expect("no error").expect("a message");
    assert_eq!((&message.value[..], message.key.as_str()), (&b"\x00\xff\xfe"[..], "k"));
    assert_eq!((message.envelope.priority, message.envelope.labels["a"].as_str()), (Some(3), "b"));
    client.complete(&consumer.claim(&message), &driftq_client::Step::new()).await.expect("completed");
    assert!(soon("the end", consumer.next()).await.expect("no error").is_none(), "one message was asked for");
    assert_eq!(client.peek(name, 0, 0, 5).await.expect("messages")[0].value, message.value);
    assert_eq!(client.purge_topic(name).await.expect("purged"), 1);
}
