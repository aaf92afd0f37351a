//! Produces over bare connections of hyper: what the client is compared with. Each request does what no user of raw
//! HTTP can leave out: it builds the JSON of the message, sends it, reads status and body, and parses the answer. There
//! is no pool, no time limit, no retry, and no check of what the server is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The payload of every message.
pub(crate) const VALUE: &str =
    "one pizza with everything on it, and a small salad, for table number nine, to be paid in cash";

#[derive(Serialize)]
struct Message<'a> {
    topic: &'a str,
    key: &'a str,
    value: &'a str,
}

/// The answer to a produce.
#[derive(Deserialize)]
struct Stored {
    topic: String,
    partition: u32,
    offset: u64,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How many produces per second as many connections make, each with one request at a time.
pub(crate) async fn produces_per_second(
    url: &str,
    topic: &str,
    connections: usize,
    time: Duration,
) -> Result<f64, BoxError> {
    let host = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let count = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..connections {
        let (host, topic, key, count) = (host.clone(), topic.to_owned(), task.to_string(), Arc::clone(&count));
        tasks.spawn(async move {
            let stream = TcpStream::connect(&host).await?;
            stream.set_nodelay(true)?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            while started.elapsed() < time {
                let body = serde_json::to_vec(&Message { topic: &topic, key: &key, value: VALUE })?;
                let request = Request::post("/v1/produce")
                    .header("host", &host)
                    .header("content-type", "application/json")
                    .body(Full::new(Bytes::from(body)))?;
                let response = sender.send_request(request).await?;
                if response.status() != 200 {
                    return Err(format!("the broker answered {}", response.status()).into());
                }
                let answer = response.into_body().collect().await?.to_bytes();
                let stored: Stored = serde_json::from_slice(&answer)?;
                if stored.topic != topic {
                    return Err(format!("stored in {} {} {}", stored.topic, stored.partition, stored.offset).into());
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, BoxError>(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(count.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64())
}
