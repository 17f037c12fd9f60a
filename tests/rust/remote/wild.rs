//! A store where each request meets a fault of its own.

use std::fmt;
use std::fs::OpenOptions;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path as FilePath;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload,
    PutResult,
};

/// Numbers that a seed gives, to several threads.
#[derive(Debug)]
pub struct Random(AtomicU64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    pub fn word(&self) -> u64 {
        let step = self.0.fetch_add(1, Ordering::Relaxed);
        let hash = blake3::hash(&step.to_le_bytes());
        u64::from_le_bytes(hash.as_bytes()[..8].try_into().unwrap())
    }

    /// One below `most`.
    pub fn below(&self, most: usize) -> usize {
        (self.word() % most as u64) as usize
    }

    pub fn chance(&self, percent: u32) -> bool {
        self.below(100) < percent as usize
    }
}

/// What a request panics with.
pub const PLANTED: &str = "a panic that a test has planted";

/// A store in memory: so many of a hundred requests meet a fault.
#[derive(Debug)]
pub struct Wild {
    inner: InMemory,
    random: Random,
    percent: AtomicU32,
    met: AtomicU64,
}

impl Wild {
    pub fn new(seed: u64) -> Self {
        Self {
            inner: InMemory::new(),
            random: Random::new(seed),
            percent: AtomicU32::new(0),
            met: AtomicU64::new(0),
        }
    }

    pub fn set(&self, percent: u32) {
        self.percent.store(percent, Ordering::SeqCst);
    }

    /// How many requests have met a fault.
    pub fn met(&self) -> u64 {
        self.met.load(Ordering::SeqCst)
    }

    fn is_wild(&self) -> bool {
        let wild = self.random.chance(self.percent.load(Ordering::SeqCst));
        self.met.fetch_add(u64::from(wild), Ordering::SeqCst);
        wild
    }

    /// What may happen to any request. True if nothing did.
    async fn meets(&self) -> object_store::Result<bool> {
        if !self.is_wild() {
            return Ok(true);
        }
        match self.random.below(10) {
            0 => std::future::pending().await,
            1 => panic!("{PLANTED}"),
            2 => Err(Error::Generic {
                store: "test",
                source: "503 SlowDown".into(),
            }),
            3 => Err(gone()),
            4 => {
                tokio::time::sleep(Duration::from_millis(self.random.below(60) as u64)).await;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    async fn all(&self) -> Vec<ObjectMeta> {
        let listing = self.inner.list(None).filter_map(|meta| async { meta.ok() });
        listing.collect().await
    }

    async fn bytes_of(&self, name: &Path) -> Bytes {
        let Ok(found) = self.inner.get(name).await else {
            return Bytes::new();
        };
        found.bytes().await.unwrap_or_default()
    }

    /// Bytes that are not what was asked for, mostly.
    async fn lie(&self, location: &Path, range: &Range<u64>, told: Bytes) -> Vec<u8> {
        let mut bytes = told.to_vec();
        let at = self.random.below(bytes.len().max(1));
        match self.random.below(7) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << self.random.below(8),
            1 => bytes.truncate(at),
            2 => bytes.extend(vec![7; 1 + at]),
            3 => bytes.fill(0),
            4 => bytes.rotate_left(at),
            5 => {
                // Another range of the same object.
                let whole = self.bytes_of(location).await;
                let from = self.random.below(whole.len().max(1));
                bytes = whole[from..].to_vec();
                bytes.resize((range.end - range.start) as usize, 1);
            }
            _ => {
                // The same range of another one.
                let all = self.all().await;
                let other = &all[self.random.below(all.len())].location;
                let whole = self.bytes_of(other).await;
                let from = (range.start as usize).min(whole.len());
                bytes = whole[from..].to_vec();
                bytes.resize((range.end - range.start) as usize, 2);
            }
        }
        bytes
    }

    async fn listed(&self, prefix: Option<&Path>) -> Vec<object_store::Result<ObjectMeta>> {
        match self.meets().await {
            Err(error) => return vec![Err(error)],
            Ok(true) => {
                let all = self.inner.list(prefix);
                return all.collect().await;
            }
            Ok(false) => {}
        }
        let mut listed = Vec::new();
        for mut meta in self.all().await {
            let under = prefix.is_none_or(|prefix| meta.location.prefix_matches(prefix));
            match self.random.below(8) {
                0 => continue,
                1 if under => meta.size = self.random.word(),
                2 if under => meta.size += 1,
                3 => {
                    // Another's pack, or an old one under a new name.
                    let name = meta.location.filename().unwrap_or("x").to_owned();
                    let prefix = prefix.cloned().unwrap_or_default();
                    meta.location = prefix.join(name);
                }
                4 if under => {
                    let name = meta.location.filename().unwrap_or("x").to_owned();
                    let (front, back) = name.split_at(name.len().min(47));
                    let name = match self.random.below(4) {
                        0 => format!("{front}{:08x}.pack", self.random.word() >> 33),
                        1 => format!("{:012x}{back}", self.random.word() >> 16),
                        2 => format!("{front}ffffffff.pack"),
                        _ => format!("{name}~"),
                    };
                    let folder: Vec<_> = meta.location.parts().collect();
                    let folder = Path::from_iter(folder[..folder.len() - 1].iter().cloned());
                    (meta.location, meta.size) = (folder.join(name), u64::MAX);
                }
                _ if !under => continue,
                _ => {}
            }
            if self.random.chance(20) {
                listed.push(Ok(meta.clone()));
            }
            listed.push(Ok(meta));
        }
        let last = self.random.below(listed.len() + 1);
        listed.rotate_left(last);
        if self.random.chance(20) {
            listed.insert(last, Err(gone()));
        }
        if self.random.chance(20) {
            listed.truncate(last);
        }
        listed
    }
}

fn gone() -> Error {
    Error::NotFound {
        path: "test".into(),
        source: "404".into(),
    }
}

fn of_bytes(result: &GetResult, bytes: Vec<u8>) -> GetResult {
    // In two pieces, as they come over a network.
    let bytes = Bytes::from(bytes);
    let middle = bytes.len() / 2;
    let pieces = [Ok(bytes.slice(..middle)), Ok(bytes.slice(middle..))];
    GetResult {
        payload: GetResultPayload::Stream(stream::iter(pieces).boxed()),
        meta: result.meta.clone(),
        range: result.range.clone(),
        attributes: result.attributes.clone(),
        extensions: result.extensions.clone(),
    }
}

impl fmt::Display for Wild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a wild store for tests")
    }
}

