//! The locks that a tier's threads share with vLLM's scheduler.
//!
//! A thread that takes a lock again as soon as it has given it back leaves no chance to one that has to wake up first.
//! So a call of the scheduler that waits for a lock comes before threads that want it next.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use hybrid_pages::guarded::{self, Watch};

/// A lock that a bench [watches](hybrid_pages::guarded::WATCHER). Calls of the scheduler [come first](lock_first).
#[derive(Debug, Default)]
pub struct PriorityMutex<T> {
    value: Mutex<T>,
    /// How many calls of the scheduler wait for the value.
    waiting: AtomicUsize,
    /// The lock of the one of them that gets it next.
    next: Mutex<()>,
}

impl<T> PriorityMutex<T> {
    /// A lock for a value.
    pub const fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            waiting: AtomicUsize::new(0),
            next: Mutex::new(()),
        }
    }

    /// Whether a thread panicked while it had the lock.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.value.is_poisoned()
    }
}

/// Takes a lock for a thread, also after a panic under it.
#[inline]
pub fn lock<T>(mutex: &PriorityMutex<T>) -> PriorityGuard<'_, T> {
    if mutex.waiting.load(Ordering::Acquire) > 0 {
        drop(guarded::lock(&mutex.next));
    }
    PriorityGuard::new(guarded::lock(&mutex.value))
}

/// Takes a lock for a call of the scheduler, also after a panic under it.
#[inline]
pub fn lock_first<T>(mutex: &PriorityMutex<T>) -> PriorityGuard<'_, T> {
    PriorityGuard::new(match mutex.value.try_lock() {
        Ok(value) => value,
        Err(TryLockError::Poisoned(value)) => value.into_inner(),
        Err(TryLockError::WouldBlock) => {
            mutex.waiting.fetch_add(1, Ordering::AcqRel);
            let _next = guarded::lock(&mutex.next);
            let value = guarded::lock(&mutex.value);
            mutex.waiting.fetch_sub(1, Ordering::AcqRel);
            value
        }
    })
}

/// A lock that is held. Its fields are dropped in their order, the lock last.
#[derive(Debug)]
pub struct PriorityGuard<'a, T> {
    watch: Option<Watch<T>>,
    value: MutexGuard<'a, T>,
}

impl<'a, T> PriorityGuard<'a, T> {
    fn new(value: MutexGuard<'a, T>) -> Self {
        let watch = Some(Watch::new());
        Self { watch, value }
    }

    /// Waits while the value is `idle`, no longer than the limit. Meanwhile others may have the lock. It is watched no
    /// longer.
    #[must_use]
    pub fn wait_while(
        self,
        bell: &Condvar,
        limit: Option<Duration>,
        idle: impl FnMut(&mut T) -> bool,
    ) -> Self {
        drop(self.watch);
        let value = match limit {
            None => bell
                .wait_while(self.value, idle)
                .unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let waited = bell.wait_timeout_while(self.value, limit, idle);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        let watch = None;
        Self { watch, value }
    }
}

impl<T> Deref for PriorityGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for PriorityGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use hybrid_pages::guarded::unless_it_panics;

    use super::*;

    #[test]
    fn a_panic_under_the_lock_is_remembered_and_the_lock_still_works() {
        let mutex = PriorityMutex::new(1);
        let panics = || -> () {
            *lock(&mutex) += 1;
            let _held = lock_first(&mutex);
            panic!("under the lock");
        };
        assert_eq!(unless_it_panics(panics), None);
        assert!(mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 2);
        assert_eq!(*lock_first(&mutex), 2);
    }

    #[test]
    fn a_wait_ends_with_a_change_or_at_its_limit() {
        let shared = Arc::new((PriorityMutex::new(false), Condvar::new()));
        let (mutex, bell) = &*shared;
        let idle = |is: &mut bool| !*is;
        let limit = Some(Duration::from_millis(1));
        assert!(!*lock(mutex).wait_while(bell, limit, idle));
        let other = Arc::clone(&shared);
        let rings = thread::spawn(move || {
            *lock(&other.0) = true;
            other.1.notify_all();
        });
        assert!(*lock(mutex).wait_while(bell, None, idle));
        rings.join().unwrap();
    }

    #[test]
    fn a_call_that_waits_comes_before_a_thread_that_wants_the_lock_again() {
        let mutex = PriorityMutex::new(Vec::new());
        thread::scope(|scope| {
            let mut held = lock(&mutex);
            scope.spawn(|| lock_first(&mutex).push("call"));
            while mutex.waiting.load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
            // It has its turn, too: whoever comes now is behind it.
            while mutex.next.try_lock().is_ok() {
                thread::yield_now();
            }
            held.push("thread");
            drop(held);
            lock(&mutex).push("again");
        });
        assert_eq!(*lock(&mutex), ["thread", "call", "again"]);
    }
}
