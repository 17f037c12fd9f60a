//! Records whether a panic has left a tier's knowledge in doubt.

use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that is set when a thread of a tier has panicked. The tier is not used any more then.
#[derive(Debug, Default)]
pub struct PanicFlag {
    panicked: AtomicBool,
    reported: AtomicBool,
}

impl PanicFlag {
    /// Notes that a thread has panicked.
    pub fn set(&self) {
        self.panicked.store(true, Ordering::SeqCst);
    }

    /// Whether a thread has panicked.
    pub fn is_set(&self) -> bool {
        self.panicked.load(Ordering::SeqCst)
    }

    /// Returns true for the first call only, so that one caller reports the panic.
    pub fn report_once(&self) -> bool {
        !self.reported.swap(true, Ordering::SeqCst)
    }
}

/// The text of an error about a panic. `what` is the tier's place: a disk or a store.
#[must_use]
pub fn panicked(what: &str) -> String {
    format!(
        "expected no panic, found one inside: the {what} is left alone until the engine starts anew; please report what \
         standard error says"
    )
}
