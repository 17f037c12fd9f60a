//! Engines over one store, whose answers can be spoilt.
#![allow(dead_code, unused_imports, reason = "each test file uses a part of it")]

#[path = "../shared/arena_engine.rs"]
mod arena_engine;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use arena_engine::{
    Engine as EngineOver, Handle, IDENTITY, LIMIT, cache_config, cache_support, geometry,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use hybrid_pages::cache::Cache;
use hybrid_pages::error::Result;
use hybrid_pages::geometry::Geometry;
use hybrid_pages::policy;
use hybrid_pages_arena::Arena;
use hybrid_pages_remote::{Admit, Remote, RemoteHandle, RemoteOptions, RemotePlace, RemoteStats};
use hybrid_pages_tiers::Identity;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload,
    PutResult,
};

/// An engine over a store.
pub type Engine = arena_engine::Engine<RemoteHandle>;

impl Handle for RemoteHandle {
    fn settled(&self, limit: Duration) -> bool {
        self.settle(limit)
    }

    fn counts(&self) -> String {
        format!("{:?} {:?}", self.stats(), self.take_notes())
    }
}

impl Engine {
    pub fn stats(&self) -> RemoteStats {
        self.below.stats()
    }

    /// Looks a prompt up until the store has answered.
    pub fn ask(&self, prompt: &str) -> usize {
        let begun = Instant::now();
        loop {
            let hit = self.hit(prompt);
            if !hit.asking {
                return hit.blocks;
            }
            assert!(
                begun.elapsed() < LIMIT,
                "no answer: {}",
                self.below.counts()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// As a request does: looks a prompt up, waits for the answer, and loads what is there. Returns the depth.
    pub fn serve(&self, prompt: &str) -> usize {
        self.ask(prompt);
        self.restore(prompt)
    }

    /// Waits until something is so.
    pub fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            self.cache.poll();
            assert!(
                begun.elapsed() < LIMIT,
                "never {what}: {}",
                self.below.counts()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What engines are made of.
#[derive(Debug, Clone)]
pub struct Setup {
    pub geometry: Geometry,
    pub slot_bytes: usize,
    pub slots: usize,
    pub identity: Identity,
    pub options: RemoteOptions,
}

impl Setup {
    /// Pages and checkpoints of a few odd KiB on two ranks, 40 slots; everything is read and written, and every
    /// lookup asks.
    pub fn small(store: &Arc<Store>) -> Self {
        let store: Arc<dyn ObjectStore> = Arc::clone(store) as _;
        let place = RemotePlace::of(store, Path::from("some/prefix"), "memory://".into());
        Self::at(place)
    }

    pub fn at(place: RemotePlace) -> Self {
        let mut options = RemoteOptions::new(place);
        options.admit = Admit::All;
        options.pack_age = Duration::from_millis(200);
        options.refresh = Duration::from_millis(20);
        options.retry = Duration::from_millis(50);
        options.deadline = Duration::from_secs(20);
        Self {
            geometry: geometry(5_000, 9_001, 2),
            slot_bytes: 4096,
            slots: 40,
            identity: IDENTITY,
            options,
        }
    }

    pub fn engine(&self) -> Engine {
        let engine = self.unconnected();
        engine.below.connect(&engine.arena, &self.identity).unwrap();
        engine
    }

    pub fn unconnected(&self) -> Engine {
        let config = cache_config(&self.geometry, self.slot_bytes, self.slots, "lru");
        let policy = policy::by_name("lru", config.shape()).unwrap();
        let options = self.options.clone();
        let remote = Remote::open(options, &self.geometry, self.slot_bytes, policy).unwrap();
        let handle = remote.handle();
        let cache = Cache::with_tiers(&config, vec![Box::new(remote)]).unwrap();
        let arena = Arena::create(&self.geometry, self.slot_bytes, self.slots).unwrap();
        Engine::over(cache, arena, handle, &self.geometry)
    }
}

/// A pack as another process would have made it under the name of `twin`, which is as long: the same writer, time and
/// number.
pub fn under_the_name_of(twin: &[u8], pack: &[u8], table_bytes: usize) -> Vec<u8> {
    let mut bytes = pack.to_vec();
    bytes[48..68].copy_from_slice(&twin[48..68]);
    let told = table_bytes - 32;
    let check = blake3::hash(&bytes[..told]);
    bytes[told..table_bytes].copy_from_slice(check.as_bytes());
    bytes
}

/// Bytes of the table of a pack, as its name says.
pub fn table_bytes(name: &str) -> usize {
    let table = name
        .strip_suffix(".pack")
        .unwrap()
        .rsplit_once('-')
        .unwrap();
    usize::from_str_radix(table.1, 16).unwrap()
}

/// What goes wrong with requests of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    #[default]
    None,
    /// An error.
    Fails,
    /// 'No such object'.
    Gone,
    /// It is done, and the answer is an error.
    Unanswered,
    /// No answer, ever.
    Hangs,
    /// An answer after that time.
    Slow(Duration),
    /// One bit of the answer is another.
    Flips,
    /// The client panics.
    Panics,
    /// The answer lacks its last byte.
    Short,
    /// The answer is what another object has there.
    Swaps,
}

/// A store in memory that can be spoilt.
#[derive(Debug, Default)]
pub struct Store {
    pub inner: InMemory,
    pub faults: Mutex<Faults>,
    /// What is told instead.
    pub other: Mutex<Bytes>,
    /// What is listed though it has left.
    pub stale: Mutex<Vec<ObjectMeta>>,
}

#[derive(Debug, Default, Clone, Copy)]
pub struct Faults {
    pub gets: Fault,
    pub lists: Fault,
    pub puts: Fault,
    pub deletes: Fault,
}

impl Store {
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    pub fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn faults(&self) -> Faults {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every object with its bytes, by name.
    pub fn objects(&self) -> Vec<(Path, Bytes)> {
        futures::executor::block_on(async {
            let names: Vec<Path> = self
                .inner
                .list(None)
                .map(|meta| meta.unwrap().location)
                .collect()
                .await;
            let mut objects = Vec::new();
            for name in names {
                let bytes = self.inner.get(&name).await.unwrap().bytes().await.unwrap();
                objects.push((name, bytes));
            }
            objects
        })
    }

    pub fn packs(&self) -> Vec<(Path, Bytes)> {
        let objects = self.objects().into_iter();
        objects
            .filter(|(name, _)| name.as_ref().ends_with(".pack"))
            .collect()
    }

    pub fn write(&self, name: &Path, bytes: impl Into<Bytes>) {
        let put = self.inner.put(name, PutPayload::from(bytes.into()));
        futures::executor::block_on(put).unwrap();
    }

    pub fn delete(&self, name: &Path) {
        futures::executor::block_on(self.inner.delete(name)).unwrap();
    }

    /// Deletes every object; listings still have them.
    pub fn delete_behind_listings(&self) {
        let metas = self.inner.list(None).map(|meta| meta.unwrap()).collect();
        let metas: Vec<ObjectMeta> = futures::executor::block_on(metas);
        metas.iter().for_each(|meta| self.delete(&meta.location));
        *self.stale.lock().unwrap() = metas;
    }

    async fn begin(fault: Fault) -> object_store::Result<()> {
        match fault {
            Fault::Fails => Err(Error::Generic {
                store: "test",
                source: "503 SlowDown https://host/bucket?X-Amz-Signature=abcdef".into(),
            }),
            Fault::Gone => Err(Error::NotFound {
                path: "test".into(),
                source: "404".into(),
            }),
            Fault::Panics => panic!("a panic that a test has planted"),
            Fault::Hangs => std::future::pending().await,
            Fault::Slow(time) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store for tests")
    }
}

#[async_trait]
impl ObjectStore for Store {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let fault = self.faults().puts;
        Self::begin(fault).await?;
        let put = self.inner.put_opts(location, payload, options).await;
        if fault == Fault::Unanswered {
            Self::begin(Fault::Fails).await?;
        }
        put
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(
        &self,
        location: &Path,
        options: GetOptions,
    ) -> object_store::Result<GetResult> {
        let fault = self.faults().gets;
        Self::begin(fault).await?;
        let mut result = self.inner.get_opts(location, options).await?;
        if matches!(fault, Fault::Flips | Fault::Short | Fault::Swaps) {
            let (meta, range) = (result.meta.clone(), result.range.clone());
            let (attributes, extensions) = (result.attributes.clone(), result.extensions.clone());
            let mut bytes = result.bytes().await?.to_vec();
            match fault {
                Fault::Flips => {
                    let middle = bytes.len() / 2;
                    bytes[middle] ^= 4;
                }
                Fault::Short => drop(bytes.pop()),
                _ => {
                    let other = self.other.lock().unwrap_or_else(PoisonError::into_inner);
                    let (start, end) = (range.start as usize, range.end as usize);
                    bytes = other[start.min(other.len())..end.min(other.len())].to_vec();
                    bytes.resize(end - start, 0);
                }
            }
            let bytes = stream::iter([Ok(Bytes::from(bytes))]).boxed();
            result = GetResult {
                payload: GetResultPayload::Stream(bytes),
                meta,
                range,
                attributes,
                extensions,
            };
        }
        Ok(result)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        if self.faults().deletes == Fault::None {
            return self.inner.delete_stream(locations);
        }
        let fault = self.faults().deletes;
        locations
            .then(move |location| async move {
                Self::begin(fault).await?;
                location
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let fault = self.faults().lists;
        let begun =
            stream::once(Self::begin(fault)).filter_map(|begun| async { begun.err().map(Err) });
        let stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner);
        let stale = stream::iter(stale.clone().into_iter().map(Ok));
        begun.chain(self.inner.list(prefix)).chain(stale).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
