//! The settings: where they come from, which source wins, and what is refused in which words.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use clap::Parser;
use driftq_core::types::{Limits, Millis, PartitionId, TopicName};
use driftq_server::config::{
    Cli, Command, ConfigError, Flags, LogFormat, LogSettings, Profile, Rule, Settings, Webhook, WebhookUrl,
};

type Outcome = Result<Settings, ConfigError>;

/// Loads with these flags, these variables and a file of this text.
fn load(flags: &str, env: &[(&str, &str)], file: Option<&str>) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("driftqd.toml");
    let mut flags = Cli::try_parse_from(std::iter::once("driftqd").chain(flags.split_whitespace())).unwrap().flags;
    if let Some(text) = file {
        std::fs::write(&path, text).unwrap();
        flags.config = Some(path.to_str().unwrap().to_owned());
    }
    let env = |name: &str| env.iter().find(|(its, _)| *its == name).map(|(_, value)| (*value).to_owned());
    Settings::load_with(&flags, &env)
}

fn file(text: &str) -> Outcome {
    Settings::from_toml(Path::new("driftqd.toml"), text)
}

/// The words of a refusal.
fn refusal(outcome: Outcome) -> String {
    outcome.expect_err("it was accepted").to_string()
}

#[test]
fn nothing_said_means_the_defaults_of_production() {
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
fn a_broker_without_a_log_takes_no_snapshots() {
    let without = Settings { wal: false, ..Settings::default() };
    assert_eq!(without.pipeline().snapshot_every_bytes, u64::MAX);
    assert_eq!(Settings::default().pipeline().snapshot_every_bytes, 256 << 20);
}

#[test]
fn the_spec_profile_is_the_specification_s_own_table() {
    let settings = load("--profile spec", &[], None).unwrap();
    assert_eq!(settings.limits, Limits::spec());
    let Limits { in_flight_max, partition_messages_max, partition_bytes_max, lease_default, dedupe_ttl, .. } =
        settings.limits;
    assert_eq!((in_flight_max, partition_messages_max, partition_bytes_max), (2, 2, 20));
    assert_eq!((lease_default, dedupe_ttl), (Millis(2_000), Millis(600_000)));
}

#[test]
fn flags_win_over_variables_over_the_file_over_the_profile() {
    let text = "profile = \"spec\"\n[limits]\nin_flight_max = 3\npartition_messages_max = 3\npartition_bytes_max = 3\n";
    let env = [("DRIFTQ_MAX_IN_FLIGHT", "4"), ("DRIFTQ_MAX_PARTITION_MSGS", "4")];
    let limits = load("--max-in-flight 5", &env, Some(text)).unwrap().limits;
    assert_eq!((limits.in_flight_max, limits.partition_messages_max, limits.partition_bytes_max), (5, 4, 3));
}

#[test]
fn a_profile_from_anywhere_lies_below_every_limit_from_anywhere() {
    let text = "profile = \"production\"\n[limits]\npartition_bytes_max = 99\n";
    for (flags, env) in [("--profile spec", &[][..]), ("", &[("DRIFTQ_PROFILE", "spec")][..])] {
        let settings = load(flags, env, Some(text)).unwrap();
        assert_eq!(settings.profile, Profile::Spec);
        assert_eq!((settings.limits.in_flight_max, settings.limits.partition_bytes_max), (2, 99));
    }
}

#[test]
fn every_variable_is_read() {
    let env = [
        ("DRIFTQ_ADDR", "[::1]:9"),
        ("DRIFTQ_DATA_DIR", "/d"),
        ("DRIFTQ_NO_WAL", "yes"),
        ("DRIFTQ_PROFILE", "spec"),
        ("DRIFTQ_MAX_IN_FLIGHT", "7"),
        ("DRIFTQ_MAX_PARTITION_MSGS", "8"),
        ("DRIFTQ_MAX_PARTITION_BYTES", "9"),
        ("DRIFTQ_LOG_FORMAT", "json"),
        ("DRIFTQ_LOG_LEVEL", "debug"),
        ("DRIFTQ_INSECURE", "1"),
        ("DRIFTQ_ALLOWED_HOST", "a, B.example"),
    ];
    let settings = load("", &env, None).unwrap();
    assert_eq!((settings.addr, settings.data_dir.to_str()), ("[::1]:9".parse().unwrap(), Some("/d")));
    assert!(!settings.wal && settings.http.insecure && settings.profile == Profile::Spec);
    let Limits { in_flight_max, partition_messages_max, partition_bytes_max, .. } = settings.limits;
    assert_eq!((in_flight_max, partition_messages_max, partition_bytes_max), (7, 8, 9));
    assert_eq!((settings.log.format, settings.log.level.as_str()), (LogFormat::Json, "debug"));
    assert_eq!(settings.http.allowed_hosts, ["a", "b.example"]);
}

#[test]
fn the_file_can_be_named_by_a_variable_and_an_empty_variable_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.toml");
    std::fs::write(&path, "prefetch = 7").unwrap();
    let env = |name: &str| match name {
        "DRIFTQ_CONFIG" => Some(path.to_str().unwrap().to_owned()),
        _ => Some(String::new()),
    };
    let settings = Settings::load_with(&Flags::default(), &env).unwrap();
    assert_eq!(settings, Settings { prefetch: 7, ..Settings::default() });
}

