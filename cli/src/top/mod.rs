//! `driftq top`: a live view. [`sample`] asks the broker, [`model`] makes rows of two samples, [`view`] draws them.

mod model;
mod sample;
mod view;

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use self::model::{Model, SortKey};
use self::sample::Sample;
use crate::commands::Broker;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::units::parse_duration;

/// Rows that a page key moves by.
const PAGE_ROWS: usize = 10;

/// Flags of `top`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Keys: q quit, p pause, arrows and page keys scroll; sort by t topic, r rate, l lag, f in flight, d dead letters; the same
key again reverses the order. A group's rate is what it has finished: acked, dead-lettered or purged.")]
pub(crate) struct Options {
    /// Only these topics
    topics: Vec<String>,
    /// How often figures are refreshed
    #[arg(long, short, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_millis(100);
    let interval = parse_duration(text)?;
    if interval < LEAST { Err(format!("at least {LEAST:?}")) } else { Ok(interval) }
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Quit,
    Pause,
    Sort(SortKey),
    Down(usize),
    Up(usize),
    Top,
    /// Nothing changes but what is drawn.
    Redraw,
}

pub(crate) async fn run(broker: &Broker, options: Options) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::usage("`top` needs a terminal").advise("`driftq topics list --json` is for programs"));
    }
    let failed = |error: io::Error| Failure::new(Exit::Usage, format!("the terminal cannot be used: {error}"));
    let mut interrupt = Interrupt::new()?;
    let client = broker.settings.client()?;
    // It also restores the terminal when something panics.
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let ended = watch(&mut terminal, &client, broker, &options, &mut interrupt).await;
    ratatui::restore();
    ended.map_err(failed)
}

async fn watch(
    terminal: &mut DefaultTerminal,
    client: &driftq_client::Client,
    broker: &Broker,
    options: &Options,
    interrupt: &mut Interrupt,
) -> io::Result<()> {
    let mut model = Model::new(broker.settings.urls.join(" "), view::has_color());
    let mut actions = read_actions();
    let (samples, mut sampled) = mpsc::channel::<Result<Sample, driftq_client::Error>>(1);
    let mut ticks = tokio::time::interval(options.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_asking = false;
    loop {
        terminal.draw(|frame| view::draw(frame, &mut model))?;
        tokio::select! {
            () = interrupt.received() => return Ok(()),
            action = actions.recv() => match action {
                None | Some(Action::Quit) => return Ok(()),
                Some(action) => model.act(action),
            },
            Some(answer) = sampled.recv() => {
                is_asking = false;
                model.update(answer, Instant::now());
            }
            _ = ticks.tick(), if !model.is_paused && !is_asking => {
                is_asking = true;
                let (client, topics, samples) = (client.clone(), options.topics.clone(), samples.clone());
                tokio::spawn(async move {
                    // Fails only when the view has ended.
                    let _ = samples.send(sample::take(&client, &topics).await).await;
                });
            }
        }
    }
}

/// Reads keys on a thread of its own, which waits without using the processor.
fn read_actions() -> mpsc::UnboundedReceiver<Action> {
    let (actions, queue) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if let Some(action) = action_of(&event)
                && actions.send(action).is_err()
            {
                return;
            }
        }
    });
    queue
}

fn action_of(event: &Event) -> Option<Action> {
    let key = match event {
        Event::Resize(..) => return Some(Action::Redraw),
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        _ => return None,
    };
    Some(match key.code {
        // A terminal in raw mode makes no signal of it.
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Action::Quit,
        KeyCode::Char('q') | KeyCode::Esc => Action::Quit,
        KeyCode::Char('p' | ' ') => Action::Pause,
        KeyCode::Char('t' | 'n') => Action::Sort(SortKey::Topic),
        KeyCode::Char('r') => Action::Sort(SortKey::Rate),
        KeyCode::Char('l') => Action::Sort(SortKey::Lag),
        KeyCode::Char('f') => Action::Sort(SortKey::InFlight),
        KeyCode::Char('d') => Action::Sort(SortKey::Dead),
        KeyCode::Down | KeyCode::Char('j') => Action::Down(1),
        KeyCode::Up | KeyCode::Char('k') => Action::Up(1),
        KeyCode::PageDown => Action::Down(PAGE_ROWS),
        KeyCode::PageUp => Action::Up(PAGE_ROWS),
        KeyCode::Home => Action::Top,
        _ => return None,
    })
}
