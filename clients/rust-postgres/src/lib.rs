//! Effects that happen once, kept in PostgreSQL: [`PostgresStore`] is a [`Store`](driftq_client::Store) whose
//! [`finish_in`](PostgresStore::finish_in) can share a transaction with what the effect writes.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use driftq_client::{Begin, Begun, EffectStatus, Finish, Identity, Scope, Store};
//! use driftq_postgres::PostgresStore;
//!
//! let store = PostgresStore::connect("host=/run/postgresql user=payments dbname=payments")?;
//! store.migrate().await?;
//! let charge = Identity::new(Scope::rpc("alice", "/payments/charge"), "order-7");
//! if let Begun::Execute(grant) = store.begin(&Begin::new(charge.clone(), "payments-1")).await? {
//!     let mut connection = store.pool().get().await?;
//!     let transaction = connection.transaction().await?;
//!     transaction.execute("INSERT INTO charges (customer, amount) VALUES ('alice', 3)", &[]).await?;
//!     let finish = Finish::new(charge, grant.lease_token, EffectStatus::Succeeded);
//!     store.finish_in(&transaction, &finish).await?;
//!     transaction.commit().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The schema is that of the Python client, in the same files: both languages may work on one database.

#![forbid(unsafe_code)]

mod columns;
mod failure;
mod migrations;
mod retry;
mod store;
mod sweep;

pub use deadpool_postgres;
pub use migrations::{MIGRATIONS, Migration, migrate};
pub use store::{List, Page, PostgresStore, StoredEffect};
pub use tokio_postgres;
