//! A disk whose entries are encrypted: what is on it without the key, and what another key does to it.

use crate::support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hybrid_pages_disk::{DiskFailure, DiskTree, Verdict};
use hybrid_pages_tiers::{EncryptKeys, without_tenant};
use support::{Engine, Setup, change, geometry};

const MAIN: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const OTHER: &str = "10112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
/// The SHA-256 of "salt".
const SALT: &str = "63479ad69a090b258277ec8fba6f99419a2ffb248981510657c944ccd1148e97";
const HEADER: usize = 4096;

/// Pages of some tiles, so that a shard has several seals.
fn setup(path: &Path, keys: &str) -> Setup {
    let mut setup = Setup::small(path);
    setup.geometry = geometry(40_000, 9_001, 2);
    setup.slot_bytes = 16_384;
    with(&setup, keys)
}

fn with(setup: &Setup, keys: &str) -> Setup {
    let mut setup = setup.clone();
    setup.restarts = Arc::default();
    setup.options.keys = (!keys.is_empty()).then(|| EncryptKeys::parse(keys).unwrap());
    setup
}

/// The same engine, for the requests of a tenant.
fn of_tenant(mut engine: Engine, tenant: &str) -> Engine {
    let length = (tenant.len() as u64).to_le_bytes();
    let identity = [&b"tenant"[..], &length, tenant.as_bytes(), b"rest"].concat();
    engine.namespace = engine.cache.namespace(&identity).unwrap();
    engine
}

/// Every file below a directory with its bytes, in order.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            found.push((path, bytes));
        }
    }
    found.sort();
    found
}

fn slab(setup: &Setup) -> PathBuf {
    let all = files(&setup.options.path);
    let mut slabs = all.into_iter().map(|(path, _)| path);
    slabs.find(|path| path.ends_with("class-0.slab")).unwrap()
}

/// Whether some file has a piece of a page's bytes, or the digest of a prefix.
fn shows(setup: &Setup, engine: &Engine) -> bool {
    let shards = engine.shards(0, "ab");
    let sum = Engine::sums(&shards)[1].to_le_bytes();
    let pieces = [&shards[0][100..132], &shards[1][39_000..39_032], &sum];
    files(&setup.options.path).iter().any(|(_, bytes)| {
        let has = |piece: &[u8]| bytes.windows(piece.len()).any(|found| found == piece);
        pieces.into_iter().any(has)
    })
}

#[test]
fn bytes_come_back_after_restarts_and_are_on_no_disk_in_the_clear() {
    for (keys, shown) in [("", true), (MAIN, false)] {
        let place = tempfile::tempdir().unwrap();
        let setup = setup(place.path(), keys);
        let engine = setup.engine();
        engine.keep("abcd");
        assert_eq!(shows(&setup, &engine), shown, "{keys:?}");
        drop(engine);
        for _ in 0..2 {
            let engine = setup.engine();
            assert_eq!(engine.restore("abcde"), 4);
            assert_eq!(engine.stats().failures, [0; 17]);
        }
        let verdict = verify(&setup, "").unwrap();
        assert_eq!((verdict.good, verdict.encrypted), (5, !shown));
        assert_eq!(verdict.unopened, if shown { 0 } else { 5 });
        assert!(verdict.bad.is_empty());
    }
}

fn verify(setup: &Setup, keys: &str) -> hybrid_pages::error::Result<Verdict> {
    let tree = DiskTree::open(&setup.options.path).unwrap();
    let lanes = tree.lanes(&mut || true).unwrap();
    let identity = &lanes[0].identities[0].identity;
    let keys = (!keys.is_empty()).then(|| EncryptKeys::parse(keys).unwrap());
    let verdict = tree.verify("lane-0", identity, keys.as_ref(), &mut |_, _| true);
    verdict.map(Option::unwrap)
}

