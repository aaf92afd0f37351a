//! Histories of real servers: what the checker must reject, and what it must not.

mod builder;
mod files;
mod forged;
mod forgeries;
mod honest;
mod live;
mod log;
mod scale;
