//! Whether settings make sense together, wherever each came from.

use super::error::ConfigError;
use super::number::NUMBERS;
use super::{Settings, address, logging, rules};

/// Room that a record needs in a segment beside the message it carries: names, a dead letter's notes, heads and feet.
const RECORD_SPARE_BYTES: u64 = 64 << 10;

/// The first thing that makes no sense.
pub(super) fn check(settings: &Settings) -> Result<(), ConfigError> {
    for number in NUMBERS {
        number.check(settings)?;
    }
    listening(settings)?;
    sizes(settings)?;
    rules::check(&settings.router.rules)?;
    if let Some(webhook) = &settings.router.webhook
        && address::WebhookUrl::parse(&webhook.url).is_none()
    {
        return contradiction(format!("router.webhook.url: {:?} is not {}", webhook.url, address::URL_ALLOWED));
    }
    for host in &settings.http.allowed_hosts {
        if address::host(host).as_ref() != Some(host) {
            return contradiction(format!("http.allowed_hosts: {host:?} is not {}", address::HOST_ALLOWED));
        }
    }
    if settings.data_dir.to_str().is_none_or(str::is_empty) {
        return contradiction("data_dir must be a name in UTF-8 and not empty".to_owned());
    }
    if logging::filter(&settings.log.level).is_none() {
        return contradiction(format!("log.level: {:?} is not {}", settings.log.level, logging::LEVEL_ALLOWED));
    }
    Ok(())
}

/// An address that other machines reach needs a word that this is meant.
fn listening(settings: &Settings) -> Result<(), ConfigError> {
    let loopback = settings.addr.ip().to_canonical().is_loopback();
    if loopback || settings.http.insecure { Ok(()) } else { Err(ConfigError::Exposed { addr: settings.addr }) }
}

fn sizes(settings: &Settings) -> Result<(), ConfigError> {
    let Settings { limits, storage, .. } = settings;
    for (name, bytes) in
        [("limits.key_bytes_max", limits.key_bytes_max), ("limits.metadata_bytes_max", limits.metadata_bytes_max)]
    {
        if bytes > limits.message_bytes_max {
            let message = limits.message_bytes_max;
            return contradiction(format!("{name} ({bytes}) must not exceed limits.message_bytes_max ({message})"));
        }
    }
    let (segment, reserve) = (storage.segment_bytes, storage.reserve_bytes);
    if reserve >= segment {
        return contradiction(format!(
            "storage.reserve_bytes ({reserve}) must be less than storage.segment_bytes ({segment})"
        ));
    }
    // A step's record, which may carry many messages, is refused where it is too long for the log; a message or a result never is.
    let carried = limits.message_bytes_max.max(limits.result_bytes_max);
    let largest = (carried + limits.error_text_bytes_max) as u64 + RECORD_SPARE_BYTES;
    if segment - reserve < largest {
        return contradiction(format!(
            "storage.segment_bytes ({segment}) less storage.reserve_bytes ({reserve}) must hold the largest record, {largest} \
             bytes; raise it or lower limits.message_bytes_max ({}) or limits.result_bytes_max ({})",
            limits.message_bytes_max, limits.result_bytes_max
        ));
    }
    Ok(())
}

fn contradiction(problem: String) -> Result<(), ConfigError> {
    Err(ConfigError::Contradiction(problem))
}
