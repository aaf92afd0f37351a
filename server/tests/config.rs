//! Settings: their sources, which source wins, and what is refused with which message.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clap::Parser;
use driftq_core::types::{Limits, Millis, PartitionId, TopicName};
use driftq_server::cli::{self, Cli};
use driftq_server::config::{
    ConfigError, LogFormat, LogSettings, Profile, Rule, Settings, Webhook, WebhookUrl, init_logging,
};

/// What `driftqd config` prints with these flags, these variables and a configuration file of this text, or its error
/// message.
pub fn load(flags: &str, env: &[(&str, &str)], file: Option<&str>) -> Result<Settings, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("driftqd.toml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_driftqd"));
    command.arg("config").args(flags.split_whitespace()).env_clear().envs(env.iter().copied());
    if let Some(text) = file {
        std::fs::write(&path, text).unwrap();
        command.arg("--config").arg(&path);
    }
    let output = command.output().unwrap();
    if output.status.success() {
        return Ok(Settings::from_toml(&path, &String::from_utf8(output.stdout).unwrap()).unwrap());
    }
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    Err(message.strip_prefix("driftqd: ").unwrap_or(&message).trim_end().to_owned())
}

pub fn file(text: &str) -> Result<Settings, ConfigError> {
    Settings::from_toml(Path::new("driftqd.toml"), text)
}

/// The message with which a configuration file of this text is refused.
pub fn refused_file(text: &str) -> String {
    file(text).expect_err("it was accepted").to_string()
}

fn webhook(url: &str) -> Webhook {
    Webhook::new(WebhookUrl::parse(url).unwrap())
}

#[test]
fn no_settings_means_production_defaults() {
    let settings = load("", &[], None).unwrap();
    assert_eq!(settings, Settings::default());
    assert_eq!(settings.addr, "127.0.0.1:8080".parse().unwrap());
    assert_eq!(settings.data_dir, Path::new("./driftq-data"));
    assert!(settings.wal && !settings.http.insecure && settings.http.allowed_hosts.is_empty());
    assert_eq!(settings.limits, Limits::production());
    assert_eq!((settings.prefetch, settings.http.connections_max), (100, 20_000));
    assert_eq!((settings.http.body_bytes_max, settings.http.head_bytes_max), (16 << 20, 64 << 10));
    assert_eq!(settings.http.stream_keep_alive, Duration::from_secs(15));
    assert_eq!((settings.log.format, settings.log.level.as_str()), (LogFormat::Text, "info"));
    assert_eq!(settings.pipeline().segment_bytes, 64 << 20);
}

#[test]
fn broker_without_wal_has_small_segments_that_snapshots_free() {
    let without = Settings { wal: false, ..Settings::default() }.pipeline();
    assert_eq!((without.snapshot_every_bytes, without.memory_bytes), (32 << 20, 16 << 20));
    assert_eq!(without.segment_bytes, without.segment_bytes_min);
    assert!(without.segment_bytes < 17 << 20);
    let with = Settings::default().pipeline();
    assert_eq!((with.snapshot_every_bytes, with.memory_bytes), (64 << 20, 256 << 20));
    assert!(with.state_bytes_max > 1 << 20, "half of what the process may use");
}

#[test]
fn spec_profile_has_the_limits_of_the_specification() {
    let settings = load("--profile spec", &[], None).unwrap();
    assert_eq!(settings.limits, Limits::spec());
    let Limits { in_flight_max, partition_messages_max, partition_bytes_max, lease_default, dedupe_ttl, .. } =
        settings.limits;
    assert_eq!((in_flight_max, partition_messages_max, partition_bytes_max), (2, 2, 20));
    assert_eq!((lease_default, dedupe_ttl), (Millis(2_000), Millis(600_000)));
}

