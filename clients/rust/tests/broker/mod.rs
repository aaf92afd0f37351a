//! A real broker for the tests of the client.

mod process;

use std::time::Duration;

use driftq_client::{Client, CreateTopic, Produce};

use self::process::Process;
use crate::support::client;

const READY_WITHIN: Duration = Duration::from_secs(60);

/// A broker that is killed when it is dropped.
pub(crate) struct Broker {
    process: Process,
}

impl Broker {
    pub(crate) async fn start() -> Self {
        let broker = Self { process: Process::start() };
        broker.wait_until_ready().await;
        broker
    }

    /// Kills it, and starts it again at the same address.
    pub(crate) async fn crash(&mut self) {
        self.process.kill();
        self.process.start_again();
        self.wait_until_ready().await;
    }

    async fn wait_until_ready(&self) {
        let client = Client::builder().url(self.url()).retry_for(READY_WITHIN).build().expect("a client");
        client.topics().await.expect("it is ready");
    }

    pub(crate) fn url(&self) -> &str {
        self.process.url()
    }

    pub(crate) fn client(&self) -> Client {
        client(self.url())
    }

    /// Creates a topic with one partition.
    pub(crate) async fn topic(&self, name: &str) {
        self.client().create_topic(&CreateTopic::new(name)).await.expect("created");
    }

    /// Produces a message with this idempotency key, which is its value, too.
    pub(crate) async fn produce(&self, topic: &str, key: &str) {
        self.client().produce(&Produce::new(topic, key).idempotency_key(key)).await.expect("produced");
    }
}
