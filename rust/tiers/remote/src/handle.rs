//! The handle of a remote store: what the owner of a cache keeps when the tier itself has gone into the cache.

use std::sync::Arc;
use std::time::Duration;

use hybrid_pages::error::{Cause, Error, Result};
use hybrid_pages_arena::Arena;
use hybrid_pages_tiers::{CONNECTED_TWICE, Identity, Planes, lock, wait_until};
use object_store::{ObjectStoreExt as _, PutPayload};
use tokio::runtime::Builder;
use tokio::sync::mpsc::unbounded_channel;

use crate::error::StoreError;
use crate::listing::list;
use crate::messages::Upload;
use crate::shared::{RemoteConnection, RemoteShared};
use crate::stats::{RemoteFailure, RemoteStats};
use crate::{fetch, upload};

const NAP: Duration = Duration::from_millis(2);
/// Number of threads that hash, copy and talk to the store.
const THREADS: usize = 4;

/// Connects a remote store, and reads its counts and notes. A handle may outlive the tier.
#[derive(Debug, Clone)]
pub struct RemoteHandle(pub(crate) Arc<RemoteShared>);

impl RemoteHandle {
    /// Begins to use the store for an identity, with the arena of the cache's slots. Before that the tier finds
    /// nothing and takes nothing. `identity` is a digest of everything that the bytes depend on. A store that does
    /// not answer is no error: it is tried again.
    ///
    /// # Errors
    /// [`Error::Remote`] if threads can't be started, and on a second call; [`Error::Arena`] if the arena lacks a
    /// plane; [`Error::InvalidArgument`] for slots of another size.
    pub fn connect(&self, arena: &Arena, identity: &Identity) -> Result<()> {
        let shared = &self.0;
        let planes = Planes::of(arena, shared.ranks, shared.slot_bytes)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("hybrid-pages-remote")
            .enable_all()
            .build()
            .map_err(|error| {
                let what = format!("threads cannot start: {error}");
                Error::remote(Cause::new(what, error))
            })?;
        let writer = getrandom::u64().map_err(|error| {
            let what = format!("expected a random number, found {error}");
            Error::remote(Cause::new(what, error))
        })?;
        let (uploads, to_write) = unbounded_channel();
        let (fetches, to_read) = unbounded_channel();
        let tasks = runtime.handle().clone();
        let identity = shared.seals.identity(identity, &shared.options.place.name);
        let connection = RemoteConnection {
            planes,
            identity,
            writer,
            folder: shared.folder(&identity),
            tasks: tasks.clone(),
            uploads,
            fetches,
        };
        if shared.connection.set(connection).is_err() {
            return Err(Error::remote(CONNECTED_TWICE));
        }
        shared.keep_runtime(runtime);
        drop(tasks.spawn(upload::serve(Arc::clone(shared), to_write)));
        drop(tasks.spawn(fetch::serve(Arc::clone(shared), to_read)));
        let _ = lock(&shared.state).freshness.begin(false);
        drop(tasks.spawn(list(Arc::clone(shared))));
        Ok(())
    }

    /// Writes a description of what the identity was made from, for people; lookups don't read it.
    pub fn describe(&self, about: &str) {
        let Some(connection) = self.0.connection.get() else {
            return;
        };
        let folder = connection.folder.to_string();
        let path = object_store::path::Path::from(format!("{folder}.json"));
        let (shared, text) = (Arc::clone(&self.0), about.to_owned());
        drop(connection.tasks.spawn(async move {
            let writing = shared
                .options
                .place
                .store
                .put(&path, PutPayload::from(text));
            if let Err(error) = writing.await {
                shared
                    .ledger
                    .failed(RemoteFailure::Write, &StoreError::of(&error).to_string());
            }
        }));
    }

    /// The store's counts at this moment.
    #[must_use]
    pub fn stats(&self) -> RemoteStats {
        self.0.stats()
    }

    /// Takes the notes for an operator since the last call, such as a line for the first failure of each kind.
    #[must_use]
    pub fn take_notes(&self) -> Vec<String> {
        self.0.ledger.take_notes()
    }

    /// Waits until every copy has ended. False if that takes longer than the limit.
    #[must_use]
    pub fn settle(&self, limit: Duration) -> bool {
        wait_until(limit, NAP, || {
            let idle = self.0.is_idle();
            if let Some(connection) = self.0.connection.get().filter(|_| !idle) {
                drop(connection.uploads.send(Upload::Flush));
            }
            idle
        })
    }

    /// Ends the copies and the tasks. The cache may live on: it finds nothing here, and writes nothing. A second call
    /// does nothing.
    pub fn close(&self) {
        close(&self.0);
    }
}

/// Ends the copies and the tasks. A second call does nothing.
pub(crate) fn close(shared: &RemoteShared) {
    if !shared.is_inherited() {
        shared.leave_slots();
    }
    shared.stop();
}
