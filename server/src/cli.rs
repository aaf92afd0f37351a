//! Command line of `driftqd`.

use clap::{Parser, Subcommand};

use crate::config::Flags;
use crate::keys::KeysCommand;
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
                  DRIFTQ_* variables, then from flags; each overrides the ones before. An empty variable counts as not set. \
                  A flag may be written with one dash.",
    after_help = "\
Examples:
  driftqd
  driftqd --addr localhost:8080 --data-dir driftq-data
  driftqd -addr 127.0.0.1:8080 -wal driftq-data -max-inflight 100
  driftqd --memory --chaos seed=42,duplicate=0.2,drop-reply=0.1,restart=0.01
  driftqd config --profile spec
  driftqd wal verify driftq-data
  driftqd keys create --admin --data-dir driftq-data",
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
    /// Create, list and revoke keys of a stopped broker
    Keys {
        /// What to do.
        #[command(subcommand)]
        command: KeysCommand,
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
    use crate::config::with_double_dashes;

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
    fn upstream_flags_are_understood() {
        let line = "-addr 127.0.0.1:1 -wal d -reset-wal -max-inflight=3 --no-wal=false";
        let arguments = line.split_whitespace().map(Into::into);
        let arguments = with_double_dashes(&Cli::command(), std::iter::once("driftqd".into()).chain(arguments));
        let upstream = Cli::try_parse_from(arguments).unwrap();
        let own = "--addr 127.0.0.1:1 --data-dir d --reset-wal --max-in-flight 3 --no-wal=false";
        assert_eq!(format!("{:?}", upstream.flags), format!("{:?}", parse(&format!("driftqd {own}")).unwrap().flags));
    }

    #[test]
    fn only_known_flags_get_a_second_dash() {
        let arguments = ["driftqd", "-h", "-x", "-at", "-5m", "--addr", "-", "-addrs", "--", "-addr"];
        let rewritten = with_double_dashes(&Cli::command(), arguments.iter().map(Into::into));
        assert_eq!(rewritten, ["driftqd", "-h", "-x", "--at", "-5m", "--addr", "-", "-addrs", "--", "-addr"]);
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
        assert_eq!(flags.len(), 37);
        // A variable would empty the log at every restart.
        for flag in flags.into_iter().filter(|flag| flag.get_id() != "reset_wal") {
            let variable = format!("DRIFTQ_{}", flag.get_long().unwrap().to_uppercase().replace('-', "_"));
            assert_eq!(flag.get_env().and_then(|name| name.to_str()), Some(variable.as_str()));
            assert!(flag.get_help().unwrap().to_string().contains("[default: "), "{variable}");
        }
    }
}
