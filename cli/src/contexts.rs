//! Named brokers, kept in a file: URLs, and where the key and the certificates are.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Only the user may read where keys are.
const FILE_MODE: u32 = 0o600;

/// One broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    /// Its base URLs.
    pub(crate) urls: Vec<String>,
    /// The file with the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key_file: Option<PathBuf>,
    /// The file with the certificates to trust.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
}

/// All contexts, and the one in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contexts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    #[serde(default)]
    pub(crate) contexts: BTreeMap<String, Context>,
}

impl Contexts {
    /// Reads the file; none is the same as an empty one.
    pub(crate) fn load(path: &Path) -> Result<Self, Failure> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(Failure::usage(format!("{}: {error}", path.display()))),
        };
        serde_json::from_str(&text).map_err(|error| {
            Failure::usage(format!("{} has no contexts: {error}", path.display()))
                .advise("DRIFTQ_CONTEXTS must name a file that `driftq context add` has written, or none")
        })
    }

    /// Replaces the file as a whole: a crash leaves the old one or the new one.
    pub(crate) fn save(&self, path: &Path) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::usage(format!("{} cannot be written: {error}", path.display()));
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(failed)?;
        let mut name = OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{}", std::process::id()));
        let new = folder.join(name);
        write_private(&new, self).and_then(|()| fs::rename(&new, path)).map_err(|error| {
            // It may not be there.
            let _ = fs::remove_file(&new);
            failed(error)
        })?;
        // Makes the new name durable.
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
    }

    /// The context of this name.
    pub(crate) fn named(&self, name: &str) -> Result<&Context, Failure> {
        self.contexts.get(name).ok_or_else(|| {
            Failure::usage(format!("there is no context {name:?}"))
                .advise("`driftq context list` shows those there are")
        })
    }
}

fn write_private(path: &Path, contexts: &Contexts) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)?;
    serde_json::to_writer_pretty(&mut file, contexts)?;
    file.write_all(b"\n")?;
    file.sync_all()
}

/// Where the contexts are: `DRIFTQ_CONTEXTS`, or the user's configuration folder.
pub(crate) fn path() -> Result<PathBuf, Failure> {
    path_from(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
}

fn path_from(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, Failure> {
    if let Some(path) = variable("DRIFTQ_CONTEXTS") {
        return Ok(path.into());
    }
    let home = || variable("HOME").map(|home| PathBuf::from(home).join(".config"));
    // A relative path is to be ignored, by the specification of XDG.
    let folder = variable("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute()).or_else(home);
    folder
        .map(|folder| folder.join("driftq").join("contexts.json"))
        .ok_or_else(|| Failure::usage("neither HOME nor DRIFTQ_CONTEXTS is set: there is no place for contexts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_of_the_file_follows_the_environment() {
        let place = |variables: &[(&str, &str)]| {
            path_from(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into()))
                .map(|path| path.display().to_string())
                .ok()
        };
        assert_eq!(place(&[("HOME", "/h")]).as_deref(), Some("/h/.config/driftq/contexts.json"));
        assert_eq!(place(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")]).as_deref(), Some("/x/driftq/contexts.json"));
        assert_eq!(
            place(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "x")]).as_deref(),
            Some("/h/.config/driftq/contexts.json")
        );
        assert_eq!(place(&[("HOME", "/h"), ("DRIFTQ_CONTEXTS", "c.json")]).as_deref(), Some("c.json"));
        assert_eq!(place(&[]), None);
    }
}
