//! The command line of `driftqd`.
//!
//! Values are taken as text here and read in `overrides`, where a flag and its variable go through the same
//! door and are refused in the same words.

use clap::{Args, Parser, Subcommand};

use crate::wal::WalCommand;

/// The whole command line.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "driftqd",
    version,
    about = "The DriftQ message broker",
    long_about = "The DriftQ message broker.\n\nSettings are taken from the profile's defaults, then from the configuration file, then from \
                  DRIFTQ_* variables, then from flags; each wins over the ones before. An empty variable counts as not set.",
    args_conflicts_with_subcommands = true
)]
pub struct Cli {
    /// What to do; to serve where nothing is said.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The flags of `serve`, which may stand without the word.
    #[command(flatten)]
    pub flags: Flags,
}

/// What `driftqd` can do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run the broker (the default)
    Serve(Flags),
    /// Print the effective settings as a configuration file and exit
    Config(Flags),
    /// Look at a log, or save what can be saved of a damaged one
    Wal {
        /// What to do with it.
        #[command(subcommand)]
        command: WalCommand,
    },
}

/// The flags of `serve` and `config`, as they were given.
#[derive(Clone, Debug, Default, Args)]
pub struct Flags {
    /// Address and port to listen on [default: 127.0.0.1:8080] [env: DRIFTQ_ADDR]
    #[arg(long, value_name = "IP:PORT")]
    pub addr: Option<String>,
    /// Folder of the log, made if it is not there [default: ./driftq-data] [env: DRIFTQ_DATA_DIR]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,
    /// Keep everything in memory only; all is lost when the process ends [default: false] [env: DRIFTQ_NO_WAL]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub no_wal: Option<String>,
    /// Table of default limits: production, or spec for the specification's own tiny ones [default: production] [env: DRIFTQ_PROFILE]
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Configuration file, TOML; `driftqd config` prints one [default: none] [env: DRIFTQ_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<String>,
    /// Leases that may run at once per topic, group and partition [default: 1000] [env: DRIFTQ_MAX_IN_FLIGHT]
    #[arg(long, value_name = "N")]
    pub max_in_flight: Option<String>,
    /// Unfinished messages a partition holds before producers get 429 [default: 1000000] [env: DRIFTQ_MAX_PARTITION_MSGS]
    #[arg(long, value_name = "N")]
    pub max_partition_msgs: Option<String>,
    /// Key and value bytes of those messages [default: 1073741824] [env: DRIFTQ_MAX_PARTITION_BYTES]
    #[arg(long, value_name = "N")]
    pub max_partition_bytes: Option<String>,
    /// How to log to standard error: text or json [default: text] [env: DRIFTQ_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// What to log: off, error, warn, info, debug, trace, or a filter such as info,driftq_server=debug [default: info] [env:
    /// DRIFTQ_LOG_LEVEL]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Allow an address that other machines can reach; there are no keys and no TLS in this version [default: false] [env:
    /// DRIFTQ_INSECURE]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub insecure: Option<String>,
    /// Host header to accept beside loopback names and the listen address; may be repeated, * accepts any [default: none] [env:
    /// DRIFTQ_ALLOWED_HOST, comma separated]
    #[arg(long, value_name = "NAME")]
    pub allowed_host: Vec<String>,
    /// Hold up every sync this long, for measurements only
    #[arg(long, value_name = "MS", hide = true)]
    pub sync_delay_ms: Option<String>,
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
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_stand_with_and_without_the_word() {
        let bare = parse("driftqd --addr 127.0.0.1:1 --no-wal --allowed-host a --allowed-host b").unwrap();
        assert!(bare.command.is_none());
        let Some(Command::Serve(served)) =
            parse("driftqd serve --addr 127.0.0.1:1 --no-wal --allowed-host a --allowed-host b").unwrap().command
        else {
            panic!("serve was not understood");
        };
        for flags in [&bare.flags, &served] {
            assert_eq!(flags.addr.as_deref(), Some("127.0.0.1:1"));
            assert_eq!(flags.no_wal.as_deref(), Some("true"));
            assert_eq!(flags.allowed_host, ["a", "b"]);
        }
    }

    #[test]
    fn a_switch_can_be_turned_off_again() {
        assert_eq!(parse("driftqd --no-wal=false").unwrap().flags.no_wal.as_deref(), Some("false"));
        assert!(parse("driftqd --no-wal false").is_err(), "a word after a switch is not its value");
    }

    #[test]
    fn every_flag_says_its_default_and_its_variable() {
        let command = Cli::command();
        let flags = command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "command");
        let flags: Vec<_> = flags.filter(|arg| !["help", "version"].contains(&arg.get_id().as_str())).collect();
        assert_eq!(flags.len(), 12);
        for flag in flags {
            let help = flag.get_help().unwrap().to_string();
            let name = flag.get_long().unwrap().to_uppercase().replace('-', "_");
            assert!(help.contains(&format!("[env: DRIFTQ_{name}")), "{name}: {help}");
            assert!(help.contains("[default: "), "{name}: {help}");
        }
    }
}
