//! Effects that happen once: the parts of the page on effects that differ in Rust. Asserts what it shows.
//!
//! `cargo run -p driftq-client --example effects -- http://127.0.0.1:8080`

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use driftq_client::{
    Client, Context, CreateTopic, ErrorKind, Event, HandlerError, Message, Outputs, Permanent, Produce, Retry, Worker,
    idempotency_key, request_hash,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Notify;

const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

type Error = Box<dyn std::error::Error>;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order {
    id: String,
    cents: i64,
}

/// Stands for a payment provider that takes idempotency keys; its first answer is lost.
#[derive(Clone, Default)]
struct Provider(Arc<Mutex<(usize, BTreeMap<String, i64>)>>);

impl Provider {
    fn charge(&self, cents: i64, key: &str) -> Result<u16, std::io::Error> {
        let (calls, charges) = &mut *self.0.lock().expect("no thread panics with it");
        *calls += 1;
        charges.entry(key.to_owned()).or_insert(cents);
        if *calls == 1 { Err(std::io::ErrorKind::ConnectionReset.into()) } else { Ok(200) }
    }
}

async fn handle(provider: Provider, message: Arc<Message>, context: Context) -> Result<Outputs, HandlerError> {
    let order: Order = message.json()?;
    let charged = context.side_effect("charge", &order, || charge(&provider, &order)).await?;
    let key = idempotency_key(["delivery".into(), order.id.as_str().into()])?;
    let delivery = Produce::json("deliveries", &order)?.idempotency_key(key);
    Ok(Outputs::new().result(&charged).message(delivery))
}

async fn charge(provider: &Provider, order: &Order) -> Result<i64, HandlerError> {
    let key = idempotency_key(["charge".into(), order.id.as_str().into()])?;
    // An error passed on by `?` is recorded, and the message is delivered again.
    match provider.charge(order.cents, &key)? {
        200 => Ok(order.cents),
        status @ (429 | 500..) => {
            Err(Retry::new(format!("the provider answered {status}")).after(Duration::from_secs(1)).into())
        }
        status => Err(Permanent::new(format!("the provider answered {status}")).into()),
    }
}

fn keys_and_hashes() -> Result<(), Error> {
    let request = json!({ "customer": "Zoé", "cents": 950 });
    assert_eq!(request_hash(&request)?, "e665e76db193946ee198c1ccf28fb530969d665a60dc9aa7f97f4089475d74df");
    assert_eq!(idempotency_key(["a:b".into(), "c".into()])?, "a%3Ab:c");
    // What has no stable form is refused: never `Hash`, whose values differ between programs and versions.
    let refused = request_hash(&json!({ "id": 1_u64 << 53 })).map_err(|error| error.kind());
    assert_eq!(refused, Err(ErrorKind::Misuse));
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    keys_and_hashes()?;
    let url = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:8080".to_owned());
    let client = Client::builder().url(&url).build()?;
    for topic in ["orders", "deliveries"] {
        client.create_topic(&CreateTopic::new(topic)).await?;
    }
    let order = Order { id: "o-7".to_owned(), cents: 950 };
    for _ in 0..2 {
        client.produce(&Produce::json("orders", &order)?.idempotency_key("order:o-7")).await?;
    }
    let (provider, done) = (Provider::default(), Arc::new(Notify::new()));
    let worker = Worker::new(&client, "orders", "workers", {
        let provider = provider.clone();
        move |message, context| handle(provider.clone(), message, context)
    })
    .on_event({
        let done = done.clone();
        move |event| {
            if matches!(event, Event::Completed { .. }) {
                done.notify_one();
            }
        }
    });
    let summary = worker.run(async { drop(tokio::time::timeout(GIVE_UP_AFTER, done.notified()).await) }).await?;
    let (calls, charges) = provider.0.lock().expect("no thread panics with it").clone();
    assert_eq!((summary.completed, calls, charges.len()), (1, 2, 1));
    assert_eq!(client.peek("deliveries", 0, 0, 10).await?.len(), 1);
    println!("ok");
    Ok(())
}
