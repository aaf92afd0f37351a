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
//! | [`cli`] | command line of `driftqd` | [`config`], [`wal`] |
//! | [`serve`] | start, recovery, shutdown | everything below |
//! | `reactor` | one thread with a listener and its connections | `http`, `driver` |
//! | [`signals`] | stop and reload | [`config`] |
//! | `http` | connections, requests, one handler per family of routes, responses | `driver`, [`router`], `metrics`, `json`, [`config`] |
//! | [`router`] | router hook: rules and webhook | [`config`], `json` |
//! | `driver` | the core's [`Pipeline`](driftq_core::Pipeline) with its clock, I/O threads, pending replies and streams | `clock`, `metrics`, `driftq-files` |
//! | [`wal`] | `driftqd wal`: verify, dump, inspect and salvage a log | `driftq-files`, `driftq-inspect` |
//! | `descriptors` | the limit on open files, and what of it connections get | [`config`] |
//! | `metrics` | counters, and values read from the broker | `reactor_figures` |
//! | `json`, `rfc3339`, `clock`, `reactor_figures`, [`openapi`] | leaves | `driftq-core` types |
//! | [`config`] | settings from defaults, file, environment and flags | `driftq-core` types |
//!
//! Threads: a *reactor* runs connections, handlers and its driver. If there is one, it runs the sequencer too, so a
//! command needs no lock; if there are several (`http.reactors`), the sequencer has the thread `driftq-sequencer`, and
//! commands and outputs cross to it and back in batches. `driftq-log` appends and syncs the log; `driftq-files`
//! prepares segments and writes snapshots; `driftq-read` reads payloads; `driftq-recovery` reads the log at the start.
//!
//! # A request from socket to core and back
//!
//! 1. `http::connection` accepts the socket and lets hyper parse the head.
//! 2. `Service::respond` in `http` checks the head (`guard.rs`), finds the route (`routes.rs`) and receives the body
//!    (`request_body.rs`).
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

mod base64;
mod byte_search;
pub mod cli;
mod clock;
pub mod config;
mod descriptors;
mod driver;
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod json;
mod metrics;
pub mod openapi;
mod process_memory;
mod reactor;
mod reactor_figures;
pub mod rebase;
mod rfc3339;
pub mod router;
pub mod serve;
pub mod signals;
pub mod wal;

/// Writes to a standard stream. A stream that is closed, or whose reader has gone, is no error; `print!` would panic.
pub fn report(stream: &mut dyn std::io::Write, text: &str) {
    let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
}
