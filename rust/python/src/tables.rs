//! Block tables of an engine: what a store reads and what a load writes.

use hybrid_pages::columns::{self, Columns, Part};
use hybrid_pages::error::Error;
use hybrid_pages::ids::ClassKind;
use pyo3::exceptions::PyIndexError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PySequence};
use std::ops::Range;

use crate::error::to_py;
use crate::geometry::PyGeometry;
use crate::number::Whole;

/// A request's block tables, a sequence each: of engine blocks or of their numbers.
pub type Tables<'py> = Vec<Bound<'py, PyAny>>;

/// Tables in a sequence that Python gives.
pub fn tables_in<'py>(given: &Bound<'py, PyAny>) -> PyResult<Tables<'py>> {
    given.try_iter()?.collect()
}

/// The block tables of all requests, as an engine keeps them: a dictionary a group.
#[pyclass(frozen, name = "BlockTables", module = "hybrid_pages._core")]
pub struct PyBlockTables {
    groups: Vec<Py<PyDict>>,
}

#[pymethods]
impl PyBlockTables {
    #[new]
    const fn new(groups: Vec<Py<PyDict>>) -> Self {
        Self { groups }
    }

    #[pyo3(name = "__call__")]
    pub fn of<'py>(&self, request_id: &Bound<'py, PyAny>) -> PyResult<Tables<'py>> {
        let py = request_id.py();
        let mut tables = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            let table = group.bind(py).get_item(request_id)?;
            tables.push(table.unwrap_or_else(|| PyList::empty(py).into_any()));
        }
        Ok(tables)
    }
}

/// One group: its table, and its columns there.
type Group = (usize, Columns);

/// Where the entries of each class have their engine blocks in an engine's block tables.
#[pyclass(frozen, name = "TableColumns", module = "hybrid_pages._core")]
pub struct PyTableColumns {
    classes: Vec<(ClassKind, Vec<Group>)>,
}

/// A group as Python gives it: table, tokens of an engine block, engine blocks of a block, those of them in
/// an entry, tokens of its window.
type GivenGroup = (Whole, Whole, Whole, Whole, Option<Whole>);

#[pymethods]
impl PyTableColumns {
    #[new]
    fn new(geometry: &PyGeometry, groups: Vec<GivenGroup>) -> PyResult<Self> {
        let expected = geometry.inner.groups().len();
        if groups.len() != expected {
            return Err(to_py(Error::InvalidArgument(format!(
                "groups: expected one for each of the geometry's {expected}, found {}",
                groups.len()
            ))));
        }
        let group = |&(table, tokens, per_block, count, window): &GivenGroup| {
            let window = window.map(|Whole(tokens)| tokens);
            Ok((
                table.0,
                Columns::new(tokens.0, per_block.0, count.0, window)?,
            ))
        };
        let groups: Vec<Group> = groups
            .iter()
            .map(group)
            .collect::<Result<_, Error>>()
            .map_err(to_py)?;
        let classes = geometry.inner.classes().iter();
        let members = |class: &hybrid_pages::geometry::PageClass| {
            class.groups.iter().map(|&group| groups[group]).collect()
        };
        Ok(Self {
            classes: classes.map(|class| (class.kind, members(class))).collect(),
        })
    }

    /// The pages of blocks all of whose engine blocks are there.
    fn filled(
        &self,
        tables: &Bound<'_, PyAny>,
        first: Whole,
        end: Whole,
    ) -> PyResult<Vec<(usize, usize)>> {
        let (pages, _) = self.pages(&tables_in(tables)?, first.0..end.0, 0)?;
        Ok(pages
            .into_iter()
            .map(|(class, block, _)| (class, block))
            .collect())
    }
}

/// The parts of one class's tables.
struct Read<'a> {
    groups: &'a [Group],
    parts: Vec<Part>,
}

impl Read<'_> {
    fn paired(&self) -> Vec<(Columns, &Part)> {
        let columns = self.groups.iter().map(|&(_, columns)| columns);
        columns.zip(&self.parts).collect()
    }
}

/// Class and block of an entry, and which of some engine blocks are its own.
type Source = (usize, usize, Range<usize>);

