//! The locks of tiers, which threads share with vLLM's scheduler.
//!
//! A thread that takes a lock again as soon as it has given it back leaves no chance to one that has to wake up first.
//! So these locks are `parking_lot`'s: after at most a millisecond, one that is given back goes to the thread that
//! waits. As the standard library's, they remember a panic under the lock.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::panicking;
use std::time::Duration;

use hybrid_pages::guarded::Watch;
pub use parking_lot::Condvar;

/// A lock that no thread waits long for, and that a bench [watches](hybrid_pages::guarded::WATCHER).
#[derive(Debug, Default)]
pub struct FairMutex<T> {
    value: parking_lot::Mutex<T>,
    poisoned: AtomicBool,
}

impl<T> FairMutex<T> {
    /// A lock for a value.
    pub const fn new(value: T) -> Self {
        Self {
            value: parking_lot::Mutex::new(value),
            poisoned: AtomicBool::new(false),
        }
    }

    /// Whether a thread panicked while it had the lock.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }
}

/// Takes a lock, also after a panic under it.
#[inline]
pub fn lock<T>(mutex: &FairMutex<T>) -> FairGuard<'_, T> {
    let value = mutex.value.lock();
    FairGuard {
        watch: Some(Watch::new()),
        _panic: OnPanic {
            poisoned: &mutex.poisoned,
            before: panicking(),
        },
        value,
    }
}

/// A lock that is held. Its fields are dropped in their order, the lock last.
#[derive(Debug)]
pub struct FairGuard<'a, T> {
    watch: Option<Watch<T>>,
    _panic: OnPanic<'a>,
    value: parking_lot::MutexGuard<'a, T>,
}

impl<T> FairGuard<'_, T> {
    /// Waits while the value is `idle`, no longer than the limit. Meanwhile others may have the lock. It is watched no
    /// longer.
    pub fn wait_while(
        &mut self,
        bell: &Condvar,
        limit: Option<Duration>,
        idle: impl FnMut(&mut T) -> bool,
    ) {
        self.watch = None;
        match limit {
            Some(limit) => drop(bell.wait_while_for(&mut self.value, idle, limit)),
            None => bell.wait_while(&mut self.value, idle),
        }
    }
}

impl<T> Deref for FairGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for FairGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// Notes a panic that begins while the lock is held.
#[derive(Debug)]
struct OnPanic<'a> {
    poisoned: &'a AtomicBool,
    before: bool,
}

impl Drop for OnPanic<'_> {
    #[inline]
    fn drop(&mut self) {
        if panicking() && !self.before {
            self.poisoned.store(true, Ordering::Release);
        }
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
        let mutex = FairMutex::new(1);
        assert_eq!(
            unless_it_panics(|| panic!("not under the lock")),
            None::<()>
        );
        *lock(&mutex) += 1;
        assert!(!mutex.is_poisoned());
        let panics = || -> () {
            *lock(&mutex) += 1;
            let _held = lock(&mutex);
            panic!("under the lock");
        };
        assert_eq!(unless_it_panics(panics), None);
        assert!(mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 3);
    }

    #[test]
    fn a_lock_that_is_taken_while_a_panic_passes_is_not_in_doubt() {
        struct Locks<'a>(&'a FairMutex<u32>);
        impl Drop for Locks<'_> {
            fn drop(&mut self) {
                *lock(self.0) += 1;
            }
        }
        let mutex = FairMutex::new(0);
        let panics = || -> () {
            let _locks = Locks(&mutex);
            panic!("before the lock");
        };
        assert_eq!(unless_it_panics(panics), None);
        assert_eq!((*lock(&mutex), mutex.is_poisoned()), (1, false));
    }

    #[test]
    fn a_wait_ends_with_a_change_or_at_its_limit() {
        let shared = Arc::new((FairMutex::new(false), Condvar::new()));
        let (mutex, bell) = &*shared;
        let idle = |is: &mut bool| !*is;
        lock(mutex).wait_while(bell, Some(Duration::from_millis(1)), idle);
        let other = Arc::clone(&shared);
        let rings = thread::spawn(move || {
            *lock(&other.0) = true;
            other.1.notify_all();
        });
        let mut held = lock(mutex);
        held.wait_while(bell, None, idle);
        assert!(*held);
        drop(held);
        rings.join().unwrap();
    }
}