#[test]
fn switches_can_be_turned_back_and_hosts_replaced() {
    let text = "wal = false\n[http]\ninsecure = true\nallowed_hosts = [\"from.file\"]\n";
    let env = [("DRIFTQ_NO_WAL", "true"), ("DRIFTQ_INSECURE", "false"), ("DRIFTQ_ALLOWED_HOST", "from.env")];
    let settings = load("--no-wal=false --allowed-host from.flag --allowed-host *", &env, Some(text)).unwrap();
    assert!(settings.wal && !settings.http.insecure);
    assert_eq!(settings.http.allowed_hosts, ["from.flag", "*"]);
    assert_eq!(load("", &env[2..], Some(text)).unwrap().http.allowed_hosts, ["from.env"]);
}

#[test]
fn serve_and_config_take_the_same_flags_and_wal_has_its_own() {
    let parse = |line: &str| Cli::try_parse_from(line.split_whitespace());
    assert!(
        matches!(parse("driftqd config --no-wal").unwrap().command, Some(Command::Config(flags)) if flags.no_wal.is_some())
    );
    assert!(matches!(parse("driftqd wal verify /d").unwrap().command, Some(Command::Wal { .. })));
    assert!(parse("driftqd --nonsense").is_err());
    assert!(parse("driftqd wal").is_err());
}

#[test]
fn what_the_idempotency_store_may_keep_can_be_said_by_variables() {
    let names = [
        "DRIFTQ_MAX_RESULT_BYTES",
        "DRIFTQ_EFFECT_TTL_MS",
        "DRIFTQ_JOB_TTL_MS",
        "DRIFTQ_ACK_TTL_MS",
        "DRIFTQ_MAX_EFFECTS",
        "DRIFTQ_COMPLETION_TTL_MS",
        "DRIFTQ_MAX_COMPLETIONS",
        "DRIFTQ_MAX_OUTPUTS",
    ];
    let env: Vec<_> = names.into_iter().zip(["1", "2", "3", "4", "5", "6", "7", "8"]).collect();
    let limits = load("", &env, Some("[limits]\neffects_max = 9\n")).unwrap().limits;
    assert_eq!((limits.result_bytes_max, limits.effect_ttl, limits.job_ttl), (1, Millis(2), Millis(3)));
    assert_eq!((limits.ack_ttl, limits.effects_max, limits.completion_ttl), (Millis(4), 5, Millis(6)));
    assert_eq!((limits.completions_max, limits.outputs_max), (7, 8));
    for name in names {
        let words = refusal(load("", &[(name, "0")], None));
        assert!(words.starts_with(&format!("{name}: 0 is not a whole number from 1")), "{words}");
    }
}

#[test]
fn the_measuring_delay_is_a_flag_alone() {
    assert_eq!(load("--sync-delay-ms 5", &[], None).unwrap().sync_delay, Duration::from_millis(5));
    assert!(file("sync_delay_ms = 5").is_err());
}

