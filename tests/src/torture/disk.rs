//! Disks on loop devices or in memory, which can be filled, and whose power can be cut.
//!
//! A disk is unmounted, and its loop device released, when it is dropped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::tools::{self, Missing};

/// A file system that supports shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

impl FileSystem {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ext4, Self::Xfs];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    const fn mkfs(self) -> &'static str {
        match self {
            Self::Ext4 => "mkfs.ext4",
            Self::Xfs => "mkfs.xfs",
        }
    }

    /// XFS requires at least 300 MiB. The image is sparse.
    const fn image_bytes(self) -> u64 {
        match self {
            Self::Ext4 => 96 << 20,
            Self::Xfs => 320 << 20,
        }
    }

    /// What is missing on this machine to use it.
    #[must_use]
    pub fn missing(self) -> Missing {
        tools::missing_for_power(self.mkfs())
    }
}

/// A mounted disk.
#[derive(Debug)]
pub struct Disk {
    image: Option<PathBuf>,
    folder: PathBuf,
    mounted: bool,
}

impl Disk {
    /// A disk with an empty file system, in an image file in `folder`, mounted below it.
    ///
    /// # Errors
    /// If a tool fails.
    pub fn with(file_system: FileSystem, folder: &Path) -> Result<Self, String> {
        let image = folder.join(format!("{}.img", file_system.name()));
        File::create_new(&image)
            .and_then(|file| file.set_len(file_system.image_bytes()))
            .map_err(|error| format!("{}: {error}", image.display()))?;
        tools::run(Command::new(file_system.mkfs()).arg("-q").arg(&image))?;
        let mut disk = Self { image: Some(image), folder: mount_point(folder)?, mounted: false };
        disk.mount()?;
        Ok(disk)
    }

    /// A tmpfs of this size.
    ///
    /// # Errors
    /// If `mount` fails.
    pub fn in_memory(bytes: u64, folder: &Path) -> Result<Self, String> {
        let folder = mount_point(folder)?;
        let size = format!("size={bytes}");
        tools::run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "driftq-torture"]).arg(&folder))?;
        Ok(Self { image: None, folder, mounted: true })
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Changes the size of a tmpfs.
    ///
    /// # Errors
    /// If `mount` fails.
    pub fn resize(&self, bytes: u64) -> Result<(), String> {
        tools::run(Command::new("mount").args(["-o", &format!("remount,size={bytes}")]).arg(&self.folder))
    }

    /// Cuts the power: nothing reaches the medium any more, not even the journal in memory.
    ///
    /// # Errors
    /// If `xfs_io` fails, which supports ext4 as well.
    pub fn cut_power(&self) -> Result<(), String> {
        // Its `shutdown` is the ioctl 0x8004587d (GOINGDOWN) with the value 2, without flushing the journal.
        tools::run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&self.folder))
    }

    /// Unmounts and mounts the disk, as after a power loss: the file system replays its journal.
    ///
    /// # Errors
    /// If `umount` or `mount` fails.
    pub fn remount(&mut self) -> Result<(), String> {
        self.unmount()?;
        self.mount()
    }

    fn mount(&mut self) -> Result<(), String> {
        let Some(image) = &self.image else { return Err("a tmpfs cannot be mounted again".to_owned()) };
        tools::run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(&self.folder))?;
        self.mounted = true;
        Ok(())
    }

    /// Retries, since a process that was just killed may hold a file a little longer.
    fn unmount(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            match tools::run(Command::new("umount").arg(&self.folder)) {
                Ok(()) => {
                    self.mounted = false;
                    return Ok(());
                }
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted && tools::run(Command::new("umount").arg(&self.folder)).is_err() {
            // Lazily: what still holds it open is about to exit. A failure cannot be reported from here.
            let _ = tools::run(Command::new("umount").arg("-l").arg(&self.folder));
        }
    }
}

fn mount_point(folder: &Path) -> Result<PathBuf, String> {
    let path = folder.join("disk");
    std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}
