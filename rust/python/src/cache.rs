//! The cache as a Python object.

use std::sync::Arc;

use hybrid_pages::cache::{Admission, Arrival, Cache, CacheConfig, Medium, TierStats};
use hybrid_pages::error::Error;
use hybrid_pages::geometry::Geometry;
use hybrid_pages::prefix::{Hit, Missing};
use hybrid_pages::tier::Below;
use hybrid_pages_vllm::room::{RoomRequest, StateSource, make_room};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::block_tables::{PyTableColumns, PyTables, engine_block};
use crate::changes::PyChanges;
use crate::disk::PyDisk;
use crate::error::{Raised, to_py};
use crate::geometry::{PyGeometry, class_configs};
use crate::hints::{PyHints, given};
use crate::keys::{block_keys, prefix_keys, tails};
use crate::lease::{self, PyReadLease, PyWriteLease};
use crate::mooncake::PyMooncake;
use crate::number::{Whole, namespace_id};
#[cfg(feature = "remote")]
use crate::remote::PyRemote;
use crate::restore::{self, PyRestore};
use crate::store_entries::PyStoreEntries;

/// A tier that several machines share.
#[derive(FromPyObject)]
pub enum AnyRemote<'py> {
    #[cfg(feature = "remote")]
    Objects(Bound<'py, PyRemote>),
    Mooncake(Bound<'py, PyMooncake>),
}

impl AnyRemote<'_> {
    fn take(&self, geometry: &Geometry, slot_bytes: usize) -> PyResult<Box<dyn Below>> {
        match self {
            #[cfg(feature = "remote")]
            Self::Objects(remote) => remote.get().inner.take(geometry, slot_bytes),
            Self::Mooncake(remote) => remote.get().inner.take(geometry, slot_bytes),
        }
    }
}

/// The answer of a lookup, in blocks from the start of the prompt.
#[pyclass(frozen, eq, hash, get_all, name = "Hit", module = "hybrid_pages._core")]
#[derive(PartialEq, Eq, Hash)]
pub struct PyHit {
    blocks: usize,
    pages: usize,
    host: usize,
    missing: Option<&'static str>,
    asking: bool,
    coming: usize,
}

#[pymethods]
impl PyHit {
    fn __repr__(&self) -> String {
        let missing = self
            .missing
            .map_or("None".into(), |missing| format!("'{missing}'"));
        format!(
            "Hit(blocks={}, pages={}, missing={missing})",
            self.blocks, self.pages
        )
    }
}

impl From<Hit> for PyHit {
    fn from(hit: Hit) -> Self {
        Self {
            blocks: hit.blocks,
            pages: hit.pages,
            host: hit.host,
            missing: hit.missing.map(Missing::name),
            asking: hit.asking,
            coming: hit.coming,
        }
    }
}

/// Which boundaries of a prompt deserve a checkpoint, in blocks.
#[pyclass(frozen, eq, get_all, name = "Admission", module = "hybrid_pages._core")]
#[derive(PartialEq, Eq)]
pub struct PyAdmission {
    boundaries: Vec<usize>,
    fork: Option<usize>,
}

#[pymethods]
impl PyAdmission {
    fn __repr__(&self) -> String {
        let fork = self.fork.map_or("None".into(), |fork| fork.to_string());
        format!("Admission(boundaries={:?}, fork={fork})", self.boundaries)
    }
}

/// A boundary in blocks, and the numbers of tokens of its tails.
type TailsBehind = (usize, Vec<u32>);

/// The place of an entry: its class index and its block index.
struct BlockPlace(usize, usize);

impl<'py> FromPyObject<'_, 'py> for BlockPlace {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let tuple = object.cast::<PyTuple>()?;
        if tuple.len() != 2 {
            return Err(to_py(Error::InvalidArgument(format!(
                "entries: expected tuples (class_index, block_index), found one of {} items",
                tuple.len()
            ))));
        }
        let number = |at: usize| Ok::<_, PyErr>(tuple.get_item(at)?.extract::<Whole>()?.0);
        Ok(Self(number(0)?, number(1)?))
    }
}

fn engine_blocks(ids: Vec<Whole>) -> PyResult<Vec<u32>> {
    ids.into_iter().map(engine_block).collect()
}

/// Which prefixes are there, and which slots hold their pages and checkpoints.
#[pyclass(frozen, name = "Cache", module = "hybrid_pages._core")]
pub struct PyCache {
    inner: Arc<Cache>,
}