impl PyTableColumns {
    /// The pages that are whole, and their engine blocks; both with room for `more`.
    pub fn pages(
        &self,
        tables: &[Bound<'_, PyAny>],
        blocks: Range<usize>,
        more: usize,
    ) -> PyResult<(Vec<Source>, Vec<u32>)> {
        // A block takes an engine block of each table at least: what is beyond them is not there.
        let mut longest = 0;
        for table in tables {
            longest = longest.max(table.len()?);
        }
        let blocks = blocks.start..blocks.end.min(longest);
        let mut pages = Vec::with_capacity(blocks.len() + more);
        let mut ids = Vec::with_capacity(blocks.len() + more);
        for (class, (kind, groups)) in self.classes.iter().enumerate() {
            if *kind == ClassKind::Recurrent || blocks.is_empty() {
                continue;
            }
            let read = read(groups, tables, blocks.clone())?;
            let parts = read.paired();
            for block in blocks.clone() {
                let from = ids.len();
                if columns::sources(&parts, block, &mut ids) {
                    pages.push((class, block, from..ids.len()));
                }
            }
        }
        Ok((pages, ids))
    }

    /// What a load of the blocks [first, end) writes, by class and block.
    pub fn loads<'a>(
        &'a self,
        tables: &[Bound<'_, PyAny>],
        blocks: Range<usize>,
        resumes: usize,
    ) -> PyResult<impl Fn(usize, usize) -> PyResult<Vec<Option<u32>>> + 'a> {
        let read_class = |(kind, groups): &'a (ClassKind, Vec<Group>)| {
            let last = blocks.end.saturating_sub(1)..blocks.end;
            let blocks = if *kind == ClassKind::Recurrent {
                last
            } else {
                blocks.clone()
            };
            read(groups, tables, blocks)
        };
        let classes: Vec<Read<'a>> = self
            .classes
            .iter()
            .map(read_class)
            .collect::<PyResult<_>>()?;
        Ok(move |class: usize, block: usize| {
            columns::targets(&classes[class].paired(), block, resumes).map_err(to_py)
        })
    }
}

fn read<'a>(
    groups: &'a [Group],
    tables: &[Bound<'_, PyAny>],
    blocks: Range<usize>,
) -> PyResult<Read<'a>> {
    let mut parts = Vec::with_capacity(groups.len());
    for &(table, columns) in groups {
        parts.push(part(tables, table, columns.of_all(blocks.clone()))?);
    }
    Ok(Read { groups, parts })
}

pub fn table_of<'a, 'py>(
    tables: &'a [Bound<'py, PyAny>],
    table: usize,
) -> PyResult<&'a Bound<'py, PyAny>> {
    tables.get(table).ok_or_else(|| {
        PyIndexError::new_err(format!(
            "tables: expected one of each of at least {} groups, found {}",
            table + 1,
            tables.len()
        ))
    })
}

/// A part of a table, which may be shorter.
fn part(tables: &[Bound<'_, PyAny>], table: usize, columns: Range<usize>) -> PyResult<Part> {
    let table = table_of(tables, table)?;
    let end = columns.end.min(table.len()?);
    let mut ids = Vec::with_capacity(end.saturating_sub(columns.start));
    if let Ok(list) = table.cast::<PyList>() {
        for column in columns.start..end {
            ids.push(block_id(&list.get_item(column)?)?);
        }
    } else {
        let sequence = table.cast::<PySequence>()?;
        for column in columns.start..end {
            ids.push(block_id(&sequence.get_item(column)?)?);
        }
    }
    Ok(Part {
        first: columns.start,
        ids,
    })
}

/// The number of an engine block: an integer, or what its attribute `block_id` says.
pub fn block_id(block: &Bound<'_, PyAny>) -> PyResult<u32> {
    if block.is_instance_of::<PyInt>() {
        return engine_block(block.extract()?);
    }
    engine_block(block.getattr(intern!(block.py(), "block_id"))?.extract()?)
}

pub fn engine_block(Whole(number): Whole) -> PyResult<u32> {
    u32::try_from(number).map_err(|_| {
        to_py(Error::InvalidArgument(format!(
            "engine block: expected at most {}, found {number}",
            u32::MAX
        )))
    })
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyBlockTables>()?;
    m.add_class::<PyTableColumns>()
}
