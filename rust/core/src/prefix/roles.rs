//! The roles of classes: which entries a resumption needs from each.

/// The classes of a cache by role, as indices into its list of classes.
#[derive(Debug, Clone)]
pub(crate) struct Roles {
    /// The class with pages of every block from the first.
    pub(crate) attention: Option<usize>,
    /// The window classes, each with the number of last blocks whose pages it needs.
    pub(crate) windows: Vec<(usize, usize)>,
    /// The class with the checkpoint at the boundary.
    pub(crate) recurrent: Option<usize>,
    /// Number of classes.
    pub(crate) count: usize,
}

impl Roles {
    /// Every class; the pages that the others hang from first.
    pub(crate) fn pages_first(&self) -> impl Iterator<Item = usize> + use<> {
        let attention = self.attention;
        let others = (0..self.count).filter(move |&class| Some(class) != attention);
        attention.into_iter().chain(others)
    }

    /// The first block of which a resumption after block `last` needs more than the attention page. `tail`: whether
    /// that block is a tail, so that windows reach one block further back.
    pub(crate) fn seen_from(&self, last: usize, tail: bool) -> usize {
        let widest = self.windows.iter().map(|&(_, blocks)| blocks).max();
        let seen = widest.map_or(0, |blocks| blocks + usize::from(tail));
        (last + 1).saturating_sub(seen)
    }

    /// Window classes that need their page of `block` to resume after block `last`, which may be a tail.
    pub(crate) fn windows_over(
        &self,
        block: usize,
        last: usize,
        tail: bool,
    ) -> impl Iterator<Item = usize> {
        let more = usize::from(tail);
        self.windows
            .iter()
            .filter(move |&&(_, blocks)| block <= last && last - block < blocks + more)
            .map(|&(class, _)| class)
    }
}
