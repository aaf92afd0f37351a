//! The adapter of this client for the conformance runner: reads one JSON object per line from standard input, does what
//! it asks, and answers in the same way on standard output. It judges nothing.

mod ledger;
mod operations;
mod steps;

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use operations::Adapter;

/// The version of the contract of workers.
const CONTRACT: u32 = 1;
/// Handlers may block their threads.
const THREADS: usize = 32;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    runtime.expect("a runtime").block_on(serve());
}

async fn serve() {
    let mut terminate = signal(SignalKind::terminate()).expect("a handler of signals");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let adapter = Arc::new(Adapter::default());
    let mut answering = JoinSet::new();
    write(&json!({"adapter": "rust", "contract": CONTRACT}));
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line.ok().flatten(),
            _ = terminate.recv() => None,
        };
        let Some(line) = line else { break };
        let request: Option<Value> = serde_json::from_str(&line).ok();
        let Some(request) = request.filter(|request| request.get("id").is_some()) else {
            write(&json!({"notice": "a line that is no request was ignored"}));
            continue;
        };
        // What follows uses the client that it makes.
        let is_connect = request["op"] == "connect";
        let adapter = Arc::clone(&adapter);
        let answer = async move { write(&adapter.answer(&request).await) };
        if is_connect {
            answer.await;
        } else {
            answering.spawn(answer);
        }
        while answering.try_join_next().is_some() {}
    }
    adapter.close().await;
    // A read of standard input may still be under way.
    std::process::exit(0);
}

/// Writes a line. The runner may have gone.
fn write(answer: &Value) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{answer}").and_then(|()| out.flush());
}
