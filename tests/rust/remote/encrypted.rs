//! A store that machines share whose entries are encrypted: what others see of it, and what they can do to it.

use crate::support;

use std::sync::Arc;

use hybrid_pages_remote::{RemoteFailure, RemotePlace};
use hybrid_pages_tiers::{EncryptKeys, without_tenant};
use object_store::ObjectStore;
use object_store::path::Path;
use support::{Engine, Setup, Store, geometry, table_bytes, under_the_name_of};

const MAIN: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const OTHER: &str = "10112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// The SHA-256 of nothing: the tenant of requests without a salt.
const NOBODY: &[u8; 32] = b"\xe3\xb0\xc4\x42\x98\xfc\x1c\x14\x9a\xfb\xf4\xc8\x99\x6f\xb9\x24\
    \x27\xae\x41\xe4\x64\x9b\x93\x4c\xa4\x95\x99\x1b\x78\x52\xb8\x55";

fn with(setup: &Setup, keys: &str) -> Setup {
    let mut setup = setup.clone();
    setup.geometry = geometry(300_000, 9_001, 2);
    setup.slot_bytes = 65_536;
    setup.slots = 120;
    setup.options.keys = (!keys.is_empty()).then(|| EncryptKeys::parse(keys).unwrap());
    setup
}

fn shows(objects: &[(Path, bytes::Bytes)], engine: &Engine) -> bool {
    let shards = engine.shards(0, "ab");
    let sum = Engine::sums(&shards)[1].to_le_bytes();
    let pieces = [&shards[0][100..132], &shards[1][299_000..299_032], &sum];
    objects.iter().any(|(_, bytes)| {
        let has = |piece: &[u8]| bytes.windows(piece.len()).any(|found| found == piece);
        pieces.into_iter().any(has)
    })
}

#[test]
fn engines_with_one_key_share_and_others_find_nothing() {
    let store = Store::new();
    let ours = with(&Setup::small(&store), MAIN);
    let engine = ours.engine();
    engine.keep("abcd");
    assert!(!shows(&store.objects(), &engine));
    for keys in [OTHER, ""] {
        let other = with(&ours, keys).engine();
        assert_eq!(other.serve("abcd"), 0);
        assert!(other.stats().misses > 0);
        other.keep("xyz");
        assert!(keys.is_empty() || !shows(&store.objects(), &engine));
    }
    let third = ours.engine();
    assert_eq!((third.serve("abcd"), third.serve("xyz")), (4, 0));
    assert_eq!(third.stats().failures.iter().sum::<u64>(), 0);
    let plain = with(&ours, "").engine();
    plain.keep("abcd");
    assert!(
        shows(&store.objects(), &plain),
        "a plain engine's packs show them"
    );
}

#[test]
fn a_directory_is_encrypted_like_a_bucket() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}", directory.path().display());
    let ours = with(&Setup::at(RemotePlace::of_url(&url).unwrap()), MAIN);
    let engine = ours.engine();
    engine.keep("abcd");
    let other = ours.engine();
    assert_eq!(other.serve("abcde"), 4);
    let version = directory.path().join("hybrid-pages-v2");
    let identity = std::fs::read_dir(version).unwrap().next().unwrap().unwrap();
    let mut packs = std::fs::read_dir(identity.path()).unwrap();
    let pack = packs.next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&pack).unwrap();
    let name = Path::from(pack.file_name().unwrap().to_str().unwrap());
    assert!(!shows(&[(name.clone(), bytes.clone().into())], &engine));
    let at = table_bytes(name.as_ref()) + 20_000;
    bytes[at] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let third = ours.engine();
    assert!(third.serve("abcd") < 4);
    assert_eq!(third.stats().failed(RemoteFailure::Sealed), 1);
}