/// Settings in which nothing is as it is by default.
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
    settings.limits.ack_ttl = Millis(3);
    settings.limits.effects_max = 4;
    settings.limits.completion_ttl = Millis(5);
    settings.limits.completions_max = 6;
    settings.limits.outputs_max = 7;
    settings.storage.segment_bytes = 3 << 20;
    settings.storage.reserve_bytes = 1 << 20;
    settings.storage.snapshot_every_bytes = 9 << 20;
    settings.http.body_timeout = Duration::from_millis(1_500);
    settings.http.body_rate_min = 0;
    settings.http.insecure = true;
    settings.http.allowed_hosts = vec!["*".into(), "[::1]".into()];
    settings.log = LogSettings { format: LogFormat::Json, level: "warn,driftq_server=trace".into() };
    let webhook = Webhook::to("http://brain:9/r?a=%20");
    settings.router.webhook =
        Some(Webhook { timeout: Duration::from_millis(50), rest: Duration::from_millis(70), ..webhook });
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
fn what_is_printed_can_be_fed_back() {
    for settings in [Settings::default(), Settings::of_profile(Profile::Spec), unusual()] {
        let text = settings.to_toml();
        let back = file(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(back, settings, "{text}");
    }
}

#[test]
fn every_key_of_the_printed_file_is_in_the_documentation() {
    let manual = include_str!("../../docs/configuration.md");
    let mut section = String::new();
    for line in unusual().to_toml().lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_matches(['[', ']']).to_owned() + ".";
        } else if let Some((key, _)) = line.split_once(" = ") {
            assert!(manual.contains(&format!("`{section}{key}`")), "{section}{key} is not in docs/configuration.md");
        }
    }
}

#[test]
fn the_sample_file_is_sound_and_says_the_defaults() {
    let sample = include_str!("../../docs/deploy/driftqd.toml");
    let settings = file(sample).unwrap();
    let expected = Settings { data_dir: "/var/lib/driftqd".into(), ..Settings::default() };
    assert_eq!(settings, expected);
    // What is commented out must be right as well, once somebody takes the comment away.
    let whole: Vec<&str> = sample.lines().map(|line| line.strip_prefix("#: ").unwrap_or(line)).collect();
    let settings = file(&whole.join("\n")).unwrap();
    assert!(settings.router.webhook.is_some() && settings.router.rules.len() >= 2);
}

#[test]
fn an_unknown_key_is_refused_with_its_name_and_the_file_s() {
    for (text, key) in [
        ("adr = 1", "adr"),
        ("[limit]\nin_flight_max = 1", "limit"),
        ("[limits]\nin_flight = 1", "limits.in_flight"),
        ("[limits]\nlease_default = 1", "limits.lease_default"),
        ("[http.tls]\ncert = \"x\"", "http.tls"),
        ("[router]\nurl = \"x\"", "router.url"),
        ("[router.webhook]\nurl = \"http://a\"\ntimeout = 1", "router.webhook.timeout"),
        ("[[router.rule]]\nlabel = \"a\"\n[[router.rule]]\nlable = \"b\"", "router.rule #2.lable"),
    ] {
        let words = refusal(file(text));
        assert!(words.starts_with(&format!("driftqd.toml: unknown key {key}; known here: ")), "{words}");
    }
    assert!(refusal(file("[storage]\nx = 1")).ends_with("segment_bytes, reserve_bytes, snapshot_every_bytes"));
}

