//! Words that are not used, and the few places where they are allowed.
//!
//! Names and sentences use the terms of `docs/glossary.md`. What stands here is what they replaced, and words that make
//! programs into persons.

/// Dropped wherever they stand as a word of their own, in any spelling: `keeper`, `LogKeeper`, `log_keeper`.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    // Programs are not persons.
    "anybody", "everybody", "hands", "kindness", "knock", "knocks", "nobody", "somebody", "tells", "whoever",
    "whomever",
    // Say run, invariant, guarantee, module, timeline, text.
    "law", "laws", "life", "lived", "lives", "promise", "promised", "promises", "rooms", "stories", "story", "word",
    "words",
    // Names that have been replaced.
    "aftermath", "bell", "breath", "buried", "buries", "bury", "chore", "chores", "desk", "errand", "errands", "hush",
    "keeper", "keepers", "lane", "lanes", "outline", "patience", "roster", "seat", "shelf", "unsound", "whereabouts",
];

/// Dropped sequences of words, also as one identifier: `let_go`.
const PHRASES: &[&[&str]] = &[
    &["done", "set"],
    &["ended", "in", "silence"],
    &["it", "is", "so", "now"],
    &["kept", "quiet"],
    &["let", "go"],
    &["never", "asking"],
    &["nothing", "more", "to", "say"],
    &["whole", "or", "nothing"],
];

/// Dropped unless another word precedes them: `letters` alone, but not `dead letters`.
const ONLY_AFTER: &[(&str, &str)] = &[("letters", "dead")];

/// Module names that have been replaced: (where, names of files and folders).
#[rustfmt::skip]
const MODULES: &[(&str, &[&str])] = &[
    ("core/src/", &["done", "feed", "keeper", "lanes", "outline", "roster", "sound", "track"]),
    ("server/src/", &["answers", "apart", "bell", "edge", "errands", "letters", "moment", "patience", "words"]),
    ("sim/src/", &[
        "aftermath", "books", "edge", "facts", "follow", "heard", "hush", "inside", "judge", "laws", "ledger", "life",
        "met", "moment", "power", "sight", "spot", "standing", "story", "words",
    ]),
    ("inspect/src/", &["follow", "moment", "sight", "spot", "standing", "story", "words"]),
    ("history/src/", &["facts", "judge"]),
];

/// Where a dropped word is right: (path prefix, word, why). `*` stands for every word.
const ALLOWED: &[(&str, &str, &str)] = &[
    ("cli/tests/completions.rs", "words", "part of the name of a variable of bash"),
    ("docs/conformance.md", "promised", "the title of a section of the specification"),
    ("sim/src/actions/mod.rs", "lane", "the name of a field in kept traces"),
    ("tests/src/conformance/", "promised", "the title of a section of the specification"),
    ("tests/tests/tidy/", "*", "the rules name what they look for"),
];

/// The dropped words and phrases in `line`, a line of the file at `path` or that path itself. `above` is the line
/// before it, where a sentence may have begun.
pub(crate) fn dropped_in(path: &str, above: &str, line: &str) -> Vec<String> {
    let words = words_of(line);
    let mut found = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let rest = &words[index..];
        let before = || index.checked_sub(1).map_or_else(|| words_of(above).pop(), |index| words.get(index).cloned());
        let alone = |(dropped, after): &(&str, &str)| dropped == word && before().as_deref() != Some(after);
        if WORDS.contains(&word.as_str()) || ONLY_AFTER.iter().any(alone) {
            found.push(word.clone());
        }
        let begins = |phrase: &&&[&str]| rest.iter().take(phrase.len()).eq(phrase.iter());
        found.extend(PHRASES.iter().filter(begins).map(|phrase| phrase.join(" ")));
    }
    found.retain(|word| !is_allowed(path, word));
    found
}

/// The part of `path` that is a module name which has been replaced.
pub(crate) fn dropped_module(path: &str) -> Option<&str> {
    let names = MODULES.iter().find_map(|(prefix, names)| path.starts_with(prefix).then_some(names))?;
    let parts = path.split('/').map(|part| part.split('.').next().unwrap_or_default());
    parts.into_iter().find(|part| names.contains(part))
}

fn is_allowed(path: &str, word: &str) -> bool {
    ALLOWED.iter().any(|(prefix, allowed, _)| path.starts_with(prefix) && (*allowed == "*" || *allowed == word))
}

/// The words of a text in lower case. Identifiers are split where their spelling says so.
fn words_of(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut previous: Option<char> = None;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter.is_alphabetic() {
            let after_word = previous.is_some_and(char::is_alphabetic);
            let hump = letter.is_uppercase()
                && (previous.is_some_and(char::is_lowercase) || letters.peek().is_some_and(|next| next.is_lowercase()));
            if !after_word || hump {
                words.push(String::new());
            }
            if let Some(word) = words.last_mut() {
                word.extend(letter.to_lowercase());
            }
        }
        previous = Some(letter);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_by_spelling() {
        let expected = ["log", "keeper", "let", "go", "http", "server", "x", "y"];
        assert_eq!(words_of("LogKeeper::let_go(HTTPServer, x2y)"), expected);
        assert_eq!(words_of("BREATH isn't"), ["breath", "isn", "t"]);
    }

    #[test]
    fn every_word_and_phrase_is_found_in_prose_and_in_identifiers() {
        for word in WORDS {
            assert_eq!(dropped_in("docs/a.md", "", &format!("See {word}.")), [*word]);
            assert_eq!(dropped_in("docs/a.md", "", &format!("my_{}_x", word.to_uppercase())), [*word]);
        }
        for phrase in PHRASES {
            assert_eq!(dropped_in("docs/a.md", "", &phrase.join(" ")), [phrase.join(" ")]);
            assert_eq!(dropped_in("docs/a.md", "", &phrase.join("_")), [phrase.join(" ")]);
        }
    }

    #[test]
    fn dead_letters_pass_and_letters_alone_do_not() {
        assert!(dropped_in("docs/a.md", "", "dead letters, DeadLetters, dead-letter topics").is_empty());
        assert!(dropped_in("docs/a.md", "retries, dead", "letters and redrive").is_empty());
        assert_eq!(dropped_in("docs/a.md", "dead ends", "letters of a topic"), ["letters"]);
    }

    #[test]
    fn part_of_another_word_passes() {
        assert!(dropped_in("docs/a.md", "", "lifetime history keyword rebuttal lawful beforehand seated").is_empty());
        assert!(dropped_in("docs/a.md", "", "let me go").is_empty());
    }

    #[test]
    fn every_module_name_is_found_where_it_was() {
        for (prefix, names) in MODULES {
            for name in *names {
                assert_eq!(dropped_module(&format!("{prefix}a/{name}.rs")), Some(*name));
                assert_eq!(dropped_module(&format!("{prefix}{name}/a.rs")), Some(*name));
            }
        }
        assert_eq!(dropped_module("tests/src/torture/faults/power.rs"), None);
    }

    #[test]
    fn an_allowed_word_has_a_reason_and_passes_in_its_place_only() {
        for (prefix, word, reason) in ALLOWED {
            assert!(!reason.is_empty(), "{prefix} {word}");
        }
        assert!(dropped_in("tests/tests/tidy/main.rs", "", "nobody").is_empty());
        assert_eq!(dropped_in("tests/tests/load.rs", "", "nobody"), ["nobody"]);
    }
}
