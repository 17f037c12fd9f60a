//! NUMA nodes: chooses the part of the machine that memory is taken from.

use std::{fs, io};

use memmap2::MmapRaw;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const NODES: &str = "/sys/devices/system/node";

/// From `linux/mempolicy.h`: take memory from this node while it has some.
const MPOL_PREFERRED: libc::c_ulong = 1;

/// The number of nodes in a mask: more than any kernel is built with.
const MAX_NODES: usize = 4096;

/// Takes the memory of a mapping from a NUMA node, or from others when that one is full: with a strict binding, a full
/// node would end the process.
pub(crate) fn prefer(memory: &MmapRaw, node: u32) -> io::Result<()> {
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

/// Whether this node is the only one with memory.
pub(crate) fn is_only(node: u32) -> bool {
    fs::read_to_string(format!("{NODES}/online")).is_ok_and(|all| all.trim() == node.to_string())
}

/// Moves this thread to the processors of a node, as far as it may run there: memory that it touches first
/// is taken from that node, even where nobody may say so.
pub(crate) fn go_near(node: u32) -> io::Result<()> {
    let all = fs::read_to_string(format!("{NODES}/node{node}/cpulist"))?;
    let (allowed, mut processors) = (sched_getaffinity(None)?, CpuSet::new());
    let may_run = |number: &usize| *number < CpuSet::MAX_CPU && allowed.is_set(*number);
    for processor in list(&all).filter(may_run) {
        processors.set(processor);
    }
    Ok(sched_setaffinity(None, &processors)?)
}

/// The numbers in a list such as `0-3,8`.
fn list(text: &str) -> impl Iterator<Item = usize> {
    text.trim().split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let end = last.parse().map_or(0, |last: usize| last + 1);
        first.parse().unwrap_or(end)..end
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_have_ranges_and_may_be_empty() {
        let found = |text| list(text).collect::<Vec<_>>();
        assert_eq!(found("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert!(found("\n").is_empty());
        assert_eq!(found("?,5-x,7"), [7]);
    }

    #[test]
    fn a_thread_goes_where_a_node_is_and_stays_where_none_is() {
        let allowed = sched_getaffinity(None).unwrap();
        std::thread::spawn(move || {
            go_near(4095).unwrap_err();
            assert_eq!(sched_getaffinity(None).unwrap(), allowed);
            // Some systems show no nodes.
            if let Ok(all) = fs::read_to_string(format!("{NODES}/node0/cpulist")) {
                go_near(0).unwrap();
                let here = sched_getaffinity(None).unwrap();
                let mut processors = (0..CpuSet::MAX_CPU).filter(|number| here.is_set(*number));
                assert!(processors.all(|number| {
                    allowed.is_set(number) && list(&all).any(|one| one == number)
                }));
            }
        })
        .join()
        .unwrap();
    }
}
