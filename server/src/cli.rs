//! Command line of `driftqd`.

use clap::{Parser, Subcommand};

use crate::config::Flags;
use crate::rebase::ClockCommand;
use crate::wal::WalCommand;

/// The whole command line.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "driftqd",
    version,
    about = "The DriftQ message broker",
    long_about = "The DriftQ message broker.\n\nSettings come from the defaults of the profile, then from the \
        configuration file, then from \
                  DRIFTQ_* variables, then from flags; each overrides the ones before. An empty variable counts as not set.",
    args_conflicts_with_subcommands = true
)]
pub struct Cli {
    /// The subcommand; `serve` if absent.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The flags of `serve` if no subcommand is given.
    #[command(flatten)]
    pub flags: Flags,
}

/// Subcommands of `driftqd`.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run the broker (the default)
    Serve(Flags),
    /// Print the effective settings as a configuration file and exit
    Config(Flags),
    /// Inspect a log, or salvage a damaged one
    Wal {
        /// What to do with the log.
        #[command(subcommand)]
        command: WalCommand,
    },
    /// Mend wall time that is ahead of the wall clock
    Clock {
        /// What to do.
        #[command(subcommand)]
        command: ClockCommand,
    },
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn command_line_passes_claps_own_checks() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_work_with_and_without_serve() {
        let line = "--addr 127.0.0.1:1 --no-wal --allowed-host a --allowed-host b";
        let bare = parse(&format!("driftqd {line}")).unwrap();
        assert!(bare.command.is_none());
        let Some(Command::Serve(served)) = parse(&format!("driftqd serve {line}")).unwrap().command else {
            panic!("serve was not parsed");
        };
        assert_eq!(format!("{:?}", bare.flags), format!("{served:?}"));
    }

    #[test]
    fn switch_takes_a_value_after_an_equals_sign_only() {
        assert!(parse("driftqd --no-wal=false").is_ok());
        assert!(parse("driftqd --no-wal false").is_err());
    }

    #[test]
    fn every_flag_shows_its_default_and_its_variable() {
        let command = Cli::command();
        let flags = command.get_arguments().filter(|arg| !arg.is_hide_set());
        let flags: Vec<_> = flags.filter(|arg| !["help", "version"].contains(&arg.get_id().as_str())).collect();
        assert_eq!(flags.len(), 19);
        for flag in flags {
            let variable = format!("DRIFTQ_{}", flag.get_long().unwrap().to_uppercase().replace('-', "_"));
            assert_eq!(flag.get_env().and_then(|name| name.to_str()), Some(variable.as_str()));
            assert!(flag.get_help().unwrap().to_string().contains("[default: "), "{variable}");
        }
    }
}
