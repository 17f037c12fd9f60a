//! What each class of entries is needed for.

/// Classes by what a resumption needs of them, as indices into the cache's classes.
#[derive(Debug, Clone)]
pub(crate) struct Roles {
    /// Pages of every block from the first.
    pub(crate) attention: Option<usize>,
    /// Pages of the last so many blocks.
    pub(crate) windows: Vec<(usize, usize)>,
    /// The checkpoint at the boundary.
    pub(crate) recurrent: Option<usize>,
    /// Number of classes.
    pub(crate) count: usize,
}

impl Roles {
    /// Window classes that need their page of `block` to resume after block `last`.
    pub(crate) fn windows_over(&self, block: usize, last: usize) -> impl Iterator<Item = usize> {
        self.windows
            .iter()
            .filter(move |&&(_, blocks)| block <= last && last - block < blocks)
            .map(|&(class, _)| class)
    }
}
