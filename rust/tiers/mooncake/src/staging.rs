//! The staging memory, which the tier shares with its helper: headers, and cells in which values arrive.

use std::fs::File;

use memmap2::MmapRaw;

/// Most questions in one batch. A question asks whether the store has an entry, and gets its header.
pub(crate) const MOST_QUESTIONS: usize = 1024;
/// Most cells: the helper never has more reads at a time.
const MOST_CELLS: usize = MOST_GET_BATCHES * MOST_GETS;
/// Most batches of reads that the helper has at a time: one moves and one waits.
pub(crate) const MOST_GET_BATCHES: usize = 2;
/// Most reads in one batch.
pub(crate) const MOST_GETS: usize = 32;
/// Most writes in one batch.
pub(crate) const MOST_PUTS: usize = 64;

/// Memory that the tier shares with its helper. Mooncake's client lets its peers write there, and so anybody on the
/// network. So bytes are copied out before they are verified and used.
#[derive(Debug)]
pub(crate) struct StagingMemory {
    memory: MmapRaw,
    file: File,
    header_bytes: usize,
    cell_bytes: usize,
    cells: usize,
}

/// Makes a file in memory, which the helper inherits.
#[cfg(target_os = "linux")]
fn nameless() -> std::io::Result<File> {
    use rustix::fs::{MemfdFlags, memfd_create};

    let fd = memfd_create("hybrid-pages-staging", MemfdFlags::CLOEXEC)?;
    Ok(File::from(fd))
}

/// Fails, since Mooncake has no client for other systems.
#[cfg(not(target_os = "linux"))]
fn nameless() -> std::io::Result<File> {
    Err(std::io::ErrorKind::Unsupported.into())
}

impl StagingMemory {
    pub(crate) fn new(
        header_bytes: usize,
        largest_value: usize,
        wanted: usize,
    ) -> std::io::Result<Self> {
        let cell_bytes = largest_value.next_multiple_of(4096);
        let cells = (wanted / cell_bytes).clamp(2, MOST_CELLS);
        let file = nameless()?;
        let heads = ((MOST_QUESTIONS + MOST_PUTS) * header_bytes).next_multiple_of(4096);
        file.set_len((heads + cells * cell_bytes) as u64)?;
        let memory = MmapRaw::map_raw(&file)?;
        Ok(Self {
            memory,
            file,
            header_bytes,
            cell_bytes,
            cells,
        })
    }

    pub(crate) fn file(&self) -> std::io::Result<File> {
        self.file.try_clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }

    /// Number of cells for values.
    pub(crate) const fn cells(&self) -> usize {
        self.cells
    }

    /// Offset of the header of a question.
    pub(crate) const fn question(&self, index: usize) -> usize {
        index * self.header_bytes
    }

    /// Offset of the header of a write.
    pub(crate) const fn put(&self, index: usize) -> usize {
        (MOST_QUESTIONS + index) * self.header_bytes
    }

    /// Offset of a cell.
    pub(crate) const fn cell(&self, index: usize) -> usize {
        let heads = ((MOST_QUESTIONS + MOST_PUTS) * self.header_bytes).next_multiple_of(4096);
        heads + index * self.cell_bytes
    }

    /// Copies bytes out of the memory.
    pub(crate) fn read(&self, at: usize, bytes: &mut [u8]) {
        assert!(at + bytes.len() <= self.memory.len());
        // SAFETY: the range is inside the mapping, as was checked, and the buffer is other memory. If another process
        // writes there meanwhile, the checksum of the copy will be wrong, and nobody uses it.
        unsafe {
            let from = self.memory.as_ptr().add(at);
            from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len());
        }
    }

    /// Copies bytes into the memory.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.memory.len());
        // SAFETY: as in `read`.
        unsafe {
            let to = self.memory.as_mut_ptr().add(at);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }
}
