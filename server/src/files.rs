//! The log's files on a real disk.
