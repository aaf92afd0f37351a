//! `driftq-sim wal`.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use super::args::Wal as Args;
use super::files::write;
use super::{Ending, Misuse, say};
use crate::report::{grouped, span};
use crate::view::page;
use crate::wal::{Pick, Wal, WalError, story_of_log};

pub(super) fn wal(args: &Args) -> Result<Ending, Misuse> {
    match &args.view {
        None => tell(args).map_err(|cause| Misuse::Wal { path: args.dir.clone(), cause })?,
        Some(out) => {
            let (topic, message) = (args.topic.clone(), args.message.clone());
            show(&args.dir, &Pick { from: args.from, to: args.to, topic, message }, out)?;
        }
    }
    Ok(Ending::Passed)
}

/// Writes a picture of a part of the log in a folder.
pub(super) fn show(dir: &Path, pick: &Pick, out: &Path) -> Result<(), Misuse> {
    let title = match (&pick.message, &pick.topic) {
        (Some(message), _) => message.to_string(),
        (None, Some(topic)) => topic.to_string(),
        (None, None) => dir.display().to_string(),
    };
    let told = Wal::open(dir).and_then(|mut wal| story_of_log(&mut wal, &title, pick));
    let story = told.map_err(|cause| Misuse::Wal { path: dir.to_owned(), cause })?;
    write(out, &page(&story)).map_err(|cause| Misuse::Write { path: out.to_owned(), cause })?;
    say!("{} records", grouped(story.steps.len() as u64));
    say!("written to {}", out.display());
    Ok(())
}

fn tell(args: &Args) -> Result<(), WalError> {
    let begun = Instant::now();
    let mut wal = Wal::open(&args.dir)?;
    if args.records {
        return wal.records(args.from, args.to, |line| match args.json {
            true => say!("{}", json(&line)),
            false => say!("{line}"),
        });
    }
    if let Some(message) = &args.message {
        let life = wal.life(message, args.group.as_ref(), args.at)?;
        match args.json {
            true => say!("{}", json(&life)),
            false => say!("{}", life.to_string().trim_end()),
        }
        return Ok(());
    }
    let overview = wal.overview(args.at)?;
    if args.json {
        say!("{}", json(&overview));
        return Ok(());
    }
    let seconds = begun.elapsed();
    let rate = overview.records as f64 / seconds.as_secs_f64().max(1e-9);
    let (records, rate, time) = (grouped(overview.records), grouped(rate as u64), span(seconds));
    say!("read {records} records in {time}, {rate} records/s");
    match args.at {
        Some(_) => say!("{}", overview.state().trim_end()),
        None => say!("{}", overview.to_string().trim_end()),
    }
    Ok(())
}

fn json(told: &impl Serialize) -> String {
    serde_json::to_string(told).expect("names and numbers have a form in JSON")
}
