//! `driftq context`: brokers by name.

use std::path::PathBuf;

use clap::Subcommand;
use driftq_client::Client;
use serde_json::json;

use crate::contexts::{Context, Contexts, path};
use crate::failure::Failure;
use crate::output::Output;
use crate::settings::{Connect, Settings};
use crate::table::{Cell, Table, Tone};

/// What to do with contexts.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum Command {
    /// Add or replace a context: its --url, --key-file and --ca
    Add {
        /// Name of the context
        name: String,
        /// Use it from now on
        #[arg(long = "use")]
        select: bool,
    },
    /// Use a context from now on
    Use {
        /// Name of the context
        name: String,
    },
    /// List contexts
    #[command(visible_alias = "ls")]
    List,
    /// Show a context, or which broker is meant without one
    Show {
        /// Name of the context [default: what is in force, flags and variables included]
        name: Option<String>,
    },
    /// Remove a context
    #[command(visible_alias = "rm")]
    Remove {
        /// Name of the context
        name: String,
    },
}

pub(crate) fn run(command: &Command, connect: &Connect, output: Output) -> Result<(), Failure> {
    let file = path()?;
    match command {
        Command::Add { name, select } => {
            let context = described(name, connect)?;
            let mut contexts = Contexts::load(&file)?;
            contexts.contexts.insert(name.clone(), context.clone());
            if *select || contexts.contexts.len() == 1 {
                contexts.current = Some(name.clone());
            }
            contexts.save(&file)?;
            let current = contexts.current.as_deref() == Some(name);
            let used = if current { ", which is in use" } else { "" };
            output.show(&shown(name, &context, current), |_| format!("added the context {name:?}{used}\n"))
        }
        Command::Use { name } => {
            let mut contexts = Contexts::load(&file)?;
            let context = contexts.named(name)?.clone();
            contexts.current = Some(name.clone());
            contexts.save(&file)?;
            output.show(&shown(name, &context, true), |_| format!("using the context {name:?}\n"))
        }
        Command::List => list(output, &Contexts::load(&file)?),
        Command::Show { name: Some(name) } => {
            let contexts = Contexts::load(&file)?;
            let context = contexts.named(name)?;
            let current = contexts.current.as_deref() == Some(name);
            output.show(&shown(name, context, current), |_| {
                let mut text = format!("{name}{}\n", if current { ", in use" } else { "" });
                text.extend(context.urls.iter().map(|url| format!("url       {url}\n")));
                let files = [("key file", &context.key_file), ("ca", &context.ca)];
                text.extend(
                    files.iter().filter_map(|(name, path)| Some(format!("{name:<9} {}\n", path.as_ref()?.display()))),
                );
                text
            })
        }
        Command::Show { name: None } => {
            let settings = Settings::resolve(connect)?;
            let result = json!({"urls": settings.urls, "key": settings.has_key()});
            output.show(&result, |_| {
                let urls = settings.urls.iter().map(|url| format!("url       {url}\n")).collect::<String>();
                urls + if settings.has_key() { "key       sent\n" } else { "key       none\n" }
            })
        }
        Command::Remove { name } => {
            let mut contexts = Contexts::load(&file)?;
            contexts.named(name)?;
            contexts.contexts.remove(name);
            contexts.current = contexts.current.filter(|current| current != name);
            contexts.save(&file)?;
            output.show(&json!({"removed": name}), |_| format!("removed the context {name:?}\n"))
        }
    }
}

/// The context that the flags describe. Paths are made absolute: it is used from other folders.
fn described(name: &str, connect: &Connect) -> Result<Context, Failure> {
    if name.is_empty() || name.contains(char::is_control) {
        return Err(Failure::usage("the name of a context is not empty and has no control characters"));
    }
    if connect.url.is_empty() {
        return Err(Failure::usage("a context needs a URL").advise("give --url, several times for several servers"));
    }
    // What is no URL is found now and not at the first use.
    Client::builder().urls(connect.url.iter().filter(|url| !url.starts_with("https:"))).url("http://check").build()?;
    let absolute = |path: &PathBuf| {
        std::path::absolute(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
    };
    let files = [&connect.key_file, &connect.ca];
    if let Some(missing) = files.into_iter().flatten().find(|file| !file.is_file()) {
        return Err(Failure::usage(format!("there is no file {}", missing.display())));
    }
    Ok(Context {
        urls: connect.url.clone(),
        key_file: connect.key_file.as_ref().map(absolute).transpose()?,
        ca: connect.ca.as_ref().map(absolute).transpose()?,
    })
}

fn shown(name: &str, context: &Context, current: bool) -> serde_json::Value {
    let mut value = json!(context);
    value["name"] = json!(name);
    value["current"] = json!(current);
    value
}

fn list(output: Output, contexts: &Contexts) -> Result<(), Failure> {
    let mut table = Table::new(&["", "CONTEXT", "URLS", "KEY FILE"]);
    let mut listed = Vec::new();
    for (name, context) in &contexts.contexts {
        let current = contexts.current.as_deref() == Some(name);
        table.row(vec![
            Cell::toned(if current { "*" } else { "" }, Tone::Good),
            name.into(),
            context.urls.join(" ").into(),
            context.key_file.as_ref().map(|file| file.display().to_string()).unwrap_or_default().into(),
        ]);
        listed.push(shown(name, context, current));
    }
    output.table(&listed, &table, "no contexts; add one with `driftq context add NAME --url URL`")
}
