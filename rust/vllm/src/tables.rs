//! Block tables of an engine: the engine blocks that stores read and loads write.

use std::ops::Range;

use hybrid_pages::error::{Error, Result as CoreResult};
use hybrid_pages::geometry::Geometry;
use hybrid_pages::ids::ClassKind;

use crate::columns::{self, Columns, TablePart};

/// The block tables of one request, one for each group of the engine.
pub trait Tables {
    /// The error that reading the engine's objects may raise.
    type Error: From<Error>;

    /// The number of columns of the longest table.
    ///
    /// # Errors
    /// If a table can't be read.
    fn longest(&self) -> Result<usize, Self::Error>;

    /// Some columns of one table, as far as the table has them.
    ///
    /// # Errors
    /// If the table can't be read, or if there is none with this index.
    fn part(&self, table: usize, columns: Range<usize>) -> Result<TablePart, Self::Error>;
}

/// The index of a group's table, and its columns there.
type GroupColumns = (usize, Columns);

/// The tables and columns in which the entries of each class have their engine blocks.
#[derive(Debug, Clone)]
pub struct TableColumns {
    classes: Vec<(ClassKind, Vec<GroupColumns>)>,
}

/// A page or a state that a store may copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntrySource {
    /// The index of the entry's class.
    pub class: usize,
    /// The index of the block.
    pub block: usize,
    /// The entry's own part of a list of engine blocks.
    pub blocks: Range<usize>,
    /// How many tokens the page has, if it is not full.
    pub tokens: Option<usize>,
    /// Whether the next step overwrites the engine blocks before a store of them has ended.
    pub overwritten: bool,
}

/// The pages of a tail, and the list of their engine blocks.
pub type TailPages = (Vec<EntrySource>, Vec<u32>);

impl TableColumns {
    /// The tables and columns of a geometry's groups, in the order of the groups.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there is one for each group.
    pub fn new(geometry: &Geometry, groups: &[(usize, Columns)]) -> CoreResult<Self> {
        let expected = geometry.groups().len();
        if groups.len() != expected {
            return Err(Error::InvalidArgument(format!(
                "groups: expected one for each of the geometry's {expected}, found {}",
                groups.len()
            )));
        }
        let classes = geometry.classes().iter().map(|class| {
            let members = class.groups.iter().map(|&group| groups[group]);
            (class.kind, members.collect())
        });
        Ok(Self {
            classes: classes.collect(),
        })
    }

    /// The pages of `blocks` all of whose engine blocks are in the tables, and the list of these engine blocks. Both
    /// lists have room for `more` items.
    ///
    /// # Errors
    /// If the tables can't be read.
    pub fn pages<T: Tables>(
        &self,
        tables: &T,
        blocks: Range<usize>,
        more: usize,
    ) -> Result<(Vec<EntrySource>, Vec<u32>), T::Error> {
        // A block takes at least one engine block of each table, so blocks beyond the longest table are not there.
        let blocks = blocks.start..blocks.end.min(tables.longest()?);
        let mut pages = Vec::with_capacity(blocks.len() + more);
        let mut ids = Vec::with_capacity(blocks.len() + more);
        for (class, (kind, groups)) in self.classes.iter().enumerate() {
            if *kind == ClassKind::Recurrent || blocks.is_empty() {
                continue;
            }
            let read = ClassParts::read(groups, tables, blocks.clone())?;
            let parts = read.paired();
            for block in blocks.clone() {
                let from = ids.len();
                if columns::sources(&parts, block, &mut ids) {
                    pages.push(EntrySource {
                        class,
                        block,
                        blocks: from..ids.len(),
                        tokens: None,
                        overwritten: false,
                    });
                }
            }
        }
        Ok((pages, ids))
    }

