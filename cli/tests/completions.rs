use std::process::Command;

use crate::program::Driftq;

fn script(shell: &str) -> String {
    Driftq::new(&["completions", shell]).run().succeeded()
}

#[test]
fn completions_of_each_shell_have_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = script(shell);
        for command in ["topics", "groups", "produce", "consume", "peek", "dlq", "effects", "top", "bench", "doctor"] {
            assert!(script.contains(command), "{shell} does not complete {command}");
        }
    }
}

#[test]
fn bash_completes_with_its_script() {
    let Ok(version) = Command::new("bash").arg("--version").output() else {
        eprintln!("skipped: there is no bash");
        return;
    };
    assert!(version.status.success());
    let check =
        "COMP_WORDS=(driftq topics cr); COMP_CWORD=2; _driftq driftq cr topics; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let output = Command::new("bash")
        .args(["--noprofile", "--norc", "-c", &format!("{}\n{check}", script("bash"))])
        .output()
        .expect("bash runs");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "create");
}
