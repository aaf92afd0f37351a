use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::broker::Broker;
use crate::program::{Driftq, Ended};

fn driftq(file: &Path, arguments: &[&str]) -> Ended {
    Driftq::new(arguments).variable("DRIFTQ_CONTEXTS", file.to_str().expect("UTF-8")).run()
}

#[test]
fn contexts_are_added_used_listed_shown_and_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("deep/contexts.json");
    let key = folder.path().join("key");
    std::fs::write(&key, "secret\n").expect("written");
    let run = |arguments: &[&str]| driftq(&file, arguments).succeeded();
    run(&["context", "add", "local", "--url", "http://127.0.0.1:1"]);
    let key_flag = key.to_str().expect("UTF-8");
    run(&["context", "add", "prod", "--url", "http://a:1", "--url", "http://b:1", "--key-file", key_flag]);
    assert_eq!(std::fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(file.parent().expect("a folder")).expect("listed").count(), 1, "nothing is left over");
    assert!(run(&["context", "show"]).contains("http://127.0.0.1:1"), "the first one is in use");
    run(&["context", "use", "prod"]);
    let shown: serde_json::Value = serde_json::from_str(&run(&["context", "show"])).expect("JSON");
    assert_eq!(shown, serde_json::json!({"urls": ["http://a:1", "http://b:1"], "key": true}));
    let table = run(&["context", "list", "--table"]);
    assert!(table.contains("*  prod     http://a:1 http://b:1"), "{table}");
    assert!(!run(&["context", "show", "prod"]).contains("secret"), "the key itself is never shown");
    run(&["context", "remove", "prod"]);
    assert!(run(&["context", "show"]).contains("http://127.0.0.1:8080"), "none is in use");
    driftq(&file, &["context", "use", "prod"]).failed(2, "there is no context \"prod\"");
    driftq(&file, &["context", "add", "x"]).failed(2, "a context needs a URL");
    driftq(&file, &["context", "add", "x", "--url", "h:1"]).failed(2, "scheme");
}

#[test]
fn context_in_use_names_the_broker_and_flags_and_variables_override_it() {
    let (broker, folder) = (Broker::start(), tempfile::tempdir().expect("a folder"));
    let file = folder.path().join("contexts.json");
    driftq(&file, &["context", "add", "good", "--url", broker.url()]).succeeded();
    driftq(&file, &["context", "add", "bad", "--url", "http://127.0.0.1:1"]).succeeded();
    let list = ["topics", "list", "--names"];
    assert_eq!(driftq(&file, &list).code, 0);
    assert_eq!(driftq(&file, &[&list[..], &["--context", "bad"]].concat()).code, 3);
    assert_eq!(driftq(&file, &[&list[..], &["--url", "http://127.0.0.1:1"]].concat()).code, 3);
    let with_variable = Driftq::new(&list).variable("DRIFTQ_CONTEXTS", file.to_str().expect("UTF-8"));
    assert_eq!(with_variable.variable("DRIFTQ_URL", "http://127.0.0.1:1").run().code, 3);
}

#[test]
fn file_that_has_no_contexts_is_neither_read_nor_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("driftqd.toml");
    std::fs::write(&file, "addr = \"127.0.0.1:8080\"\n").expect("written");
    driftq(&file, &["context", "add", "x", "--url", "http://h"]).failed(2, "DRIFTQ_CONTEXTS must name");
    driftq(&file, &["topics", "list"]).failed(2, "has no contexts");
    assert_eq!(std::fs::read_to_string(&file).expect("read"), "addr = \"127.0.0.1:8080\"\n");
}