#[test]
fn leases_and_delays_are_bounded() {
    let of = |text: &str| {
        let Limits { lease_default, lease_min, lease_max, delay_max, .. } = load("", &[], Some(text)).unwrap().limits;
        [lease_default.0, lease_min.0, lease_max.0, delay_max.0]
    };
    assert_eq!(of(""), [30_000, 100, 12 * 3_600_000, 30 * 86_400_000]);
    assert_eq!(of("profile = \"spec\""), [2_000, 1, 12 * 3_600_000, 30 * 86_400_000]);
    let text = "[limits]\nlease_default_ms = 7\nlease_min_ms = 5\nlease_max_ms = 9\ndelay_max_ms = 0";
    assert_eq!(of(text), [7, 5, 9, 0]);
    let message = refused_file("[limits]\nlease_min_ms = 10\nlease_max_ms = 9");
    assert!(message.contains("limits.lease_min_ms (10) must not exceed limits.lease_max_ms (9)"), "{message}");
    let message = refused_file("[limits]\nlease_min_ms = 0");
    assert!(message.contains("lease_min_ms"), "{message}");
}

#[test]
fn flags_override_variables_override_file_overrides_profile() {
    let text = "profile = \"spec\"\n[limits]\nin_flight_max = 3\npartition_messages_max = 3\npartition_bytes_max = 3\n";
    let env = [("DRIFTQ_MAX_IN_FLIGHT", "4"), ("DRIFTQ_MAX_PARTITION_MSGS", "4")];
    let limits = load("--max-in-flight 5", &env, Some(text)).unwrap().limits;
    assert_eq!((limits.in_flight_max, limits.partition_messages_max, limits.partition_bytes_max), (5, 4, 3));
}

#[test]
fn profile_of_any_source_is_overridden_by_limits_of_any_source() {
    let text = "profile = \"production\"\n[limits]\npartition_bytes_max = 99\n";
    for (flags, env) in [("--profile spec", &[][..]), ("", &[("DRIFTQ_PROFILE", "spec")][..])] {
        let settings = load(flags, env, Some(text)).unwrap();
        assert_eq!(settings.profile, Profile::Spec);
        assert_eq!((settings.limits.in_flight_max, settings.limits.partition_bytes_max), (2, 99));
    }
}

#[test]
fn every_variable_is_applied() {
    let env = [
        ("DRIFTQ_ADDR", "[::1]:9"),
        ("DRIFTQ_DATA_DIR", "/d"),
        ("DRIFTQ_NO_WAL", "yes"),
        ("DRIFTQ_PROFILE", "spec"),
        ("DRIFTQ_MAX_IN_FLIGHT", "7"),
        ("DRIFTQ_MAX_PARTITION_MSGS", "8"),
        ("DRIFTQ_MAX_PARTITION_BYTES", "9"),
        ("DRIFTQ_MEMORY_BYTES", "10"),
        ("DRIFTQ_READ_AHEAD_BYTES", "11"),
        ("DRIFTQ_LOG_FORMAT", "json"),
        ("DRIFTQ_LOG_LEVEL", "debug"),
        ("DRIFTQ_INSECURE", "1"),
        ("DRIFTQ_ALLOWED_HOST", "a, B.example"),
        ("DRIFTQ_ADMIN_KEY_FILE", "/k"),
    ];
    let settings = load("", &env, None).unwrap();
    assert_eq!((settings.addr, settings.data_dir.to_str()), ("[::1]:9".parse().unwrap(), Some("/d")));
    assert!(!settings.wal && settings.http.insecure && settings.profile == Profile::Spec);
    let Limits { in_flight_max, partition_messages_max, partition_bytes_max, .. } = settings.limits;
    assert_eq!((in_flight_max, partition_messages_max, partition_bytes_max), (7, 8, 9));
    assert_eq!((settings.log.format, settings.log.level.as_str()), (LogFormat::Json, "debug"));
    assert_eq!(settings.http.allowed_hosts, ["a", "b.example"]);
    assert_eq!(settings.auth.admin_key_file.as_deref(), Some(Path::new("/k")));
    assert_eq!((settings.storage.memory_bytes, settings.storage.read_ahead_bytes), (10, 11));
    let flag = load("--memory-bytes 0 --read-ahead-bytes 1", &env, None).unwrap();
    assert_eq!((flag.storage.memory_bytes, flag.pipeline().memory_bytes), (0, 0));
    assert_eq!((flag.storage.read_ahead_bytes, flag.pipeline().read_ahead_bytes), (1, 1));
}

