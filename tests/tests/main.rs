//! Tests of the test programs `conformance`, `load` and `torture`, and of logs read back: the real broker as a process.

mod conformance;
mod load;
mod torture;
mod wal;