#[test]
fn a_wrong_value_is_refused_with_its_key_and_what_is_allowed() {
    for (text, words) in [
        ("addr = \"localhost\"", "addr: \"localhost\" is not an IP address and port such as 127.0.0.1:8080"),
        ("addr = 8080", "addr: 8080 is not an IP address and port such as 127.0.0.1:8080"),
        ("wal = \"no\"", "wal: \"no\" is not true or false"),
        ("data_dir = \"\"", "data_dir: \"\" is not the name of a folder"),
        ("profile = \"fast\"", "profile: \"fast\" is not production or spec"),
        ("prefetch = 0", "prefetch: 0 is not a whole number from 1 to 4294967295"),
        ("prefetch = 1.5", "prefetch: 1.5 is not a whole number from 1 to 4294967295"),
        ("limits = 1", "limits: 1 is not a section"),
        ("[limits]\nin_flight_max = -1", "limits.in_flight_max: -1 is not a whole number from 1 to 4294967295"),
        ("[limits]\npartitions_max = 65537", "limits.partitions_max: 65537 is not a whole number from 1 to 65536"),
        (
            "[limits]\nresult_bytes_max = 4194305",
            "limits.result_bytes_max: 4194305 is not a whole number from 1 to 4194304",
        ),
        ("[limits]\neffects_max = 0", "limits.effects_max: 0 is not a whole number from 1 up"),
        ("[limits]\noutputs_max = 100001", "limits.outputs_max: 100001 is not a whole number from 1 to 100000"),
        (
            "[limits]\nmessage_bytes_max = 25165825",
            "limits.message_bytes_max: 25165825 is not a whole number from 1 to 25165824",
        ),
        ("[storage]\nsegment_bytes = 0", "storage.segment_bytes: 0 is not a whole number from 65536 to 4294967296"),
        ("[log]\nformat = \"xml\"", "log.format: \"xml\" is not text or json"),
    ] {
        assert_eq!(refusal(file(text)), format!("driftqd.toml: {words}"));
    }
    for (text, start) in [
        ("[log]\nlevel = \"inof\"", "log.level: \"inof\" is not off, error"),
        ("[http]\nallowed_hosts = [\"a\", \"b:80\"]", "http.allowed_hosts: \"b:80\" is not a host name"),
        ("[http]\nallowed_hosts = \"a\"", "http.allowed_hosts: \"a\" is not a list"),
        ("[router.webhook]\nurl = \"https://a\"", "router.webhook.url: \"https://a\" is not a URL of the form http://"),
        ("[router.webhook]\ntimeout_ms = 5", "router.webhook: the section is not complete, it needs a url"),
        (
            "[[router.rule]]\npartition_override = -1",
            "router.rule #1.partition_override: -1 is not a whole number from 0",
        ),
        (
            "[[router.rule]]\ntopic = \"a b\"",
            "router.rule #1.topic: \"a b\" is not the name of a topic: topic may hold only",
        ),
        ("[[router.rule]]\nkey_prefix = \"\"", "router.rule #1.key_prefix: \"\" is not a text"),
        ("[[router.rule]]\nmeta = { a = 1 }", "router.rule #1.meta: { a = 1 } is not a table of texts"),
    ] {
        let words = refusal(file(text));
        assert!(words.starts_with(&format!("driftqd.toml: {start}")), "{words}");
    }
}

#[test]
fn a_wrong_flag_or_variable_is_refused_by_its_own_name() {
    let words = refusal(load("--max-in-flight many", &[], None));
    assert_eq!(words, "--max-in-flight: \"many\" is not a whole number from 1 to 4294967295");
    let words = refusal(load("", &[("DRIFTQ_MAX_PARTITION_MSGS", "0")], None));
    assert_eq!(words, "DRIFTQ_MAX_PARTITION_MSGS: 0 is not a whole number from 1 up");
    let words = refusal(load("", &[("DRIFTQ_NO_WAL", "maybe")], None));
    assert_eq!(words, "DRIFTQ_NO_WAL: \"maybe\" is not true or false");
    let words = refusal(load("", &[("DRIFTQ_DATA_DIR", "/d\u{FFFD}")], None));
    assert!(
        words.starts_with("DRIFTQ_DATA_DIR: ") && words.ends_with("is not the name of a folder, in UTF-8"),
        "{words}"
    );
    let words = refusal(load("--allowed-host http://a", &[], None));
    assert!(words.starts_with("--allowed-host: \"http://a\" is not a host name"), "{words}");
    for flags in [
        "--max-in-flight +5",
        "--max-in-flight 1e3",
        "--log-format XML",
        "--log-level loud",
        "--profile x",
        "--addr :1",
    ] {
        assert!(refusal(load(flags, &[], None)).starts_with(flags.split(' ').next().unwrap()), "{flags}");
    }
}

