//! The viewer: records a run as a [timeline] and writes it as a self-contained HTML [page](page()).

mod data_folder;
mod diff;
mod format;
mod page;
mod recorder;
mod snapshot;
pub mod timeline;

pub use self::data_folder::{RecordFilter, TIMELINE_RECORDS_MAX, timeline_of_log};
pub use self::page::page;
pub use self::recorder::timeline_of;