#[test]
fn packs_of_another_store_with_the_same_key_are_refused() {
    let (ours, theirs) = (Store::new(), Store::new());
    let at = |store: &Arc<Store>, name: &str, keys: &str| {
        let store: Arc<dyn ObjectStore> = Arc::clone(store) as _;
        let place = RemotePlace::of(store, Path::from("some/prefix"), name.into());
        with(&Setup::at(place), keys)
    };
    let named = |store: &str| format!("{MAIN}\nstore {store}");
    for (name, keys, other_name, other_keys) in [
        ("s3://ours", MAIN.to_owned(), "s3://theirs", MAIN.to_owned()),
        ("s3://same", named("ours"), "s3://same", named("theirs")),
    ] {
        let setup = at(&ours, name, &keys);
        setup.engine().keep("xyz");
        at(&theirs, other_name, &other_keys).engine().keep("abc");
        let (own_path, own) = ours.packs().pop().unwrap();
        let (path, pack) = theirs.packs().pop().unwrap();
        let (folder, _) = own_path.as_ref().rsplit_once('/').unwrap();
        let (other_folder, file) = path.as_ref().rsplit_once('/').unwrap();
        assert_ne!(folder, other_folder);
        let here = Path::from(format!("{folder}/{file}"));
        ours.write(&here, pack.clone());
        let engine = setup.engine();
        assert_eq!(engine.serve("abc"), 0);
        assert_eq!(engine.stats().failed(RemoteFailure::Table), 1);
        drop(engine);
        // With our identity in its table.
        let mut forged = pack.to_vec();
        forged[16..48].copy_from_slice(&own[16..48]);
        let forged = under_the_name_of(&pack, &forged, table_bytes(file));
        ours.write(&here, forged);
        let engine = setup.engine();
        assert_eq!(engine.serve("abc"), 0);
        assert!(engine.stats().failed(RemoteFailure::Sealed) > 0);
        drop(engine);
        // The same pack where it belongs, under the name that both key files may give the store.
        assert_eq!(
            at(&theirs, other_name, &other_keys).engine().serve("abc"),
            3
        );
        for store in [&ours, &theirs] {
            for (path, _) in store.packs() {
                store.delete(&path);
            }
        }
    }
    at(&ours, "s3://alias", &named("one")).engine().keep("abc");
    assert_eq!(
        at(&ours, "s3://bucket", &named("one"))
            .engine()
            .serve("abc"),
        3
    );
}

#[test]
fn packs_of_a_destroyed_tenant_are_of_no_use_wherever_they_come_from() {
    let store = Store::new();
    let keys = format!("{MAIN}\ntenants {OTHER}");
    let before = with(&Setup::small(&store), &keys);
    before.engine().keep("abc");
    // The requests of no named tenant are a tenant, too.
    let after = with(&before, &without_tenant(&keys, NOBODY).unwrap());
    let engine = after.engine();
    assert_eq!(engine.serve("abc"), 0);
    assert_eq!(engine.stats().failures.iter().sum::<u64>(), 0);
    engine.keep("abc");
    drop(engine);
    assert_eq!(after.engine().serve("abc"), 3, "with its new key");
    assert_eq!(before.engine().serve("abc"), 3, "whoever kept the old file");
}

#[test]
fn packs_of_another_key_time_or_writer_cannot_be_replayed() {
    let store = Store::new();
    let plain = with(&Setup::small(&store), "");
    plain.engine().keep("abc");
    let (_, in_the_clear) = store.packs().remove(0);
    let ours = with(&plain, MAIN);
    ours.engine().keep("abc");
    let packs = store.packs();
    let is_ours = |it: &&(Path, bytes::Bytes)| it.0.as_ref().contains("hybrid-pages-v2");
    let (name, pack) = packs.iter().find(is_ours).unwrap().clone();
    let table = table_bytes(name.as_ref());
    // A pack in the clear under the name of an encrypted one.
    store.write(&name, in_the_clear);
    let engine = ours.engine();
    assert_eq!(engine.serve("abc"), 0);
    assert_eq!(engine.stats().failed(RemoteFailure::Table), 1);
    drop(engine);
    // An encrypted pack under another name, which says that it was made at another time.
    let (folder, file) = name.as_ref().rsplit_once('/').unwrap();
    let made = u64::from_str_radix(&file[..12], 16).unwrap() + 1;
    let file = format!("{made:012x}{}", &file[12..]);
    let mut twin = pack.to_vec();
    twin[48..56].copy_from_slice(&made.to_le_bytes());
    let moved = under_the_name_of(&twin, &pack, table);
    store.delete(&name);
    store.write(&Path::from(format!("{folder}/{file}")), moved);
    let engine = ours.engine();
    assert_eq!(engine.serve("abc"), 0);
    assert!(engine.stats().failed(RemoteFailure::Sealed) > 0);
    // The pack itself is still good.
    store.write(&name, pack);
    assert_eq!(ours.engine().serve("abc"), 3);
}
