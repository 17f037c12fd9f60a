//! CUDA events that mark points in the callers' streams. Events are reused, since making one is a call of the driver
//! that may wait.

use std::fmt;
use std::sync::{Arc, Mutex};

use hybrid_pages::guarded::lock;

use crate::driver::{Device, Event};
use crate::error::Result;

/// Events that no [`RecordedEvent`] holds.
pub(super) struct EventPool {
    free: Mutex<Vec<Event>>,
    device: Arc<Device>,
}

impl EventPool {
    /// Events that are made in advance. More transfers hardly ever wait: a step gives one store, and stores let at
    /// most sixteen batches of loads pass.
    const READY: usize = 256;

    pub(super) fn new(device: &Arc<Device>) -> Result<Arc<Self>> {
        let events = (0..Self::READY).map(|_| Event::new(device));
        Ok(Arc::new(Self {
            free: Mutex::new(events.collect::<Result<_>>()?),
            device: Arc::clone(device),
        }))
    }

    /// Records the work given to a stream until now.
    ///
    /// # Safety
    /// The handle is a live stream of this device, or 0 for its default stream.
    pub(super) unsafe fn record(self: &Arc<Self>, stream: usize) -> Result<RecordedEvent> {
        let free = lock(&self.free).pop();
        let event = match free {
            Some(event) => event,
            None => Event::new(&self.device)?,
        };
        let recorded = RecordedEvent {
            event: Some(event),
            pool: Arc::clone(self),
        };
        // SAFETY: the caller promises a live stream.
        unsafe { recorded.event().record_foreign(stream)? };
        Ok(recorded)
    }

    /// Frees all events of the pool.
    pub(super) fn clear(&self) {
        lock(&self.free).clear();
    }
}

/// A point in a stream. Its event goes back to the pool on drop; streams that wait for the point still do.
pub(super) struct RecordedEvent {
    event: Option<Event>,
    pool: Arc<EventPool>,
}

impl RecordedEvent {
    pub(super) fn event(&self) -> &Event {
        self.event.as_ref().expect("taken when it is dropped")
    }
}

impl Drop for RecordedEvent {
    fn drop(&mut self) {
        let mut free = lock(&self.pool.free);
        free.extend(self.event.take());
    }
}

impl fmt::Debug for RecordedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordedEvent").finish_non_exhaustive()
    }
}
