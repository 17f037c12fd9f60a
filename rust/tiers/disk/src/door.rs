//! The door: all calls to the files of a disk go through it, so that tests can replace it by one with faults.

use std::fmt::Debug;
use std::fs::File;
use std::io;
#[cfg(target_vendor = "apple")]
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags};

/// Offsets, lengths and addresses of reads and writes past the system's cache are multiples of this.
pub const ALIGNMENT: usize = 4096;

/// Opens files, and tells the time.
pub trait Door: Debug + Send + Sync {
    /// Opens the file of this name in a directory for reading and writing. A missing file is made, accessible to its
    /// owner alone. Symbolic links are refused. With `direct`, reads and writes go past the system's cache, with
    /// aligned offsets, lengths and addresses.
    ///
    /// # Errors
    /// The errors of the system; `InvalidInput` if `direct` is not possible.
    fn open(
        &self,
        directory: BorrowedFd<'_>,
        name: &str,
        direct: bool,
    ) -> io::Result<Box<dyn DoorFile>>;

    /// Renames a file or directory inside a directory.
    ///
    /// # Errors
    /// The errors of the system.
    fn rename(&self, directory: BorrowedFd<'_>, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(directory, from, directory, to)?)
    }

    /// Seconds since 1970.
    fn seconds(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(0, |now| now.as_secs())
    }
}

/// An open file, which several threads may use at a time.
pub trait DoorFile: Debug + Send + Sync {
    /// Reads some bytes. Returns how many; 0 at the end of the file.
    ///
    /// # Errors
    /// The errors of the system.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes some bytes. Returns how many.
    ///
    /// # Errors
    /// The errors of the system.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Waits until everything that was written survives a loss of power.
    ///
    /// # Errors
    /// The errors of the system.
    fn sync(&self) -> io::Result<()>;

    /// Gives the room of these bytes back to the file system. Afterwards they read as zeros.
    ///
    /// # Errors
    /// The errors of the system; `Unsupported` if the file system has no holes.
    fn punch(&self, offset: u64, length: u64) -> io::Result<()>;

    /// The length of the file in bytes.
    ///
    /// # Errors
    /// The errors of the system.
    fn length(&self) -> io::Result<u64>;

    /// Cuts the file to this length, or extends it with zeros that take no room.
    ///
    /// # Errors
    /// The errors of the system.
    fn set_length(&self, length: u64) -> io::Result<()>;
}

impl dyn DoorFile + '_ {
    /// Fills all of `bytes` from the file.
    ///
    /// # Errors
    /// The errors of the system; `UnexpectedEof` if the file ends before.
    pub fn read_all(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match self.read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// The errors of the system; `WriteZero` if the file takes no more.
    pub fn write_all(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match self.write_at(&bytes[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A door to the system's files.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemDoor;

impl Door for SystemDoor {
    fn open(
        &self,
        directory: BorrowedFd<'_>,
        name: &str,
        direct: bool,
    ) -> io::Result<Box<dyn DoorFile>> {
        #[cfg_attr(not(target_os = "linux"), expect(unused_mut))]
        let mut flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        #[cfg(target_os = "linux")]
        if direct {
            flags |= OFlags::DIRECT;
        }
        let mode = Mode::RUSR | Mode::WUSR;
        let file = File::from(rustix::fs::openat(directory, name, flags, mode)?);
        #[cfg(target_vendor = "apple")]
        if direct {
            // SAFETY: the descriptor is open; the call changes how it is cached.
            let code = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_NOCACHE, 1) };
            if code == -1 {
                return Err(io::Error::last_os_error());
            }
        }
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("expected a file, found something else"));
        }
        Ok(Box::new(file))
    }
}

impl DoorFile for File {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    #[cfg(target_os = "linux")]
    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        use rustix::fs::FallocateFlags;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(self, flags, offset, length)?)
    }

    #[cfg(target_vendor = "apple")]
    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        let hole = libc::fpunchhole_t {
            fp_flags: 0,
            reserved: 0,
            fp_offset: libc::off_t::try_from(offset).map_err(io::Error::other)?,
            fp_length: libc::off_t::try_from(length).map_err(io::Error::other)?,
        };
        // SAFETY: the descriptor is open, and the call reads the struct.
        let code = unsafe { libc::fcntl(self.as_raw_fd(), libc::F_PUNCHHOLE, &raw const hole) };
        if code == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}
