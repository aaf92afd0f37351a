//! The schema of the store: numbered migrations, applied once each, in order, by one process at a time.

use std::collections::HashMap;
use std::fmt::Write as _;

use driftq_client::{Error, ErrorKind};
use sha2::{Digest as _, Sha256};
use tokio_postgres::Client;

use crate::failure::error_of;

/// Of the advisory lock under which migrations are applied: "driftq" in ASCII. The same in every language.
const LOCK_KEY: i64 = 0x6472_6966_7471;

/// A step of the schema.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Its number.
    pub version: i32,
    /// What it is about.
    pub name: &'static str,
    /// Its statements.
    pub sql: &'static str,
}

impl Migration {
    /// What a database remembers of the text it was given.
    #[must_use]
    pub fn sha256(&self) -> String {
        Sha256::digest(self.sql.as_bytes()).iter().fold(String::new(), |mut text, byte| {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// The table that migrations are recorded in; changes nothing where it exists.
const RECORD: &str = include_str!("../../python/src/driftq/postgres/migrations/0000_migrations.sql");

/// All migrations in order.
pub const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "effects",
        sql: include_str!("../../python/src/driftq/postgres/migrations/0001_effects.sql"),
    },
    Migration {
        version: 2,
        name: "maintenance",
        sql: include_str!("../../python/src/driftq/postgres/migrations/0002_maintenance.sql"),
    },
];

/// Applies the migrations that the database lacks, in one transaction; returns their numbers.
///
/// Processes that start together wait for each other. A database with newer migrations than these is left as it is:
/// migrations keep what older clients call.
///
/// # Errors
/// [`ErrorKind::Protocol`] if the database has another text of a migration; else that of the database.
pub async fn migrate(client: &mut Client) -> Result<Vec<i32>, Error> {
    let transaction = client.transaction().await.map_err(|error| error_of(&error))?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK_KEY]).await.map_err(|error| error_of(&error))?;
    transaction.batch_execute(RECORD).await.map_err(|error| error_of(&error))?;
    let rows = transaction
        .query("SELECT version, sha256 FROM driftq.migrations", &[])
        .await
        .map_err(|error| error_of(&error))?;
    let present: HashMap<i32, String> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let mut applied = Vec::new();
    for migration in MIGRATIONS {
        let sha256 = migration.sha256();
        match present.get(&migration.version) {
            Some(known) if *known == sha256 => {}
            Some(known) => {
                let message = format!(
                    "the database has migration {} ({}) with another text: expected SHA-256 {sha256}, found {known}",
                    migration.version, migration.name
                );
                return Err(Error::new(ErrorKind::Protocol, message));
            }
            None => {
                transaction.batch_execute(migration.sql).await.map_err(|error| error_of(&error))?;
                let insert = "INSERT INTO driftq.migrations (version, name, sha256) VALUES ($1, $2, $3)";
                transaction
                    .execute(insert, &[&migration.version, &migration.name, &sha256])
                    .await
                    .map_err(|error| error_of(&error))?;
                applied.push(migration.version);
            }
        }
    }
    transaction.commit().await.map_err(|error| error_of(&error))?;
    Ok(applied)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_file_is_a_migration() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/src/driftq/postgres/migrations");
        let mut names: Vec<_> = fs::read_dir(folder)
            .expect("the folder of migrations")
            .map(|entry| entry.expect("a file").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        let mut expected = vec!["0000_migrations.sql".to_owned()];
        expected.extend(MIGRATIONS.iter().map(|known| format!("{:04}_{}.sql", known.version, known.name)));
        assert_eq!(names, expected);
    }
}