    /// The pages of a tail and the list of their engine blocks; `None` unless the tables have all of them. The tail is
    /// `tokens` tokens long, lies in block `block`, and ends after `end` tokens of the request.
    ///
    /// # Errors
    /// If the tables can't be read.
    pub fn tail_pages<T: Tables>(
        &self,
        tables: &T,
        (block, tokens): (usize, usize),
        end: usize,
    ) -> Result<Option<TailPages>, T::Error> {
        let (mut pages, mut ids) = (Vec::new(), Vec::new());
        for (class, (kind, groups)) in self.classes.iter().enumerate() {
            if *kind == ClassKind::Recurrent {
                continue;
            }
            let read = ClassParts::read(groups, tables, block..block + 1)?;
            let from = ids.len();
            if !columns::tail_sources(&read.paired(), block, end, &mut ids) {
                return Ok(None);
            }
            pages.push(EntrySource {
                class,
                block,
                blocks: from..ids.len(),
                tokens: Some(tokens),
                overwritten: false,
            });
        }
        Ok(Some((pages, ids)))
    }

    /// Reads the engine blocks for a load of `blocks` into a request that resumes after `resumes` tokens. The last
    /// block may be a tail.
    ///
    /// # Errors
    /// If the tables can't be read.
    pub fn loads<T: Tables>(
        &self,
        tables: &T,
        blocks: Range<usize>,
        resumes: usize,
    ) -> Result<LoadTargets<'_>, T::Error> {
        let mut classes = Vec::with_capacity(self.classes.len());
        for (kind, groups) in &self.classes {
            let read = match kind {
                ClassKind::Recurrent => ClassParts::read_states(groups, tables, resumes)?,
                _ => ClassParts::read(groups, tables, blocks.clone())?,
            };
            classes.push((*kind, read));
        }
        Ok(LoadTargets { classes, resumes })
    }
}

/// The engine blocks that a load writes.
pub struct LoadTargets<'a> {
    classes: Vec<(ClassKind, ClassParts<'a>)>,
    resumes: usize,
}

impl LoadTargets<'_> {
    /// The engine blocks of an entry, by its class and block, as [`columns::targets`] gives those of a page and
    /// [`columns::state_targets`] those of a checkpoint.
    ///
    /// # Errors
    /// The errors of these functions.
    pub fn of(&self, class: usize, block: usize) -> CoreResult<Vec<Option<u32>>> {
        let (kind, parts) = &self.classes[class];
        match kind {
            ClassKind::Recurrent => columns::state_targets(&parts.paired(), block, self.resumes),
            _ => columns::targets(&parts.paired(), block, self.resumes),
        }
    }
}

/// The parts that were read of the tables of one class.
struct ClassParts<'a> {
    groups: &'a [GroupColumns],
    parts: Vec<TablePart>,
}

impl<'a> ClassParts<'a> {
    fn read<T: Tables>(
        groups: &'a [GroupColumns],
        tables: &T,
        blocks: Range<usize>,
    ) -> Result<Self, T::Error> {
        Self::read_columns(groups, tables, |columns| columns.of_all(blocks.clone()))
    }

    /// Reads the columns of the running states after `end` tokens.
    fn read_states<T: Tables>(
        groups: &'a [GroupColumns],
        tables: &T,
        end: usize,
    ) -> Result<Self, T::Error> {
        Self::read_columns(groups, tables, |columns| {
            let (column, _) = columns.of_state(end);
            column..column + 1
        })
    }

    fn read_columns<T: Tables>(
        groups: &'a [GroupColumns],
        tables: &T,
        range: impl Fn(Columns) -> Range<usize>,
    ) -> Result<Self, T::Error> {
        let mut parts = Vec::with_capacity(groups.len());
        for &(table, columns) in groups {
            parts.push(tables.part(table, range(columns))?);
        }
        Ok(Self { groups, parts })
    }

    fn paired(&self) -> Vec<(Columns, &TablePart)> {
        let columns = self.groups.iter().map(|&(_, columns)| columns);
        columns.zip(&self.parts).collect()
    }
}
