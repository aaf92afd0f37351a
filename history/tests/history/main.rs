//! Histories of real servers: what the checker must reject, and what it must not.

mod architecture;
mod builder;
mod files;
mod forged;
mod forgeries;
mod honest;
mod log;
mod planted;
mod recorded;
mod scale;
