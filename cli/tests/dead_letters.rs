use driftq_client::{Begin, Begun, BrokerStore, Client, EffectStatus, Finish, Identity, Scope, Store as _};
use serde_json::json;

use crate::broker::Broker;

fn fail_all(broker: &Broker, count: usize) {
    let printed = broker.run(&["consume", "t", "-g", "g", "-n", &count.to_string()]);
    broker.driftq(&["nack", "--lines", "--permanent", "--reason", "burnt"]).input(printed).run().succeeded();
}

#[test]
fn dead_letters_are_listed_shown_redriven_and_purged() {
    let broker = Broker::start();
    broker.run(&["topics", "create", "t"]);
    assert_eq!(broker.json(&["dlq", "redrive", "t", "--all"])["redriven"], 0);
    broker.driftq(&["produce", "t", "--lines"]).input("a\nb\nc\n").run().succeeded();
    fail_all(&broker, 3);
    let listed = json!([{"topic": "t", "dead_letter_topic": "dlq.t", "dead_letters": 3, "bytes": 3}]);
    assert_eq!(broker.json(&["dlq", "list"]), listed);
    let shown = broker.lines(&["dlq", "show", "t"]);
    let origin = &shown[0]["envelope"]["dlq"];
    assert_eq!((&origin["reason"], &origin["last_error"]), (&json!("non_retryable"), &json!("burnt")));
    let table = broker.run(&["dlq", "show", "t", "--table"]);
    assert!(table.starts_with("OFFSET  WHEN") && table.contains("non_retryable  burnt"), "{table}");
    assert_eq!(broker.json(&["dlq", "redrive", "t", "1"])["redriven"], 1);
    assert_eq!(broker.json(&["dlq", "redrive", "t", "--all", "--limit", "1"])["redriven"], 1);
    assert_eq!(broker.json(&["dlq", "redrive", "dlq.t", "--all"])["redriven"], 1);
    assert_eq!(broker.json(&["dlq", "list"]), json!([]));
    assert_eq!(broker.lines(&["consume", "t", "-g", "g", "-n", "3", "--ack"]).len(), 3);
    broker.run(&["produce", "t", "d"]);
    fail_all(&broker, 1);
    assert_eq!(broker.json(&["dlq", "purge", "t", "--yes"])["purged"], 1);
    assert_eq!(broker.json(&["dlq", "list", "--all"])[0]["dead_letters"], 0);
    broker.driftq(&["dlq", "show", "u"]).run().failed(4, "dlq.u");
    assert_eq!(broker.driftq(&["dlq", "redrive", "t"]).run().code, 2, "which ones must be said");
}

#[test]
fn effects_are_shown_listed_and_forgotten() {
    let broker = Broker::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::builder().url(broker.url()).build().expect("a client");
        let store = BrokerStore::new(&client);
        for key in ["a", "b"] {
            let identity = Identity::new(Scope::job("invoices"), key);
            let begun = store.begin(&Begin::new(identity.clone(), "w")).await.expect("begun");
            let Begun::Execute(grant) = begun else { panic!("not granted: {begun:?}") };
            let finish = Finish::new(identity, grant.lease_token, EffectStatus::FailedFinal).last_error("no paper");
            store.finish(&finish).await.expect("finished");
        }
    });
    let named = ["--scope", "job", "--id", "invoices"];
    let shown = broker.json(&[&["effects", "get", "a"][..], &named].concat());
    assert_eq!((&shown["status"], &shown["last_error"]), (&json!("FAILED_FINAL"), &json!("no paper")));
    let table = broker.run(&[&["effects", "get", "a", "--table"][..], &named].concat());
    assert!(table.starts_with("FAILED_FINAL\nattempt        1\nowner          w\n"), "{table}");
    assert_eq!(broker.json(&["effects", "list", "--limit", "1"]).as_array().expect("a list").len(), 1);
    let failed = ["effects", "list", "--scope", "job", "--status", "failed-final", "--tenant", "default"];
    assert_eq!(broker.json(&failed).as_array().expect("a list").len(), 2);
    assert_eq!(broker.json(&["effects", "list", "--older-than", "1h"]), json!([]));
    broker.driftq(&[&["effects", "forget", "a"][..], &named].concat()).run().failed(2, "give --yes");
    broker.run(&[&["effects", "forget", "a", "--yes"][..], &named].concat());
    broker.driftq(&[&["effects", "get", "a"][..], &named].concat()).run().failed(4, "is not known");
    broker.driftq(&[&["effects", "forget", "a", "--yes"][..], &named].concat()).run().failed(4, "is not known");
}
