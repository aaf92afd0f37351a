//! Histories of real servers: what the checker must reject, and what it must not.

mod builder;
mod files;
mod forged;
mod forgeries;
mod honest;
mod law;
mod live;
mod log;
mod planted;
mod scale;