#[test]
fn with_the_key_every_seal_is_verified_whoever_its_tenant_is() {
    let place = tempfile::tempdir().unwrap();
    let keys = format!("{MAIN}\ntenants {OTHER}");
    let setup = setup(place.path(), &keys);
    for tenant in ["salt", "another", ""] {
        of_tenant(setup.engine(), tenant).keep("abc");
    }
    let counts = |keys: &str| {
        let found = verify(&setup, keys).unwrap();
        let reasons = found.bad.iter().map(|bad| bad.reason);
        (found.good, found.unopened, reasons.collect::<Vec<_>>())
    };
    let all = counts(&keys).0;
    assert!(all >= 9);
    assert_eq!(counts(&keys), (all, 0, vec![]));
    assert_eq!(counts(""), (all, all, vec![]));
    assert_eq!(
        counts(MAIN),
        (all, all, vec![]),
        "without the tenants' line"
    );
    let error = verify(&setup, OTHER).unwrap_err().to_string();
    let id = EncryptKeys::parse(MAIN).unwrap().id();
    assert!(
        error.contains("encrypt_key") && error.contains(&id),
        "{error}"
    );
    // Of a tenant that was destroyed nothing is opened, and nothing is damage.
    let gone = without_tenant(&keys, &digest_of_salt()).unwrap();
    let (good, unopened, bad) = counts(&gone);
    assert_eq!((good, unopened, bad), (all, all / 3, vec![]));
    change(&slab(&setup), |bytes| bytes[HEADER + 17_000] ^= 1);
    assert_eq!(counts(&keys), (all - 1, 0, vec![DiskFailure::Sealed]));
    assert_eq!(counts(""), (all, all, vec![]), "by their headers alone");
}

fn digest_of_salt() -> [u8; 32] {
    let byte = |at| u8::from_str_radix(&SALT[2 * at..2 * at + 2], 16).unwrap();
    std::array::from_fn(byte)
}

/// Copies a directory with all that is in it.
fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_all(&path, &to);
        } else {
            std::fs::copy(&path, &to).unwrap();
        }
    }
}

fn put_back(setup: &Setup, backup: &Path) {
    let _ = std::fs::remove_dir_all(&setup.options.path);
    copy_all(backup, &setup.options.path);
    let folder = |path: &Path| {
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(path, private).unwrap();
    };
    folder(&setup.options.path);
    folder(&setup.options.path.join("lane-0"));
}

#[test]
fn a_backup_gives_nothing_of_a_destroyed_tenant_back() {
    let place = tempfile::tempdir().unwrap();
    let backup = place.path().join("backup");
    let keys = format!("{MAIN}\ntenants {OTHER}");
    let before = setup(place.path(), &keys);
    for tenant in ["salt", "another"] {
        of_tenant(before.engine(), tenant).keep("abc");
    }
    copy_all(&before.options.path, &backup);
    let after = with(&before, &without_tenant(&keys, &digest_of_salt()).unwrap());
    after.restarts.excuse("the files are put back by hand");
    for (again, kept) in [(false, 0), (true, 3)] {
        let engine = of_tenant(after.engine(), "salt");
        assert_eq!(engine.restore("abc"), kept, "with its new key");
        if again {
            continue;
        }
        engine.keep("abc");
        drop(engine);
        assert_eq!(of_tenant(after.engine(), "another").restore("abc"), 3);
    }
    put_back(&after, &backup);
    let after = with(&after, &without_tenant(&keys, &digest_of_salt()).unwrap());
    let engine = of_tenant(after.engine(), "salt");
    assert_eq!(engine.restore("abc"), 0, "after the backup was put back");
    assert_eq!(engine.stats().failures, [0; 17]);
    drop(engine);
    assert_eq!(of_tenant(after.engine(), "another").restore("abc"), 3);
    // The old file would have opened it.
    assert_eq!(
        of_tenant(with(&after, &keys).engine(), "salt").restore("abc"),
        3
    );
}

#[test]
fn a_backup_from_before_a_reset_gives_only_what_its_weights_made() {
    let place = tempfile::tempdir().unwrap();
    let backup = place.path().join("backup");
    let named = |store: &str| format!("{MAIN}\nstore {store}");
    let setup = setup(place.path(), &named("one"));
    setup.restarts.excuse("the files are put back by hand");
    let engine = setup.engine();
    engine.keep("abc");
    drop(engine);
    copy_all(&setup.options.path, &backup);
    let engine = setup.engine();
    engine.cache.clear();
    put_back(&setup, &backup);
    assert_eq!(engine.restore("abc"), 0);
    drop(engine);
    put_back(&setup, &backup);
    // What it restores is compared: the bytes of the weights that the identity names.
    assert_eq!(with(&setup, &named("one")).engine().restore("abc"), 3);
    put_back(&setup, &backup);
    let later = with(&setup, &named("two")).engine();
    assert_eq!((later.restore("abc"), later.stats().failures), (0, [0; 17]));
}

