//! The arguments of one command: positional arguments and `name=value` pairs. Each must be used.

use std::collections::VecDeque;
use std::str::FromStr;

use driftq_core::types::{Millis, TenantId, Timestamp, TopicName};

use super::units::{parse_duration, parse_time};

/// The arguments of a command that were not used yet.
#[derive(Debug)]
pub struct Args {
    start: Timestamp,
    positional: VecDeque<String>,
    named: Vec<(String, String)>,
}

impl Args {
    /// Splits a command at white space. A value may be quoted: `reason="card declined"`.
    pub fn parse(start: Timestamp, line: &str) -> Result<Self, String> {
        let mut args = Self { start, positional: VecDeque::new(), named: Vec::new() };
        let mut rest = line.trim_start();
        while !rest.is_empty() {
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            let Some((name, value)) = rest[..end].split_once('=').filter(|(name, _)| is_name(name)) else {
                args.positional.push_back(rest[..end].to_owned());
                rest = rest[end..].trim_start();
                continue;
            };
            let value = match rest[name.len() + 1..].strip_prefix('"') {
                None => {
                    rest = rest[end..].trim_start();
                    value
                }
                Some(quoted) => {
                    let (value, behind) =
                        quoted.split_once('"').ok_or_else(|| format!("{name}: no closing quotation mark"))?;
                    if !behind.is_empty() && !behind.starts_with(char::is_whitespace) {
                        return Err(format!("{name}: text follows the closing quotation mark"));
                    }
                    rest = behind.trim_start();
                    value
                }
            };
            args.named.push((name.to_owned(), value.to_owned()));
        }
        Ok(args)
    }

    /// The next positional argument.
    pub fn positional(&mut self, what: &str) -> Result<String, String> {
        self.positional.pop_front().ok_or_else(|| format!("{what} is missing"))
    }

    /// The value of `name`, if given.
    pub fn text(&mut self, name: &str) -> Option<String> {
        let found = self.named.iter().position(|(given, _)| given == name)?;
        Some(self.named.remove(found).1)
    }

    /// All values of `name`, each `left:right`.
    pub fn pairs<L: From<String>, R: From<String>, C: FromIterator<(L, R)>>(
        &mut self,
        name: &str,
    ) -> Result<C, String> {
        std::iter::from_fn(|| self.text(name))
            .map(|value| match value.split_once(':') {
                Some((left, right)) => Ok((left.to_owned().into(), right.to_owned().into())),
                None => Err(format!("{name}={value}: write {name}=name:value")),
            })
            .collect()
    }

    /// The value of `name`.
    pub fn required(&mut self, name: &str) -> Result<String, String> {
        self.text(name).ok_or_else(|| format!("{name}= is missing"))
    }

    /// The value of `name` as a number or another type with a text form.
    pub fn parsed<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, String> {
        self.text(name).map(|text| text.parse().map_err(|_| format!("{name}={text} does not parse"))).transpose()
    }

    /// The value of `name` as the name of a group or owner.
    pub fn name<T: FromStr<Err: ToString>>(&mut self, name: &str) -> Result<T, String> {
        self.optional_name(name)?.ok_or_else(|| format!("{name}= is missing"))
    }

    /// The value of `name`, if given, as the name of a group or owner.
    pub fn optional_name<T: FromStr<Err: ToString>>(&mut self, name: &str) -> Result<Option<T>, String> {
        self.text(name).map(|text| text.parse().map_err(|error: T::Err| error.to_string())).transpose()
    }

    /// The value of `name` as a topic.
    pub fn topic(&mut self, name: &str) -> Result<TopicName, String> {
        self.optional_topic(name)?.ok_or_else(|| format!("{name}= is missing"))
    }

    /// The value of `name`, if given, as a topic.
    pub fn optional_topic(&mut self, name: &str) -> Result<Option<TopicName>, String> {
        self.text(name).map(|text| parse_topic(&text)).transpose()
    }

    /// The next positional argument as a topic.
    pub fn positional_topic(&mut self) -> Result<TopicName, String> {
        parse_topic(&self.positional("a topic")?)
    }

    /// The value of `name` as a duration.
    pub fn duration(&mut self, name: &str) -> Result<Option<Millis>, String> {
        self.text(name).map(|text| parse_duration(&text)).transpose()
    }

    /// The value of `name` as a time.
    pub fn time(&mut self, name: &str) -> Result<Option<Timestamp>, String> {
        self.text(name).map(|text| self.parse_time(&text)).transpose()
    }

    /// A time after the start of the scenario.
    pub fn parse_time(&self, text: &str) -> Result<Timestamp, String> {
        parse_time(self.start, text)
    }

    /// The value of `name` as one of a few choices.
    pub fn choice<T: Copy>(&mut self, name: &str, choices: &[(&str, T)]) -> Result<Option<T>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match choices.iter().find(|(choice, _)| *choice == text) {
            Some((_, choice)) => Ok(Some(*choice)),
            None => {
                let names: Vec<_> = choices.iter().map(|(choice, _)| *choice).collect();
                Err(format!("{name}={text}: write one of {}", names.join(", ")))
            }
        }
    }

    /// Refuses arguments that the command did not use.
    pub fn finish(self) -> Result<(), String> {
        let named = self.named.into_iter().map(|(name, value)| format!("{name}={value}"));
        let unused: Vec<_> = self.positional.into_iter().chain(named).collect();
        if unused.is_empty() { Ok(()) } else { Err(format!("not an argument of this command: {}", unused.join(" "))) }
    }
}

/// A topic of the default tenant by its name, or one of another tenant as `#7:orders`.
fn parse_topic(text: &str) -> Result<TopicName, String> {
    let split = text.strip_prefix('#').and_then(|text| text.split_once(':'));
    let of_tenant = split.and_then(|(tenant, name)| Some((TenantId(tenant.parse().ok()?), name)));
    let (tenant, name) = of_tenant.unwrap_or((TenantId::DEFAULT, text));
    TopicName::of(tenant, name).map_err(|error| error.to_string())
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}
