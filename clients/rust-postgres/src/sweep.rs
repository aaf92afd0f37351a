//! Removes effects whose time is over.

use std::time::Duration;

use driftq_client::{Error, ErrorKind};

use crate::store::PostgresStore;

impl PostgresStore {
    /// Removes all effects whose time is over, `batch` at a time; returns how many.
    ///
    /// Each batch is a transaction of its own and waits for no other, so several processes may sweep at once. What has
    /// expired counts as not known whether it has been swept or not.
    ///
    /// # Errors
    /// That of the database.
    pub async fn sweep(&self, batch: u32) -> Result<u64, Error> {
        let limit = i32::try_from(batch.max(1)).unwrap_or(i32::MAX);
        let mut removed = 0;
        loop {
            let row = self.one("SELECT driftq.sweep_effects($1)", &[&limit]).await?;
            let count = u64::try_from(row.get::<_, i64>(0)).unwrap_or_default();
            removed += count;
            if count < u64::from(limit.unsigned_abs()) {
                return Ok(removed);
            }
        }
    }

    /// Sweeps now and each time `every` has passed, until dropped. Outlasts times without a server.
    ///
    /// # Errors
    /// What does not pass by itself: a database without the schema, or without the permission.
    pub async fn keep_swept(&self, every: Duration, batch: u32) -> Result<(), Error> {
        loop {
            match self.sweep(batch).await {
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(every).await;
        }
    }
}