#[test]
fn another_key_and_none_are_refused_by_name_and_nothing_changes() {
    let place = tempfile::tempdir().unwrap();
    let first = setup(place.path(), MAIN);
    first.engine().keep("abc");
    let id = EncryptKeys::parse(MAIN).unwrap().id();
    for keys in [OTHER, ""] {
        refused(&with(&first, keys), &[&id, "encrypt_key"]);
    }
    let engine = first.engine();
    assert_eq!(engine.restore("abc"), 3);
    drop(engine);
    // A lane without entries is anybody's.
    let identity = slab(&first).parent().unwrap().to_owned();
    let aside = place.path().join("aside");
    for keys in [OTHER, "", OTHER, MAIN] {
        std::fs::rename(&identity, &aside).unwrap();
        let other = with(&first, keys);
        other.restarts.excuse("what it has written is removed");
        other.engine().keep("abc");
        let written = slab(&other).parent().unwrap().to_owned();
        std::fs::remove_dir_all(written).unwrap();
        std::fs::rename(&aside, &identity).unwrap();
        std::fs::write(mark(&first), format!("{id} 3\n")).unwrap();
    }
    // What a loss of power leaves of the mark counts as none.
    std::fs::write(mark(&first), [0; 17]).unwrap();
    assert_eq!(first.engine().restore("abc"), 3);
    std::fs::write(mark(&first), "no key").unwrap();
    refused(&with(&first, MAIN), &["encrypt_key with the key no,"]);
    std::fs::write(mark(&first), []).unwrap();
}

fn mark(setup: &Setup) -> PathBuf {
    setup.options.path.join("lane-0/encrypted")
}

/// An engine is refused with an error that says all of this, and changes nothing.
fn refused(setup: &Setup, said: &[&str]) {
    let before = files(&setup.options.path);
    setup.restarts.excuse("it is refused");
    let error = setup.try_engine().err().unwrap().to_string();
    assert!(said.iter().all(|it| error.contains(it)), "{error}");
    let after = files(&setup.options.path);
    let other = |it: &&(PathBuf, Vec<u8>)| !it.0.ends_with("lock");
    assert!(before.iter().filter(other).eq(after.iter().filter(other)));
}

/// The old file of a store that got lines `tenants` later, and the other way round.
#[test]
fn a_file_with_and_one_without_tenants_lines_do_not_take_each_others_entries_for_gone() {
    let grown = format!("{MAIN}\ntenants {OTHER}");
    for (keys, other, said) in [
        (MAIN, &*grown, "encrypt_key without lines `tenants`"),
        (&*grown, MAIN, "encrypt_key with lines `tenants`"),
    ] {
        let place = tempfile::tempdir().unwrap();
        let setup = setup(place.path(), keys);
        of_tenant(setup.engine(), "salt").keep("abc");
        refused(&with(&setup, other), &[said, "name another disk_path"]);
        assert_eq!(of_tenant(setup.engine(), "salt").restore("abc"), 3);
        // An earlier build did not say it, and a start with either file does not decide it.
        let id = EncryptKeys::parse(MAIN).unwrap().id();
        std::fs::write(mark(&setup), format!("{id} 3\n")).unwrap();
        for keys in [other, keys] {
            drop(with(&setup, keys).engine());
        }
        assert_eq!(of_tenant(setup.engine(), "salt").restore("abc"), 3);
        if keys != MAIN {
            let gone = without_tenant(keys, &digest_of_salt()).unwrap();
            let after = of_tenant(with(&setup, &gone).engine(), "another");
            assert_eq!(
                after.restore("abc"),
                0,
                "a destroyed tenant refuses nothing"
            );
        }
    }
}

