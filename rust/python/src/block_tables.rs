//! Block tables, read from an engine's Python objects.

use hybrid_pages::error::Error;
use hybrid_pages_vllm::columns::{Columns, TablePart};
use hybrid_pages_vllm::tables::{TableColumns, Tables};
use pyo3::exceptions::PyIndexError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PySequence};
use std::ops::Range;

use crate::error::{Raised, to_py};
use crate::geometry::PyGeometry;
use crate::number::Whole;

/// The block tables of a request. Each is a sequence of engine blocks or of their numbers.
pub struct PyTables<'py>(Vec<Bound<'py, PyAny>>);

impl<'py> PyTables<'py> {
    /// Reads the tables from a Python sequence.
    pub fn of(given: &Bound<'py, PyAny>) -> PyResult<Self> {
        given.try_iter()?.collect::<PyResult<_>>().map(Self)
    }

    fn table(&self, table: usize) -> PyResult<&Bound<'py, PyAny>> {
        self.0.get(table).ok_or_else(|| {
            PyIndexError::new_err(format!(
                "tables: expected one of each of at least {} groups, found {}",
                table + 1,
                self.0.len()
            ))
        })
    }

    /// The number of the engine block in a column, or 0 beyond the end of the table.
    pub fn block(&self, table: usize, column: usize) -> PyResult<u32> {
        let table = self.table(table)?;
        if column >= table.len()? {
            return Ok(0);
        }
        block_id(&table.get_item(column)?)
    }
}

impl Tables for PyTables<'_> {
    type Error = Raised;

    fn longest(&self) -> Result<usize, Raised> {
        let mut longest = 0;
        for table in &self.0 {
            longest = longest.max(table.len()?);
        }
        Ok(longest)
    }

    fn part(&self, table: usize, columns: Range<usize>) -> Result<TablePart, Raised> {
        Ok(part(self.table(table)?, columns)?)
    }
}

/// The columns of a table in this range, fewer if the table ends before.
fn part(table: &Bound<'_, PyAny>, columns: Range<usize>) -> PyResult<TablePart> {
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
    Ok(TablePart {
        first: columns.start,
        ids,
    })
}

/// The number of an engine block: an integer, or the attribute `block_id` of an object.
pub fn block_id(block: &Bound<'_, PyAny>) -> PyResult<u32> {
    if block.is_instance_of::<PyInt>() {
        return engine_block(block.extract()?);
    }
    engine_block(block.getattr(intern!(block.py(), "block_id"))?.extract()?)
}

/// The number of an engine block, from a Python integer.
pub fn engine_block(Whole(number): Whole) -> PyResult<u32> {
    u32::try_from(number).map_err(|_| {
        to_py(Error::InvalidArgument(format!(
            "engine block: expected at most {}, found {number}",
            u32::MAX
        )))
    })
}

/// The block tables of all requests, as an engine keeps them: one dictionary per group.
#[pyclass(frozen, name = "BlockTables", module = "hybrid_pages._core")]
pub struct PyBlockTables {
    groups: Vec<Py<PyDict>>,
}

impl PyBlockTables {
    /// The tables of one request, empty where the engine has none.
    pub fn of<'py>(&self, request_id: &Bound<'py, PyAny>) -> PyResult<PyTables<'py>> {
        let py = request_id.py();
        let mut tables = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            let table = group.bind(py).get_item(request_id)?;
            tables.push(table.unwrap_or_else(|| PyList::empty(py).into_any()));
        }
        Ok(PyTables(tables))
    }
}

#[pymethods]
impl PyBlockTables {
    #[new]
    const fn new(groups: Vec<Py<PyDict>>) -> Self {
        Self { groups }
    }

    fn __call__<'py>(&self, request_id: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        Ok(self.of(request_id)?.0)
    }
}

/// The columns of an engine's block tables that hold the engine blocks of each class's entries.
#[pyclass(frozen, name = "TableColumns", module = "hybrid_pages._core")]
pub struct PyTableColumns {
    pub inner: TableColumns,
}

/// A group, given by Python: its table, tokens per engine block, engine blocks per block, how many of those an entry
/// takes, and tokens of the window.
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
            let columns = Columns::new(tokens.0, per_block.0, count.0, window)?;
            Ok((table.0, columns))
        };
        let groups: Result<Vec<_>, Error> = groups.iter().map(group).collect();
        let inner = groups.and_then(|groups| TableColumns::new(&geometry.inner, &groups));
        Ok(Self {
            inner: inner.map_err(to_py)?,
        })
    }

    /// The pages of those blocks that have all their engine blocks.
    fn filled(
        &self,
        tables: &Bound<'_, PyAny>,
        first: Whole,
        end: Whole,
    ) -> PyResult<Vec<(usize, usize)>> {
        let (pages, _) = self
            .inner
            .pages(&PyTables::of(tables)?, first.0..end.0, 0)?;
        Ok(pages
            .into_iter()
            .map(|page| (page.class, page.block))
            .collect())
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyBlockTables>()?;
    m.add_class::<PyTableColumns>()
}
