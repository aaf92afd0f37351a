//! Where code is from, by the name of a function or by the path of a source file.

/// A crate, and the path of a module or an item in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// The crate, as Rust writes it.
    pub(crate) of: String,
    path: String,
}

/// Where a function is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Rust: the places that its name mentions, in their order.
    Rust(Vec<Place>),
    /// Another language: its name.
    C(String),
    /// It has no name.
    Unknown,
}

impl Place {
    /// Whether it is this module or in it.
    pub(crate) fn is_in(&self, module: &str) -> bool {
        self.path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    }

    /// Of a source file; nothing for one that is neither of a crate nor of the standard library.
    pub(crate) fn of_file(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').collect();
        // The last `src`: folders above a crate may have any names.
        let at = parts.iter().rposition(|part| *part == "src").filter(|at| *at > 0)?;
        let (above, folder) = (&parts[..at - 1], parts[at - 1]);
        let is_package = above.iter().any(|part| ["library", "registry", "deps", "vendor"].contains(part));
        let of = match folder {
            "core" | "server" | "files" if !is_package => format!("driftq_{folder}"),
            _ => package_of(folder).replace('-', "_"),
        };
        let mut modules = parts[at + 1..].to_vec();
        let file = modules.pop()?;
        let file = file.strip_suffix(".rs").unwrap_or(file);
        if !["mod", "lib", "main"].contains(&file) {
            modules.push(file);
        }
        Some(Self { of, path: modules.join("::") })
    }
}

/// The name of a package in `name-version`.
fn package_of(folder: &str) -> &str {
    let versions =
        folder.match_indices('-').filter(|(at, _)| folder[at + 1..].starts_with(|c: char| c.is_ascii_digit()));
    versions.map(|(at, _)| &folder[..at]).next().unwrap_or(folder)
}

impl Origin {
    /// Of a function with this name, as it is printed.
    pub(crate) fn of_symbol(symbol: &str) -> Self {
        if symbol.is_empty() || symbol.starts_with("0x") || symbol.starts_with('?') || symbol.starts_with('[') {
            return Self::Unknown;
        }
        // What the compiler makes for the allocator is named like a crate.
        let name = symbol.strip_prefix("__rustc::").unwrap_or(symbol);
        if !name.contains("::") {
            // A suffix of recursive calls, or the version of a function.
            let end = name.find(['\'', '@']).unwrap_or(name.len());
            return Self::C(name[..end].to_owned());
        }
        Self::Rust(places_in(symbol))
    }
}

/// The paths of at least two segments in a name: type parameters and keywords have one.
fn places_in(symbol: &str) -> Vec<Place> {
    let mut places = Vec::new();
    let mut path: Vec<&str> = Vec::new();
    let mut rest = symbol;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let (name, mut behind) = rest.split_at(end);
        if !name.is_empty() {
            path.push(name);
            // The number of a crate in the newer form of names: `core[1a2b]::…`.
            if path.len() == 1
                && let Some((number, after)) = behind.strip_prefix('[').and_then(|inner| inner.split_once(']'))
                && number.chars().all(|c| c.is_ascii_hexdigit())
            {
                behind = after;
            }
        }
        match behind.strip_prefix("::") {
            Some(after) if !name.is_empty() => rest = after,
            _ => {
                close(&mut path, &mut places);
                let mut others = behind.chars();
                others.next();
                rest = others.as_str();
            }
        }
    }
    close(&mut path, &mut places);
    places
}

/// Ends a path.
fn close(path: &mut Vec<&str>, places: &mut Vec<Place>) {
    // What follows a closing bracket is an item of the type in it: `<A as B>::f`.
    if let [of, module @ ..] = &path[..]
        && !module.is_empty()
    {
        places.push(Place { of: (*of).to_owned(), path: module.join("::") });
    }
    path.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(symbol: &str) -> Vec<String> {
        let Origin::Rust(places) = Origin::of_symbol(symbol) else { return Vec::new() };
        places.iter().map(|place| format!("{} {}", place.of, place.path)).collect()
    }

    #[test]
    fn paths_of_a_name_are_found_in_their_order() {
        assert_eq!(places("<a::B<c::D> as e::f::G>::h::{{closure}}"), ["a B", "c D", "e f::G"]);
        assert_eq!(places("<T as a[0f]::B>::c"), ["a B"]);
        assert_eq!(places("a::b::_::<impl c::D for a::b::E>::f"), ["a b::_", "c D", "a b::E"]);
        assert_eq!(places("a::b::{{closure}}::{{closure}}"), ["a b"]);
    }

    #[test]
    fn names_of_other_languages_are_kept_without_suffix() {
        assert_eq!(Origin::of_symbol("memcpy@GLIBC_2.14"), Origin::C("memcpy".to_owned()));
        assert_eq!(Origin::of_symbol("_int_free'2"), Origin::C("_int_free".to_owned()));
        assert_eq!(Origin::of_symbol("0x00000000000123ab"), Origin::Unknown);
        assert_eq!(Origin::of_symbol("[unknown]"), Origin::Unknown);
        assert_eq!(Origin::of_symbol("__rustc::__rust_alloc"), Origin::C("__rust_alloc".to_owned()));
    }

    #[test]
    fn module_of_a_file_follows_from_its_path() {
        let place = |path: &str| Place::of_file(path).map(|place| format!("{} {}", place.of, place.path));
        assert_eq!(place("/a/registry/src/b-1f/tokio-util-0.7.1/src/io/mod.rs").as_deref(), Some("tokio_util io"));
        assert_eq!(place("/rustc/1f/library/alloc/src/vec/mod.rs").as_deref(), Some("alloc vec"));
        assert_eq!(place("/rust/deps/hashbrown-0.16.1/src/raw.rs").as_deref(), Some("hashbrown raw"));
        assert_eq!(place("/a/core/src/lib.rs").as_deref(), Some("driftq_core "));
        assert_eq!(place("/a/src/core/src/log/frame.rs").as_deref(), Some("driftq_core log::frame"));
        assert_eq!(place("./string/../sysdeps/x86_64/memmove.S"), None);
    }

    #[test]
    fn module_contains_its_submodules_only() {
        let place = Place { of: "a".to_owned(), path: "log::frame".to_owned() };
        assert!(place.is_in("log") && place.is_in("log::frame"));
        assert!(!place.is_in("lo") && !place.is_in("log::frame::x"));
    }
}
