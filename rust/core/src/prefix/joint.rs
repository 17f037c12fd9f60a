//! The joint hit: the deepest boundary from which every class can resume.

use super::cell::IndexCell;
use super::index::PrefixIndex;
use super::roles::Roles;
use crate::ids::{NamespaceId, NodeId, PrefixKey};

/// Why a prompt can't be resumed from as deep as its pages go. Of several reasons the last in this list counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Missing {
    /// No checkpoint was ever stored. If a page went and came back, earlier checkpoints there are forgotten.
    NeverMade,
    /// Pages of a window are missing; the checkpoint is there, or none is needed.
    Window,
    /// A checkpoint was there, and was evicted or dropped.
    Evicted,
    /// A checkpoint is being written.
    Writing,
}

impl Missing {
    /// Name in logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NeverMade => "never_made",
            Self::Window => "window",
            Self::Evicted => "evicted",
            Self::Writing => "writing",
        }
    }

    /// The reason why a boundary that has its page can't be resumed from, by the cell of its checkpoint.
    fn at(state: IndexCell) -> Self {
        match state {
            IndexCell::EMPTY => Self::NeverMade,
            IndexCell::GONE => Self::Evicted,
            state if state.is_whole() => Self::Window,
            _ => Self::Writing,
        }
    }
}

/// The answer of a lookup, in blocks from the start of the prompt. Bytes count wherever they are: in the
/// host or in a tier below.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hit {
    /// The joint hit: every class has what it needs to resume after this many blocks.
    pub blocks: usize,
    /// Leading blocks whose attention pages are all there, at least `blocks`: the difference is what a
    /// missing checkpoint or window page costs. Equals `blocks` without an attention class.
    pub pages: usize,
    /// The joint hit of the host alone: what can be loaded now. At most `blocks`, and equal to it without a
    /// tier below.
    pub host: usize,
    /// Why `blocks` is less than `pages`: the reason over all boundaries in between. `None` if they are equal.
    pub missing: Option<Missing>,
    /// Whether a tier below is asking somebody for entries: the same lookup may find more soon.
    pub asking: bool,
    /// The joint hit that there will be when all that is being written is whole. At least `blocks`.
    pub coming: usize,
}

/// How deep a prefix can be resumed, as far as it was walked.
struct Depth<F> {
    /// Whether an entry is there, by its cell.
    counts: F,
    /// For each window class, how many blocks in a row up to here have their page.
    runs: Vec<usize>,
    hit: Hit,
    /// Why a boundary is no hit, if nothing more is known of it.
    least: Missing,
    missing: Missing,
    ended: bool,
}

impl<F: Fn(IndexCell) -> bool> Depth<F> {
    fn new(roles: &Roles, counts: F) -> Self {
        let least = match roles.recurrent {
            Some(_) => Missing::NeverMade,
            None => Missing::Window,
        };
        Self {
            counts,
            runs: vec![0; roles.windows.len()],
            hit: Hit::default(),
            least,
            missing: least,
            ended: false,
        }
    }

    /// Goes on to the next block, which may be a tail. False if its page is missing.
    fn pass(
        &mut self,
        index: &PrefixIndex,
        block: usize,
        node: Option<NodeId>,
        tail: bool,
    ) -> bool {
        let roles = index.roles();
        let has = |class| node.is_some_and(|node| (self.counts)(index.cell(node, class)));
        if let Some(attention) = roles.attention {
            if self.ended || !has(attention) {
                self.ended = true;
                return false;
            }
            self.hit.pages = block + 1;
        }
        let state = match (roles.recurrent, node) {
            (Some(class), Some(node)) => index.cell(node, class),
            _ => IndexCell::EMPTY,
        };
        let mut whole = roles.recurrent.is_none() || (self.counts)(state);
        for (run, &(class, window)) in self.runs.iter_mut().zip(&roles.windows) {
            *run = if has(class) { *run + 1 } else { 0 };
            // The page of a tail is not full: a window sees one page more.
            whole &= *run >= (window + usize::from(tail)).min(block + 1);
        }
        if whole {
            self.hit.blocks = block + 1;
            self.missing = self.least;
        } else if state != IndexCell::EMPTY {
            self.missing = self.missing.max(Missing::at(state));
        }
        true
    }

    fn end(self) -> Hit {
        let mut hit = self.hit;
        // Without an attention class the walk goes on where nothing is, and nothing is missing.
        hit.pages = hit.pages.max(hit.blocks);
        hit.host = hit.blocks;
        hit.coming = hit.blocks;
        hit.missing = (hit.pages > hit.blocks).then_some(self.missing);
        hit
    }
}

impl PrefixIndex {
    /// The joint hit over all tiers and, in one walk with it, that of the host.
    pub(crate) fn hits(&self, namespace: NamespaceId, keys: &[PrefixKey]) -> Hit {
        let mut whole = Depth::new(self.roles(), IndexCell::is_whole);
        let mut host = Depth::new(self.roles(), IndexCell::is_in_host);
        let chained = self.roles().attention.is_some();
        let mut parent = None;
        for (block, key) in keys.iter().enumerate() {
            let node = self.child(parent, block, namespace, key);
            if !whole.pass(self, block, node, key.is_tail()) {
                break;
            }
            host.pass(self, block, node, key.is_tail());
            if chained {
                parent = node;
            }
        }
        Hit {
            host: host.end().blocks,
            ..whole.end()
        }
    }

    /// Walks the prefix once, from its start to its first missing page, showing each boundary to `visit`.
    /// An entry is there if its cell `counts`. The hit's `host` is set to `blocks`.
    pub(crate) fn joint_hit(
        &self,
        namespace: NamespaceId,
        keys: &[PrefixKey],
        counts: impl Fn(IndexCell) -> bool,
        mut visit: impl FnMut(Option<NodeId>),
    ) -> Hit {
        let mut depth = Depth::new(self.roles(), counts);
        let chained = self.roles().attention.is_some();
        let mut parent = None;
        for (block, key) in keys.iter().enumerate() {
            let node = self.child(parent, block, namespace, key);
            if !depth.pass(self, block, node, key.is_tail()) {
                break;
            }
            visit(node);
            if chained {
                parent = node;
            }
        }
        depth.end()
    }
}
