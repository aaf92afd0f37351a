//! One module per command. Each has its flags and a function that runs it.

pub(crate) mod bench;
pub(crate) mod consume;
pub(crate) mod context;
pub(crate) mod dlq;
pub(crate) mod doctor;
pub(crate) mod effects;
pub(crate) mod groups;
pub(crate) mod peek;
pub(crate) mod produce;
pub(crate) mod settle;
pub(crate) mod tail;
pub(crate) mod topics;

use clap::CommandFactory as _;

use crate::args::{Cli, Command};
use crate::failure::{EXIT_CODES, Failure};
use crate::output::{Output, print};
use crate::settings::Settings;
use crate::top;

/// Runs what was typed.
pub(crate) async fn run(cli: Cli) -> Result<(), Failure> {
    let output = Output::new(cli.printing.format());
    let settings = match &cli.command {
        Command::Context(command) => return context::run(command, &cli.connect, output),
        Command::Completions { shell } => return completions(*shell),
        Command::ExitCodes => return print(&format!("{EXIT_CODES}\n")),
        _ => Settings::resolve(&cli.connect)?,
    };
    let broker = Broker { output, settings };
    match cli.command {
        Command::Topics(command) => topics::run(&broker, command).await,
        Command::Groups(command) => groups::run(&broker, command).await,
        Command::Produce(options) => produce::run(&broker, *options).await,
        Command::Consume(options) => consume::run(&broker, options).await,
        Command::Peek(options) => peek::run(&broker, options).await,
        Command::Ack(options) => settle::ack(&broker, options).await,
        Command::Nack(options) => settle::nack(&broker, options).await,
        Command::Extend(options) => settle::extend(&broker, options).await,
        Command::Release(options) => settle::release(&broker, options).await,
        Command::Dlq(command) => dlq::run(&broker, command).await,
        Command::Effects(command) => effects::run(&broker, command).await,
        Command::Top(options) => top::run(&broker, options).await,
        Command::Bench(options) => bench::run(&broker, options).await,
        Command::Tail(options) => tail::run(&broker, options).await,
        Command::Doctor(options) => doctor::run(&broker, options).await,
        Command::Context(_) | Command::Completions { .. } | Command::ExitCodes => unreachable!("run above"),
    }
}

/// The broker that is meant, and where results go.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) output: Output,
    pub(crate) settings: Settings,
}

impl Broker {
    pub(crate) fn client(&self) -> Result<driftq_client::Client, Failure> {
        self.settings.client()
    }
}

fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "driftq", &mut script);
    print(&String::from_utf8_lossy(&script))
}
