//! The DriftQ broker as a process: HTTP in front, the pure core of `driftq-core` in the middle, real files behind.
//!
//! Every decision is made in `driftq-core`, which performs no I/O. This crate gives it commands, the time and the
//! results of I/O, and delivers its replies. The binary `driftqd` ([`cli`]) is a thin `main` over it.
//!
//! # Modules, top-down
//!
//! A module uses only those below it.
//!
//! | module | holds | uses |
//! |---|---|---|
//! | [`cli`] | command line of `driftqd` | [`config`], [`keys`], [`wal`] |
//! | [`keys`] | `driftqd keys`: creates, lists and revokes keys of a stopped broker | `access`, `driftq-files` |
//! | [`testing`] | a broker in the process of a test | [`memory_broker`] |
//! | [`memory_broker`] | a broker in memory that can crash and start again; `memory_log` is its log | `chaos`, [`serve`] |
//! | `chaos` | a gateway in front of it that simulates faults | `memory_control`, [`config`], `json` |
//! | `memory_control` | the way to the thread of a broker in memory | [`serve`] |
//! | [`serve`] | start, recovery, shutdown | everything below |
//! | `reactor` | one thread with a listener and its connections | `http`, `driver` |
//! | [`signals`] | stop and reload | [`config`] |
//! | `http` | connections, requests, one handler per family of routes, responses | `driver`, [`tls`], [`router`], `metrics`, `otlp`, `json`, [`config`] |
//! | [`tls`] | certificate and key from files, reloads, bounds on handshakes | [`config`], `metrics`, `rfc3339` |
//! | [`router`] | router hook: rules and webhook | [`config`], `json` |
//! | `access` | texts of keys, what reactors know of keys, bounds on failed authentications | `driver`, [`tls`] |
//! | `driver` | the core's [`Pipeline`](driftq_core::Pipeline) with its clock, I/O threads, pending replies and streams | `clock`, `metrics`, `driftq-files` |
//! | [`wal`] | `driftqd wal`: verify, dump, inspect and salvage a log | `driftq-files`, `driftq-inspect` |
//! | `descriptors` | the limit on open files, and what of it connections get | [`config`] |
//! | `otlp` | spans of requests and deliveries; with the feature `otlp` their export, and that of the metrics | `endpoint`, `traceparent`, [`config`] |
//! | `metrics`, `topic_metrics` | counters, and values read from the broker | `reactor_figures`, `process_memory`, `otlp` |
//! | `reactor_figures`, `request_figures` | what a reactor has under way and has done | `endpoint` |
//! | `json`, `rfc3339`, `clock`, `endpoint`, `disk_space`, `process_memory`, `traceparent`, [`openapi`] | leaves | `driftq-core` types |
//! | [`config`] | settings from defaults, file, environment and flags | `driftq-core` types |
//!
//! Threads: a *reactor* runs connections, handlers and its driver. If there is one, it runs the sequencer too, so a
//! command needs no lock; if there are several (`http.reactors`), the sequencer has the thread `driftq-sequencer`, and
//! commands and outputs cross to it and back in batches. `driftq-log` appends and syncs the log; `driftq-files`
//! prepares segments and writes snapshots; `driftq-read` reads payloads; `driftq-recovery` reads the log at the start;
//! `driftq-otlp` sends spans and metrics to a collector, if there is one.
//!
//! # A request from socket to core and back
//!
//! 1. `http::connection` accepts the socket and lets hyper parse the head.
//! 2. `Service::respond` in `http` checks the head (`guard.rs`), finds the route (`routes.rs`) and receives the body
//!    (`request_body.rs`) once the sender is known (`authentication.rs`).
//! 3. The handler (`settle.rs` for an ack, `produce.rs` for a produce, `batch.rs` for both as NDJSON) parses the fields
//!    into a [`Command`](driftq_core::Command) and calls `Driver::ask`.
//! 4. `Driver::ask` in `driver` gives the command to the sequencer, at once if that is on the same thread. **Here an
//!    ack is decided**, inside [`Pipeline::handle`](driftq_core::Pipeline::handle) by the core's `decide` module: the
//!    state in memory has changed when it returns, and the records are in the current batch.
//! 5. **Here the reply waits for the sync**: the pipeline holds it until its log position is synced, and the request
//!    waits in `driver/pending_replies.rs`, in the order of commands.
//! 6. The sequencer queues the batch on the `driftq-log` thread (`driver/io_threads.rs`), which appends and syncs it.
//! 7. When the sync is complete, the sequencer takes the released outputs from the pipeline, and `Driver::run` passes
//!    them on: a reply wakes its request, a delivery goes to its stream in `driver/streams.rs`.
//! 8. The handler writes the reply as JSON (`response.rs`), a refusal as an error (`error.rs`). For `GET /v1/consume`
//!    the response body in `consume.rs` takes deliveries from the driver as the socket accepts them.
#![forbid(unsafe_code)]

mod access;
mod base64;
mod byte_search;
mod chaos;
pub mod cli;
mod clock;
pub mod config;
mod descriptors;
mod disk_space;
mod driver;
mod endpoint;
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod json;
pub mod keys;
pub mod memory_broker;
mod memory_control;
mod memory_log;
mod metrics;
pub mod openapi;
// Without the feature nothing takes what is recorded, and nothing is recorded.
#[cfg_attr(not(feature = "otlp"), allow(dead_code))]
mod otlp;
mod process_memory;
mod reactor;
mod reactor_figures;
pub mod rebase;
mod request_figures;
mod rfc3339;
pub mod router;
pub mod serve;
pub mod signals;
pub mod testing;
pub mod tls;
mod topic_metrics;
mod traceparent;
pub mod wal;

/// Writes to a standard stream. A stream that is closed, or whose reader has gone, is no error; `print!` would panic.
pub fn report(stream: &mut dyn std::io::Write, text: &str) {
    let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
}
