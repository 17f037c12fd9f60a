//! What is checked of redb's header before redb reads the file.

/// Bytes of redb's header.
pub(super) const BYTES: usize = 320;
/// Where the header's two records of a commit are: each names the first page of two trees.
const COMMITS: [usize; 2] = [64, 192];
const ROOTS: [usize; 2] = [8, 40];
const PAGE_BYTES: u64 = 4096;

/// Whether a header names no page that is larger than the file: redb would take the memory before it reads the page.
pub(super) fn fits(header: &[u8; BYTES], length: u64) -> bool {
    let mut roots = COMMITS
        .into_iter()
        .flat_map(|at| ROOTS.map(|root| at + root));
    roots.all(|at| {
        // The highest five bits of a page's number are its order: pages are of a power of two.
        let order = header[at + 7] >> 3;
        PAGE_BYTES << order <= length
    })
}
