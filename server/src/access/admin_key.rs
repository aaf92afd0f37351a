//! The key of `[auth] admin_key_file`: the first key of a broker, if it is given and not created over HTTP.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use driftq_core::command::CreateKey;
use driftq_core::log::Storage;
use driftq_core::types::{Grant, KeyName, Now};
use driftq_core::{Command, LogFault, Output, Pipeline, Refusal, Reply};

use super::key_text::ShownKey;

/// No key is as long.
const FILE_BYTES_MAX: u64 = 4 << 10;
/// Permissions of users that are neither the owner of a file nor in its group.
const OTHERS: u32 = 0o007;
/// What the key is called.
const NAME: &str = "admin key file";

/// Why the file gives no key. No text of the file is in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminKeyError {
    /// The file cannot be read.
    #[error("auth.admin_key_file: cannot read {}: {error}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        error: io::Error,
    },
    /// The file has something else.
    #[error("auth.admin_key_file: {}: want one line with a key, such as `driftqd keys generate` prints", .0.display())]
    Malformed(PathBuf),
    /// There is a key with its id and another secret.
    #[error(
        "auth.admin_key_file: {}: a key with this id is stored, and its secret is another one; use another key, \
         or revoke that one", .0.display()
    )]
    OtherSecret(PathBuf),
    /// The key cannot be created.
    #[error("auth.admin_key_file: the key cannot be created: {0}")]
    Refused(Refusal),
    /// The log has failed.
    #[error("auth.admin_key_file: the key cannot be created: {0}")]
    Failed(LogFault),
}

/// Reads the key of a file.
///
/// # Errors
/// [`AdminKeyError`] if it has none.
fn read_admin_key(path: &Path) -> Result<ShownKey, AdminKeyError> {
    let unreadable = |error| AdminKeyError::Unreadable { path: path.to_owned(), error };
    let file = File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.mode();
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(unreadable)?;
    if mode & OTHERS != 0 {
        let path = path.display();
        tracing::warn!("auth.admin_key_file: every user of this machine can read or replace {path}; chmod o= {path}");
    }
    ShownKey::parse(bytes.trim_ascii()).ok_or_else(|| AdminKeyError::Malformed(path.to_owned()))
}

/// Creates the key of a file, with every grant, unless it exists.
///
/// # Errors
/// [`AdminKeyError`] if there is no such key afterwards.
pub(crate) fn ensure_admin_key(
    path: &Path,
    pipeline: &mut Pipeline,
    storage: &mut impl Storage,
    now: Now,
) -> Result<(), AdminKeyError> {
    let shown = read_admin_key(path)?;
    match pipeline.state().access().keys().get(shown.id) {
        Some(key) if shown.has_digest(&key.digest) => return Ok(()),
        Some(_) => return Err(AdminKeyError::OtherSecret(path.to_owned())),
        None => {}
    }
    let create = CreateKey {
        id: shown.id,
        name: KeyName::new(NAME).expect("a name"),
        digest: shown.digest(),
        tenant: None,
        grants: vec![Grant::everything()],
        expiry: None,
    };
    match execute(pipeline, storage, now, create.into()) {
        Ok(Ok(_)) => {
            tracing::info!(id = shown.id.as_str(), "the key of auth.admin_key_file is created");
            Ok(())
        }
        Ok(Err(refusal)) => Err(AdminKeyError::Refused(refusal)),
        Err(fault) => Err(AdminKeyError::Failed(fault)),
    }
}

/// Executes a command of the program itself before the broker serves anyone, and syncs it.
pub(crate) fn execute(
    pipeline: &mut Pipeline,
    storage: &mut impl Storage,
    now: Now,
    command: Command,
) -> Result<Result<Reply, Refusal>, LogFault> {
    let ticket = pipeline.handle(now, command);
    pipeline.drive(now, storage);
    let mut result = None;
    while let Some(output) = pipeline.poll_output() {
        if let Output::Reply { ticket: of, result: reply } = output
            && of == ticket
        {
            result = Some(reply);
        }
    }
    match (result, pipeline.failure()) {
        (Some(result), _) => Ok(result),
        (None, Some(fault)) => Err(fault.clone()),
        (None, None) => unreachable!("all jobs are performed, so the reply is released"),
    }
}
