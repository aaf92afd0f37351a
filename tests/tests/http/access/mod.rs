//! Keys, tenants and the audit over HTTP.

mod certificates;
mod isolation;
mod keys;
mod matrix;
mod secrets;
mod start;
mod support;
mod throttle;
