//! Locks, and the values behind them after a panic.
//!
//! A panic in the middle of a change leaves a value half changed. [`Guarded`] lets nobody use such a value any more.
//! [`lock`] is for values that are whole between any two statements, and for those whose owner checks
//! [`Mutex::is_poisoned`] before using them.

use std::any::{Any, type_name};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use crate::error::{Error, Result};

/// Is called under a lock, with the type of what it guards, when it was taken (`true`) and before it is given back.
/// What measures how long locks are held sets it: those of a [`Guarded`], and the tiers'.
pub static WATCHER: OnceLock<fn(&'static str, bool)> = OnceLock::new();

/// Tells the watcher, if there is one, that a lock was taken, and when dropped, that it is about to be given back.
#[derive(Debug)]
pub struct Watch<T: ?Sized>(PhantomData<fn(&T)>);

impl<T: ?Sized> Watch<T> {
    /// For a lock that was just taken.
    #[inline]
    #[expect(clippy::new_without_default, reason = "it tells the watcher")]
    pub fn new() -> Self {
        Self::tell(true);
        Self(PhantomData)
    }

    #[inline]
    fn tell(taken: bool) {
        if let Some(tell) = WATCHER.get() {
            tell(type_name::<T>(), taken);
        }
    }
}

impl<T: ?Sized> Drop for Watch<T> {
    #[inline]
    fn drop(&mut self) {
        Self::tell(false);
    }
}

/// Takes a lock, also after a panic under it.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work`, which may panic. `None` if it did: standard error says where.
pub fn unless_it_panics<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// The message of a caught panic.
#[must_use]
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// A value behind a lock. A panic under the lock closes it for good.
#[derive(Debug)]
pub struct Guarded<T> {
    inner: Mutex<T>,
    /// The lock of the one that waits for `inner` next.
    next: Mutex<()>,
    panic: OnceLock<String>,
}

impl<T> Guarded<T> {
    /// Guards a value.
    pub const fn new(value: T) -> Self {
        Self {
            inner: Mutex::new(value),
            next: Mutex::new(()),
            panic: OnceLock::new(),
        }
    }

    /// Runs `work` on the value, under the lock.
    ///
    /// # Errors
    /// [`Error::Panicked`] if `work` panics, and for every call after that: then nothing is done.
    #[inline]
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R> {
        let free = || match self.inner.try_lock() {
            Err(TryLockError::WouldBlock) => self.in_turn(),
            Ok(value) => Some(value),
            Err(TryLockError::Poisoned(_)) => None,
        };
        self.guarded(free, work)
    }

    /// Runs `work` under the lock for a caller that has just had it: the next one that waits for it comes first.
    ///
    /// # Errors
    /// The errors of [`with`](Self::with).
    pub fn with_again<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R> {
        self.guarded(|| self.in_turn(), work)
    }

    fn in_turn(&self) -> Option<MutexGuard<'_, T>> {
        let _next = lock(&self.next);
        self.inner.lock().ok()
    }

    #[inline]
    fn guarded<'a, R>(
        &'a self,
        take: impl FnOnce() -> Option<MutexGuard<'a, T>>,
        work: impl FnOnce(&mut T) -> R,
    ) -> Result<R> {
        let guarded = || {
            // Dropped while the panic passes, the guard closes the lock.
            let mut value = take()?;
            let _watch = Watch::<T>::new();
            Some(work(&mut value))
        };
        match catch_unwind(AssertUnwindSafe(guarded)) {
            Ok(Some(result)) => Ok(result),
            Ok(None) => Err(self.closed(None)),
            Err(panic) => Err(self.closed(Some(&*panic))),
        }
    }

    /// The error that every call returns after a panic; `None` if there was none.
    pub fn failure(&self) -> Option<Error> {
        self.inner.is_poisoned().then(|| self.closed(None))
    }

    #[cold]
    fn closed(&self, panic: Option<&(dyn Any + Send)>) -> Error {
        if let Some(panic) = panic {
            // The first panic counts.
            drop(self.panic.set(panic_message(panic).to_owned()));
        }
        let what = self.panic.get().map_or("a panic", String::as_str);
        Error::Panicked(format!(
            "expected a whole state, found that a panic left it in doubt ({what}): nothing is found or stored from \
             now on. Restart the process to use the cache again, and report what standard error says"
        ))
    }
}

#[cfg(test)]
#[path = "../../../tests/rust/core/inside/guarded.rs"]
mod tests;
