//! The cases of every store, and what only this one can do.

use std::sync::Arc;
use std::time::Duration;

use driftq_client::{
    Begin, Begun, DeliveryRef, EffectStatus, ErrorKind, Finish, Grant, Identity, OnExpired, Scope, Store,
};
use driftq_postgres::tokio_postgres::Client;
use driftq_postgres::{List, MIGRATIONS, PostgresStore, migrate};
use serde_json::value::RawValue;

use crate::server::Server;

/// No call that must not wait takes as long.
const SOON: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(300);

pub(crate) async fn granted(store: &PostgresStore, begin: &Begin) -> Grant {
    match store.begin(begin).await.expect("begun") {
        Begun::Execute(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

fn charge(key: &str) -> Identity {
    Identity::new(Scope::rpc("alice", "/charge"), key)
}

fn succeeded(identity: &Identity, grant: &Grant) -> Finish {
    Finish::new(identity.clone(), &grant.lease_token, EffectStatus::Succeeded)
}

async fn charges(client: &Client) -> i64 {
    client.query_one("SELECT count(*) FROM charges", &[]).await.expect("counted").get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_passes_the_cases_of_every_store() {
    let Some(mut server) = Server::start().await else { return };
    let store = Arc::new(server.store());
    crate::store_cases::run_all(store, async || server.crash().await).await;
}

#[tokio::test]
async fn rows_and_outcome_are_committed_together_and_only_once() {
    let Some(server) = Server::start().await else { return };
    let (store, mut client) = (server.store(), server.client().await);
    client.batch_execute("CREATE TABLE charges (key text)").await.expect("created");
    let of = charge("k");
    let grant = granted(&store, &Begin::new(of.clone(), "w")).await;
    let result = RawValue::from_string("{\"b\": 1.0,  \"a\":2}".to_owned()).expect("JSON");
    let finish = succeeded(&of, &grant).result(Some(result));
    for is_committed in [false, true] {
        let transaction = client.transaction().await.expect("begun");
        transaction.execute("INSERT INTO charges VALUES ('k')", &[]).await.expect("inserted");
        store.finish_in(&transaction, &finish).await.expect("finished");
        // Not committed: it does not show, and asking does not wait.
        let asked = tokio::time::timeout(SOON, store.begin(&Begin::new(of.clone(), "other"))).await;
        assert!(matches!(asked, Ok(Ok(Begun::InProgress { .. }))));
        if is_committed {
            transaction.commit().await.expect("committed");
        } else {
            transaction.rollback().await.expect("rolled back");
        }
    }
    let Ok(Begun::Replay(ended)) = store.begin(&Begin::new(of.clone(), "other")).await else { panic!("not replayed") };
    assert_eq!(ended.result.expect("a result").get(), "{\"b\": 1.0,  \"a\":2}");
    // The transaction again, as after a commit that was not answered.
    let transaction = client.transaction().await.expect("begun");
    transaction.execute("INSERT INTO charges VALUES ('k')", &[]).await.expect("inserted");
    let again = store.finish_in(&transaction, &finish).await.expect_err("ended already");
    assert_eq!(again.kind(), ErrorKind::Conflict);
    drop(transaction);
    assert_eq!(charges(&client).await, 1);
    store.finish(&finish).await.expect("the same outcome by itself");
}

#[tokio::test]
async fn worker_that_lost_its_effect_cannot_commit_even_if_it_ignores_the_refusal() {
    let Some(server) = Server::start().await else { return };
    let (store, mut client) = (server.store(), server.client().await);
    client.batch_execute("CREATE TABLE charges (key text)").await.expect("created");
    let of = charge("k");
    let first = granted(&store, &Begin::new(of.clone(), "w").lease(SHORT)).await;
    tokio::time::sleep(SHORT * 2).await;
    granted(&store, &Begin::new(of.clone(), "other").on_expired(OnExpired::TakeOver)).await;
    let transaction = client.transaction().await.expect("begun");
    transaction.execute("INSERT INTO charges VALUES ('k')", &[]).await.expect("inserted");
    let late = store.finish_in(&transaction, &succeeded(&of, &first)).await.expect_err("stale");
    assert_eq!(late.kind(), ErrorKind::StaleLease);
    // The server answers a commit of a transaction that has failed with a rollback.
    drop(transaction.commit().await);
    assert_eq!(charges(&client).await, 0);
}

#[tokio::test]
async fn functions_are_called_for_what_is_not_ordinary_and_for_nothing_else() {
    let Some(server) = Server::start().await else { return };
    let (store, mut client) = (server.store(), server.client().await);
    for name in ["begin_effect", "finish_effect"] {
        client.batch_execute(&format!("ALTER FUNCTION driftq.{name} RENAME TO no_{name}")).await.expect("renamed");
    }
    let (of, order) = (charge("k"), Identity::new(Scope::consume("orders", "kitchen"), "k"));
    let begin = Begin::new(of.clone(), "w").ttl(SOON).request_hash("h").on_expired(OnExpired::Report);
    let grant = granted(&store, &begin).await;
    let delivery = DeliveryRef { partition: 0, offset: 7, lease_token: format!("{:024x}", 1) };
    let other = granted(&store, &Begin::new(order.clone(), "w").delivery(delivery)).await;
    for begin in [Begin::new(of.clone(), "w"), Begin::new(charge(""), "w"), Begin::new(charge("other"), "")] {
        is_called(store.begin(&begin).await.map(|_| ()));
    }
    is_called(store.finish(&succeeded(&of, &other)).await);
    store.finish(&succeeded(&of, &grant)).await.expect("finished");
    let transaction = client.transaction().await.expect("begun");
    let result = RawValue::from_string("{\"a\":  1}".to_owned()).expect("JSON");
    store.finish_in(&transaction, &succeeded(&order, &other).result(Some(result))).await.expect("finished");
    transaction.commit().await.expect("committed");
    is_called(store.finish(&succeeded(&of, &grant)).await);
    let transaction = client.transaction().await.expect("begun");
    is_called(store.finish_in(&transaction, &succeeded(&order, &other)).await);
    drop(transaction);
    let ended = store.get(&order).await.expect("asked").expect("known");
    assert_eq!((ended.status, ended.result.expect("a result").get()), (EffectStatus::Succeeded, "{\"a\":  1}"));
}

/// A function was called, which is not there.
fn is_called(answer: Result<(), driftq_client::Error>) {
    let missing = answer.expect_err("not called");
    assert!(missing.kind() == ErrorKind::Protocol && missing.message().contains("does not exist"), "{missing}");
}

#[tokio::test]
async fn newer_delivery_of_a_message_takes_over_and_an_older_one_is_stale() {
    let Some(server) = Server::start().await else { return };
    let store = server.store();
    let of = Identity::new(Scope::consume("orders", "kitchen"), "order-1");
    let begin = |offset, token: u32| {
        let delivery = DeliveryRef { partition: 0, offset, lease_token: format!("{token:024x}") };
        Begin::new(of.clone(), "w").delivery(delivery)
    };
    let first = granted(&store, &begin(7, 9)).await;
    for begin in [begin(7, 9), begin(8, 11)] {
        assert!(matches!(store.begin(&begin).await, Ok(Begun::InProgress { .. })));
    }
    let second = granted(&store, &begin(7, 10)).await;
    assert!(second.attempt == 2 && second.lease_token > first.lease_token);
    assert_eq!(store.begin(&begin(7, 9)).await.expect_err("stale").kind(), ErrorKind::StaleLease);
    assert_eq!(store.finish(&succeeded(&of, &first)).await.expect_err("stale").kind(), ErrorKind::StaleLease);
}

#[tokio::test]
async fn retry_worker_finds_what_has_failed_and_expired_effects_are_swept() {
    let Some(server) = Server::start().await else { return };
    let store = server.store();
    for number in 0..10 {
        let of = charge(&format!("k{number}"));
        let status = if number < 7 { EffectStatus::FailedRetryable } else { EffectStatus::Succeeded };
        let ttl = if number == 9 { Duration::ZERO } else { Duration::from_secs(60) };
        let grant = granted(&store, &Begin::new(of.clone(), "w").ttl(ttl)).await;
        store.finish(&Finish::new(of, grant.lease_token, status)).await.expect("finished");
    }
    let mut found = Vec::new();
    let mut list = List { status: Some(EffectStatus::FailedRetryable), limit: 3, ..List::default() };
    loop {
        let page = store.list(&list).await.expect("a page");
        for stored in page.effects {
            let grant = store.reacquire(&stored.identity, "retry", Duration::ZERO).await.expect("granted");
            store.finish(&succeeded(&stored.identity, &grant)).await.expect("finished");
            found.push(stored.identity.key);
        }
        let Some(next) = page.next else { break };
        list.after = Some(next);
    }
    assert_eq!(found, (0..7).map(|number| format!("k{number}")).collect::<Vec<_>>());
    assert_eq!(store.sweep(1).await.expect("swept"), 1);
    let all = store.list(&List { scope_kind: Some("rpc".to_owned()), ..List::default() }).await.expect("a page");
    assert!(all.effects.len() == 9 && all.effects.iter().all(|stored| stored.effect.status == EffectStatus::Succeeded));
    let none = List { tenant: Some("acme".to_owned()), ..List::default() };
    assert!(store.list(&none).await.expect("a page").effects.is_empty());
}

#[tokio::test]
async fn migrations_are_applied_once_and_another_text_is_told() {
    let Some(server) = Server::start().await else { return };
    let mut client = server.client().await;
    assert!(migrate(&mut client).await.expect("migrated").is_empty());
    client.batch_execute("DROP SCHEMA driftq CASCADE").await.expect("dropped");
    let lost = server.store().get(&charge("k")).await.expect_err("no schema");
    assert!(lost.kind() == ErrorKind::Protocol && lost.message().contains("PostgresStore::migrate"), "{lost}");
    let (first, second) = (server.store(), server.store());
    let (first, second) = tokio::join!(first.migrate(), second.migrate());
    let mut applied = [first.expect("migrated"), second.expect("migrated")];
    applied.sort();
    assert_eq!(applied, [vec![], MIGRATIONS.iter().map(|known| known.version).collect::<Vec<_>>()]);
    client.batch_execute("UPDATE driftq.migrations SET sha256 = 'x' WHERE version = 2").await.expect("changed");
    let changed = migrate(&mut client).await.expect_err("another text");
    assert!(changed.kind() == ErrorKind::Protocol && changed.message().contains("migration 2 (maintenance)"));
}

#[tokio::test]
async fn mistakes_and_missing_servers_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!("host={} user=postgres", folder.path().display());
    let store = PostgresStore::connect(&config).expect("a store").retry_for(SHORT);
    let missing = store.get(&charge("k")).await.expect_err("no server");
    assert!(missing.kind() == ErrorKind::Unavailable && missing.retry_is_safe(), "{missing}");
    assert_eq!(store.get(&charge("a\0b")).await.expect_err("no text").kind(), ErrorKind::Misuse);
    assert_eq!(PostgresStore::connect("host").expect_err("no settings").kind(), ErrorKind::Misuse);
    store.pool().close();
    assert_eq!(store.get(&charge("k")).await.expect_err("closed").kind(), ErrorKind::Misuse);
}
