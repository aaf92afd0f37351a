//! Disks of our own, which can be filled, and whose power can be cut.
//!
//! A disk is taken off when its guard goes, whatever happened; its loop device goes with it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::tools::{self, Missing};

/// A file system whose power can be cut.
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

    /// XFS wants 300 MiB at the least; the file has holes.
    const fn image_bytes(self) -> u64 {
        match self {
            Self::Ext4 => 96 << 20,
            Self::Xfs => 320 << 20,
        }
    }

    /// What is missing on this machine to have one.
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
    /// A new disk with an empty file system, in a file in `folder`, mounted below it.
    ///
    /// # Errors
    /// What the tools say.
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

    /// A disk of that many bytes in memory.
    ///
    /// # Errors
    /// What `mount` says.
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

    /// Gives a disk in memory another size.
    ///
    /// # Errors
    /// What `mount` says.
    pub fn resize(&self, bytes: u64) -> Result<(), String> {
        tools::run(Command::new("mount").args(["-o", &format!("remount,size={bytes}")]).arg(&self.folder))
    }

    /// Cuts the power: from here on nothing reaches the medium, not even what the file system's journal had in memory.
    ///
    /// # Errors
    /// What `xfs_io` says, which can do that to ext4 as well.
    pub fn cut_power(&self) -> Result<(), String> {
        // Its `shutdown` is the ioctl 0x8004587d with the value 2: "going down", without flushing the log.
        tools::run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&self.folder))
    }

    /// Takes the disk off and puts it on again, as after a power loss: the file system replays what its journal has.
    ///
    /// # Errors
    /// What `umount` and `mount` say.
    pub fn remount(&mut self) -> Result<(), String> {
        self.unmount()?;
        self.mount()
    }

    fn mount(&mut self) -> Result<(), String> {
        let Some(image) = &self.image else { return Err("a disk in memory does not come back".to_owned()) };
        tools::run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(&self.folder))?;
        self.mounted = true;
        Ok(())
    }

    /// A process that was just killed may hold a file a moment longer.
    fn unmount(&mut self) -> Result<(), String> {
        let give_up = Instant::now() + Duration::from_secs(5);
        loop {
            match tools::run(Command::new("umount").arg(&self.folder)) {
                Ok(()) => {
                    self.mounted = false;
                    return Ok(());
                }
                Err(error) if Instant::now() >= give_up => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted && tools::run(Command::new("umount").arg(&self.folder)).is_err() {
            // Lazily: whatever still holds it open is about to end. There is nobody to tell if even that fails.
            let _ = tools::run(Command::new("umount").arg("-l").arg(&self.folder));
        }
    }
}

fn mount_point(folder: &Path) -> Result<PathBuf, String> {
    let path = folder.join("disk");
    std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}
