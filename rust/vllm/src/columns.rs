//! The columns of an engine's block tables that hold the engine blocks of an entry.

use std::ops::Range;

use hybrid_pages::error::{Error, Result};

/// The columns that entries of one group take in the group's block table.
///
/// A block has `per_block` engine blocks, and its entry takes the last `count` of them: a state is at the block's end,
/// and a window that is narrower than the block sees only the last engine blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    per_block: usize,
    count: usize,
    tokens: usize,
    window_tokens: Option<usize>,
}

impl Columns {
    /// Columns of a group whose engine blocks have `tokens` tokens each and whose layers see `window_tokens`, if they
    /// have a window.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a `count` that is not among 1 to `per_block`, and for no tokens.
    pub fn new(
        tokens: usize,
        per_block: usize,
        count: usize,
        window_tokens: Option<usize>,
    ) -> Result<Self> {
        if count == 0 || count > per_block || tokens == 0 {
            return Err(Error::InvalidArgument(format!(
                "columns: expected engine blocks of at least 1 token and 1 to {per_block} of them in an entry, \
                 found {tokens} tokens and {count}"
            )));
        }
        Ok(Self {
            per_block,
            count,
            tokens,
            window_tokens,
        })
    }

    /// The columns of the entry of one block.
    #[must_use]
    pub const fn of(&self, block: usize) -> Range<usize> {
        let end = block.saturating_add(1).saturating_mul(self.per_block);
        end.saturating_sub(self.count)..end
    }

    /// The columns of the entries of several blocks.
    #[must_use]
    pub const fn of_all(&self, blocks: Range<usize>) -> Range<usize> {
        self.of(blocks.start).start..blocks.end.saturating_mul(self.per_block)
    }

    /// The column of the state after `end` tokens, and the block that it lies in.
    #[must_use]
    pub const fn of_state(&self, end: usize) -> (usize, usize) {
        let column = end.div_ceil(self.tokens).saturating_sub(1);
        (column, column / self.per_block)
    }

    /// Whether the engine block of a column begins before `end` tokens of the request.
    #[must_use]
    pub const fn begins_before(&self, column: usize, end: usize) -> bool {
        column.saturating_mul(self.tokens) < end
    }

    /// Whether a request that resumes after `end` tokens reads the engine block of a column.
    #[must_use]
    pub fn is_read(&self, column: usize, end: usize) -> bool {
        let last = column.saturating_add(1).saturating_mul(self.tokens);
        let seen = |window| last.saturating_add(window) > end.saturating_add(1);
        self.begins_before(column, end) && self.window_tokens.is_none_or(seen)
    }
}

/// A part of one block table of a request: the ids from one column on. An id of 0 means that there is no engine block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TablePart {
    /// The column of the first id.
    pub first: usize,
    /// Ids of engine blocks.
    pub ids: Vec<u32>,
}

impl TablePart {
    fn id(&self, column: usize) -> u32 {
        let at = column.checked_sub(self.first);
        at.and_then(|at| self.ids.get(at)).copied().unwrap_or(0)
    }
}

/// The columns of each group of a class, with the part of the group's block table that is looked at.
pub type TableParts<'a> = [(Columns, &'a TablePart)];

/// Adds to `ids` the engine blocks that a store of a block's entry reads. Returns false and adds nothing if one is
/// missing: a window group has none where the window has passed.
#[must_use]
pub fn sources(parts: &TableParts<'_>, block: usize, ids: &mut Vec<u32>) -> bool {
    let before = ids.len();
    for (columns, part) in parts {
        ids.extend(columns.of(block).map(|column| part.id(column)));
    }
    let whole = !ids[before..].contains(&0);
    if !whole {
        ids.truncate(before);
    }
    whole
}

/// Adds to `ids` the engine blocks that a store of a tail's page reads, of a tail in block `block` that ends after
/// `end` tokens of the request; 0 for those that lie wholly behind its tokens. Returns false and adds nothing if one is
/// missing.
#[must_use]
pub fn tail_sources(parts: &TableParts<'_>, block: usize, end: usize, ids: &mut Vec<u32>) -> bool {
    let before = ids.len();
    for (columns, part) in parts {
        for column in columns.of(block) {
            let is_used = columns.begins_before(column, end);
            let id = if is_used { part.id(column) } else { 0 };
            if is_used && id == 0 {
                ids.truncate(before);
                return false;
            }
            ids.push(id);
        }
    }
    true
}

/// The engine blocks that a load of a block's page writes, for a request that resumes after `end` tokens. `None` stands
/// for columns that the request will not read: parts of a window, for which the engine has given it no block, and what
/// lies behind `end`.
///
/// # Errors
/// [`Error::InvalidArgument`] if an engine block is missing that the request will read.
pub fn targets(parts: &TableParts<'_>, block: usize, end: usize) -> Result<Vec<Option<u32>>> {
    let mut targets = Vec::new();
    for (columns, part) in parts {
        for column in columns.of(block) {
            let id = part.id(column);
            if id == 0 && columns.is_read(column, end) {
                return Err(missing(block, column));
            }
            let written = id != 0 && columns.begins_before(column, end);
            targets.push(written.then_some(id));
        }
    }
    Ok(targets)
}

/// The engine blocks that a load of a block's checkpoint writes: those of the running state of a request that resumes
/// after `end` tokens, which lie in that block.
///
/// # Errors
/// [`Error::InvalidArgument`] if an engine block is missing, and for the checkpoint of another block.
pub fn state_targets(parts: &TableParts<'_>, block: usize, end: usize) -> Result<Vec<Option<u32>>> {
    let target = |(columns, part): &(Columns, &TablePart)| {
        let (column, expected) = columns.of_state(end);
        if block != expected || end == 0 {
            return Err(Error::InvalidArgument(format!(
                "checkpoint: expected that of block {expected}, for a request that resumes after {end} tokens, \
                 found that of block {block}"
            )));
        }
        match part.id(column) {
            0 => Err(missing(block, column)),
            id => Ok(Some(id)),
        }
    };
    parts.iter().map(target).collect()
}

