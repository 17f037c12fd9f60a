//! Stores whose answers have no end, and directories with anything in them.

use crate::support;

use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use hybrid_pages_remote::{RemoteFailure, RemotePlace};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use rustix::fs::{CWD, Mode, mkfifoat};
use support::{Engine, Setup, table_bytes};

/// A store whose answers may have no end.
#[derive(Debug, Default)]
struct Endless {
    inner: InMemory,
    gets: AtomicBool,
    lists: AtomicBool,
    /// Bytes and names that were taken from answers without end.
    taken: AtomicU64,
    /// Bytes of the largest range that was asked for.
    largest: AtomicU64,
}

#[derive(Debug, Clone)]
struct Store(Arc<Endless>);

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an endless store for tests")
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
        self.0.inner.put_opts(location, payload, options).await
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
        let mut result = self.0.inner.get_opts(location, options).await?;
        let asked = result.range.end - result.range.start;
        self.0.largest.fetch_max(asked, Ordering::SeqCst);
        if self.0.gets.load(Ordering::SeqCst) {
            let store = Arc::clone(&self.0);
            let pieces = stream::repeat_with(move || {
                store.taken.fetch_add(1000, Ordering::SeqCst);
                Ok(Bytes::from_static(&[7; 1000]))
            });
            let pieces = pieces.then(|piece| async {
                tokio::time::sleep(Duration::from_millis(1)).await;
                piece
            });
            result.payload = GetResultPayload::Stream(pieces.boxed());
        }
        Ok(result)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.0.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let listing = self.0.inner.list(prefix);
        if !self.0.lists.load(Ordering::SeqCst) {
            return listing;
        }
        let (store, folder) = (Arc::clone(&self.0), prefix.cloned().unwrap_or_default());
        let metas = listing.filter_map(|meta| async { meta.ok() });
        let endless = metas.take(1).flat_map(move |meta| {
            let (store, folder) = (Arc::clone(&store), folder.clone());
            stream::iter(0_u64..).then(move |number| {
                let (store, folder, mut meta) = (Arc::clone(&store), folder.clone(), meta.clone());
                async move {
                    store.taken.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    let name = format!("{number:012x}-{number:016x}-00000000-000000b8.pack");
                    meta.location = folder.join(name);
                    Ok(meta)
                }
            })
        });
        endless.boxed()
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

/// A store that has 'abcdef'.
fn stocked() -> (Arc<Endless>, Setup) {
    let store = Arc::new(Endless::default());
    let place = RemotePlace::of(
        Arc::new(Store(Arc::clone(&store))),
        Path::from("p"),
        "endless".into(),
    );
    let setup = Setup::at(place);
    setup.engine().keep("abcdef");
    (store, setup)
}

#[test]
fn of_an_answer_without_end_no_more_is_read_than_was_asked_for() {
    let (store, setup) = stocked();
    let engine = setup.engine();
    assert_eq!(engine.ask("abcdef"), 6);
    store.gets.store(true, Ordering::SeqCst);
    assert_eq!(engine.restore("abcdef"), 0);
    assert_eq!(engine.stats().failed(RemoteFailure::Short), 7);
    let asked = store.largest.load(Ordering::SeqCst);
    let taken = store.taken.swap(0, Ordering::SeqCst);
    assert!(taken <= asked + 2000, "{taken} of {asked}");
    // The same of tables.
    let other = setup.engine();
    assert_eq!(other.ask("abcdef"), 0);
    assert_eq!(other.stats().failed(RemoteFailure::Table), 1);
    let taken = store.taken.load(Ordering::SeqCst);
    assert!(taken <= 4000, "{taken}");
    store.gets.store(false, Ordering::SeqCst);
    assert_eq!(setup.engine().serve("abcdef"), 6);
}

#[test]
fn a_listing_without_end_ends() {
    let (store, mut setup) = stocked();
    setup.options.most_entries = 100;
    store.lists.store(true, Ordering::SeqCst);
    let engine = setup.engine();
    engine.until("ended", |engine| {
        engine.stats().failed(RemoteFailure::List) > 0
    });
    let notes = engine.below.take_notes().join("\n");
    assert!(notes.contains("expected a listing of at most"), "{notes}");
    store.lists.store(false, Ordering::SeqCst);
    engine.until("found", |engine| engine.serve("abcdef") == 6);
}

