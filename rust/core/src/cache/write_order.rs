//! The order in which entries get room when a prefix is stored.

use crate::prefix::Roles;

/// An entry that a caller wants to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) block: usize,
    pub(super) class: usize,
}

/// A block's page first: the others are reached through it.
pub(super) fn write_order(roles: &Roles, at: Wanted) -> (usize, bool, usize) {
    (at.block, Some(at.class) != roles.attention, at.class)
}

/// Splits entries, which are in [`write_order`], into the order in which they get room: each unit gets it whole
/// or ends the call. A checkpoint is in one unit with the pages up to it and its window pages, since each is
/// useless without the others; what no checkpoint needs follows block by block. `tail`: the block that is a tail.
pub(super) fn units<'a>(
    roles: &'a Roles,
    wanted: &'a mut [Wanted],
    tail: Option<usize>,
) -> impl Iterator<Item = &'a [Wanted]> {
    let checkpoints = wanted.iter();
    let checkpoints = checkpoints.filter(|entry| Some(entry.class) == roles.recurrent);
    let mut targets: Vec<usize> = checkpoints.map(|entry| entry.block).collect();
    targets.sort_unstable();
    let any_target = !targets.is_empty();
    let unit_of = move |entry: &Wanted| -> (bool, usize) {
        let target = targets.get(targets.partition_point(|&target| target < entry.block));
        let needed_by = target.filter(|&&target| {
            Some(entry.class) == roles.attention
                || Some(entry.class) == roles.recurrent
                || roles
                    .windows_over(entry.block, target, Some(target) == tail)
                    .any(|class| class == entry.class)
        });
        needed_by.map_or((true, entry.block), |&target| (false, target))
    };
    // Without a checkpoint the entries are in that order already.
    if any_target {
        wanted.sort_by_cached_key(|entry| (unit_of(entry), write_order(roles, *entry)));
    }
    wanted.chunk_by(move |a, b| unit_of(a) == unit_of(b))
}