#[test]
fn interval_of_scrubs_is_set_by_every_source_under_either_name() {
    let interval = |flags: &str, env: &[(&str, &str)], text: Option<&str>| {
        load(flags, env, text).unwrap().pipeline().scrub_interval.map(|interval| interval.0)
    };
    assert_eq!(interval("", &[], None), Some(7 * 24 * 60 * 60 * 1_000));
    for key in ["scrub_interval_ms", "scrub_interval"] {
        let text = format!("[storage]\n{key} = 5\n");
        assert_eq!(interval("", &[], Some(&text)), Some(5));
        let env = [("DRIFTQ_SCRUB_INTERVAL_MS", "6")];
        assert_eq!(interval("", &env, Some(&text)), Some(6));
        assert_eq!(interval("--scrub-interval-ms 0", &env, Some(&text)), Some(0), "never");
    }
    assert_eq!(interval("--no-wal", &[], None), None);
}

#[test]
fn variable_names_the_file_and_empty_variables_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.toml");
    std::fs::write(&path, "prefetch = 7").unwrap();
    let env = [
        ("DRIFTQ_CONFIG", path.to_str().unwrap()),
        ("DRIFTQ_ADDR", ""),
        ("DRIFTQ_MAX_IN_FLIGHT", " "),
        ("DRIFTQ_NO_WAL", ""),
        ("DRIFTQ_ALLOWED_HOST", ""),
    ];
    assert_eq!(load("", &env, None).unwrap(), Settings { prefetch: 7, ..Settings::default() });
}

#[test]
fn switches_can_be_turned_off_and_hosts_replaced() {
    let text = "wal = false\n[http]\ninsecure = true\nallowed_hosts = [\"from.file\"]\n";
    let env = [("DRIFTQ_NO_WAL", "true"), ("DRIFTQ_INSECURE", "false"), ("DRIFTQ_ALLOWED_HOST", "from.env")];
    let settings = load("--no-wal=false --allowed-host from.flag --allowed-host *", &env, Some(text)).unwrap();
    assert!(settings.wal && !settings.http.insecure);
    assert_eq!(settings.http.allowed_hosts, ["from.flag", "*"]);
    assert_eq!(load("", &env[2..], Some(text)).unwrap().http.allowed_hosts, ["from.env"]);
}

#[test]
fn subcommands_are_parsed_with_variables_set() {
    let parse = |line: &str| Cli::try_parse_from(line.split_whitespace());
    assert!(matches!(parse("driftqd config --no-wal").unwrap().command, Some(cli::Command::Config(_))));
    assert!(matches!(parse("driftqd wal verify /d").unwrap().command, Some(cli::Command::Wal { .. })));
    assert!(parse("driftqd --nonsense").is_err());
    assert!(parse("driftqd wal").is_err());
    let mut verify = Command::new(env!("CARGO_BIN_EXE_driftqd"));
    let output = verify.args(["wal", "verify", "/nowhere"]).env("DRIFTQ_MAX_IN_FLIGHT", "many").output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("/nowhere") && !message.contains("DRIFTQ_MAX_IN_FLIGHT"), "{message}");
}

#[test]
fn limits_of_the_idempotency_store_are_set_by_variables_and_flags() {
    let names = [
        "DRIFTQ_MAX_RESULT_BYTES",
        "DRIFTQ_EFFECT_TTL_MS",
        "DRIFTQ_JOB_TTL_MS",
        "DRIFTQ_MAX_EFFECTS",
        "DRIFTQ_COMPLETION_TTL_MS",
        "DRIFTQ_MAX_COMPLETIONS",
        "DRIFTQ_MAX_OUTPUTS",
    ];
    let env: Vec<_> = names.into_iter().zip(["1", "2", "3", "5", "6", "7", "8"]).collect();
    let limits = load("--job-ttl-ms 33", &env, Some("[limits]\neffects_max = 9\n")).unwrap().limits;
    assert_eq!((limits.result_bytes_max, limits.effect_ttl, limits.job_ttl), (1, Millis(2), Millis(33)));
    assert_eq!((limits.effects_max, limits.completion_ttl), (5, Millis(6)));
    assert_eq!((limits.completions_max, limits.outputs_max), (7, 8));
    for name in names {
        let message = load("", &[(name, "0")], None).unwrap_err();
        let expected = format!("{name}: invalid value: integer `0`, expected a whole number from 1");
        assert!(message.starts_with(&expected), "{message}");
    }
}

