//! The first key, and the addresses that may be listened on with and without keys.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use super::support::VERBS;
use crate::harness::{Launch, Server, driftqd};

fn keys(arguments: &[&str], data: &Path) -> Output {
    let mut command = Command::new(driftqd());
    command.arg("keys").args(arguments).env_clear();
    if arguments != ["generate"] {
        command.arg("--data-dir").arg(data);
    }
    command.output().expect("it runs")
}

#[track_caller]
fn output(arguments: &[&str], data: &Path) -> String {
    let output = keys(arguments, data);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
}

fn topics(server: &Server, key: Option<&str>) -> u16 {
    let header = key.map(|key| format!("Bearer {key}"));
    let headers = header.as_ref().map(|header| [("Authorization", header.as_str())]);
    server.call("GET", "/v1/topics", headers.as_ref().map_or(&[][..], |headers| &headers[..]), "").status
}

#[test]
fn first_key_is_created_while_the_broker_is_stopped() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let admin = output(&["create", "--admin"], &data);
    let worker = output(
        &["create", "--name", "worker", "--grant", "inspect:orders*", "--grant", "produce:a", "--expires-in", "30d"],
        &data,
    );
    let mut server = Server::on(&data, &[]);
    assert_eq!((topics(&server, None), topics(&server, Some(&admin)), topics(&server, Some(&worker))), (401, 200, 200));
    let in_use = keys(&["list"], &data);
    assert!(!in_use.status.success() && String::from_utf8_lossy(&in_use.stderr).contains("/v1/keys"), "{in_use:?}");
    assert!(server.terminate().success());
    let listed = output(&["list"], &data);
    let line = listed.lines().find(|line| line.contains("worker")).expect("it is listed");
    assert!(
        line.contains("inspect:orders*") && line.contains("produce:a") && line.starts_with(&worker[3..15]),
        "{line}"
    );
    assert!(!listed.contains(&worker[16..]) && !listed.contains(&admin[16..]), "{listed}");
    output(&["revoke", &worker[3..15]], &data);
    let server = Server::on(&data, &[]);
    assert_eq!((topics(&server, Some(&worker)), topics(&server, Some(&admin))), (401, 200));
    for wrong in [
        &["create"][..],
        &["create", "--name", "n"],
        &["create", "--admin", "--grant", "produce:a"],
        &["create", "--name", "n", "--grant", "produce"],
        &["create", "--name", "n", "--grant", "produce:a", "--expires-in", "x"],
        &["create", "--name", "n", "--grant", "produce:a", "--tenant", "absent"],
        &["revoke", "0123456789ab"],
        &["revoke", "x"],
    ] {
        let output = keys(wrong, &folder.path().join("another"));
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
    }
}

#[test]
fn key_of_a_file_is_created_at_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let (data, file) = (folder.path().join("data"), folder.path().join("admin.key"));
    let key = output(&["generate"], &data);
    let write = |text: &str| {
        std::fs::write(&file, text).expect("written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("set");
    };
    write(&format!("{key}\n"));
    let flag = ["--admin-key-file", file.to_str().expect("UTF-8")];
    for number in 0..2 {
        let mut server = Server::on(&data, &flag);
        assert_eq!((topics(&server, None), topics(&server, Some(&key))), (401, 200));
        let listed = server.call("GET", "/v1/keys", &[("Authorization", &format!("Bearer {key}"))], "").json();
        assert_eq!(listed["keys"].as_array().map(Vec::len), Some(1), "{number}: {listed}");
        let verbs: Vec<&str> = listed["keys"][0]["grants"][0]["verbs"]
            .as_array()
            .expect("verbs")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        assert_eq!(verbs, VERBS);
        assert!(server.terminate().success());
    }
    // The log has the key without the file, and the file is one of its variable, too.
    assert_eq!(topics(&Server::on(&data, &[]), None), 401);
    let launch = Launch::new(&folder.path().join("other"), &["--no-wal"]).env("DRIFTQ_ADMIN_KEY_FILE", flag[1]);
    assert_eq!(topics(&launch.start().expect("it starts"), Some(&key)), 200);
    let other_secret = format!("{}{}", &key[..58], if key.ends_with('A') { 'B' } else { 'A' });
    for (text, part) in [("", "want one line with a key"), ("dq_x", "want one line"), (&*other_secret, "another one")] {
        write(text);
        let failure = Server::try_on(&data, &flag).err().expect("no start");
        assert_eq!(failure.status.code(), Some(1), "{}", failure.log);
        assert!(failure.log.contains(part) && !failure.log.contains(&key[16..50]), "{}", failure.log);
    }
    std::fs::remove_file(&file).expect("removed");
    let failure = Server::try_on(&data, &flag).err().expect("no start");
    assert!(failure.log.contains("cannot read"), "{}", failure.log);
}

#[test]
fn address_of_the_network_needs_a_key_in_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let exposed = ["--addr", "0.0.0.0:0", "--behind-tls-proxy"];
    let start = |flags: &[&str]| {
        let mut command = Command::new(driftqd());
        command.arg("--data-dir").arg(&data).args(flags).env_clear();
        command.output().expect("it runs")
    };
    let refused = start(&exposed);
    assert_eq!(refused.status.code(), Some(2), "there is no log: {refused:?}");
    drop(Server::on(&data, &[]));
    let refused = start(&exposed);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "there is no key in the log: {message}");
    assert!(message.contains("driftqd keys create --admin"), "{message}");
    let key = output(&["create", "--admin"], &data);
    let plain = start(&["--addr", "0.0.0.0:0"]);
    assert!(String::from_utf8_lossy(&plain.stderr).contains("in plain text"), "{plain:?}");
    let mut launch = Launch::new(&data, &["--behind-tls-proxy", "--allowed-host", "*"]);
    launch.launcher = launch.launcher.addr("0.0.0.0:0".parse().expect("an address"));
    let server = launch.start().expect("it starts");
    assert_eq!((topics(&server, None), topics(&server, Some(&key))), (401, 200));
    // Without its last key it is not open, but closed.
    let header = format!("Bearer {key}");
    let target = format!("/v1/keys/{}", &key[3..15]);
    assert_eq!(server.call("DELETE", &target, &[("Authorization", &header)], "").status, 204);
    assert_eq!((topics(&server, None), topics(&server, Some(&key))), (401, 401));
    assert_eq!(server.get("/v1/healthz").status, 200);
}
