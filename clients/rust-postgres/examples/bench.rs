//! How long begin and finish take, beside the two statements that they need: the same pool, table and indexes, in turn,
//! so that a slow moment of the machine meets both.
//!
//! ```text
//! cargo run --release -p driftq-postgres --example postgres-bench -- "host=/run/postgresql user=postgres"
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use driftq_client::{Begin, Begun, EffectStatus, Finish, Identity, Scope, Store};
use driftq_postgres::PostgresStore;
use serde_json::value::RawValue;
use tokio::task::JoinSet;

const ROUNDS: usize = 15;
const PAIRS_PER_ROUND: usize = 400;
const CONCURRENCY: [usize; 2] = [1, 8];
const RESULT: &str = "{\"charged\": 3}";

const INSERT: &str = "INSERT INTO driftq.effects (tenant, scope_kind, scope_id, scope_detail, key, status, attempt, \
    lease_token, lease_until, owner, ttl_ms, created_at, updated_at, expires_at) VALUES ('default', 'job', 'raw', '', \
    $1, 'IN_PROGRESS', 1, $2, now() + interval '30 s', 'w', 604800000, now(), now(), now() + interval '7 d') \
    ON CONFLICT DO NOTHING RETURNING attempt";
const UPDATE: &str = "UPDATE driftq.effects SET status = 'SUCCEEDED', result = $1::text::json, updated_at = now(), \
    expires_at = now() + interval '7 d' WHERE tenant = 'default' AND scope_kind = 'job' AND scope_id = 'raw' \
    AND scope_detail = '' AND key = $2 AND status = 'IN_PROGRESS' AND lease_token = $3 RETURNING attempt";

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Clone, Copy, Debug)]
enum Contender {
    Statements,
    Store,
}

async fn pair(contender: Contender, store: &PostgresStore, key: &str) -> Result<(), Failure> {
    match contender {
        Contender::Statements => {
            let token = format!("{key:0>32}");
            let connection = store.pool().get().await?;
            connection.query_one(&connection.prepare_cached(INSERT).await?, &[&key, &token]).await?;
            drop(connection);
            let connection = store.pool().get().await?;
            connection.query_one(&connection.prepare_cached(UPDATE).await?, &[&RESULT, &key, &token]).await?;
        }
        Contender::Store => {
            let of = Identity::new(Scope::job("store"), key);
            let begun = store.begin(&Begin::new(of.clone(), "w")).await?;
            let Begun::Execute(grant) = begun else { return Err(format!("not granted: {begun:?}").into()) };
            let result = RawValue::from_string(RESULT.to_owned())?;
            store.finish(&Finish::new(of, grant.lease_token, EffectStatus::Succeeded).result(Some(result))).await?;
        }
    }
    Ok(())
}

/// The time of one round.
async fn round(
    contender: Contender,
    store: &PostgresStore,
    concurrency: usize,
    prefix: &str,
) -> Result<Duration, Failure> {
    let started = Instant::now();
    let mut workers = JoinSet::new();
    for worker in 0..concurrency {
        let (store, prefix) = (store.clone(), prefix.to_owned());
        workers.spawn(async move {
            for number in (worker..PAIRS_PER_ROUND).step_by(concurrency) {
                pair(contender, &store, &format!("{prefix}{number:x}")).await?;
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    Ok(started.elapsed())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2] / PAIRS_PER_ROUND as u32
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let config = std::env::args().nth(1).ok_or("how to connect to PostgreSQL, as \"host=… user=…\"")?;
    let store = PostgresStore::connect(&config)?;
    store.migrate().await?;
    let run = std::process::id();
    for concurrency in CONCURRENCY {
        let (mut statements, mut ours) = (Vec::new(), Vec::new());
        // The first round warms up.
        for number in 0..=ROUNDS {
            let prefix = format!("{run:x}{concurrency:x}{number:02x}");
            let raw = round(Contender::Statements, &store, concurrency, &prefix).await?;
            let store = round(Contender::Store, &store, concurrency, &prefix).await?;
            if number > 0 {
                statements.push(raw);
                ours.push(store);
            }
        }
        let (statements, ours) = (median(statements), median(ours));
        let ratio = ours.as_secs_f64() / statements.as_secs_f64();
        println!("{concurrency} at a time: two statements {statements:?}, begin + finish {ours:?}: {ratio:.2} times");
    }
    Ok(())
}