#[test]
fn sync_delay_is_set_by_a_flag_only() {
    let flags = Cli::try_parse_from(["driftqd", "--sync-delay-ms", "5"]).unwrap().flags;
    assert_eq!(Settings::load(&flags).unwrap().sync_delay, Duration::from_millis(5));
    assert!(load("--sync-delay-ms 60001", &[], None).unwrap_err().contains("a whole number from 0 to 60000"));
    assert!(file("sync_delay_ms = 5").is_err());
}

/// Settings that all differ from the defaults.
fn unusual() -> Settings {
    let mut settings = Settings::of_profile(Profile::Spec);
    settings.addr = "0.0.0.0:1".parse().unwrap();
    settings.data_dir = "/a \"b\"\\\n\té".into();
    settings.wal = false;
    settings.prefetch = 3;
    settings.limits.lease_default = Millis(1_234);
    settings.limits.message_bytes_max = 1 << 20;
    settings.limits.result_bytes_max = 1 << 10;
    settings.limits.effect_ttl = Millis(1);
    settings.limits.job_ttl = Millis(2);
    settings.limits.effects_max = 4;
    settings.limits.completion_ttl = Millis(5);
    settings.limits.completions_max = 6;
    settings.limits.outputs_max = 7;
    settings.storage.segment_bytes = 3 << 20;
    settings.storage.reserve_bytes = 1 << 20;
    settings.storage.snapshot_every_bytes = 9 << 20;
    settings.storage.memory_bytes = 0;
    settings.storage.spare_segments = 1;
    settings.storage.scrub_interval = Duration::from_millis(1);
    settings.storage.state_bytes_max = 5 << 20;
    settings.http.body_timeout = Duration::from_millis(1_500);
    settings.http.body_rate_min = 0;
    settings.http.insecure = true;
    settings.http.allowed_hosts = vec!["*".into(), "[::1]".into()];
    settings.auth.admin_key_file = Some("/a/key".into());
    settings.auth.failures_max = 8;
    settings.log = LogSettings { format: LogFormat::Json, level: "warn,driftq_server=trace".into() };
    settings.otlp = toml::from_str(
        "endpoint = \"http://collector:4318/a\"\nservice_name = \"orders\"\nsample_ratio = 0.1\ninterval_ms = 100\n\
         headers = { authorization = \"Bearer a=b,c\", x-scope = \"\\\"\" }\n",
    )
    .unwrap();
    settings.router.webhook = Some(Webhook {
        timeout: Duration::from_millis(50),
        cooldown: Duration::from_millis(70),
        ..webhook("http://brain:9/r?a=%20")
    });
    settings.router.rules = vec![
        Rule {
            topic: Some(TopicName::new("t").unwrap()),
            key_prefix: Some("k\"".into()),
            labels: [("a.b c".into(), "\u{1}".into())].into(),
            tenant: Some("default".into()),
            label: "l".into(),
            target_topic: Some(TopicName::new("u").unwrap()),
            partition_override: Some(PartitionId(0)),
            meta: [("".into(), "".into()), ("m".into(), "\\n".into())].into(),
        },
        Rule { label: "rest".into(), ..Rule::default() },
    ];
    settings
}