#[test]
fn a_table_that_no_pack_has_is_not_asked_for() {
    let (store, setup) = stocked();
    let names: Vec<ObjectMeta> =
        futures::executor::block_on(store.inner.list(None).map(|meta| meta.unwrap()).collect());
    let pack = names
        .into_iter()
        .find(|meta| meta.location.as_ref().ends_with(".pack"));
    let pack = pack.unwrap().location;
    let name = pack.filename().unwrap().to_owned();
    let told = table_bytes(&name);
    let bytes = futures::executor::block_on(async {
        store.inner.get(&pack).await.unwrap().bytes().await.unwrap()
    });
    // Large enough, and of the length that the name says.
    for (number, table) in [(100_u32, 8 << 20), (101, told + 1), (102, 127), (103, 128)] {
        let mut long = bytes.to_vec();
        long.resize((9 << 20).max(long.len()), 0);
        let mut parts: Vec<String> = name.split('-').map(Into::into).collect();
        parts[2] = format!("{number:08x}");
        parts[3] = format!("{table:08x}.pack");
        let folder: Vec<_> = pack.parts().collect();
        let folder = Path::from_iter(folder[..folder.len() - 1].iter().cloned());
        let other = folder.join(parts.join("-"));
        futures::executor::block_on(store.inner.put(&other, long.into())).unwrap();
    }
    store.largest.store(0, Ordering::SeqCst);
    let engine = setup.engine();
    assert_eq!(engine.ask("abcdef"), 6);
    assert_eq!(engine.stats().failed(RemoteFailure::Table), 4);
    assert_eq!(store.largest.load(Ordering::SeqCst), told as u64);
}

/// A directory that has 'abcdef', and the folder of its packs.
fn directory() -> (tempfile::TempDir, Setup, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().display());
    let setup = Setup::at(RemotePlace::of_url(&url).unwrap());
    setup.engine().keep("abcdef");
    let version = folder.path().join("hybrid-pages-v1");
    let packs = std::fs::read_dir(version)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.is_dir())
        .unwrap();
    (folder, setup, packs)
}

fn shares(setup: &Setup) -> Engine {
    let engine = setup.engine();
    assert_eq!(engine.serve("abcdef"), 6, "{:?}", engine.below.take_notes());
    engine.keep("xyz");
    let stats = engine.stats();
    assert_eq!(
        (stats.failures, stats.out),
        ([0; RemoteFailure::ALL.len()], false)
    );
    engine
}

#[test]
fn whatever_else_lies_in_a_directory_is_left_alone() {
    let (folder, setup, packs) = directory();
    let pack = |number: u64| {
        packs.join(format!(
            "{number:012x}-{number:016x}-00000000-000000b8.pack"
        ))
    };
    let write = |path: &FilePath| std::fs::write(path, "x").unwrap();
    let garbage: Vec<Box<dyn Fn()>> = vec![
        Box::new(|| write(&packs.join(std::ffi::OsStr::from_bytes(b"no \xff text")))),
        Box::new(|| write(&packs.join("line\nbreak\t%2F*?"))),
        Box::new(|| symlink(".", packs.join("loop")).unwrap()),
        Box::new(|| symlink("nowhere", pack(1)).unwrap()),
        Box::new(|| symlink(pack(6), pack(6)).unwrap()),
        Box::new(|| mkfifoat(CWD, pack(2), Mode::RWXU).unwrap()),
        Box::new(|| {
            std::fs::create_dir(pack(3)).unwrap();
            write(&pack(3).join(pack(4).file_name().unwrap()));
        }),
        Box::new(|| {
            let secret = packs.join("secret");
            std::fs::create_dir(&secret).unwrap();
            std::fs::set_permissions(secret, std::fs::Permissions::from_mode(0o000)).unwrap();
        }),
        Box::new(|| {
            let socket = folder.path().join("socket");
            drop(UnixListener::bind(&socket).unwrap());
            std::fs::rename(socket, pack(5)).unwrap();
        }),
    ];
    for put in garbage {
        put();
        shares(&setup);
    }
}

#[test]
fn a_reset_makes_no_directory_that_has_left() {
    let (folder, setup, _) = directory();
    let engine = setup.engine();
    engine.keep("xyz");
    let aside = folder.path().with_extension("aside");
    std::fs::rename(folder.path(), &aside).unwrap();
    engine.cache.clear();
    engine.until("told", |engine| {
        engine.stats().failed(RemoteFailure::Remove) > 1
    });
    assert!(!folder.path().exists());
    std::fs::rename(&aside, folder.path()).unwrap();
    engine.settle();
    assert_eq!(setup.engine().serve("xyz"), 0);
    assert_eq!(setup.engine().serve("abcdef"), 6);
}
