//! Who may use a directory, how much of it, and what a clear leaves there.

use crate::door;
use crate::support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use door::BadDoor;
use hybrid_pages::error::Error;
use hybrid_pages::ids::EntryKey;
use hybrid_pages::policy;
use hybrid_pages::tier::{Below as _, Found};
use hybrid_pages_arena::Arena;
use hybrid_pages_disk::{Disk, DiskFailure};
use support::cache_support::keys;
use support::{Setup, hex};

/// Bytes of a page's cell and of a checkpoint's.
const PAGE: u64 = 4096 * (1 + 2 * 2);
const CHECKPOINT: u64 = 4096 * (1 + 3 * 2);
/// Of a prompt of three blocks.
const PROMPT: u64 = 3 * PAGE + CHECKPOINT;

fn error(setup: &Setup) -> Error {
    setup.try_engine().err().expect("an error")
}

/// The slabs take no more than the quota, but for what a file system notes of each.
#[track_caller]
fn assert_on_disk(setup: &Setup) {
    let (found, most) = (on_disk(setup), setup.options.quota_bytes + 2 * 8192);
    assert!(
        found <= most,
        "{found} bytes on disk, expected {most} at most"
    );
}

/// What the directory takes on disk, indexes aside.
fn on_disk(setup: &Setup) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let lane = setup
        .options
        .path
        .join(format!("lane-{}", setup.options.lane));
    let mut bytes = 0;
    for folder in fs::read_dir(lane).unwrap().map(Result::unwrap) {
        if folder.file_type().unwrap().is_dir() {
            for file in fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
                if file.path().extension().is_some_and(|it| it == "slab") {
                    bytes += file.metadata().unwrap().blocks() * 512;
                }
            }
        }
    }
    bytes
}

#[test]
fn only_the_owner_may_read() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    fs::create_dir(&setup.options.path).unwrap();
    fs::set_permissions(&setup.options.path, fs::Permissions::from_mode(0o755)).unwrap();
    let engine = setup.engine();
    engine.keep("abc");
    let mut folders = vec![setup.options.path.clone()];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        assert_eq!(
            folder.metadata().unwrap().permissions().mode() & 0o777,
            0o700,
            "{folder:?}"
        );
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                let mode = entry.metadata().unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600, "{:?}", entry.path());
                files += 1;
            }
        }
    }
    assert_eq!(files, 6, "marker, lock, index, journal, two slabs");
}

#[test]
fn symbolic_links_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    setup.restarts.excuse("symbolic links are left in it");
    drop(setup.engine());
    let elsewhere = place.path().join("elsewhere");
    fs::rename(&setup.options.path, &elsewhere).unwrap();
    symlink(&elsewhere, &setup.options.path).unwrap();
    assert!(matches!(error(&setup), Error::Disk(text) if text.contains("a symbolic link")));
    fs::remove_file(&setup.options.path).unwrap();
    fs::rename(&elsewhere, &setup.options.path).unwrap();
    let victim = place.path().join("victim");
    fs::write(&victim, "mine").unwrap();
    for name in ["class-0.slab", "index.redb"] {
        let file = setup.store().join(name);
        fs::remove_file(&file).unwrap();
        symlink(&victim, &file).unwrap();
    }
    assert!(matches!(error(&setup), Error::Disk(_)));
    assert_eq!(fs::read(&victim).unwrap(), b"mine");
}

#[test]
fn a_path_that_is_no_directory_of_ours_is_an_error_at_start() {
    let place = tempfile::tempdir().unwrap();
    let mut setup = Setup::small(place.path());
    let cases: [(&str, &dyn Fn()); 3] = [
        ("file", &|| {
            fs::write(place.path().join("file"), "x").unwrap()
        }),
        ("no/parent", &|| {}),
        ("foreign", &|| {
            let foreign = place.path().join("foreign");
            fs::create_dir(&foreign).unwrap();
            fs::set_permissions(&foreign, fs::Permissions::from_mode(0o755)).unwrap();
            fs::write(place.path().join("foreign/photo"), "x").unwrap();
        }),
    ];
    for (name, make) in cases {
        make();
        setup.options.path = place.path().join(name);
        let text = error(&setup).to_string();
        assert!(
            text.contains(name) && text.contains("expected") && text.contains("found"),
            "{text}"
        );
    }
    let foreign = place.path().join("foreign");
    assert_eq!(fs::read(foreign.join("photo")).unwrap(), b"x");
    assert_ne!(
        foreign.metadata().unwrap().permissions().mode() & 0o077,
        0,
        "as it was"
    );
}

