//! Histories that the checker must reject, and histories that it must accept.

mod accepted;
mod architecture;
mod builder;
mod command_line;
mod compare;
mod forgeries;
mod planted_bugs;
mod recorded;
mod rejected;
mod scale;
