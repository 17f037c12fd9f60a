//! Whether a panic has left in doubt what a tier knows.

use std::sync::atomic::{AtomicBool, Ordering};

/// Set once a thread of a tier has panicked; then the tier is not used any more.
#[derive(Debug, Default)]
pub struct PanicFlag {
    panicked: AtomicBool,
    reported: AtomicBool,
}

impl PanicFlag {
    /// A thread has panicked.
    pub fn set(&self) {
        self.panicked.store(true, Ordering::SeqCst);
    }

    /// Whether a thread has panicked.
    pub fn is_set(&self) -> bool {
        self.panicked.load(Ordering::SeqCst)
    }

    /// True once: for the caller that reports the panic.
    pub fn report_once(&self) -> bool {
        !self.reported.swap(true, Ordering::SeqCst)
    }
}

/// The text about a panic, for a tier over a disk or a store.
#[must_use]
pub fn panicked(what: &str) -> String {
    format!(
        "expected no panic, found one inside: the {what} is left alone until the engine starts anew; please report what \
         standard error says"
    )
}
