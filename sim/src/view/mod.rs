//! What happened, to be looked at: a life is told as a [story], and a story is [shown](page()) in one file that needs nothing
//! else.

mod diff;
mod format;
mod page;
mod recorder;
mod snapshot;
pub mod timeline;

pub use self::page::page;
pub use self::recorder::timeline_of;