#[cold]
fn missing(block: usize, column: usize) -> Error {
    Error::InvalidArgument(format!(
        "block {block}: expected allocated engine blocks, found none in column {column}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(first: usize, ids: &[u32]) -> TablePart {
        TablePart {
            first,
            ids: ids.to_vec(),
        }
    }

    #[test]
    fn an_entry_has_the_last_columns_of_its_block() {
        let columns = Columns::new(16, 4, 2, Some(24)).unwrap();
        assert_eq!(columns.of(0), 2..4);
        assert_eq!(columns.of(3), 14..16);
        assert_eq!(columns.of_all(1..4), 6..16);
        assert!(Columns::new(16, 4, 0, None).is_err());
        assert!(Columns::new(16, 4, 5, None).is_err());
        assert!(Columns::new(0, 4, 4, None).is_err());
    }

    #[test]
    fn a_store_reads_all_engine_blocks_or_none() {
        let columns = Columns::new(16, 2, 2, None).unwrap();
        let table = part(2, &[5, 6, 7, 0]);
        let parts = [(columns, &table)];
        let mut ids = vec![1];
        assert!(sources(&parts, 1, &mut ids));
        assert_eq!(ids, [1, 5, 6]);
        assert!(!sources(&parts, 2, &mut ids));
        assert!(!sources(&parts, 0, &mut ids), "before the part");
        assert!(!sources(&parts, 9, &mut ids), "behind the table");
        assert_eq!(ids, [1, 5, 6]);
    }

    #[test]
    fn a_tail_reads_the_engine_blocks_that_begin_before_its_end() {
        let columns = Columns::new(16, 4, 4, None).unwrap();
        let table = part(4, &[5, 6, 7]);
        let parts = [(columns, &table)];
        let mut ids = vec![1];
        assert!(tail_sources(&parts, 1, 64 + 1, &mut ids));
        assert_eq!(ids, [1, 5, 0, 0, 0]);
        ids.clear();
        assert!(tail_sources(&parts, 1, 64 + 16, &mut ids));
        assert!(tail_sources(&parts, 1, 64 + 33, &mut ids));
        assert_eq!(ids, [5, 0, 0, 0, 5, 6, 7, 0]);
        ids.clear();
        assert!(
            !tail_sources(&parts, 1, 64 + 49, &mut ids),
            "behind the table"
        );
        assert!(!tail_sources(&parts, 0, 1, &mut ids), "before the part");
        assert!(ids.is_empty());
    }

    #[test]
    fn a_load_leaves_out_what_no_window_sees() {
        let columns = Columns::new(16, 1, 1, Some(24)).unwrap();
        let table = part(0, &[0, 8, 9]);
        let parts = [(columns, &table)];
        // After 48 tokens the next one sees those from 25 on.
        assert_eq!(targets(&parts, 0, 48), Ok(vec![None]));
        assert_eq!(targets(&parts, 1, 48), Ok(vec![Some(8)]));
        assert!(
            targets(&parts, 0, 24).is_err(),
            "it is read from token 1 on"
        );
        let all = [(Columns::new(16, 1, 1, None).unwrap(), &table)];
        assert!(targets(&all, 0, 48).is_err());
    }

    #[test]
    fn a_load_leaves_out_what_lies_behind_a_tail() {
        let columns = Columns::new(16, 4, 4, None).unwrap();
        let table = part(4, &[5, 6, 7, 0]);
        let parts = [(columns, &table)];
        assert_eq!(
            targets(&parts, 1, 64 + 17),
            Ok(vec![Some(5), Some(6), None, None]),
            "the third column is another request's by then"
        );
        assert_eq!(
            targets(&parts, 1, 64 + 1),
            Ok(vec![Some(5), None, None, None])
        );
        assert!(targets(&parts, 1, 64 + 49).is_err(), "in the last column");
    }

    #[test]
    fn a_window_behind_a_tail_reads_the_page_before() {
        let columns = Columns::new(16, 1, 1, Some(17)).unwrap();
        let table = part(0, &[0, 8, 9]);
        let parts = [(columns, &table)];
        assert_eq!(targets(&parts, 0, 32), Ok(vec![None]));
        // After 47 tokens the next one sees those from 31 on.
        assert_eq!(targets(&parts, 1, 47), Ok(vec![Some(8)]));
        assert_eq!(targets(&parts, 2, 47), Ok(vec![Some(9)]));
        assert!(targets(&parts, 0, 31).is_err(), "token 15 is in it");
    }

    #[test]
    fn a_state_is_loaded_to_the_running_column() {
        let columns = Columns::new(16, 4, 1, None).unwrap();
        let table = part(4, &[5, 6, 0, 8]);
        let parts = [(columns, &table)];
        assert_eq!(state_targets(&parts, 1, 64 + 1), Ok(vec![Some(5)]));
        assert_eq!(state_targets(&parts, 1, 64 + 16), Ok(vec![Some(5)]));
        assert_eq!(state_targets(&parts, 1, 64 + 17), Ok(vec![Some(6)]));
        assert_eq!(state_targets(&parts, 1, 128), Ok(vec![Some(8)]));
        assert!(state_targets(&parts, 1, 64 + 33).is_err(), "no block there");
        assert!(state_targets(&parts, 0, 64 + 1).is_err(), "another block's");
        assert!(state_targets(&parts, 1, 64).is_err(), "another block's");
        assert!(state_targets(&parts, 0, 0).is_err(), "no state yet");
    }
}