#[test]
fn another_format_is_refused_by_name_and_left_alone() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    setup.engine().keep("abc");
    let marker = setup.options.path.join("hybrid-pages-disk");
    fs::write(&marker, "hybrid-pages disk store, format 9\n").unwrap();
    let Error::Foreign(text) = error(&setup) else {
        panic!("expected another format to be refused");
    };
    assert!(
        text.contains("format 9") && text.contains("format 1"),
        "{text}"
    );
    fs::write(&marker, "hybrid-pages disk store, format 1\n").unwrap();
    assert_eq!(setup.engine().restore("abc"), 3);
}

#[test]
fn a_new_file_system_counts_as_empty() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    fs::create_dir_all(setup.options.path.join("lost+found")).unwrap();
    setup.engine().keep("abc");
}

#[test]
fn a_lane_has_one_user_and_lanes_are_apart() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    let engine = setup.engine();
    engine.keep("abc");
    let text = error(&setup).to_string();
    assert!(
        text.contains(&format!("process {}", std::process::id())),
        "{text}"
    );
    let mut other = setup.clone();
    other.options.lane = 1;
    let second = other.engine();
    assert_eq!(second.restore("abc"), 0);
    second.keep("xyz");
    drop(engine);
    assert_eq!(setup.engine().restore("abc"), 3);
    drop(second);
    assert_eq!(other.engine().restore("xyz"), 3);
}

#[test]
fn nothing_is_found_or_taken_before_the_identity_is_known() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    setup.engine().keep("abc");
    let engine = setup.unconnected().unwrap();
    assert_eq!(engine.restore("abc"), 0);
    engine.store("xyz");
    assert_eq!((engine.tier().written, engine.tier().usage.entries), (0, 0));
    engine
        .below
        .connect(&engine.arena, &setup.identity)
        .unwrap();
    assert_eq!(engine.restore("abc"), 3);
}

#[test]
fn other_weights_find_nothing() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    setup.engine().keep("abc");
    let mut other = setup.clone();
    other.identity = [8; 32];
    let engine = other.engine();
    assert_eq!(engine.restore("abc"), 0);
    assert!(engine.stats().other_bytes >= PROMPT);
    drop(engine);
    assert_eq!(setup.engine().restore("abc"), 3);
}

#[test]
fn identities_share_a_quota_and_the_one_used_longest_ago_goes() {
    let place = tempfile::tempdir().unwrap();
    let mut setup = Setup::small(place.path());
    let identity = |number: u8| [number; 32];
    for number in [1, 2] {
        setup.identity = identity(number);
        setup.engine().keep("abc");
        let ago = Duration::from_secs(100_000 - 1000 * u64::from(number));
        for file in fs::read_dir(setup.store()).unwrap().map(Result::unwrap) {
            let file = fs::File::options().write(true).open(file.path()).unwrap();
            file.set_modified(SystemTime::now() - ago).unwrap();
        }
    }
    setup.identity = identity(3);
    let probe = setup.engine();
    let others = probe.stats().other_bytes;
    drop(probe);
    setup.options.quota_bytes = others + PROMPT / 2;
    let engine = setup.engine();
    engine.keep("xyz");
    let store = |number: u8| setup.store().with_file_name(hex(&identity(number)));
    assert!(!store(1).exists(), "used longest ago");
    assert!(store(2).exists());
    assert_eq!(engine.restore("xyz"), 3);
    assert_eq!(engine.stats().failures, [0; 17]);
}