/// The same store, held by several.
#[derive(Debug, Clone)]
pub struct Shared(pub std::sync::Arc<Wild>);

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Shared {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let wild = &self.0;
        if wild.meets().await? {
            return wild.inner.put_opts(location, payload, options).await;
        }
        let bytes = Bytes::from(payload);
        let at = wild.random.below(bytes.len().max(1));
        let mut kept = bytes.to_vec();
        let fails = match wild.random.below(5) {
            0 => true,
            1 => {
                kept.truncate(at);
                wild.random.chance(50)
            }
            2 if !kept.is_empty() => {
                kept[at] ^= 1 << wild.random.below(8);
                false
            }
            // It says that it has it, and has not.
            3 => {
                let result = wild.inner.put(location, PutPayload::default()).await;
                let _ = wild.inner.delete(location).await;
                return result;
            }
            // It comes after the answer.
            _ => {
                let (late, location) = (Shared(wild.clone()), location.clone());
                let wait = Duration::from_millis(wild.random.below(80) as u64);
                tokio::spawn(async move {
                    tokio::time::sleep(wait).await;
                    let _ = late.0.inner.put(&location, bytes.into()).await;
                });
                return Err(gone());
            }
        };
        let result = wild.inner.put(location, kept.into()).await;
        if fails { Err(gone()) } else { result }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.0.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(
        &self,
        location: &Path,
        options: GetOptions,
    ) -> object_store::Result<GetResult> {
        let wild = &self.0;
        let is_true = wild.meets().await?;
        let result = wild.inner.get_opts(location, options).await?;
        if is_true {
            return Ok(result);
        }
        let range = result.range.clone();
        let empty = of_bytes(&result, Vec::new());
        let told = result.bytes().await?;
        let bytes = wild.lie(location, &range, told).await;
        let mut lie = of_bytes(&empty, bytes);
        if wild.random.chance(10) {
            // It dies, or hangs, in the middle.
            let (fails, payload) = (wild.random.chance(50), lie.payload);
            let GetResultPayload::Stream(pieces) = payload else {
                return Err(gone());
            };
            let end = stream::once(async move {
                if !fails {
                    std::future::pending::<()>().await;
                }
                Err(gone())
            });
            lie.payload = GetResultPayload::Stream(pieces.take(1).chain(end).boxed());
        }
        Ok(lie)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        let wild = self.0.clone();
        locations
            .then(move |location| {
                let wild = wild.clone();
                async move {
                    let location = location?;
                    // It may say that it has removed what it has not.
                    if wild.meets().await? {
                        wild.inner.delete(&location).await?;
                    }
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let (wild, prefix) = (self.0.clone(), prefix.cloned());
        stream::once(async move { stream::iter(wild.listed(prefix.as_ref()).await) })
            .flatten()
            .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.0.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.0.inner.copy_opts(from, to, options).await
    }
}

/// Does something to a file, or to the whole directory.
pub fn spoil(folder: &FilePath, random: &Random) -> std::io::Result<()> {
    let plain = folder.join("hybrid-pages-v1");
    let versions = match plain.is_dir() {
        true => plain,
        false => folder.join("hybrid-pages-v2"),
    };
    let mut all = Vec::new();
    for identity in std::fs::read_dir(&versions)? {
        let identity = identity?.path();
        if identity.is_dir() {
            for file in std::fs::read_dir(identity)? {
                all.push(file?.path());
            }
        }
    }
    if all.is_empty() {
        return Ok(());
    }
    let [one, two] = [0; 2].map(|_| &all[random.below(all.len())]);
    let length = std::fs::metadata(one)?.len();
    let at = random.word() % length.max(1);
    let open = || OpenOptions::new().write(true).open(one);
    match random.below(300) {
        0..8 => open()?.write_all_at(&[random.word() as u8], at),
        8..10 => open()?.set_len(at),
        10 | 11 => open()?.set_len(length + 1),
        12..16 => std::fs::copy(two, one).map(drop),
        16..20 => std::fs::rename(two, one),
        20..26 => std::fs::remove_file(one),
        26 if random.chance(30) => std::fs::write(one.with_extension("gone"), "x"),
        27 if random.chance(30) => std::fs::remove_dir_all(&versions),
        28 => {
            let aside = folder.with_extension("aside");
            std::fs::rename(folder, &aside)?;
            std::thread::sleep(Duration::from_millis(10));
            std::fs::rename(aside, folder)
        }
        _ => Ok(()),
    }
}
