//! Load on a running broker, and what it answers with.

fn main() {}
