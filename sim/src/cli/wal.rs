//! `driftq-sim wal`.

use std::time::Instant;

use serde::Serialize;

use super::args::Wal as Args;
use super::view::write;
use super::{Ending, Misuse, say};
use crate::report::{grouped, span};
use crate::view::page;
use crate::view::story::Story;
use crate::wal::{Pick, Wal, WalError, story_of_log};

pub(super) fn wal(args: &Args) -> Result<Ending, Misuse> {
    let failed = |cause| Misuse::Wal { path: args.dir.clone(), cause };
    match &args.view {
        None => tell(args).map_err(failed)?,
        Some(out) => {
            let story = story(args).map_err(failed)?;
            write(out, &page(&story)).map_err(|cause| Misuse::Write { path: out.clone(), cause })?;
            say!("{} records; written to {}", grouped(story.moments.len() as u64), out.display());
        }
    }
    Ok(Ending::Passed)
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

/// The part of the log that a picture is wanted of.
fn story(args: &Args) -> Result<Story, WalError> {
    let (topic, message) = (args.topic.clone(), args.message.clone());
    let title = match (&message, &topic) {
        (Some(message), _) => message.to_string(),
        (None, Some(topic)) => topic.to_string(),
        (None, None) => args.dir.display().to_string(),
    };
    story_of_log(&mut Wal::open(&args.dir)?, &title, &Pick { from: args.from, to: args.to, topic, message })
}

fn json(told: &impl Serialize) -> String {
    serde_json::to_string(told).expect("names and numbers have a form in JSON")
}
