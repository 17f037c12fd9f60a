//! Huge pages of 2 MiB: a CPU and a device need fewer table entries for them. The system must have reserved them.

use std::fs;

use hybrid_pages::error::{Error, Result};

/// Size of a huge page.
pub(crate) const BYTES: usize = 2 << 20;

/// The directory where Linux counts huge pages.
const COUNTS: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// Refuses a size for which the system has too few.
pub(crate) fn require(bytes: usize) -> Result<()> {
    let (needed, free) = (bytes.div_ceil(BYTES), free());
    if free >= needed {
        return Ok(());
    }
    let all = count("nr_hugepages") + needed - free;
    Err(Error::Budget(format!(
        "huge pages: expected {needed} free ones of 2 MiB ({bytes} bytes), found {free}: reserve them with \
         `sysctl -w vm.nr_hugepages={all}` (more if others use some; soon after boot, while memory is in \
         one piece), lower the budget, or leave the setting out"
    )))
}

/// Free huge pages that no mapping has a claim to.
fn free() -> usize {
    count("free_hugepages").saturating_sub(count("resv_hugepages"))
}

fn count(name: &str) -> usize {
    let text = fs::read_to_string(format!("{COUNTS}/{name}")).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}
