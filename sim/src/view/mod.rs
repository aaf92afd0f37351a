//! What happened, to be looked at: a life is told as a [story], and a story is [shown](page()) in one file that needs nothing
//! else.

mod change;
mod data_folder;
mod page;
mod record;
mod sight;
pub mod story;
mod words;

pub use self::data_folder::{RecordFilter, TIMELINE_RECORDS_MAX, timeline_of_log};
pub use self::page::page;
pub use self::record::story_of;
