//! Which broker is meant: flags, then variables, then the context in use, then the default address.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use driftq_client::{Client, ClientBuilder, Event};

use crate::contexts::{Context, Contexts, path};
use crate::failure::Failure;
use crate::output::remark;
use crate::units::parse_duration;

/// Where `driftqd` listens without settings.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:8080";
/// How long a request of a command is repeated. Who waits at a terminal prefers an error.
const RETRY_FOR: Duration = Duration::from_secs(1);
/// How often it is said that requests are repeated.
const REMARK_EVERY: Duration = Duration::from_secs(5);

/// The flags that name a broker.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Connect {
    /// Base URL of the broker; several for failover [default: $DRIFTQ_URL, the context, http://127.0.0.1:8080]
    #[arg(long, global = true, value_name = "URL", help_heading = "Broker")]
    pub(crate) url: Vec<String>,
    /// Context to use instead of the current one
    #[arg(long, global = true, value_name = "NAME", help_heading = "Broker", conflicts_with = "url")]
    pub(crate) context: Option<String>,
    /// File with the key [default: $DRIFTQ_KEY, which is the key itself, or that of the context]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Broker")]
    pub(crate) key_file: Option<PathBuf>,
    /// PEM file with the certificates to trust instead of the system's
    #[arg(long, global = true, value_name = "FILE", help_heading = "Broker")]
    pub(crate) ca: Option<PathBuf>,
    /// Limit of one request; streams have none
    #[arg(long, global = true, value_name = "DURATION", default_value = "30s", value_parser = parse_duration,
        help_heading = "Broker")]
    pub(crate) timeout: Duration,
}

/// The broker that was chosen.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) urls: Vec<String>,
    key: Option<String>,
    ca: Option<PathBuf>,
    timeout: Duration,
}

impl Settings {
    /// # Errors
    /// If a context or a key file that is needed cannot be read.
    pub(crate) fn resolve(flags: &Connect) -> Result<Self, Failure> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        Self::resolve_with(flags, variable, || Contexts::load(&path()?))
    }

    fn resolve_with(
        flags: &Connect,
        variable: impl Fn(&str) -> Option<String>,
        load: impl FnOnce() -> Result<Contexts, Failure>,
    ) -> Result<Self, Failure> {
        let from_variable = || variable("DRIFTQ_URL").map(|urls| urls.split([',', ' ']).map(str::to_owned).collect());
        // The key and the certificates of a context are for its own URLs.
        let (urls, context): (Vec<String>, _) = if !flags.url.is_empty() {
            (flags.url.clone(), Context::default())
        } else if let Some(name) = &flags.context {
            let context = load()?.named(name)?.clone();
            (context.urls.clone(), context)
        } else if let Some(urls) = from_variable() {
            (urls, Context::default())
        } else {
            let contexts = load()?;
            match &contexts.current {
                Some(name) => (contexts.named(name)?.urls.clone(), contexts.named(name)?.clone()),
                None => (vec![DEFAULT_URL.to_owned()], Context::default()),
            }
        };
        let key = match (&flags.key_file, variable("DRIFTQ_KEY"), &context.key_file) {
            (Some(file), _, _) => Some(read_key(file)?),
            (None, Some(key), _) => Some(key.trim().to_owned()),
            (None, None, Some(file)) => Some(read_key(file)?),
            (None, None, None) => None,
        };
        let urls = urls.into_iter().filter(|url| !url.is_empty()).collect();
        Ok(Self { urls, key, ca: flags.ca.clone().or(context.ca), timeout: flags.timeout })
    }

    /// A client of all URLs.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        Ok(self.builder(&self.urls)?.build()?)
    }

    /// A client that goes on trying, for work that takes long and should survive a restart of the broker.
    pub(crate) fn patient_client(&self, retry_for: Duration) -> Result<Client, Failure> {
        let last = Mutex::new(None::<Instant>);
        let reporting = move |event: &Event<'_>| {
            let (error, consequence) = match event {
                Event::Disconnected { error } => (error, "reconnecting"),
                Event::RequestRetried { error, .. } => (error, "trying again"),
                _ => return,
            };
            // Many requests fail together, and again and again.
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.is_none_or(|last| last.elapsed() >= REMARK_EVERY) {
                *last = Some(Instant::now());
                remark(&format!("{}; {consequence}", error.message()));
            }
        };
        Ok(self.builder(&self.urls)?.retry_for(retry_for).on_event(reporting).build()?)
    }

    /// A client of one URL that tries once.
    pub(crate) fn client_of(&self, url: &String) -> Result<Client, Failure> {
        Ok(self.builder(std::slice::from_ref(url))?.retry_for(Duration::ZERO).build()?)
    }

    fn builder(&self, urls: &[String]) -> Result<ClientBuilder, Failure> {
        let mut builder = Client::builder().urls(urls).timeout(self.timeout).retry_for(RETRY_FOR.min(self.timeout));
        if let Some(key) = &self.key {
            builder = builder.key(key);
        }
        if let Some(ca) = &self.ca {
            builder = builder.ca_file(ca)?;
        }
        Ok(builder)
    }

    /// Whether a key is sent.
    pub(crate) fn has_key(&self) -> bool {
        self.key.is_some()
    }
}

fn read_key(file: &PathBuf) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::usage(format!("the key file {} cannot be read: {error}", file.display())))?;
    let key = text.trim();
    if key.is_empty() {
        return Err(Failure::usage(format!("the key file {} is empty", file.display())));
    }
    Ok(key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contexts() -> Contexts {
        let context = |url: &str| Context { urls: vec![url.to_owned()], ..Context::default() };
        let contexts = [("a", context("http://a")), ("b", context("http://b"))];
        let contexts = contexts.map(|(name, context)| (name.to_owned(), context)).into();
        Contexts { current: Some("a".to_owned()), contexts }
    }

    fn chosen(flags: &Connect, variables: &[(&str, &str)], contexts: Contexts) -> (Vec<String>, Option<String>) {
        let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned());
        let settings = Settings::resolve_with(flags, variable, || Ok(contexts)).expect("settings");
        (settings.urls, settings.key)
    }

    #[test]
    fn flag_beats_variable_beats_context_beats_default() {
        let none = Connect::default();
        let flag = Connect { url: vec!["http://f".to_owned()], ..Connect::default() };
        let named = Connect { context: Some("b".to_owned()), ..Connect::default() };
        let variables = [("DRIFTQ_URL", "http://v,http://w"), ("DRIFTQ_KEY", "k\n")];
        let key = Some("k".to_owned());
        let urls = |urls: &[&str]| urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>();
        assert_eq!(chosen(&flag, &variables, contexts()), (urls(&["http://f"]), key.clone()));
        assert_eq!(chosen(&named, &variables, contexts()), (urls(&["http://b"]), key.clone()));
        assert_eq!(chosen(&none, &variables, contexts()), (urls(&["http://v", "http://w"]), key));
        assert_eq!(chosen(&none, &[], contexts()), (urls(&["http://a"]), None));
        assert_eq!(chosen(&none, &[], Contexts::default()), (urls(&[DEFAULT_URL]), None));
    }

    #[test]
    fn key_of_a_context_is_not_sent_to_another_url() {
        let mut contexts = contexts();
        contexts.contexts.get_mut("a").expect("there").key_file = Some("missing".into());
        let flag = Connect { url: vec!["http://f".to_owned()], ..Connect::default() };
        assert_eq!(chosen(&flag, &[], contexts.clone()).1, None);
        let refused = Settings::resolve_with(&Connect::default(), |_| None, || Ok(contexts));
        assert!(refused.is_err(), "the context's own URL needs its key");
    }
}
