//! Anonymous shared memory under a path that other processes can open.
//!
//! The file is sealed before anyone else can map it: no process can shrink it, so none can make
//! another fault on its own slots.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::ptr::NonNull;

use memmap2::MmapRaw;
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::transfer::Region;

use super::header::Header;
use super::plane::PlaneOptions;
use super::prefault::prefault;
use super::{huge_pages, numa};

/// A mapped file. Its creator keeps the descriptor open: that is what its path names.
#[derive(Debug)]
pub(super) struct Mapping {
    memory: MmapRaw,
    path: String,
    warning: Option<String>,
    _file: File,
}

impl Mapping {
    /// A new file of the header's size, all zeros after the header.
    pub(super) fn create(header: &Header, options: PlaneOptions) -> Result<Self> {
        let total = header.total_bytes().ok_or_else(|| {
            Error::Arena("create: expected a size that fits memory, found a larger one".into())
        })?;
        if options.huge_pages {
            huge_pages::require(total)?;
        }
        let failed = |what: &str, error: io::Error| {
            Error::Arena(format!("create: {what} of {total} bytes failed: {error}"))
        };
        let file =
            anonymous_file(options.huge_pages).map_err(|error| failed("shared memory", error))?;
        file.set_len(total as u64)
            .map_err(|error| failed("shared memory", error))?;
        rustix::fs::fcntl_add_seals(&file, seals())
            .map_err(|error| failed("sealing", error.into()))?;
        let memory = MmapRaw::map_raw(&file).map_err(|error| failed("a mapping", error))?;
        // A wish: containers often may not say where memory is taken from.
        let wish = options.numa_node.map(|node| numa::prefer(&memory, node));
        let warning = wish.and_then(|outcome| {
            let error = outcome.err()?;
            Some(format!(
                "memory is not taken near the device: mbind failed: {error}"
            ))
        });
        let encoded = header.encode();
        // Without memory for it, a limit on huge pages for one, the write itself would end the process.
        // SAFETY: the mapping is longer than a header, and lives longer than the call.
        let start = unsafe { Region::new(memory.as_mut_ptr(), encoded.len())? };
        prefault(start, 1)?;
        // SAFETY: the mapping is new, longer than a header, and nobody else has its path yet. A file of
        // huge pages can't be written otherwise.
        unsafe {
            memory
                .as_mut_ptr()
                .copy_from(encoded.as_ptr(), encoded.len())
        };
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        Ok(Self {
            memory,
            path,
            warning,
            _file: file,
        })
    }

    /// The file at a path, once its size, header and seals are what they must be.
    pub(super) fn open(path: &str, geometry: &Geometry) -> Result<(Self, Header)> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Error::Arena(format!(
                "{path}: expected the path of a living process's plane, found nothing: has its \
                 creator ended?"
            )),
            _ => Error::Arena(format!(
                "{path}: expected a plane of an arena, found {error}"
            )),
        };
        // Whatever has taken over the descriptor's number, opening it must not block.
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let mut options = OpenOptions::new();
        let options = options
            .read(true)
            .write(true)
            .custom_flags(flags.bits().cast_signed());
        let file = options.open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let size = metadata.len();
        if !metadata.is_file() || size < Header::ENCODED_BYTES as u64 {
            return Err(Error::Arena(format!(
                "{path}: expected a plane with its header, found {}",
                if metadata.is_file() {
                    format!("{size} bytes")
                } else {
                    "no file".to_owned()
                }
            )));
        }
        let mut bytes = [0; Header::ENCODED_BYTES];
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        let header = Header::decode(&bytes, geometry)?;
        if header.total_bytes().map(|total| total as u64) != Some(size) {
            return Err(Error::Arena(format!(
                "{path}: expected {} slots of {} bytes after {} bytes of header, found {size} \
                 bytes in all",
                header.slots, header.slot_bytes, header.header_bytes
            )));
        }
        let sealed = rustix::fs::fcntl_get_seals(&file).is_ok_and(|s| s.contains(seals()));
        if !sealed {
            return Err(Error::Arena(format!(
                "{path}: expected memory sealed against resizing, found it unsealed"
            )));
        }
        let memory = MmapRaw::map_raw(&file).map_err(failed)?;
        Ok((
            Self {
                memory,
                path: path.to_owned(),
                warning: None,
                _file: file,
            },
            header,
        ))
    }

    /// What could not be had of what its creator wished.
    pub(super) fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Where the header is mapped.
    pub(super) fn address(&self) -> NonNull<u8> {
        NonNull::new(self.memory.as_mut_ptr()).expect("a mapping is never at address zero")
    }
}

/// Never to be executed, where the kernel knows of that (6.3) and may insist on it.
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

/// The size may not change once the header is written, nor may the seals.
fn seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

pub(super) fn page_bytes(huge_pages: bool) -> usize {
    if huge_pages {
        huge_pages::BYTES
    } else {
        rustix::param::page_size()
    }
}

/// Bytes of memory in this machine.
pub(super) fn physical_memory() -> usize {
    let info = rustix::system::sysinfo();
    usize::try_from(info.totalram)
        .unwrap_or(usize::MAX)
        .saturating_mul(info.mem_unit as usize)
}
