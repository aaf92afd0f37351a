//! The image must build: every member of the workspace is copied into it, and none is left out of the build's context.

use std::fs;

use crate::root;

const DOCKERFILE: &str = "docs/deploy/Dockerfile";

/// Files that a build needs beside the members.
const MANIFESTS: &[&str] = &["Cargo.toml", "Cargo.lock"];

#[test]
fn image_copies_every_member_of_the_workspace() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let members = members(&read("Cargo.toml"));
    assert!(members.iter().any(|member| member == "server"), "members of the workspace: {members:?}");
    let missing = missing(&read(DOCKERFILE), &read(".dockerignore"), &members);
    assert!(missing.is_empty(), "{DOCKERFILE} does not copy, or .dockerignore leaves out: {missing:?}");
}

/// What a build with this Dockerfile would not find.
fn missing(dockerfile: &str, dockerignore: &str, members: &[String]) -> Vec<String> {
    let copied = copied(dockerfile);
    let is_copied = |path: &str| {
        let covers = |source: &String| source == "." || path == source || path.starts_with(&format!("{source}/"));
        copied.iter().any(covers) && !is_ignored(dockerignore, path)
    };
    let manifests = MANIFESTS.iter().map(|file| (*file).to_owned());
    let sources = members.iter().map(|member| format!("{member}/Cargo.toml"));
    let code = members.iter().map(|member| format!("{member}/src/lib.rs"));
    manifests.chain(sources).chain(code).filter(|path| !is_copied(path)).collect()
}

/// The members that a workspace's manifest lists.
fn members(manifest: &str) -> Vec<String> {
    let (_, rest) = manifest.split_once("\nmembers").expect("a list of members");
    let (_, rest) = rest.split_once('[').expect("a list");
    let (list, _) = rest.split_once(']').expect("the end of the list");
    list.split('"').skip(1).step_by(2).map(ToOwned::to_owned).collect()
}

/// What is copied from the build's context, without leading `./` and trailing `/`.
fn copied(dockerfile: &str) -> Vec<String> {
    let joined = dockerfile.replace("\\\n", " ");
    let mut sources = Vec::new();
    for line in joined.lines().map(str::trim) {
        let Some(arguments) = line.strip_prefix("COPY ") else { continue };
        // What comes from another stage is not in the context.
        if arguments.contains("--from=") {
            continue;
        }
        let paths: Vec<&str> = arguments.split_whitespace().filter(|part| !part.starts_with("--")).collect();
        let Some((_, from)) = paths.split_last() else { continue };
        sources.extend(from.iter().map(|path| normal(path)));
    }
    sources
}

fn normal(path: &str) -> String {
    let path = path.trim_start_matches("./").trim_end_matches('/');
    if path.is_empty() { ".".to_owned() } else { path.to_owned() }
}

/// Whether a `.dockerignore` leaves `path` out. The last pattern that matches decides.
fn is_ignored(dockerignore: &str, path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let mut ignored = false;
    for line in dockerignore.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (pattern, value) = line.strip_prefix('!').map_or((line, true), |pattern| (pattern, false));
        let pattern: Vec<&str> = pattern.trim_matches('/').split('/').collect();
        // A pattern that matches a folder matches what is in it.
        if (1..=parts.len()).any(|len| matches(&pattern, &parts[..len])) {
            ignored = value;
        }
    }
    ignored
}

fn matches(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern.split_first(), path.split_first()) {
        (None, None) => true,
        (Some((&"**", rest)), None) => matches(rest, path),
        (Some((&"**", rest)), Some((_, below))) => matches(rest, path) || matches(pattern, below),
        (Some((first, rest)), Some((part, below))) => matches_part(first, part) && matches(rest, below),
        _ => false,
    }
}

/// Whether a name matches a pattern in which `*` stands for any characters.
fn matches_part(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices().map(|(at, _)| &rest[at..]).chain([""]).any(|rest| matches_part(after, rest))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn members_are_read_from_one_line_or_many() {
        let expected = names(&["core", "clients/rust"]);
        assert_eq!(
            members("[workspace]\nmembers = [\"core\", \"clients/rust\"]\ndefault-members = [\"a\"]\n"),
            expected
        );
        assert_eq!(members("[workspace]\nmembers = [\n    \"core\",\n    \"clients/rust\",\n]\n"), expected);
    }

    #[test]
    fn member_that_is_not_copied_is_missing() {
        let dockerfile =
            "FROM rust AS build\nCOPY Cargo.toml Cargo.lock ./\nCOPY core core\nCOPY --from=build /src/a /a\n";
        let lost = missing(dockerfile, "", &names(&["core", "server"]));
        assert_eq!(lost, ["server/Cargo.toml", "server/src/lib.rs"]);
    }

    #[test]
    fn whole_context_is_every_member_but_for_what_is_ignored() {
        let members = names(&["core", "clients/rust"]);
        assert!(missing("COPY . .\n", "**/target\n.git\n*.md\n", &members).is_empty());
        assert!(missing("COPY ./ /src/\n", "", &members).is_empty());
        assert_eq!(missing("COPY . .\n", "core\n", &members), ["core/Cargo.toml", "core/src/lib.rs"]);
        assert_eq!(missing("COPY . .\n", "**/src\n", &members), ["core/src/lib.rs", "clients/rust/src/lib.rs"]);
        assert_eq!(missing("COPY . .\n", "*\n!Cargo.*\n!core\n!clients\n", &members), Vec::<String>::new());
    }
}
