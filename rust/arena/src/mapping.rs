//! The memory of a plane: shared by path where the system has memfds, else private.

use std::ptr::NonNull;

use memmap2::MmapRaw;

use hybrid_pages::error::{Error, Result};
use hybrid_pages::geometry::Geometry;
use hybrid_pages::transfer::Region;

use crate::header::PlaneHeader;
use crate::prefault::prefault;
use crate::private;
#[cfg(target_os = "linux")]
use crate::{huge_pages, numa, shared};

/// Wishes for the memory of a plane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlaneOptions {
    /// Pages of 2 MiB, which the system must have reserved.
    pub huge_pages: bool,
    /// The NUMA node whose memory is preferred.
    pub numa_node: Option<u32>,
    /// Memory of this process alone, which no other one can open. Always so where the system is not Linux.
    pub private: bool,
}

/// Mapped memory, with its file if it is shared.
#[derive(Debug)]
pub(crate) struct Mapping {
    memory: MmapRaw,
    #[cfg(target_os = "linux")]
    file: Option<shared::SharedFile>,
    warning: Option<String>,
}

impl Mapping {
    /// New memory of the header's size, all zeros after the header.
    pub(crate) fn create(header: &PlaneHeader, options: PlaneOptions) -> Result<Self> {
        let total = header.total_bytes().ok_or_else(|| {
            Error::arena("create: expected a size that fits memory, found a larger one")
        })?;
        let mut mapping = Self::of(total, options)?;
        mapping.warning = options.numa_node.and_then(|node| mapping.prefer(node));
        let encoded = header.encode();
        // First make the header's memory present: if there is none, the write itself would end the process. A limit on
        // huge pages can cause that.
        // SAFETY: the mapping is longer than a header, and lives longer than the call.
        let start = unsafe { Region::new(mapping.memory.as_mut_ptr(), encoded.len())? };
        prefault(start, 1, options.numa_node)?;
        // SAFETY: the mapping is new, longer than a header, and nobody else has its path yet. A file of
        // huge pages can't be written otherwise.
        unsafe {
            mapping
                .memory
                .as_mut_ptr()
                .copy_from(encoded.as_ptr(), encoded.len())
        };
        Ok(mapping)
    }

    #[cfg(target_os = "linux")]
    fn of(total: usize, options: PlaneOptions) -> Result<Self> {
        if options.private && options.huge_pages {
            return Err(Error::InvalidArgument(
                "arena: expected shared memory with huge pages, found private memory".into(),
            ));
        }
        if options.huge_pages {
            huge_pages::require(total)?;
        }
        let (memory, file) = if options.private {
            (private::create(total)?, None)
        } else {
            let (memory, file) = shared::create(total, options.huge_pages).or_else(|error| {
                // Another plane may have taken the huge pages since.
                if options.huge_pages {
                    huge_pages::require(total)?;
                }
                Err(error)
            })?;
            (memory, Some(file))
        };
        Ok(Self {
            memory,
            file,
            warning: None,
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn of(total: usize, options: PlaneOptions) -> Result<Self> {
        if options.huge_pages {
            return Err(Error::Budget(format!(
                "huge pages: expected Linux, found {}: leave the setting out",
                std::env::consts::OS
            )));
        }
        let memory = private::create(total)?;
        Ok(Self {
            memory,
            warning: None,
        })
    }

    /// Asks for memory near a NUMA node. Returns a warning if the system refuses: containers often may not choose where
    /// memory is taken from.
    #[cfg(target_os = "linux")]
    fn prefer(&self, node: u32) -> Option<String> {
        let error = numa::prefer(&self.memory, node).err()?;
        (!numa::is_only(node)).then(|| {
            format!(
                "the system may not be told to take memory near the device, on node {node}: mbind failed: \
                 {error} (a container needs the capability SYS_NICE for it). Threads that run there take \
                 what is pinned, as far as they may run there"
            )
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn prefer(&self, _: u32) -> Option<String> {
        Some("memory is not taken near the device: the system has no way to say so".into())
    }

    /// Maps the memory at a path, after a check of its size, header and seals.
    #[cfg(target_os = "linux")]
    pub(crate) fn open(path: &str, geometry: &Geometry) -> Result<(Self, PlaneHeader)> {
        let (memory, file, header) = shared::open(path, geometry)?;
        let mapping = Self {
            memory,
            file: Some(file),
            warning: None,
        };
        Ok((mapping, header))
    }

    /// Fails: private memory has no path to open.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn open(path: &str, _: &Geometry) -> Result<(Self, PlaneHeader)> {
        Err(Error::arena(format!(
            "{path}: expected Linux, whose memory has paths, found {}",
            std::env::consts::OS
        )))
    }

    /// A warning if the memory could not be taken from the NUMA node that was wished for.
    pub(crate) fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The path of shared memory; `None` for private memory.
    #[cfg(target_os = "linux")]
    pub(crate) fn path(&self) -> Option<&str> {
        self.file.as_ref().map(shared::SharedFile::path)
    }

    /// The path of shared memory: always `None`, since all memory is private here.
    #[cfg(not(target_os = "linux"))]
    #[expect(clippy::unused_self, reason = "as on Linux")]
    pub(crate) fn path(&self) -> Option<&str> {
        None
    }

    /// The address of the header.
    pub(crate) fn address(&self) -> NonNull<u8> {
        NonNull::new(self.memory.as_mut_ptr()).expect("a mapping is never at address zero")
    }
}

pub(crate) fn page_bytes(huge_pages: bool) -> usize {
    #[cfg(target_os = "linux")]
    if huge_pages {
        return huge_pages::BYTES;
    }
    let _ = huge_pages;
    rustix::param::page_size()
}

/// Bytes of memory in this machine.
#[cfg(target_os = "linux")]
pub(crate) fn physical_memory() -> usize {
    let info = rustix::system::sysinfo();
    usize::try_from(info.totalram)
        .unwrap_or(usize::MAX)
        .saturating_mul(info.mem_unit as usize)
}

/// Bytes of memory in this machine; no limit where the system does not say.
#[cfg(not(target_os = "linux"))]
pub(crate) fn physical_memory() -> usize {
    // SAFETY: the call reads a number.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    usize::try_from(pages).map_or(usize::MAX, |pages| {
        pages.saturating_mul(rustix::param::page_size())
    })
}
