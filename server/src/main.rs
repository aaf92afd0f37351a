//! `driftqd`: the DriftQ broker as a process.
use std::process::ExitCode;
fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (mut addr, mut dir) = ("127.0.0.1:8080".to_owned(), "./driftq-data".to_owned());
    let mut delay = 0;
    while let Some(a) = args.next() {
        let v = args.next().unwrap_or_default();
        match a.as_str() {
            "--addr" => addr = v,
            "--data-dir" => dir = v,
            "--sync-delay-ms" => delay = v.parse().unwrap_or(0),
            _ => {}
        }
    }
    use driftq_server::config::*;
    use std::time::Duration;
    let s = Settings {
        addr: addr.parse().expect("addr"),
        data_dir: dir.into(),
        wal: true,
        profile: Profile::Production,
        limits: driftq_core::types::Limits::production(),
        prefetch: 100,
        storage: StorageSettings {
            segment_bytes: 64 << 20,
            reserve_bytes: 8 << 20,
            snapshot_every_bytes: 256 << 20,
            sync_delay: Duration::from_millis(delay),
        },
        http: HttpSettings {
            body_bytes_max: 16 << 20,
            head_bytes_max: 64 << 10,
            connections_max: 20000,
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(10),
            body_rate_min: 1024,
            stream_keep_alive: Duration::from_secs(15),
            insecure: false,
            allowed_hosts: vec![],
        },
        router: RouterSettings::default(),
        log: LogSettings { format: LogFormat::Text, level: "info".into() },
    };
    match driftq_server::serve::run(s) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("driftqd: {e}");
            ExitCode::FAILURE
        }
    }
}