#[test]
fn printed_settings_can_be_read_back() {
    for settings in [Settings::default(), Settings::of_profile(Profile::Spec), unusual()] {
        let text = settings.to_toml();
        let back = file(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(back, settings, "{text}");
    }
}

/// Every key below `prefix`; `router.rule.labels`, `router.rule.meta` and `otlp.headers` hold keys of the user.
fn keys(prefix: &str, value: &toml::Value, found: &mut Vec<String>) {
    match value {
        toml::Value::Table(table)
            if !["router.rule.labels.", "router.rule.meta.", "otlp.headers."].contains(&prefix) =>
        {
            table.iter().for_each(|(key, value)| keys(&format!("{prefix}{key}."), value, found));
        }
        toml::Value::Array(list) if prefix == "router.rule." => list.iter().for_each(|rule| keys(prefix, rule, found)),
        _ => found.push(prefix.trim_end_matches('.').to_owned()),
    }
}

#[test]
fn every_printed_key_is_documented() {
    let manual = include_str!("../../docs/configuration.md");
    let mut found = Vec::new();
    keys("", &toml::from_str(&unusual().to_toml()).unwrap(), &mut found);
    assert!(found.len() > 50, "{found:?}");
    for key in found {
        assert!(manual.contains(&format!("`{key}`")), "{key} is not in docs/configuration.md");
    }
}

#[test]
fn sample_file_is_valid_and_shows_the_defaults() {
    let sample = include_str!("../../docs/deploy/driftqd.toml");
    let settings = file(sample).unwrap();
    let expected = Settings { data_dir: "/var/lib/driftqd".into(), ..Settings::default() };
    assert_eq!(settings, expected);
    let uncommented: Vec<&str> = sample.lines().map(|line| line.strip_prefix("#: ").unwrap_or(line)).collect();
    let settings = file(&uncommented.join("\n")).unwrap();
    assert!(settings.router.webhook.is_some() && settings.router.rules.len() >= 2);
}

#[test]
fn unknown_key_is_refused_with_file_line_and_known_keys() {
    for (text, line, key) in [
        ("adr = 1", 1, "adr"),
        ("[limit]\nin_flight_max = 1", 1, "limit"),
        ("[limits]\nin_flight = 1", 2, "in_flight"),
        ("[limits]\nlease_default = 1", 2, "lease_default"),
        ("[http.tls]\ncert = \"x\"", 1, "tls"),
        ("[router]\nurl = \"x\"", 2, "url"),
        ("[router.webhook]\nurl = \"http://a\"\ntimeout = 1", 3, "timeout"),
        ("[[router.rule]]\nlabel = \"a\"\n[[router.rule]]\nlable = \"b\"", 4, "lable"),
    ] {
        let message = refused_file(text);
        assert!(message.starts_with(&format!("driftqd.toml: TOML parse error at line {line}, column ")), "{message}");
        assert!(message.contains(&format!("unknown field `{key}`, expected ")), "{message}");
    }
    let message = refused_file("[storage]\nx = 1");
    for known in ["segment_bytes", "memory_bytes", "read_ahead_bytes", "spare_segments", "scrub_interval_ms"] {
        assert!(message.contains(&format!("`{known}`")), "{known}: {message}");
    }
}

#[test]
fn invalid_value_is_refused_with_file_line_and_what_is_expected() {
    for (text, expected) in [
        ("addr = \"localhost\"", "string \"localhost\", expected an address and port such as 127.0.0.1:8080"),
        ("addr = 8080", "integer `8080`, expected a string"),
        ("wal = \"no\"", "string \"no\", expected a boolean"),
        ("data_dir = \"\"", "string \"\", expected the path of a folder"),
        ("profile = \"fast\"", "unknown variant `fast`, expected `production` or `spec`"),
        ("prefetch = 0", "integer `0`, expected a whole number from 1 to 4294967295"),
        ("prefetch = 1.5", "floating point `1.5`, expected a whole number from 1 to 4294967295"),
        ("limits = 1", "integer `1`, expected a section"),
        ("limits.in_flight_max = -1", "integer `-1`, expected a whole number from 1 to 4294967295"),
        ("limits.partitions_max = 65537", "integer `65537`, expected a whole number from 1 to 65536"),
        ("limits.result_bytes_max = 4194305", "expected a whole number from 1 to 4194304"),
        ("limits.effects_max = 0", "integer `0`, expected a whole number from 1 up"),
        ("limits.outputs_max = 100001", "expected a whole number from 1 to 100000"),
        ("limits.message_bytes_max = 25165825", "expected a whole number from 1 to 25165824"),
        ("storage.segment_bytes = 0", "integer `0`, expected a whole number from 65536 to 4294967296"),
        ("log.format = \"xml\"", "unknown variant `xml`, expected `text` or `json`"),
        ("log.level = \"inof\"", "string \"inof\", expected off, error"),
        ("http.allowed_hosts = [\"a\", \"b:80\"]", "string \"b:80\", expected a host name"),
        ("http.allowed_hosts = \"a\"", "string \"a\", expected a sequence"),
        ("router.webhook.url = \"https://a\"", "string \"https://a\", expected a URL of the form http://"),
        ("router.webhook.timeout_ms = 5", "missing field `url`"),
        ("[[router.rule]]\npartition_override = -1", "integer `-1`, expected a whole number from 0"),
        ("[[router.rule]]\ntopic = \"..\"", "invalid topic name \"..\": topic must not be"),
        ("[[router.rule]]\nkey_prefix = \"\"", "string \"\", expected a text that is not blank"),
        ("[[router.rule]]\nmeta = { a = 1 }", "integer `1`, expected a string"),
    ] {
        let message = refused_file(text);
        let line = text.lines().count();
        assert!(message.starts_with(&format!("driftqd.toml: TOML parse error at line {line}, column ")), "{message}");
        assert!(message.contains(text.lines().last().unwrap()) && message.contains(expected), "{message}");
    }
}

#[test]
fn invalid_flag_or_variable_is_refused_by_its_name() {
    let message = load("--max-in-flight many", &[], None).unwrap_err();
    let expected = "--max-in-flight: invalid type: string \"many\", expected a whole number from 1 to 4294967295";
    assert_eq!(message, expected);
    let message = load("", &[("DRIFTQ_MAX_PARTITION_MSGS", "0")], None).unwrap_err();
    let expected = "DRIFTQ_MAX_PARTITION_MSGS: invalid value: integer `0`, expected a whole number from 1 up";
    assert_eq!(message, expected);
    let message = load("", &[("DRIFTQ_NO_WAL", "maybe")], None).unwrap_err();
    assert_eq!(message, "DRIFTQ_NO_WAL: invalid type: string \"maybe\", expected a boolean");
    let message = load("", &[("DRIFTQ_DATA_DIR", "/d\u{FFFD}")], None).unwrap_err();
    assert!(
        message.starts_with("DRIFTQ_DATA_DIR: ") && message.ends_with("the path of a folder, in UTF-8"),
        "{message}"
    );
    let message = load("--allowed-host http://a", &[], None).unwrap_err();
    assert!(
        message.starts_with("--allowed-host: invalid value: string \"http://a\", expected a host name"),
        "{message}"
    );
    for flags in [
        "--max-in-flight +5",
        "--max-in-flight 1e3",
        "--log-format XML",
        "--log-level loud",
        "--profile x",
        "--addr :port",
    ] {
        let message = load(flags, &[], None).unwrap_err();
        assert!(message.starts_with(flags.split(' ').next().unwrap()), "{message}");
    }
}

#[test]
fn malformed_toml_is_refused_with_its_line() {
    for (text, line) in [("wal = true\n\naddr = = 1\n", 3), ("wal = true\nwal = true\n", 2)] {
        let message = refused_file(text);
        assert!(message.starts_with(&format!("driftqd.toml: TOML parse error at line {line}, ")), "{message}");
    }
    let message = load("--config /nowhere/c.toml", &[], None).unwrap_err();
    assert!(message.starts_with("cannot read the configuration file /nowhere/c.toml: "), "{message}");
}

#[test]
fn non_loopback_address_needs_insecure() {
    for addr in ["0.0.0.0:80", "[::]:80", "10.1.2.3:80"] {
        for flags in ["", "--behind-tls-proxy"] {
            let message = load(&format!("--addr {addr} {flags}"), &[], None).unwrap_err();
            assert!(message.starts_with(&format!("will not listen on {addr}: other machines")), "{message}");
            for choice in ["127.0.0.1", "--insecure", "--tls-cert", "--behind-tls-proxy"] {
                assert!(message.contains(choice), "{choice}: {message}");
            }
        }
        load(&format!("--addr {addr} --insecure"), &[], None).unwrap();
    }
    for addr in ["127.0.0.1:0", "127.8.8.8:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
        load(&format!("--addr {addr}"), &[], None).unwrap();
    }
}

#[test]
fn address_of_the_network_is_allowed_where_a_log_or_a_file_may_have_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let load = |flags: &str| load(&format!("--addr 0.0.0.0:80 {flags}"), &[], None).map(drop);
    let with_data = format!("--data-dir {data}");
    assert!(load(&format!("{with_data} --behind-tls-proxy")).unwrap_err().contains("driftqd keys create --admin"));
    std::fs::write(folder.path().join("a-log"), "").unwrap();
    assert_eq!(load(&format!("{with_data} --behind-tls-proxy")), Ok(()));
    assert!(load(&with_data).unwrap_err().contains("in plain text"));
    for no_log in ["--no-wal", "--reset-wal"] {
        assert!(load(&format!("{with_data} --behind-tls-proxy {no_log}")).unwrap_err().contains("without a key"));
    }
    assert_eq!(load("--no-wal --behind-tls-proxy --admin-key-file /k"), Ok(()));
    assert!(load("--no-wal --admin-key-file /k").unwrap_err().contains("in plain text"));
}

