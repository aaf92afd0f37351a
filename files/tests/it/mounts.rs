//! Small file systems for tests, where mounting is permitted.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted file system; unmounted on drop.
pub(crate) struct Mount {
    pub(crate) path: PathBuf,
    _above: tempfile::TempDir,
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

impl Mount {
    /// A tmpfs of this size; `None`, with a line that says why, if it cannot be mounted.
    pub(crate) fn tmpfs(size: &str) -> Option<Self> {
        Self::make(|path, _| run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs", path]))
    }

    /// An ext4 file system in an image file.
    pub(crate) fn ext4(megabytes: u64) -> Option<Self> {
        Self::make(|path, image| {
            let made = std::fs::File::create(image).and_then(|file| file.set_len(megabytes << 20));
            made.map_err(|error| error.to_string())?;
            let image = image.to_str().ok_or("a temporary folder without a name")?;
            run("mkfs.ext4", &["-q", "-F", image])?;
            run("mount", &["-o", "loop", image, path])
        })
    }

    /// The image file of [`Mount::ext4`].
    pub(crate) fn image(&self) -> PathBuf {
        self._above.path().join("image")
    }

    fn make(mount: impl FnOnce(&str, &Path) -> Result<(), String>) -> Option<Self> {
        let above = tempfile::tempdir().expect("a temporary folder");
        let path = above.path().join("mounted");
        std::fs::create_dir(&path).expect("a folder to mount on");
        match mount(path.to_str().expect("a plain name"), &above.path().join("image")) {
            Ok(()) => Some(Self { path, _above: above }),
            Err(why) => {
                println!("skipped: cannot mount a file system here: {why}");
                None
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = run("umount", &[self.path.to_str().unwrap_or_default()]) {
            eprintln!("{error}");
        }
    }
}