#[test]
fn what_is_no_toml_is_refused_with_its_line() {
    let words = refusal(file("wal = true\n\naddr = = 1\n"));
    assert!(words.starts_with("driftqd.toml, line 3: ") && !words.contains('\n'), "{words}");
    let words = refusal(file("wal = true\nwal = true\n"));
    assert!(words.starts_with("driftqd.toml, line 2: "), "{words}");
    let words = refusal(load("--config /nowhere/c.toml", &[], None));
    assert!(words.starts_with("the configuration file /nowhere/c.toml cannot be read: "), "{words}");
}

#[test]
fn an_address_that_others_reach_needs_a_word() {
    for addr in ["0.0.0.0:80", "[::]:80", "10.1.2.3:80"] {
        let words = refusal(load(&format!("--addr {addr}"), &[], None));
        assert_eq!(words, format!("keys and TLS are not part of this version; give --insecure to listen on {addr}"));
        load(&format!("--addr {addr} --insecure"), &[], None).unwrap();
    }
    for addr in ["127.0.0.1:0", "127.8.8.8:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
        load(&format!("--addr {addr}"), &[], None).unwrap();
    }
}

#[test]
fn settings_that_exclude_each_other_are_refused() {
    for (text, part) in [
        ("[storage]\nsegment_bytes = 65536\nreserve_bytes = 65536", "must be less than storage.segment_bytes"),
        ("[storage]\nsegment_bytes = 16777216", "must hold the largest record"),
        (
            "[storage]\nsegment_bytes = 262144\nreserve_bytes = 65536\n[limits]\nmessage_bytes_max = 1024\nkey_bytes_max = 10\n\
             metadata_bytes_max = 10\nresult_bytes_max = 131072",
            "or limits.result_bytes_max (131072)",
        ),
        (
            "[limits]\nkey_bytes_max = 2048\nmetadata_bytes_max = 10\nmessage_bytes_max = 1024",
            "limits.key_bytes_max (2048) must not exceed",
        ),
        ("[[router.rule]]\ntopic = \"a\"", "routing rule 1: it decides nothing"),
    ] {
        let words = refusal(file(text));
        assert!(words.contains(part), "{words}");
    }
}

#[test]
fn a_rule_that_can_never_be_reached_is_refused() {
    let wide = "[[router.rule]]\ntopic = \"a\"\nkey_prefix = \"u\"\nlabels = { x = \"1\" }\nlabel = \"first\"\n";
    for narrow in [
        "topic = \"a\"\nkey_prefix = \"u\"\nlabels = { x = \"1\" }",
        "topic = \"a\"\nkey_prefix = \"user\"\nlabels = { x = \"1\", y = \"2\" }\ntenant = \"t\"",
    ] {
        let words = refusal(file(&format!("{wide}[[router.rule]]\n{narrow}\nlabel = \"second\"\n")));
        assert_eq!(words, "routing rule 2: it can never be reached, rule 1 fits wherever it does");
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
    assert!(refusal(file(&long)).starts_with("routing rule 1: a label has at most 255 bytes"));
}

#[test]
fn settings_made_by_code_can_be_checked_too() {
    let mut settings = unusual();
    settings.check().unwrap();
    settings.router.webhook = Some(Webhook::to("ftp://x"));
    assert!(WebhookUrl::parse("ftp://x").is_none() && settings.check().is_err());
    assert!(Settings { prefetch: 0, ..Settings::default() }.check().is_err());
}

#[test]
fn logging_starts_once_and_a_bad_filter_is_refused() {
    let wrong = LogSettings { level: "loud".into(), ..LogSettings::default() };
    let words = driftq_server::config::init_logging(&wrong).unwrap_err().to_string();
    assert!(words.starts_with("logging cannot be set up: \"loud\" is not off, error"), "{words}");
    let json = LogSettings { format: LogFormat::Json, ..LogSettings::default() };
    driftq_server::config::init_logging(&json).unwrap();
    assert!(driftq_server::config::init_logging(&json).is_err());
}