#[test]
fn a_directory_that_cannot_be_removed_makes_the_room_smaller() {
    let place = tempfile::tempdir().unwrap();
    let mut setup = Setup::small(place.path());
    setup.identity = [1; 32];
    setup.engine().keep("abc");
    fs::create_dir(setup.store().join("somebody's")).unwrap();
    setup.identity = [2; 32];
    let probe = setup.engine();
    let others = probe.stats().other_bytes;
    drop(probe);
    setup.options.quota_bytes = others + PROMPT + PAGE;
    let engine = setup.engine();
    for prompt in ["abc", "def", "ghi", "jkl", "mno"] {
        engine.store(prompt);
        engine.settle();
    }
    let stats = engine.stats();
    assert_eq!(stats.failed(DiskFailure::Directory), 1);
    assert_eq!(stats.quota_bytes, PROMPT + PAGE);
    let failed = stats.failed(DiskFailure::Quota);
    let writes = stats.writes;
    for prompt in ["pqr", "stu"] {
        engine.store(prompt);
        engine.settle();
        engine.audit();
    }
    assert_eq!(engine.stats().failed(DiskFailure::Quota), failed);
    assert_eq!(
        engine.stats().writes - writes,
        8,
        "two prompts of three pages and a checkpoint"
    );
    drop(engine);
    assert_eq!(setup.engine().restore("stu"), 3);
}

#[test]
fn what_was_cleared_counts_until_it_is_removed() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    setup.engine().keep("abc");
    let cleared = setup
        .store()
        .with_file_name(format!("cleared-{}", "0".repeat(32)));
    fs::rename(setup.store(), &cleared).unwrap();
    fs::create_dir(cleared.join("somebody's")).unwrap();
    let engine = setup.engine();
    engine.keep("xyz");
    let stats = engine.stats();
    assert_eq!(stats.failed(DiskFailure::Directory), 1);
    assert!(setup.options.quota_bytes - stats.quota_bytes >= PROMPT);
}

#[test]
fn what_the_cache_forgets_is_left_over() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    let engine = setup.engine();
    engine.keep("abc");
    drop(engine);
    let (options, geometry) = (setup.options.clone(), &setup.geometry);
    let policy = policy::by_name("lru", setup.config(setup.slots).shape()).unwrap();
    let mut disk = Disk::open(options, geometry, setup.slot_bytes, policy).unwrap();
    let handle = disk.handle();
    let arena = Arena::create(geometry, setup.slot_bytes, setup.slots).unwrap();
    handle.connect(&arena, &setup.identity).unwrap();
    let key = EntryKey {
        namespace: b"engine"[..].into(),
        prefix: keys("abc")[0],
        block_index: 0,
        class_index: 0,
    };
    assert_eq!(handle.stats().left_over, 4);
    let found = disk.find(&key);
    assert!(matches!(found, Found::Here(_)));
    assert_eq!(handle.stats().left_over, 3);
    disk.forget(&key);
    assert_eq!(handle.stats().left_over, 4);
    assert_eq!(disk.find(&key), found);
    assert_eq!(handle.audit(), None);
}

#[test]
fn what_earlier_processes_left_goes_when_cells_are_needed() {
    let place = tempfile::tempdir().unwrap();
    let mut setup = Setup::small(place.path());
    setup.options.quota_bytes = 4 * PROMPT;
    let engine = setup.engine();
    engine.keep("abc");
    engine.keep("def");
    engine.keep("ghi");
    drop(engine);
    let engine = setup.engine();
    assert_eq!(engine.restore("abc"), 3, "known from now on");
    assert_eq!(engine.stats().left_over, 8);
    for prompt in ["jkl", "mno"] {
        engine.keep(prompt);
        engine.audit();
        assert!(engine.stats().live_bytes <= setup.options.quota_bytes);
        assert_on_disk(&setup);
    }
    assert!(engine.stats().left_over < 8);
    assert_eq!(engine.stats().failed(DiskFailure::Quota), 0);
    drop(engine);
    let engine = setup.engine();
    for prompt in ["abc", "jkl", "mno"] {
        assert_eq!(engine.restore(prompt), 3, "{prompt}");
    }
}

