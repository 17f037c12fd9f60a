//! The directory of a disk tier, for tools that inspect it.

use std::path::PathBuf;

use hybrid_pages_disk::{DiskTree, IdentityView, Limits};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::to_py;
use crate::number::{Whole, duration, small};
use crate::tier::keys_of;

/// The directory of a disk tier, to list, verify and clean up.
#[pyclass(frozen, name = "DiskTree", module = "hybrid_pages._core")]
pub struct PyDiskTree {
    inner: DiskTree,
}

fn identity_dict<'py>(py: Python<'py>, view: &IdentityView) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("identity", &view.identity)?;
    dict.set_item("bytes", view.bytes)?;
    dict.set_item("used", view.used)?;
    dict.set_item("about", &view.about)?;
    dict.set_item("ranks", view.ranks)?;
    dict.set_item("entries", view.entries())?;
    dict.set_item("classes", view.classes.clone())?;
    dict.set_item("damaged_records", view.damaged_records)?;
    dict.set_item("aside_bytes", view.aside_bytes)?;
    dict.set_item("trouble", &view.trouble)?;
    Ok(dict)
}

#[pymethods]
impl PyDiskTree {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let inner = py.detach(|| DiskTree::open(&path)).map_err(to_py)?;
        Ok(Self { inner })
    }

    fn lanes<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let mut raised = None;
        let lanes = py.detach(|| {
            self.inner.lanes(&mut || {
                raised = Python::attach(|py| py.check_signals()).err();
                raised.is_none()
            })
        });
        if let Some(error) = raised {
            return Err(error);
        }
        let lanes = lanes.map_err(to_py)?;
        let lane = |lane: hybrid_pages_disk::LaneView| {
            let dict = PyDict::new(py);
            let identities = lane.identities.iter().map(|it| identity_dict(py, it));
            dict.set_item("lane", &lane.name)?;
            dict.set_item("process", lane.process)?;
            dict.set_item("identities", identities.collect::<PyResult<Vec<_>>>()?)?;
            dict.set_item("cleared", lane.cleared)?;
            dict.set_item("troubles", lane.troubles)?;
            Ok(dict)
        };
        lanes.into_iter().map(lane).collect()
    }

    #[pyo3(signature = (lane, identity, progress = None, *, encrypt_key = ""))]
    fn verify<'py>(
        &self,
        py: Python<'py>,
        lane: &str,
        identity: &str,
        progress: Option<Py<PyAny>>,
        encrypt_key: &str,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let mut raised = None;
        let keys = keys_of(encrypt_key)?;
        let verdict = py.detach(|| {
            self.inner
                .verify(lane, identity, keys.as_ref(), &mut |done, total| {
                    let told = Python::attach(|py| {
                        py.check_signals()?;
                        match &progress {
                            Some(progress) => progress.call1(py, (done, total)).map(drop),
                            None => Ok(()),
                        }
                    });
                    raised = told.err();
                    raised.is_none()
                })
        });
        if let Some(error) = raised {
            return Err(error);
        }
        let Some(verdict) = verdict.map_err(to_py)? else {
            return Ok(None);
        };
        let dict = PyDict::new(py);
        dict.set_item("good", verdict.good)?;
        dict.set_item("bytes", verdict.bytes)?;
        dict.set_item("unopened", verdict.unopened)?;
        dict.set_item("changed", verdict.changed)?;
        dict.set_item("damaged_records", verdict.damaged_records)?;
        dict.set_item("encrypted", verdict.encrypted)?;
        let bad = |bad: &hybrid_pages_disk::Bad| {
            let dict = PyDict::new(py);
            dict.set_item("class", bad.class)?;
            dict.set_item("block", bad.block)?;
            dict.set_item("cell", bad.cell)?;
            dict.set_item("reason", bad.reason.name())?;
            PyResult::Ok(dict)
        };
        let bad = verdict.bad.iter().map(bad).collect::<PyResult<Vec<_>>>()?;
        dict.set_item("bad", bad)?;
        Ok(Some(dict))
    }

    #[pyo3(signature = (*, unused_seconds = None, lanes = None, dry_run = false))]
    fn collect<'py>(
        &self,
        py: Python<'py>,
        unused_seconds: Option<f64>,
        lanes: Option<Whole>,
        dry_run: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let unused = unused_seconds.map(|seconds| duration("unused_seconds", seconds));
        let limits = Limits {
            unused: unused.transpose()?,
            lanes: lanes.map(|lanes| small("lanes", lanes)).transpose()?,
            dry: dry_run,
        };
        let done = py.detach(|| self.inner.collect(&limits));
        let dict = PyDict::new(py);
        dict.set_item("removed", done.removed)?;
        dict.set_item("busy", done.busy)?;
        dict.set_item("failed", done.failed)?;
        Ok(dict)
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyDiskTree>()
}
