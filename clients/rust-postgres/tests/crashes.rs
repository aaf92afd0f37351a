//! Servers that are killed in the middle: nothing is executed twice, and nothing is lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use driftq_client::{Begin, Begun, EffectStatus, ErrorKind, Finish, Identity, Scope, Store};
use driftq_postgres::PostgresStore;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::server::{Server, connected};

const KEYS: usize = 90;
const WORKERS_PER_KEY: usize = 2;
const CONCURRENCY: usize = 12;
const KILLS: usize = 3;
const PAUSE: Duration = Duration::from_millis(20);
/// Longer than the test: no lease expires, so each key is granted once.
const LEASE: Duration = Duration::from_secs(600);

#[derive(Clone)]
struct Workers {
    store: PostgresStore,
    config: String,
    executed: Arc<Mutex<BTreeMap<String, u32>>>,
    ended: watch::Sender<usize>,
}

impl Workers {
    async fn work(self, of: Identity) {
        loop {
            match self.store.begin(&Begin::new(of.clone(), "w").lease(LEASE)).await.expect("begun") {
                Begun::Execute(grant) => {
                    *self.executed.lock().expect("not poisoned").entry(of.key.clone()).or_default() += 1;
                    let finish = Finish::new(of.clone(), grant.lease_token, EffectStatus::Succeeded);
                    while !self.charge(&finish).await {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                Begun::Replay(ended) => {
                    assert_eq!(ended.status, EffectStatus::Succeeded);
                    break;
                }
                Begun::InProgress { .. } => tokio::time::sleep(PAUSE).await,
                other => panic!("{other:?}"),
            }
        }
        self.ended.send_modify(|ended| *ended += 1);
    }

    /// Writes the user's row and the outcome in one transaction; returns whether they are certainly committed.
    async fn charge(&self, finish: &Finish) -> bool {
        let Ok(mut client) = connected(&self.config).await else { return false };
        let Ok(transaction) = client.transaction().await else { return false };
        let key = &finish.identity.key;
        if transaction.execute("INSERT INTO charges VALUES ($1)", &[key]).await.is_err() {
            return false;
        }
        match self.store.finish_in(&transaction, finish).await {
            Ok(()) => transaction.commit().await.is_ok(),
            // It was committed, and the answer lost.
            Err(error) if error.kind() == ErrorKind::Conflict => true,
            Err(_) => false,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_killed_in_the_middle_executes_nothing_twice_and_loses_nothing() {
    let Some(mut server) = Server::start().await else { return };
    server.client().await.batch_execute("CREATE TABLE charges (key text)").await.expect("created");
    let (ended, mut progress) = watch::channel(0);
    let workers = Workers { store: server.store(), config: server.config(), executed: Arc::default(), ended };
    let limit = Arc::new(Semaphore::new(CONCURRENCY));
    let mut running = JoinSet::new();
    for number in 0..KEYS * WORKERS_PER_KEY {
        let of = Identity::new(Scope::job("charges"), format!("k{}", number % KEYS));
        let (workers, limit) = (workers.clone(), Arc::clone(&limit));
        running.spawn(async move {
            let _slot = limit.acquire_owned().await.expect("never closed");
            workers.work(of).await;
        });
    }
    for kill in 1..=KILLS {
        let enough = kill * KEYS * WORKERS_PER_KEY / (KILLS + 1);
        progress.wait_for(|ended| *ended >= enough).await.expect("workers go on");
        server.crash().await;
    }
    while let Some(worker) = running.join_next().await {
        worker.expect("a worker that ends well");
    }
    let executed = workers.executed.lock().expect("not poisoned").clone();
    assert!(executed.len() == KEYS && executed.values().all(|times| *times == 1), "{executed:?}");
    let count = "SELECT count(*), count(DISTINCT key) FROM charges";
    let row = server.client().await.query_one(count, &[]).await.expect("counted");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (KEYS as i64, KEYS as i64));
}
