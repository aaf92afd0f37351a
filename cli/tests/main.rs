//! Tests of the program `driftq`, as users run it, against a real broker.

mod bench;
mod broker;
mod completions;
mod contexts;
mod dead_letters;
mod doctor;
mod exit_codes;
mod messages;
mod program;
mod streams;
mod terminal;
mod top;
mod topics;
