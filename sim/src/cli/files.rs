//! Files that commands write.

use std::path::Path;

/// Writes a file and creates its directory.
pub(super) fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text)
}
