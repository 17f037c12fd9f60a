//! Hints of an application about a request.

use hybrid_pages::error::Error;
use hybrid_pages::policy::Hints;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::to_py;

/// Hints of an application about a request: they change which entries are made and stay, never an answer.
#[pyclass(frozen, name = "Hints", module = "hybrid_pages._core")]
pub struct PyHints {
    pub inner: Hints,
}

#[pymethods]
impl PyHints {
    #[new]
    #[pyo3(
        signature = (*, session = None, priority = 0, retain = 0.0, store = true),
        text_signature = "(*, session=None, priority=0, retain=0.0, store=True)"
    )]
    fn new(
        session: Option<&Bound<'_, PyBytes>>,
        priority: i64,
        retain: f64,
        store: bool,
    ) -> PyResult<Self> {
        let invalid = |text: String| to_py(Error::InvalidArgument(text));
        let in_range = i8::try_from(priority).ok();
        let in_range = in_range.filter(|priority| Hints::PRIORITIES.contains(priority));
        let priority = in_range.ok_or_else(|| {
            let (least, most) = Hints::PRIORITIES.into_inner();
            invalid(format!(
                "priority: expected {least} to {most}, found {priority}"
            ))
        })?;
        let most = (Hints::MOST_RETAIN / 1000) as f64;
        if !(0.0..=most).contains(&retain) {
            return Err(invalid(format!(
                "retain: expected 0 to {most} seconds, found {retain}"
            )));
        }
        Ok(Self {
            inner: Hints {
                session: session.map(|id| Hints::name(id.as_bytes())),
                priority,
                retain: (retain * 1000.0).ceil() as u64,
                store,
            },
        })
    }

    fn __repr__(&self) -> String {
        let Hints {
            priority,
            retain,
            store,
            ..
        } = self.inner;
        let store = if store { "True" } else { "False" };
        format!(
            "Hints(priority={priority}, retain={}, store={store})",
            retain as f64 / 1000.0
        )
    }
}

/// The hints of an argument that may be left out.
pub fn given(hints: Option<&Bound<'_, PyHints>>) -> Hints {
    hints.map_or(Hints::NONE, |hints| hints.get().inner)
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyHints>()
}
