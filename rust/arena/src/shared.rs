//! Anonymous shared memory under a path that other processes can open.
//!
//! The file is sealed before anyone else can map it: no process can shrink it, so none can make
//! another fault on its own slots.

use memmap2::MmapRaw;
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use hybrid_pages::error::{Cause, Error, Result};
use hybrid_pages::geometry::Geometry;

use crate::header::PlaneHeader;

/// The file of a mapping. Its creator keeps the descriptor open, since the path names the descriptor.
#[derive(Debug)]
pub(crate) struct SharedFile {
    path: String,
    _file: File,
}

impl SharedFile {
    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

/// Creates a file, all zeros, and maps it.
pub(crate) fn create(total: usize, huge_pages: bool) -> Result<(MmapRaw, SharedFile)> {
    let failed = |what: &str, error: io::Error| {
        Error::arena(Cause::new(
            format!("create: {what} of {total} bytes failed: {error}"),
            error,
        ))
    };
    let file = anonymous_file(huge_pages).map_err(|error| failed("shared memory", error))?;
    file.set_len(total as u64)
        .map_err(|error| failed("shared memory", error))?;
    rustix::fs::fcntl_add_seals(&file, seals()).map_err(|error| failed("sealing", error.into()))?;
    let memory = map(&file).map_err(|error| failed("a mapping", error))?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    Ok((memory, SharedFile { path, _file: file }))
}

/// Opens and maps the file at a path, after a check of its size, header and seals.
pub(crate) fn open(path: &str, geometry: &Geometry) -> Result<(MmapRaw, SharedFile, PlaneHeader)> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Error::arena(Cause::new(
            format!(
                "{path}: expected the path of a living process's plane, found nothing: has its \
                 creator ended?"
            ),
            error,
        )),
        _ => Error::arena(Cause::new(
            format!("{path}: expected a plane of an arena, found {error}"),
            error,
        )),
    };
    // The descriptor's number may name something else by now: opening that must not block.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    let options = options
        .read(true)
        .write(true)
        .custom_flags(flags.bits().cast_signed());
    let file = options.open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let size = metadata.len();
    if !metadata.is_file() || size < PlaneHeader::ENCODED_BYTES as u64 {
        return Err(Error::arena(format!(
            "{path}: expected a plane with its header, found {}",
            if metadata.is_file() {
                format!("{size} bytes")
            } else {
                "no file".to_owned()
            }
        )));
    }
    let mut bytes = [0; PlaneHeader::ENCODED_BYTES];
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    let header = PlaneHeader::decode(&bytes, geometry)?;
    if header.total_bytes().map(|total| total as u64) != Some(size) {
        return Err(Error::arena(format!(
            "{path}: expected {} slots of {} bytes after {} bytes of header, found {size} \
             bytes in all",
            header.slots, header.slot_bytes, header.header_bytes
        )));
    }
    let sealed = rustix::fs::fcntl_get_seals(&file).is_ok_and(|s| s.contains(seals()));
    if !sealed {
        return Err(Error::arena(format!(
            "{path}: expected memory sealed against resizing, found it unsealed"
        )));
    }
    let memory = map(&file).map_err(failed)?;
    let file = SharedFile {
        path: path.to_owned(),
        _file: file,
    };
    Ok((memory, file, header))
}

/// Maps a file, and keeps it out of core dumps, which would take minutes and fill a disk.
fn map(file: &File) -> io::Result<MmapRaw> {
    let memory = MmapRaw::map_raw(file)?;
    // SAFETY: a new mapping, of which this changes no byte.
    unsafe {
        madvise(
            memory.as_mut_ptr().cast(),
            memory.len(),
            Advice::LinuxDontDump,
        )?
    };
    Ok(memory)
}

/// Creates an anonymous file that can't be executed, where the kernel (from 6.3 on) knows that flag and may insist on
/// it.
fn anonymous_file(huge_pages: bool) -> io::Result<File> {
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if huge_pages {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    let create = |flags| rustix::fs::memfd_create("hybrid-pages", flags);
    let file = match create(flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => create(flags)?,
        outcome => outcome?,
    };
    Ok(File::from(file))
}

/// The seals of a file: once the header is written, neither the size nor the seals can change.
fn seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}
