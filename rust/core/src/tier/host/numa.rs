//! Where in the machine memory is taken from.

use std::io;

use memmap2::MmapRaw;

/// From `linux/mempolicy.h`: take memory from this node while it has some.
const MPOL_PREFERRED: libc::c_ulong = 1;

/// Nodes that a mask has room for: more than any kernel is built with.
const MAX_NODES: usize = 4096;

/// Has the memory of a mapping taken from a NUMA node, or from others when that one is full: a binding
/// that insists would end the process then.
pub(super) fn prefer(memory: &MmapRaw, node: u32) -> io::Result<()> {
    const BITS: usize = libc::c_ulong::BITS as usize;
    let node = node as usize;
    if node >= MAX_NODES {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut mask = [0 as libc::c_ulong; MAX_NODES / BITS];
    mask[node / BITS] |= 1 << (node % BITS);
    // SAFETY: the mapping lives, and the mask is as long as said (the kernel takes one bit less).
    let code = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            memory.as_mut_ptr(),
            memory.len(),
            MPOL_PREFERRED,
            mask.as_ptr(),
            MAX_NODES + 1,
            0,
        )
    };
    if code == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
