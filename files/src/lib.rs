//! The log's files on a real disk.
//!
//! A [`DataFolder`] is a folder that this process has locked. [`DataFolder::storage`] returns a [`FileStorage`], which
//! implements the [`Storage`](driftq_core::log::Storage) trait of the core on the files of that folder. Storages are
//! cheap to clone, one per thread, and share the files they create.
//!
//! ```
//! use driftq_core::log::{FileId, Storage, WriteAt};
//! use driftq_files::DataFolder;
//!
//! let temporary = tempfile::tempdir()?;
//! let folder = DataFolder::open(temporary.path())?;
//! assert!(DataFolder::open(temporary.path()).is_err(), "a folder is used by one process at a time");
//!
//! let mut storage = folder.storage();
//! let file = FileId::Segment(1);
//! storage.create(file, 4096)?;
//! storage.append(file, WriteAt { epoch: 1, position: 0 }, b"frames")?;
//! storage.sync(file)?;
//! storage.sync_folder()?;
//! assert_eq!(storage.list()?[0].file, file);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The guarantees are those of the trait. Three of them need more than plain file I/O:
//!
//! - segments are preallocated with durable zeros, so that appends never run out of space and syncs write data only
//!   ([`Prepare`]);
//! - files of an earlier process are read from the medium, not from the page cache ([`ReadPath`]), until recovery has
//!   checked them;
//! - a second process is refused by a lock on [`LOCK_FILE`].

#![forbid(unsafe_code)]

mod descriptor_cache;
mod direct_io;
mod fault;
mod folder;
mod fs_ops;
mod medium;
mod prepare;
mod read_ahead;
mod shared;
mod storage;
mod volatile_storage;

pub use self::folder::{DataFolder, FolderError, LOCK_FILE};
pub use self::fs_ops::{rename_new, sync_dir};
pub use self::medium::ReadPath;
pub use self::prepare::Prepare;
pub use self::storage::FileStorage;
pub use self::volatile_storage::{VolatileStorage, fresh_log_id};