#[test]
fn of_what_is_left_over_the_oldest_and_deepest_goes_first() {
    let place = tempfile::tempdir().unwrap();
    let mut setup = Setup::small(place.path());
    let door = BadDoor::default();
    setup.options.door = std::sync::Arc::new(door.clone());
    setup.slots = 100;
    let engine = setup.engine();
    for prompt in ["abc", "def", "ghi"] {
        engine.keep(prompt);
    }
    door.pass(3600);
    // Uses that only the host sees.
    assert_eq!(["abc", "ghi"].map(|prompt| engine.load(prompt)), [3, 3]);
    drop(engine);
    // The next prompt takes the checkpoint and the last page of `def`.
    setup.options.quota_bytes = 3 * PROMPT + PAGE;
    let engine = setup.engine();
    engine.keep("xy");
    let hit = |prompt: &str| (engine.hit(prompt).blocks, engine.hit(prompt).pages);
    assert_eq!(["abc", "ghi", "xy"].map(hit), [(3, 3), (3, 3), (2, 2)]);
    assert_eq!(hit("def"), (0, 2));
}

#[test]
fn the_quota_holds_whatever_is_written() {
    let place = tempfile::tempdir().unwrap();
    let mut setup = Setup::small(place.path());
    setup.options.quota_bytes = 2 * PROMPT + PAGE;
    let engine = setup.engine();
    let letters: Vec<String> = ('a'..='z').map(|letter| format!("{letter}bc")).collect();
    for prompt in &letters {
        engine.store(prompt);
        engine.settle();
        engine.audit();
        assert_on_disk(&setup);
    }
    assert_eq!(engine.stats().failed(DiskFailure::Quota), 0);
    assert!(engine.tier().usage.evicted > 0);
    assert_eq!(engine.restore("zbc"), 3);
}

#[test]
fn a_lower_quota_holds_from_the_start() {
    let place = tempfile::tempdir().unwrap();
    let mut setup = Setup::small(place.path());
    let engine = setup.engine();
    for prompt in ["abc", "def", "ghi"] {
        engine.keep(prompt);
    }
    drop(engine);
    setup.options.quota_bytes = PROMPT + PAGE;
    let engine = setup.engine();
    assert!(engine.stats().live_bytes <= setup.options.quota_bytes);
    assert_on_disk(&setup);
    engine.keep("xyz");
    assert_on_disk(&setup);
    engine.audit();
}

#[test]
fn a_quota_that_holds_nothing_is_rejected() {
    let place = tempfile::tempdir().unwrap();
    let mut setup = Setup::small(place.path());
    setup.options.quota_bytes = PAGE + CHECKPOINT - 1;
    assert!(matches!(error(&setup), Error::Budget(_)));
    assert!(!setup.options.path.exists());
}

#[test]
fn cleared_entries_are_gone_for_good() {
    for early in [false, true] {
        let place = tempfile::tempdir().unwrap();
        let setup = Setup::small(place.path());
        setup.engine().keep("abc");
        let mut engine = setup.unconnected().unwrap();
        if early {
            engine.cache.clear();
        }
        engine
            .below
            .connect(&engine.arena, &setup.identity)
            .unwrap();
        if !early {
            assert_eq!(engine.restore("abc"), 3);
            engine.cache.clear();
            assert!(!setup.store().exists(), "at once");
        }
        engine.weights += 1;
        assert_eq!(engine.restore("abc"), 0);
        // What is written now serves this process, and no other.
        while engine.tier().written == 0 {
            engine.store("abc");
            engine.settle();
            engine.store("abcd");
            engine.settle();
        }
        assert!(!engine.stats().persistent);
        for prompt in ["efghi", "jklmn", "opqrs"] {
            engine.store(prompt);
            engine.settle();
        }
        assert_eq!(engine.restore("abcd"), 4, "early: {early}");
        assert!(engine.stats().reads > 0);
        drop(engine);
        let engine = setup.engine();
        assert_eq!((engine.restore("abc"), engine.restore("opqrs")), (0, 0));
        assert_eq!(engine.stats().left_over, 0);
        engine.settle();
        let lane = setup.options.path.join("lane-0");
        let cleared = || {
            let names = fs::read_dir(&lane)
                .unwrap()
                .map(|it| it.unwrap().file_name());
            names
                .filter(|name| name.to_string_lossy().starts_with("cleared-"))
                .count()
        };
        while cleared() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_clear_undoes_writes_that_wait() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    let mut engine = setup.engine();
    for round in 0..20 {
        engine.store("abcdef");
        engine.cache.clear();
        engine.weights += 1;
        assert_eq!(engine.restore("abcdef"), 0, "round {round}");
        engine.settle();
    }
    drop(engine);
    assert_eq!(setup.engine().restore("abcdef"), 0);
}