#[test]
fn contradictory_settings_are_refused() {
    for (text, part) in [
        ("[storage]\nsegment_bytes = 65536\nreserve_bytes = 65536", "must be less than storage.segment_bytes"),
        ("[storage]\nsegment_bytes = 16777216", "must hold the largest record"),
        (
            "[storage]\nsegment_bytes = 262144\nreserve_bytes = 65536\n[limits]\nmessage_bytes_max = \
                1024\nkey_bytes_max = 10\n\
             metadata_bytes_max = 10\nresult_bytes_max = 131072",
            "or limits.result_bytes_max (131072)",
        ),
        (
            "[limits]\nkey_bytes_max = 2048\nmetadata_bytes_max = 10\nmessage_bytes_max = 1024",
            "limits.key_bytes_max (2048) must not exceed",
        ),
        ("[[router.rule]]\ntopic = \"a\"", "routing rule 1: it decides nothing"),
    ] {
        let message = refused_file(text);
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn rule_that_can_never_match_is_refused() {
    let wide = "[[router.rule]]\ntopic = \"a\"\nkey_prefix = \"u\"\nlabels = { x = \"1\" }\nlabel = \"first\"\n";
    for narrow in [
        "topic = \"a\"\nkey_prefix = \"u\"\nlabels = { x = \"1\" }",
        "topic = \"a\"\nkey_prefix = \"user\"\nlabels = { x = \"1\", y = \"2\" }\ntenant = \"t\"",
    ] {
        let message = refused_file(&format!("{wide}[[router.rule]]\n{narrow}\nlabel = \"second\"\n"));
        assert_eq!(message, "routing rule 2: it can never match, rule 1 matches every message it does");
    }
    for other in [
        "topic = \"b\"",
        "topic = \"a\"\nkey_prefix = \"v\"",
        "topic = \"a\"\nkey_prefix = \"u\"\nlabels = { x = \"2\" }",
        "",
    ] {
        file(&format!("{wide}[[router.rule]]\n{other}\nlabel = \"second\"\n")).unwrap();
    }
    let long = format!("[[router.rule]]\nlabel = \"{}\"", "l".repeat(256));
    assert!(refused_file(&long).starts_with("routing rule 1: a label has at most 255 bytes"));
}

#[test]
fn settings_set_by_code_are_checked_against_the_same_ranges() {
    unusual().check().unwrap();
    let message = Settings { prefetch: 0, ..Settings::default() }.check().unwrap_err().to_string();
    assert!(message.contains("prefetch") && message.contains("a whole number from 1 to 4294967295"), "{message}");
    let mut settings = Settings::default();
    settings.limits.effects_max = u64::MAX;
    assert!(settings.check().is_err());
}

#[test]
fn logging_starts_once_and_refuses_an_invalid_filter() {
    let wrong = LogSettings { level: "loud".into(), ..LogSettings::default() };
    let message = init_logging(&wrong).unwrap_err().to_string();
    assert!(message.starts_with("cannot initialize logging: \"loud\" is not off, error"), "{message}");
    let json = LogSettings { format: LogFormat::Json, ..LogSettings::default() };
    init_logging(&json).unwrap();
    assert!(init_logging(&json).is_err());
}

#[test]
fn tls_settings_come_from_every_source_and_need_each_other() {
    let text = "[tls]\ncert = \"c\"\nkey = \"k\"\nclient_ca = \"a\"\nhandshake_timeout_ms = 100\nhandshakes_max = 1\n";
    let settings = file(text).unwrap();
    let tls = settings.tls.clone();
    let paths = [&tls.cert, &tls.key, &tls.client_ca].map(|path| path.as_deref().and_then(Path::to_str));
    assert_eq!(paths, [Some("c"), Some("k"), Some("a")]);
    assert_eq!((tls.handshake_timeout, tls.handshakes_max), (Duration::from_millis(100), 1));
    assert_eq!(file(&settings.to_toml()).unwrap(), settings);
    assert!(file("").unwrap().tls.cert.is_none());

    let refused = |flags: &str, env: &[(&str, &str)]| load(flags, env, None).unwrap_err();
    assert!(refused("--tls-cert c", &[]).contains("tls.cert needs tls.key (--tls-key)"));
    assert!(refused("", &[("DRIFTQ_TLS_KEY", "k")]).contains("tls.key needs tls.cert (--tls-cert)"));
    assert!(refused("--tls-client-ca a", &[]).contains("tls.client_ca needs tls.cert and tls.key"));
    let pair = [("DRIFTQ_TLS_CERT", "c"), ("DRIFTQ_TLS_KEY", "k")];
    assert!(refused("--memory --chaos seed=1", &pair).contains("--chaos contradicts tls.cert"));
    assert!(refused("", &pair).starts_with("tls.cert: cannot read c: "), "the files are read");
    assert!(refused_file("[tls]\nhandshake_timeout_ms = 99").contains("a whole number from 100 to"));
    assert!(refused_file("[tls]\nhandshakes_max = 0").contains("a whole number from 1 to"));
    assert!(refused_file("[tls]\ncert = \" \"").contains("the path of a file"));
}

#[test]
fn host_name_of_the_address_is_resolved() {
    let settings = load("--addr localhost:4711", &[], None).unwrap();
    assert!(settings.addr.ip().is_loopback() && settings.addr.port() == 4711, "{}", settings.addr);
    let file = load("", &[], Some("addr = \"localhost:4712\"\n")).unwrap();
    assert!(file.addr.ip().is_loopback() && file.addr.port() == 4712, "{}", file.addr);
    assert_eq!(load("--addr :80 --insecure", &[], None).unwrap().addr.to_string(), "0.0.0.0:80");
    assert!(load("--addr :80", &[], None).unwrap_err().contains("--insecure"));
    for bad in ["localhost", "localhost:", "localhost:x", "localhost:+1", "localhost:65536", "user@localhost:1"] {
        let message = load(&format!("--addr {bad}"), &[], None).unwrap_err();
        assert!(message.starts_with("--addr: ") && message.contains("such as 127.0.0.1:8080"), "{bad}: {message}");
    }
}

#[test]
fn reset_contradicts_a_log_in_memory() {
    let reset_wal = |flag: &str| {
        let flags = Cli::try_parse_from(["driftqd", flag]).unwrap().flags;
        Settings::load(&flags).unwrap().reset_wal
    };
    assert!(reset_wal("--reset-wal") && reset_wal("--reset-wal=true") && !reset_wal("--reset-wal=false"));
    assert!(load("--reset-wal=maybe", &[], None).unwrap_err().starts_with("--reset-wal: "));
    assert!(load("--reset-wal --no-wal", &[], None).unwrap_err().contains("--no-wal"));
}

#[test]
fn public_settings_have_every_key_and_no_query_of_the_webhook() {
    let text = "[router.webhook]\nurl = \"http://brain:9/route?key=secret\"\n[log]\nlevel = \"debug\"\n";
    let settings = load("", &[], Some(text)).unwrap();
    let public: serde_json::Value = serde_json::from_str(&settings.to_public_json()).unwrap();
    assert_eq!(public["router"]["webhook"]["url"], "http://brain:9/route?…");
    assert!(!settings.to_public_json().contains("secret"));
    assert_eq!((&public["log"]["level"], &public["limits"]["in_flight_max"]), (&"debug".into(), &1_000.into()));
    let file: toml::Table = toml::from_str(&settings.to_toml()).unwrap();
    let names = |names: Vec<&String>| names.into_iter().cloned().collect::<std::collections::BTreeSet<_>>();
    assert_eq!(names(public.as_object().unwrap().keys().collect()), names(file.keys().collect()));
}
