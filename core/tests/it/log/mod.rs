//! The log layer by itself: frames, files, damage and recovery. Payloads are opaque here.

mod arbitrary;
mod crash;
mod damage;
mod frame;
mod listing;
mod numbers;
mod recovery;
mod snapshot;
mod storage;
mod support;
