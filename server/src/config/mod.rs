//! Settings: profile defaults, overlaid by the configuration file, `DRIFTQ_*` variables and flags, in this order.
//!
//! [`Settings`] is the schema of the configuration file, and flags and variables are checked against the same schema
//! ([`Settings::load`]). `docs/configuration.md` documents every key.

mod address;
mod auth;
mod chaos;
mod check;
mod error;
mod exposure;
mod flags;
mod limits;
mod load;
mod logging;
mod number;
mod otlp;
mod settings;
mod table;
mod text;
mod tls;

pub(crate) use self::address::HostHeader;
pub use self::address::WebhookUrl;
pub use self::auth::AuthSettings;
pub use self::chaos::{ChaosError, ChaosSettings, Probability};
pub use self::error::ConfigError;
pub use self::exposure::ExposureError;
pub use self::flags::{Flags, RawValue, with_double_dashes};
pub use self::logging::{LogLevel, init_logging};
pub use self::otlp::{OtlpHeaders, OtlpSettings};
pub(crate) use self::settings::is_decision_within_limits;
pub use self::settings::{
    HttpSettings, LogFormat, LogSettings, Profile, RouterSettings, Rule, Settings, StorageSettings, Webhook,
};
pub(crate) use self::tls::TlsFiles;
pub use self::tls::TlsSettings;
