//! A broker within the process of a test: the real one, on a free loopback port, with its log in memory.
//!
//! ```
//! use driftq_server::testing::Broker;
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut broker = Broker::start().await?;
//!
//! // Any client of the HTTP API will do; here a socket.
//! let create = async |addr| {
//!     let mut socket = tokio::net::TcpStream::connect(addr).await?;
//!     let body = r#"{"name":"orders","partitions":3}"#;
//!     let head = format!("POST /v1/topics HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n");
//!     socket.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
//!     let mut answer = String::new();
//!     socket.read_to_string(&mut answer).await?;
//!     Ok::<_, std::io::Error>(answer)
//! };
//! assert!(create(broker.addr()).await?.starts_with("HTTP/1.1 201"));
//!
//! // A crash, as by `kill -9`. What was answered is still there.
//! broker.restart().await?;
//! assert!(create(broker.addr()).await?.contains("\"partitions\":3"));
//!
//! broker.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! With faults of the network, the same for the same requests (`docs/testing.md`):
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use driftq_server::testing::Broker;
//!
//! let broker = Broker::builder()
//!     .chaos("seed=42,duplicate=0.2,drop-reply=0.1".parse()?)
//!     .config("[limits]\nlease_min_ms = 10")
//!     .start()
//!     .await?;
//! assert!(broker.faults().is_empty(), "nothing has been asked of it");
//! # Ok(())
//! # }
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::config::Settings;
pub use crate::config::{ChaosError, ChaosSettings, ConfigError, Probability};
use crate::memory_broker::MemoryBroker;
pub use crate::serve::ServeError;

/// How many faults are shown when a test fails, the newest ones.
const SHOWN_MAX: usize = 100;
/// What a configuration that does not start is called in its error.
const CONFIG_NAME: &str = "the configuration of the test";

/// A broker that runs on threads of its own until it is stopped or dropped. Nothing of it is on a disk.
///
/// If it simulates faults and is dropped by a panic, as by a test that fails, it writes the seed and the faults that
/// were played to standard error.
#[derive(Debug)]
pub struct Broker {
    inner: MemoryBroker,
    scheme: &'static str,
}

/// Why a broker did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The broker cannot run.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

impl Broker {
    /// Starts a broker with default settings. It accepts requests when this returns.
    ///
    /// # Errors
    /// If no port or no thread is left.
    pub async fn start() -> Result<Self, StartError> {
        Self::builder().start().await
    }

    /// A broker with other settings.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Where it listens, the same over all restarts.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.inner.addr()
    }

    /// Its base URL, `http://127.0.0.1:PORT`; `https` if its configuration has a certificate.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.addr())
    }

    /// Crashes it, as `kill -9` would, and waits until it has recovered. Everything that was answered is still there;
    /// connections are cut, and what was in progress may have happened or not.
    ///
    /// # Errors
    /// If the broker has ended.
    pub async fn restart(&mut self) -> Result<(), ServeError> {
        self.inner.restart().await
    }

    /// The faults that were played, the newest 10,000: what `GET /v1/chaos` lists. None without chaos.
    #[must_use]
    pub fn faults(&self) -> Vec<Value> {
        let report: Option<Value> = self.inner.chaos_report(0).and_then(|text| serde_json::from_str(&text).ok());
        match report.map(|mut report| report["played"].take()) {
            Some(Value::Array(faults)) => faults,
            _ => Vec::new(),
        }
    }

    /// The settings of chaos and the newest faults as text; nothing without chaos.
    fn describe_faults(&self) -> Option<String> {
        let report: Value = serde_json::from_str(&self.inner.chaos_report(0)?).ok()?;
        let faults = report["played"].as_array()?;
        let settings = report["settings"].as_object()?;
        // As a builder takes it: the seed, and the faults that may occur.
        let mut chaos = format!("seed={}", settings.get("seed")?);
        for (fault, probability) in settings.iter().filter(|(_, value)| value.as_f64() != Some(0.0)) {
            if fault != "seed" {
                chaos.push_str(&format!(",{fault}={probability}"));
            }
        }
        let mut text = format!("the broker simulated chaos {chaos:?} and played {} faults", faults.len());
        if faults.len() > SHOWN_MAX {
            text.push_str(&format!("\n  ({} older ones are not shown)", faults.len() - SHOWN_MAX));
        }
        for fault in &faults[faults.len().saturating_sub(SHOWN_MAX)..] {
            text.push_str(&format!("\n  {fault}"));
        }
        Some(text)
    }

    /// Stops it. Accepted requests get their responses, streams end.
    pub async fn stop(mut self) {
        self.inner.stop().await;
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(faults) = self.describe_faults()
        {
            eprintln!("{faults}");
        }
    }
}

/// The settings of a [`Broker`].
#[derive(Clone, Debug, Default)]
pub struct Builder {
    chaos: Option<ChaosSettings>,
    config: String,
    sync_delay: Duration,
}

impl Builder {
    /// Simulates faults of the network and crashes.
    #[must_use]
    pub fn chaos(self, chaos: ChaosSettings) -> Self {
        Self { chaos: Some(chaos), ..self }
    }

    /// Settings as in a configuration file (`docs/configuration.md`). `addr`, `data_dir`, `wal` and the section `log`
    /// have no effect. Unless they say otherwise, there is one reactor.
    #[must_use]
    pub fn config(self, toml: impl Into<String>) -> Self {
        Self { config: toml.into(), ..self }
    }

    /// Makes every sync of the log take so much longer, as on a slow disk.
    #[must_use]
    pub fn sync_delay(self, sync_delay: Duration) -> Self {
        Self { sync_delay, ..self }
    }

    /// Starts the broker. It accepts requests when this returns.
    ///
    /// # Errors
    /// If the configuration is invalid, or if no port or no thread is left.
    pub async fn start(self) -> Result<Broker, StartError> {
        let settings = Settings {
            addr: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            wal: false,
            memory: true,
            chaos: self.chaos,
            sync_delay: self.sync_delay,
            ..Settings::with_one_reactor(Path::new(CONFIG_NAME), &self.config)?
        };
        let mut inner = MemoryBroker::start(&settings, Arc::default())?;
        inner.ready().await?;
        Ok(Broker { inner, scheme: settings.scheme() })
    }
}
