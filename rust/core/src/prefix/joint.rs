//! The joint hit: the deepest boundary from which every class can resume.

use super::Index;
use crate::ids::{NamespaceId, NodeId, PrefixKey};

/// What a lookup found, in blocks from the start of the prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hit {
    /// The joint hit: every class has what it needs to resume after this many blocks.
    pub blocks: usize,
    /// Leading blocks whose attention pages are all there, at least `blocks`: the difference is what a
    /// missing checkpoint or window page costs. Equals `blocks` without an attention class.
    pub pages: usize,
}

impl Index {
    /// Walks the prefix once, from its start to its first missing page, showing each boundary to `visit`.
    pub(crate) fn joint_hit(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        mut visit: impl FnMut(Option<NodeId>),
    ) -> Hit {
        let roles = self.roles();
        // For each window class, how many blocks in a row up to here have their page.
        let mut runs = vec![0_usize; roles.windows.len()];
        let mut hit = Hit::default();
        let mut parent = None;
        for (block, key) in keys.iter().enumerate() {
            let node = self.child(parent, block, namespace, key);
            let has = |class| node.is_some_and(|node| self.cell(node, class).is_resident());
            if let Some(attention) = roles.attention {
                if !has(attention) {
                    break;
                }
                hit.pages = block + 1;
                parent = node;
            }
            visit(node);
            let mut whole = roles.recurrent.is_none_or(has);
            for (run, &(class, window)) in runs.iter_mut().zip(&roles.windows) {
                *run = if has(class) { *run + 1 } else { 0 };
                whole &= *run >= window.min(block + 1);
            }
            if whole {
                hit.blocks = block + 1;
            }
        }
        hit.pages = hit.pages.max(hit.blocks);
        hit
    }
}
