//! `canary`: the broker on a storage whose `sync` does nothing.
//!
//! In everything else it is `driftqd`: the same settings, server and core. It must lose acknowledged messages in a
//! power loss, and a test that claims to detect such losses must detect these. It is a separate program so that no
//! setting of `driftqd` can disable syncing.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use driftq_core::log::{FileId, FileInfo, Storage, StorageFault, WriteAt};
use driftq_files::FileStorage;
use driftq_server::config::{Flags, Settings, init_logging};
use driftq_server::serve;

/// The broker without syncing, for tests that must detect the loss. Takes the flags of driftqd.
#[derive(Debug, Parser)]
#[command(name = "canary")]
struct Cli {
    #[command(flatten)]
    flags: Flags,
}

fn main() -> ExitCode {
    let started = Settings::load(&Cli::parse().flags).map_err(|error| error.to_string()).and_then(|settings| {
        init_logging(&settings.log).map_err(|error| error.to_string())?;
        eprintln!("canary: acknowledged messages are not durable here");
        serve::run_with_storage(settings, Unsynced).map_err(|error| error.to_string())
    });
    started.unwrap_or_else(|error| {
        eprintln!("canary: {error}");
        ExitCode::FAILURE
    })
}

/// Real files without syncing.
struct Unsynced(FileStorage);

impl Storage for Unsynced {
    fn sync(&mut self, _file: FileId) -> Result<(), StorageFault> {
        Ok(())
    }

    fn create(&mut self, file: FileId, capacity: u64) -> Result<(), StorageFault> {
        self.0.create(file, capacity)
    }

    fn append(&mut self, file: FileId, at: WriteAt, bytes: &[u8]) -> Result<(), StorageFault> {
        self.0.append(file, at, bytes)
    }

    fn read(&mut self, file: FileId, position: u64, buffer: &mut [u8]) -> Result<usize, StorageFault> {
        self.0.read(file, position, buffer)
    }

    fn list(&mut self) -> Result<Vec<FileInfo>, StorageFault> {
        self.0.list()
    }

    fn rename(&mut self, from: FileId, to: FileId) -> Result<(), StorageFault> {
        self.0.rename(from, to)
    }

    fn remove(&mut self, file: FileId) -> Result<(), StorageFault> {
        self.0.remove(file)
    }

    fn trim(&mut self, file: FileId, len: u64) -> Result<(), StorageFault> {
        self.0.trim(file, len)
    }

    fn sync_folder(&mut self) -> Result<(), StorageFault> {
        self.0.sync_folder()
    }
}
