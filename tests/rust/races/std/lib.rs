//! The standard library, with shuttle's locks and atomics.

pub use ::std::*;

/// What threads share.
pub mod sync {
    pub use ::std::sync::*;
    pub use shuttle::sync::{Condvar, MutexGuard};

    /// Atomics, at which threads may take turns.
    pub mod atomic {
        pub use shuttle::sync::atomic::*;
    }

    /// A lock at which threads take turns.
    #[derive(Debug, Default)]
    pub struct Mutex<T: ?Sized>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// Guards a value.
        pub const fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }
    }

    impl<T: ?Sized> Mutex<T> {
        /// Waits for the lock.
        pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            self.0.lock()
        }

        /// Takes the lock if it is free.
        pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
            self.0.try_lock()
        }

        /// Whether a thread has panicked under the lock.
        pub fn is_poisoned(&self) -> bool {
            matches!(self.try_lock(), Err(TryLockError::Poisoned(_)))
        }
    }
}
