//! Points in the streams of others. Their events are used again: making one is a call that may wait.

use std::fmt;
use std::sync::{Arc, Mutex};

use hybrid_pages::guarded::lock;

use crate::driver::{Device, Event};
use crate::error::Result;

/// Events that stand for nothing now.
pub(super) struct Marks {
    free: Mutex<Vec<Event>>,
    device: Arc<Device>,
}

impl Marks {
    /// Transfers hardly wait in greater numbers: a step gives one store, and stores let sixteen flights of
    /// loads pass at most.
    const READY: usize = 256;

    pub(super) fn new(device: &Arc<Device>) -> Result<Arc<Self>> {
        let events = (0..Self::READY).map(|_| Event::new(device));
        Ok(Arc::new(Self {
            free: Mutex::new(events.collect::<Result<_>>()?),
            device: Arc::clone(device),
        }))
    }

    /// Marks what a stream has been given until now.
    ///
    /// # Safety
    /// The handle is a live stream of this device, or 0 for its default stream.
    pub(super) unsafe fn mark(self: &Arc<Self>, stream: usize) -> Result<Mark> {
        let free = lock(&self.free).pop();
        let event = match free {
            Some(event) => event,
            None => Event::new(&self.device)?,
        };
        let mark = Mark {
            event: Some(event),
            marks: Arc::clone(self),
        };
        // SAFETY: the caller's.
        unsafe { mark.event().record_foreign(stream)? };
        Ok(mark)
    }

    /// Gives up all events that no mark holds.
    pub(super) fn clear(&self) {
        lock(&self.free).clear();
    }
}

/// A point in a stream. Streams that were told to wait for it do so after it is dropped, too.
pub(super) struct Mark {
    event: Option<Event>,
    marks: Arc<Marks>,
}

impl Mark {
    pub(super) fn event(&self) -> &Event {
        self.event.as_ref().expect("taken when it is dropped")
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut free = lock(&self.marks.free);
        free.extend(self.event.take());
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mark").finish_non_exhaustive()
    }
}