impl PyCache {
    /// The cache itself, for objects that outlive a call.
    pub fn shared(&self) -> Arc<Cache> {
        Arc::clone(&self.inner)
    }
}

#[pymethods]
impl PyCache {
    #[new]
    #[pyo3(signature = (geometry, *, slot_bytes, slots, policy = "lru", tenant_share = 1.0, disk = None, remote = None))]
    fn new(
        geometry: &PyGeometry,
        slot_bytes: Whole,
        slots: Whole,
        policy: &str,
        tenant_share: f64,
        disk: Option<&PyDisk>,
        remote: Option<AnyRemote<'_>>,
    ) -> PyResult<Self> {
        if !(tenant_share > 0.0 && tenant_share <= 1.0) {
            return Err(to_py(Error::InvalidArgument(format!(
                "tenant_share: expected more than 0 and at most 1, found {tenant_share}"
            ))));
        }
        let geometry = &geometry.inner;
        let config = CacheConfig {
            classes: class_configs(geometry, slot_bytes.0).map_err(to_py)?,
            ranks: geometry.ranks(),
            slots: slots.0,
            slot_bytes: slot_bytes.0,
            policy: policy.to_owned(),
            tenant_slots: Some((slots.0 as f64 * tenant_share) as usize),
        };
        let disk = disk
            .map(|disk| disk.inner.take(geometry, slot_bytes.0))
            .transpose()?;
        let remote = remote
            .map(|remote| remote.take(geometry, slot_bytes.0))
            .transpose()?;
        let below = disk.into_iter().chain(remote).collect();
        let inner = Cache::with_tiers(&config, below).map_err(to_py)?;
        let tokens = u32::try_from(geometry.block_tokens()).unwrap_or(u32::MAX);
        inner.set_block_tokens(tokens).map_err(to_py)?;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    #[pyo3(signature = (identity, tenant = None), text_signature = "($self, identity, tenant=b'')")]
    fn namespace(
        &self,
        identity: &Bound<'_, PyBytes>,
        tenant: Option<&Bound<'_, PyBytes>>,
    ) -> PyResult<u32> {
        let tenant = tenant.map_or(&b""[..], |tenant| tenant.as_bytes());
        let id = self
            .inner
            .namespace_of(identity.as_bytes(), tenant)
            .map_err(to_py)?;
        Ok(id.0)
    }

    fn release_namespace(&self, number: Whole) -> PyResult<()> {
        self.inner
            .release_namespace(namespace_id(number)?)
            .map_err(to_py)
    }

    #[pyo3(
        signature = (namespace, keys, *, stride = Whole(1), limit = None, tail = None),
        text_signature = "($self, namespace, keys, *, stride=1, limit=None, tail=None)"
    )]
    fn lookup(
        &self,
        namespace: Whole,
        keys: &Bound<'_, PyAny>,
        stride: Whole,
        limit: Option<Whole>,
        tail: Option<&Bound<'_, PyBytes>>,
    ) -> PyResult<PyHit> {
        let keys = prefix_keys(keys, stride, limit, tail)?;
        let hit = self
            .inner
            .lookup(namespace_id(namespace)?, &keys)
            .map_err(to_py)?;
        Ok(hit.into())
    }

    #[pyo3(
        signature = (namespace, keys, *, stride = Whole(1), first = Whole(0), limit = None, tail = None),
        text_signature = "($self, namespace, keys, *, stride=1, first=0, limit=None, tail=None)"
    )]
    fn promote(
        &self,
        namespace: Whole,
        keys: &Bound<'_, PyAny>,
        stride: Whole,
        first: Whole,
        limit: Option<Whole>,
        tail: Option<&Bound<'_, PyBytes>>,
    ) -> PyResult<bool> {
        let keys = prefix_keys(keys, stride, limit, tail)?;
        self.inner
            .promote(namespace_id(namespace)?, &keys, first.0)
            .map_err(to_py)
    }

    #[pyo3(
        signature = (namespace, keys, *, stride = Whole(1), first = Whole(0), limit = None, tail = None),
        text_signature = "($self, namespace, keys, *, stride=1, first=0, limit=None, tail=None)"
    )]
    fn restore(
        &self,
        namespace: Whole,
        keys: &Bound<'_, PyAny>,
        stride: Whole,
        first: Whole,
        limit: Option<Whole>,
        tail: Option<&Bound<'_, PyBytes>>,
    ) -> PyResult<Option<PyRestore>> {
        let keys = prefix_keys(keys, stride, limit, tail)?;
        let restore = self
            .inner
            .restore(namespace_id(namespace)?, &keys, first.0)
            .map_err(to_py)?;
        Ok(restore.map(PyRestore::new))
    }

    fn restores<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, value) in self.inner.restores().fields() {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    #[pyo3(
        signature = (namespace, keys, *, stride = Whole(1), first = Whole(0), limit = None, tail = None),
        text_signature = "($self, namespace, keys, *, stride=1, first=0, limit=None, tail=None)"
    )]
    fn acquire(
        &self,
        namespace: Whole,
        keys: &Bound<'_, PyAny>,
        stride: Whole,
        first: Whole,
        limit: Option<Whole>,
        tail: Option<&Bound<'_, PyBytes>>,
    ) -> PyResult<Option<PyReadLease>> {
        let keys = prefix_keys(keys, stride, limit, tail)?;
        let lease = self
            .inner
            .acquire(namespace_id(namespace)?, &keys, first.0)
            .map_err(to_py)?;
        Ok(lease.map(PyReadLease::new))
    }

    #[pyo3(
        signature = (namespace, keys, *, first = Whole(0), stride = Whole(1), limit = None, ask = true),
        text_signature = "($self, namespace, keys, *, first=0, stride=1, limit=None, ask=True)"
    )]
    fn tail_lengths(
        &self,
        namespace: Whole,
        keys: &Bound<'_, PyAny>,
        first: Whole,
        stride: Whole,
        limit: Option<Whole>,
        ask: bool,
    ) -> PyResult<(Vec<TailsBehind>, bool)> {
        let keys = block_keys(keys, stride, limit)?;
        let found = self
            .inner
            .tail_lengths(namespace_id(namespace)?, &keys, first.0, ask)
            .map_err(to_py)?;
        Ok((found.behind, found.asking))
    }

    fn has_tails(
        &self,
        namespace: Whole,
        blocks: Whole,
        tails: &Bound<'_, PyList>,
    ) -> PyResult<(Vec<bool>, bool)> {
        let tails = self::tails(tails)?;
        self.inner
            .has_tails(namespace_id(namespace)?, blocks.0, &tails)
            .map_err(to_py)
    }

    #[pyo3(
        signature = (namespace, keys, tail, *, stride = Whole(1), limit = None),
        text_signature = "($self, namespace, keys, tail, *, stride=1, limit=None)"
    )]
    fn continue_tail(
        &self,
        namespace: Whole,
        keys: &Bound<'_, PyAny>,
        tail: &Bound<'_, PyBytes>,
        stride: Whole,
        limit: Option<Whole>,
    ) -> PyResult<()> {
        let keys = prefix_keys(keys, stride, limit, Some(tail))?;
        self.inner
            .continue_tail(namespace_id(namespace)?, &keys)
            .map_err(to_py)
    }

    #[pyo3(
        signature = (namespace, keys, tail, *, stride = Whole(1), limit = None),
        text_signature = "($self, namespace, keys, tail, *, stride=1, limit=None)"
    )]
    fn supersede(
        &self,
        namespace: Whole,
        keys: &Bound<'_, PyAny>,
        tail: &Bound<'_, PyBytes>,
        stride: Whole,
        limit: Option<Whole>,
    ) -> PyResult<()> {
        let keys = prefix_keys(keys, stride, limit, Some(tail))?;
        self.inner
            .supersede(namespace_id(namespace)?, &keys)
            .map_err(to_py)
    }

    #[pyo3(
        signature = (namespace, keys, *, now, tokens, stride = Whole(1), blocks = None, limit = None, hints = None),
        text_signature = "($self, namespace, keys, *, now, tokens, stride=1, blocks=None, limit=None, hints=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn admit(
        &self,
        namespace: Whole,
        keys: &Bound<'_, PyAny>,
        now: Whole,
        tokens: Whole,
        stride: Whole,
        blocks: Option<Whole>,
        limit: Option<Whole>,
        hints: Option<&Bound<'_, PyHints>>,
    ) -> PyResult<PyAdmission> {
        let keys = block_keys(keys, stride, blocks)?;
        let arrival = Arrival {
            now: now.0 as u64,
            tokens: tokens.0 as u64,
            limit: limit.map_or(keys.len(), |Whole(limit)| limit),
            hints: given(hints),
        };
        let Admission { boundaries, fork } = self
            .inner
            .admit(namespace_id(namespace)?, &keys, arrival)
            .map_err(to_py)?;
        Ok(PyAdmission { boundaries, fork })
    }

    #[pyo3(
        signature = (namespace, keys, *, end, output_tokens, stride = Whole(1)),
        text_signature = "($self, namespace, keys, *, end, output_tokens, stride=1)"
    )]
    fn finish(
        &self,
        namespace: Whole,
        keys: &Bound<'_, PyAny>,
        end: Whole,
        output_tokens: Whole,
        stride: Whole,
    ) -> PyResult<()> {
        let keys = block_keys(keys, stride, None)?;
        self.inner
            .finish(
                namespace_id(namespace)?,
                &keys,
                end.0,
                output_tokens.0 as u64,
            )
            .map_err(to_py)
    }

    #[pyo3(
        signature = (namespace, keys, *, now, hints, stride = Whole(1)),
        text_signature = "($self, namespace, keys, *, now, hints, stride=1)"
    )]
    fn expect(
        &self,
        namespace: Whole,
        keys: &Bound<'_, PyAny>,
        now: Whole,
        hints: &PyHints,
        stride: Whole,
    ) -> PyResult<usize> {
        let keys = block_keys(keys, stride, None)?;
        self.inner
            .expect(namespace_id(namespace)?, &keys, now.0 as u64, &hints.inner)
            .map_err(to_py)
    }

    #[pyo3(
        signature = (namespace, keys, *, first = Whole(0), stride = Whole(1), ends = None),
        text_signature = "($self, namespace, keys, *, first=0, stride=1, ends=None)"
    )]
    fn give_up(
        &self,
        namespace: Whole,
        keys: &Bound<'_, PyAny>,
        first: Whole,
        stride: Whole,
        ends: Option<&Bound<'_, PyList>>,
    ) -> PyResult<usize> {
        let ends = ends.map_or_else(|| Ok(Vec::new()), tails)?;
        let keys = block_keys(keys, stride, None)?;
        self.inner
            .give_up(namespace_id(namespace)?, &keys, first.0, &ends)
            .map_err(to_py)
    }

    #[pyo3(
        signature = (namespace, keys, entries, *, stride = Whole(1), limit = None, tail = None, hints = None),
        text_signature = "($self, namespace, keys, entries, *, stride=1, limit=None, tail=None, hints=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn reserve(
        &self,
        namespace: Whole,
        keys: &Bound<'_, PyAny>,
        entries: Vec<BlockPlace>,
        stride: Whole,
        limit: Option<Whole>,
        tail: Option<&Bound<'_, PyBytes>>,
        hints: Option<&Bound<'_, PyHints>>,
    ) -> PyResult<PyWriteLease> {
        let keys = prefix_keys(keys, stride, limit, tail)?;
        let entries: Vec<_> = entries
            .into_iter()
            .map(|BlockPlace(class, block)| (class, block))
            .collect();
        let lease = self
            .inner
            .reserve_hinted(namespace_id(namespace)?, &keys, &entries, &given(hints))
            .map_err(to_py)?;
        Ok(PyWriteLease::new(lease, 0))
    }

    #[pyo3(
        signature = (namespace, keys, columns, tables, *, first, end, states, stride = Whole(1), hints = None),
        text_signature = "($self, namespace, keys, columns, tables, *, first, end, states, stride=1, hints=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn offer(
        &self,
        namespace: Whole,
        keys: &Bound<'_, PyAny>,
        columns: &PyTableColumns,
        tables: &Bound<'_, PyAny>,
        first: Whole,
        end: Whole,
        states: Vec<(Whole, Whole, Vec<Whole>)>,
        stride: Whole,
        hints: Option<&Bound<'_, PyHints>>,
    ) -> PyResult<Option<(PyWriteLease, PyStoreEntries)>> {
        let mut sources = Vec::with_capacity(states.len());
        for (class, block, blocks) in states {
            sources.push(StateSource {
                class: class.0,
                block: block.0,
                blocks: engine_blocks(blocks)?,
            });
        }
        let request = RoomRequest {
            namespace: namespace_id(namespace)?,
            columns: &columns.inner,
            tables: &PyTables::of(tables)?,
            blocks: first.0..end.0,
            states: &sources,
            tail: None,
            hints: hints.map(|hints| hints.get().inner),
        };
        let keys = |limit| Ok::<_, Raised>(block_keys(keys, stride, Some(Whole(limit)))?);
        let Some(reserved) = make_room(&self.inner, &request, keys)? else {
            return Ok(None);
        };
        let entries = PyStoreEntries {
            inner: reserved.entries,
        };
        let lease = PyWriteLease::new(reserved.lease, reserved.resident);
        Ok(Some((lease, entries)))
    }

    fn follow(&self) -> PyResult<()> {
        self.inner.follow().map_err(to_py)
    }

    #[pyo3(
        signature = (namespace, keys, *, stride = Whole(1)),
        text_signature = "($self, namespace, keys, *, stride=1)"
    )]
    fn unnoted(
        &self,
        namespace: Whole,
        keys: &Bound<'_, PyAny>,
        stride: Whole,
    ) -> PyResult<Vec<usize>> {
        let keys = block_keys(keys, stride, None)?;
        self.inner
            .unnoted(namespace_id(namespace)?, &keys)
            .map_err(to_py)
    }

    #[pyo3(
        signature = (namespace, keys, notes, *, stride = Whole(1)),
        text_signature = "($self, namespace, keys, notes, *, stride=1)"
    )]
    fn note(
        &self,
        namespace: Whole,
        keys: &Bound<'_, PyAny>,
        notes: &Bound<'_, PyDict>,
        stride: Whole,
    ) -> PyResult<()> {
        let note = |(block, note): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
            let bytes: Box<[u8]> = note.cast::<PyBytes>()?.as_bytes().into();
            Ok((block.extract::<Whole>()?.0, bytes))
        };
        let notes: Vec<_> = notes.iter().map(note).collect::<PyResult<_>>()?;
        let keys = block_keys(keys, stride, None)?;
        self.inner
            .note(namespace_id(namespace)?, &keys, notes)
            .map_err(to_py)
    }

    #[pyo3(signature = (*, below = false, anew = false))]
    fn changes(&self, py: Python<'_>, below: bool, anew: bool) -> PyResult<PyChanges> {
        let medium = if below { Medium::Below } else { Medium::Host };
        let changes = py.detach(|| self.inner.changes(medium, anew));
        PyChanges::new(py, &changes)
    }

    fn retire(&self, namespace: Whole) -> PyResult<()> {
        self.inner.retire(namespace_id(namespace)?).map_err(to_py)
    }

    fn invalidate(&self, py: Python<'_>, lease: &PyReadLease) -> PyResult<usize> {
        py.detach(|| self.inner.invalidate(&lease.lock()))
            .map_err(to_py)
    }

    fn leave_to(&self, py: Python<'_>, lease: &PyReadLease, tier: &str) -> PyResult<usize> {
        py.detach(|| {
            let below = self.inner.tiers();
            let at = below.iter().position(|below| below.name == tier);
            let at = at.ok_or_else(|| {
                Error::InvalidArgument(format!("tier: expected one below, found {tier:?}"))
            })?;
            self.inner.leave_to(&lease.lock(), at + 1)
        })
        .map_err(to_py)
    }

    fn clear(&self, py: Python<'_>) -> usize {
        py.detach(|| self.inner.clear())
    }

    fn failure(&self) -> Option<String> {
        self.inner.failure().map(|error| error.to_string())
    }

    fn audit(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| self.inner.audit())
    }

    fn poll(&self, py: Python<'_>) {
        py.detach(|| self.inner.poll());
    }

    fn tiers<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let tier = |tier: TierStats| {
            let dict = PyDict::new(py);
            dict.set_item("name", &tier.name)?;
            for (name, value) in tier.fields() {
                dict.set_item(name, value)?;
            }
            Ok(dict)
        };
        self.inner.tiers().into_iter().map(tier).collect()
    }

    fn set_compute_rate(&self, blocks_per_second: Option<f64>) -> PyResult<()> {
        self.inner
            .set_compute_rate(blocks_per_second)
            .map_err(to_py)
    }

    fn set_ready_slots(&self, slots: Whole) -> PyResult<()> {
        self.inner.set_ready_slots(slots.0).map_err(to_py)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        static NAMES: PyOnceLock<Vec<Py<PyString>>> = PyOnceLock::new();
        let fields = self.inner.stats().fields();
        let names = NAMES.get_or_init(py, || {
            let name = |(name, _)| PyString::intern(py, name).unbind();
            fields.map(name).into()
        });
        let dict = PyDict::new(py);
        for (name, (_, value)) in names.iter().zip(fields) {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyHit>()?;
    m.add_class::<PyAdmission>()?;
    m.add_class::<PyCache>()?;
    restore::register(m)?;
    lease::register(m)
}
