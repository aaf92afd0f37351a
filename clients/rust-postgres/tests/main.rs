//! Tests of the store over a PostgreSQL server of their own.

mod crashes;
mod server;
mod store;
#[path = "../../rust/tests/store_cases/mod.rs"]
mod store_cases;
