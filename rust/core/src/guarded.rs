//! Locks, and what is behind them after a panic.
//!
//! A panic in the middle of a change leaves things half changed. [`Guarded`] lets nobody at them any more. [`lock`] is
//! for things that are whole between any two statements, and for those whose owner asks for [`Mutex::is_poisoned`]
//! before it counts on them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::error::{Error, Result};

/// Takes a lock, also after a panic under it.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something that may panic. `None` if it did: standard error says where.
pub fn unless_it_panics<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// Something behind a lock that a panic under it closes for good.
#[derive(Debug)]
pub struct Guarded<T> {
    inner: Mutex<T>,
    panic: OnceLock<String>,
}

impl<T> Guarded<T> {
    /// It is whole.
    pub const fn new(value: T) -> Self {
        Self {
            inner: Mutex::new(value),
            panic: OnceLock::new(),
        }
    }

    /// Does something with it, under the lock.
    ///
    /// # Errors
    /// [`Error::Panicked`] if that panics, and from then on: then nothing is done.
    #[inline]
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R> {
        let guarded = || {
            // Dropped while the panic passes, the guard closes the lock.
            let mut value = self.inner.lock().ok()?;
            Some(work(&mut value))
        };
        match catch_unwind(AssertUnwindSafe(guarded)) {
            Ok(Some(result)) => Ok(result),
            Ok(None) => Err(self.closed(None)),
            Err(panic) => Err(self.closed(Some(&*panic))),
        }
    }

    /// Why nothing is done any more.
    pub fn failure(&self) -> Option<Error> {
        self.inner.is_poisoned().then(|| self.closed(None))
    }

    #[cold]
    fn closed(&self, panic: Option<&(dyn Any + Send)>) -> Error {
        if let Some(panic) = panic {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            // The first one counts.
            drop(self.panic.set(text.unwrap_or("a panic").to_owned()));
        }
        let what = self.panic.get().map_or("a panic", String::as_str);
        Error::Panicked(format!(
            "expected a whole state, found that a panic left it in doubt ({what}): nothing is found or stored from \
             now on. Restart the process to use the cache again, and report what standard error says"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_panic_nothing_is_done_and_the_first_one_is_named() {
        let guarded = Guarded::new(1);
        assert_eq!(guarded.with(|value| *value += 1), Ok(()));
        assert_eq!(guarded.failure(), None);
        let first = guarded.with(|_| panic!("one {}", 1)).unwrap_err();
        let mut done = false;
        assert_eq!(guarded.with(|_| done = true), Err(first.clone()));
        assert!(!done && first.to_string().contains("(one 1)"), "{first}");
        assert_eq!(guarded.failure(), Some(first));
    }
}
