//! Signals: SIGTERM and SIGINT stop the broker, SIGHUP reloads what can be reloaded, SIGUSR1 and SIGUSR2 do nothing.

use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use crate::config::{Flags, LogLevel, Settings};

/// What SIGHUP reloads beside TLS certificates: the log level, from the configuration file. Flags and variables that
/// set it still override the file.
#[derive(Debug)]
pub struct Reload {
    /// The flags and variables of the process.
    pub flags: Flags,
    /// Changes the log level.
    pub log_level: LogLevel,
}

impl Reload {
    /// Reloads the settings. Invalid ones are reported and change nothing. `in_force` becomes what is in force then.
    fn reload(&self, in_force: &mut Settings) {
        let loaded = Settings::load(&self.flags).and_then(|loaded| self.log_level.set(&loaded.log).map(|()| loaded));
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(error) => return tracing::error!("SIGHUP: nothing is reloaded: {error}"),
        };
        in_force.log.level.clone_from(&loaded.log.level);
        tracing::info!(level = loaded.log.level, "SIGHUP: the log level is reloaded");
        if loaded != *in_force {
            tracing::warn!("SIGHUP: other settings have changed as well; they apply after a restart");
        }
    }
}

/// The signals of the process. None of them ends it but SIGTERM and SIGINT.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    /// Registered, which replaces their default of ending the process.
    _ignored: [Signal; 2],
    reload: Option<Reload>,
    /// Notified on SIGHUP, for what reloads its own files.
    hangups: Arc<Notify>,
    /// The settings as loaded and reloaded.
    in_force: Settings,
}

impl Signals {
    /// Handles signals from now on; without `reload`, SIGHUP does nothing.
    pub(crate) fn register(settings: Settings, reload: Option<Reload>) -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            _ignored: [signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?],
            reload,
            hangups: Arc::default(),
            in_force: settings,
        })
    }

    /// Notified on each SIGHUP while [`Signals::stop`] is awaited. For one waiter.
    pub(crate) fn hangups(&self) -> Arc<Notify> {
        Arc::clone(&self.hangups)
    }

    /// Resolves on SIGTERM or SIGINT, and reloads on SIGHUP meanwhile.
    pub(crate) async fn stop(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => {
                    if let Some(reload) = &self.reload {
                        reload.reload(&mut self.in_force);
                    }
                    self.hangups.notify_one();
                }
            }
        }
    }
}