#[test]
fn entries_in_the_clear_are_not_left_so_by_a_key() {
    let place = tempfile::tempdir().unwrap();
    let plain = setup(place.path(), "");
    plain.engine().keep("abc");
    refused(
        &with(&plain, MAIN),
        &["found some in the clear", "empty this one"],
    );
    assert!(!mark(&plain).exists());
    assert_eq!(plain.engine().restore("abc"), 3);
}

#[test]
fn a_flipped_bit_of_the_mark_costs_nothing_and_refuses_other_keys_still() {
    let place = tempfile::tempdir().unwrap();
    let setup = setup(place.path(), MAIN);
    setup.engine().keep("abc");
    let whole = std::fs::read(mark(&setup)).unwrap();
    let id = EncryptKeys::parse(MAIN).unwrap().id();
    assert!(whole == format!("{id} 3 alone\n").repeat(3).into_bytes());
    for bit in (0..8 * whole.len()).step_by(7) {
        change(&mark(&setup), |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
        refused(&with(&setup, OTHER), &[&id]);
        refused(&with(&setup, ""), &[&id]);
        let engine = setup.engine();
        assert_eq!(engine.restore("abc"), 3, "bit {bit}");
        drop(engine);
        assert!(
            std::fs::read(mark(&setup)).unwrap() == whole,
            "it is mended"
        );
    }
}

#[test]
fn changed_moved_and_replaced_bytes_are_not_opened_and_written_again() {
    let place = tempfile::tempdir().unwrap();
    let stock = |path: &Path| {
        let setup = setup(path, MAIN);
        setup.engine().keep("abc");
        setup
    };
    let sizes = stock(place.path());
    let cell = std::fs::read(slab(&sizes)).unwrap().len() / 3;
    let shard = (cell - HEADER) / 2;
    let flip = |at: usize| move |bytes: &mut Vec<u8>| bytes[at] ^= 1;
    type Damage = Box<dyn FnOnce(&mut Vec<u8>)>;
    let damages: Vec<Damage> = vec![
        Box::new(flip(HEADER)),
        Box::new(flip(HEADER + 16_384)),      // a tag
        Box::new(flip(HEADER + 16_384 + 16)), // the number of the lot
        Box::new(flip(HEADER + shard + 40_000)),
        // The bytes of one entry in another's cell, and those of one rank in the other's place.
        Box::new(move |bytes: &mut Vec<u8>| {
            bytes.copy_within(cell + HEADER..2 * cell, HEADER);
        }),
        Box::new(move |bytes: &mut Vec<u8>| {
            bytes.copy_within(HEADER..HEADER + shard, HEADER + shard);
        }),
    ];
    for (at, damage) in damages.into_iter().enumerate() {
        let place = tempfile::tempdir().unwrap();
        let setup = stock(place.path());
        change(&slab(&setup), damage);
        let engine = setup.engine();
        let depth = engine.restore("abc");
        assert_eq!(engine.stats().failed(DiskFailure::Sealed), 1, "damage {at}");
        assert!(depth < 3);
        engine.keep("abc");
        drop(engine);
        assert_eq!(setup.engine().restore("abc"), 3, "it was written again");
    }
}

#[test]
fn a_tenant_is_gone_with_its_key_and_others_stay() {
    let place = tempfile::tempdir().unwrap();
    let keys = format!("{MAIN}\ntenant {SALT} {OTHER}");
    let all = setup(place.path(), &keys);
    let engine = of_tenant(all.engine(), "salt");
    engine.keep("abc");
    drop(engine);
    let engine = of_tenant(all.engine(), "salt");
    assert_eq!(engine.restore("abc"), 3);
    drop(engine);
    of_tenant(all.engine(), "another").keep("xyz");

    let without = with(&all, MAIN);
    let engine = of_tenant(without.engine(), "salt");
    assert_eq!(
        (engine.restore("abc"), engine.stats().failures),
        (0, [0; 17])
    );
    assert!(engine.stats().misses > 0);
    drop(engine);
    assert_eq!(of_tenant(without.engine(), "another").restore("xyz"), 3);
    // Nobody has taken the entries away: whoever has the key has them.
    assert_eq!(of_tenant(all.engine(), "salt").restore("abc"), 3);
}
