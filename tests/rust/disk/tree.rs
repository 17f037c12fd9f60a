//! A disk path as tools see it: beside a process that uses it, and when it is damaged.

use crate::support;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hybrid_pages::error::Error;
use hybrid_pages_disk::{DiskFailure, DiskTree, LaneView, Limits, Verdict};
use support::{IDENTITY, Setup, change, hex};

const LANE: &str = "lane-0";

fn lane(setup: &Setup) -> LaneView {
    let mut lanes = DiskTree::open(&setup.options.path)
        .unwrap()
        .lanes(&mut || true)
        .unwrap();
    assert_eq!(lanes.len(), 1);
    lanes.remove(0)
}

fn verify(setup: &Setup) -> Verdict {
    let tree = DiskTree::open(&setup.options.path).unwrap();
    let mut last = (0, 0);
    let verdict = tree
        .verify(LANE, &hex(&setup.identity), None, &mut |done, total| {
            assert!(last.0 <= done && done <= total);
            last = (done, total);
            true
        })
        .unwrap();
    assert_eq!(last.0, last.1);
    verdict.expect("an identity that is there")
}

/// Ends other threads when this one ends, in whatever way.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_store_is_seen_and_verified_while_it_is_used_and_after() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::small(folder.path());
    let engine = setup.engine();
    engine.below.describe("{\"model\": \"tiny\"}");
    engine.keep("abcd");
    for used in [true, false] {
        let view = lane(&setup);
        assert_eq!(view.process, used.then(std::process::id));
        let [identity] = &view.identities[..] else {
            panic!("{view:?}")
        };
        assert_eq!(identity.identity, hex(&IDENTITY));
        assert_eq!(identity.trouble, None);
        assert_eq!((identity.entries(), identity.ranks), (5, 2));
        assert_eq!(identity.classes.len(), 2);
        assert!(identity.bytes >= identity.classes.iter().map(|it| it.0 * it.1).sum());
        assert_eq!(identity.about.as_deref(), Some("{\"model\": \"tiny\"}"));
        let verdict = verify(&setup);
        assert_eq!(
            (verdict.good, verdict.bad.len(), verdict.changed),
            (5, 0, 0)
        );
        if used {
            engine.below.close();
        }
    }
    // Looking takes nothing away.
    assert_eq!(setup.engine().restore("abcd"), 4);
}

#[test]
fn what_is_bad_is_named_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::small(folder.path());
    setup.restarts.excuse("its slab is damaged at the end");
    setup.engine().keep("abcdef");
    let slab = setup.store().join("class-0.slab");
    let cell = {
        let view = lane(&setup);
        usize::try_from(view.identities[0].classes[0].1).unwrap()
    };
    change(&slab, |bytes| {
        bytes[4096 + 17] ^= 1; // a shard of the first cell
        bytes[cell + 90] ^= 1; // the header of the second
        bytes.truncate(5 * cell + cell / 2); // the last one
    });
    let before = fs::read(&slab).unwrap();
    let verdict = verify(&setup);
    assert_eq!(verdict.good, 4);
    let mut found: Vec<_> = verdict.bad.iter().map(|it| (it.cell, it.reason)).collect();
    found.sort_by_key(|(cell, _)| *cell);
    let expected = [
        (0, DiskFailure::Checksum),
        (1, DiskFailure::Header),
        (5, DiskFailure::Short),
    ];
    assert_eq!(found, expected);
    assert_eq!(verdict.reasons().len(), 3);
    assert_eq!(fs::read(&slab).unwrap(), before);
    fs::remove_file(&slab).unwrap();
    assert_eq!(verify(&setup).reasons()["short"], 6);
}

#[test]
fn an_index_that_is_no_index_is_said_to_be_none() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::small(folder.path());
    setup.restarts.excuse("its index is damaged at the end");
    setup.engine().keep("abc");
    change(&setup.store().join("index.redb"), |bytes| bytes.fill(0x5a));
    let view = lane(&setup);
    assert!(view.identities[0].trouble.is_some());
    assert_eq!(view.identities[0].entries(), 0);
    let tree = DiskTree::open(&setup.options.path).unwrap();
    let verdict = tree.verify(LANE, &hex(&IDENTITY), None, &mut |_, _| true);
    assert!(matches!(verdict, Err(Error::Disk(_))), "{verdict:?}");
    fs::remove_file(setup.store().join("index.redb")).unwrap();
    assert!(lane(&setup).identities[0].trouble.is_some());
}

#[test]
fn bytes_of_an_index_that_flip_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::small(folder.path());
    setup.engine().keep("abc");
    let path = setup.store().join("index.redb");
    let whole = fs::read(&path).unwrap();
    for at in (0..whole.len().min(16 << 10)).step_by(197) {
        change(&path, |bytes| bytes[at] ^= 0x40);
        let view = lane(&setup);
        let identity = &view.identities[0];
        assert!(identity.trouble.is_some() || identity.entries() <= 4);
        fs::write(&path, &whole).unwrap();
    }
}

#[test]
fn while_entries_come_and_go_none_is_called_bad() {
    let folder = tempfile::tempdir().unwrap();
    let mut setup = Setup::small(folder.path());
    setup.options.quota_bytes = 400 << 10;
    let engine = setup.engine();
    let (letters, looks) = ("abcdefghijklmnopqrstuvwxyz", 4);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        scope.spawn(|| {
            let mut at = 0;
            while !stop.load(Ordering::Relaxed) {
                engine.store(&letters[at % 24..at % 24 + 3]);
                at += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        for _ in 0..looks {
            let verdict = verify(&setup);
            assert_eq!(verdict.bad, []);
            let view = lane(&setup);
            assert_eq!(view.identities[0].trouble, None);
        }
    });
}

#[test]
fn what_nobody_needs_is_removed_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::small(folder.path());
    setup.restarts.excuse("its lane is emptied at the end");
    setup.engine().keep("abcd");
    let other = Setup {
        identity: [9; 32],
        ..setup.clone()
    };
    other.engine().keep("xyz");
    let lane_path = setup.options.path.join(LANE);
    fs::create_dir(lane_path.join(format!("cleared-{}", hex(&[1; 16])))).unwrap();
    fs::write(setup.store().join("index.damaged"), [1; 5000]).unwrap();
    fs::write(lane_path.join("notes"), b"somebody else's").unwrap();
    let tree = DiskTree::open(&setup.options.path).unwrap();
    let collect = |limits: &Limits| {
        let mut done = tree.collect(limits);
        assert_eq!(done.failed, [""; 0]);
        done.removed.sort();
        done
    };

    let engine = setup.engine();
    let done = collect(&Limits::default());
    assert_eq!(done.busy, [(LANE.to_owned(), std::process::id())]);
    assert!(done.removed.is_empty());
    drop(engine);

    let dry = Limits {
        dry: true,
        ..Limits::default()
    };
    let before = names(&lane_path);
    let planned = collect(&dry);
    assert_eq!(names(&lane_path), before);
    // The engine has removed what was cleared.
    assert_eq!(planned.removed.len(), 1);
    assert!(planned.removed[0].0.ends_with("index.damaged"));
    assert_eq!(collect(&Limits::default()), planned);
    assert_eq!(collect(&Limits::default()).removed, []);
    assert_eq!(names(&lane_path), before);

    let age = |days: u64| Limits {
        unused: Some(Duration::from_secs(days * 86_400)),
        ..Limits::default()
    };
    assert_eq!(collect(&age(1)).removed, []);
    let old = std::time::SystemTime::now() - Duration::from_secs(3 * 86_400);
    for file in fs::read_dir(other.store()).unwrap() {
        let file = fs::File::options().write(true).open(file.unwrap().path());
        file.unwrap().set_modified(old).unwrap();
    }
    let done = collect(&age(2));
    assert_eq!(done.removed.len(), 1);
    assert!(done.removed[0].0.ends_with(&hex(&other.identity)));
    assert!(done.removed[0].1 > 0);
    assert_eq!(setup.engine().restore("abcd"), 4);

    let lanes = |lanes| Limits {
        lanes: Some(lanes),
        ..Limits::default()
    };
    assert_eq!(collect(&lanes(1)).removed, []);
    assert_eq!(collect(&lanes(0)).removed.len(), 1);
    assert_eq!(names(&lane_path), ["lock", "notes"]);
}

#[test]
fn an_engine_that_ends_while_it_is_verified_leaves_nothing_bad() {
    let folder = tempfile::tempdir().unwrap();
    let mut setup = Setup::small(folder.path());
    setup.options.quota_bytes = 400 << 10;
    let engine = setup.engine();
    engine.keep("abcd");
    let tree = DiskTree::open(&setup.options.path).unwrap();
    let mut once = true;
    let verdict = tree.verify(LANE, &hex(&IDENTITY), None, &mut |_, _| {
        if std::mem::take(&mut once) {
            for prompt in ["efgh", "ijkl", "mnop", "qrst", "uvwx"] {
                engine.keep(prompt);
            }
            engine.below.close();
        }
        true
    });
    let verdict = verdict.unwrap().unwrap();
    assert_eq!(verdict.bad, []);
    assert!(verdict.changed > 0);
}

#[test]
fn what_is_cleared_while_it_is_looked_at_is_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::small(folder.path());
    let engine = setup.engine();
    engine.keep("abcd");
    let tree = DiskTree::open(&setup.options.path).unwrap();
    let verdict = tree.verify(LANE, &hex(&IDENTITY), None, &mut |_, _| {
        engine.cache.clear();
        true
    });
    assert_eq!(verdict.unwrap(), None);
    let lanes = tree.lanes(&mut || true).unwrap();
    assert_eq!(
        (lanes[0].identities.len(), &lanes[0].troubles[..]),
        (0, &[][..])
    );
}

#[test]
fn an_engine_can_start_while_much_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::small(folder.path());
    setup.engine().keep("abcd");
    let cleared = setup.options.path.join(LANE);
    let cleared = cleared.join(format!("cleared-{}", hex(&[1; 16])));
    fs::create_dir(&cleared).unwrap();
    for file in 0..20_000 {
        fs::File::create(cleared.join(file.to_string())).unwrap();
    }
    let tree = DiskTree::open(&setup.options.path).unwrap();
    std::thread::scope(|scope| {
        let done = scope.spawn(|| tree.collect(&Limits::default()));
        while fs::read_dir(&cleared).map_or(0, Iterator::count) == 20_000 {
            std::thread::yield_now();
        }
        let engine = setup.engine();
        assert_eq!(engine.restore("abcd"), 4);
        assert_eq!(done.join().unwrap().failed, [""; 0]);
        engine.settle();
        engine.audit();
        assert_eq!(engine.stats().failed(DiskFailure::Directory), 0);
    });
    assert!(!cleared.exists());
}

#[test]
fn odd_files_cost_what_they_are_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::small(folder.path());
    setup.restarts.excuse("its marker is a pipe at the end");
    setup.engine().keep("abcd");
    let path = &setup.options.path;
    fs::write(path.join("lane-1"), b"a file").unwrap();
    std::os::unix::fs::symlink("lane-0", path.join("lane-3")).unwrap();
    for other in ["lane-007", "lane-+7", "lane-", "lane-x"] {
        fs::create_dir(path.join(other)).unwrap();
    }
    let odd = std::ffi::OsStr::from_bytes(b"x\xff");
    fs::write(setup.store().join(odd), b"odd").unwrap();
    let tree = DiskTree::open(path).unwrap();
    let lanes = tree.lanes(&mut || true).unwrap();
    let names: Vec<_> = lanes.iter().map(|lane| lane.name.as_str()).collect();
    assert_eq!(names, ["lane-0", "lane-1", "lane-3"]);
    assert_eq!(lanes[0].identities[0].entries(), 5);
    let troubles: Vec<_> = lanes.iter().map(|lane| lane.troubles.len()).collect();
    assert_eq!(troubles, [0, 1, 1]);
    let all = Limits {
        unused: Some(Duration::ZERO),
        ..Limits::default()
    };
    let done = tree.collect(&all);
    assert_eq!((done.removed.len(), done.failed.len()), (1, 2));
    assert!(!setup.store().exists());

    let pipe = |name: &str| {
        let made = std::process::Command::new("mkfifo")
            .arg(path.join(name))
            .status();
        assert!(made.unwrap().success());
    };
    fs::remove_file(path.join("lane-0/lock")).unwrap();
    pipe("lane-0/lock");
    assert_eq!(tree.lanes(&mut || true).unwrap()[0].troubles.len(), 1);
    assert_eq!(tree.collect(&Limits::default()).failed.len(), 3);
    assert!(setup.try_engine().is_err());
    fs::remove_file(path.join("hybrid-pages-disk")).unwrap();
    pipe("hybrid-pages-disk");
    assert!(matches!(DiskTree::open(path), Err(Error::Disk(_))));
}

#[test]
fn an_identity_without_entries_is_whole_and_anothers_index_is_not_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::small(folder.path());
    setup
        .restarts
        .excuse("its store has another name at the end");
    setup.engine().keep("abcd");
    let lane_path = setup.options.path.join(LANE);
    let empty = hex(&[1; 32]);
    fs::create_dir(lane_path.join(&empty)).unwrap();
    let tree = DiskTree::open(&setup.options.path).unwrap();
    let verify = |identity: &str| tree.verify(LANE, identity, None, &mut |_, _| true);
    assert_eq!(verify(&empty).unwrap(), Some(Verdict::default()));
    let troubles = || -> Vec<_> {
        let lane = tree.lanes(&mut || true).unwrap().remove(0);
        let troubles = lane.identities.into_iter().map(|it| it.trouble.is_some());
        troubles.collect()
    };
    assert_eq!(troubles(), [false, false]);
    fs::write(lane_path.join(&empty).join("index.redb"), b"").unwrap();
    assert_eq!(troubles(), [false, false]);
    fs::remove_dir_all(lane_path.join(&empty)).unwrap();
    fs::rename(setup.store(), lane_path.join(&empty)).unwrap();
    assert_eq!(troubles(), [true]);
    assert!(verify(&empty).is_err());
}

#[test]
fn more_than_fits_is_not_written_down() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::small(folder.path());
    let engine = setup.engine();
    engine.below.describe(&"x".repeat((1 << 20) + 1));
    assert_eq!(engine.stats().failed(DiskFailure::Upkeep), 1);
    assert_eq!(lane(&setup).identities[0].about, None);
    engine.below.describe("{}");
    assert_eq!(lane(&setup).identities[0].about.as_deref(), Some("{}"));
}

#[test]
fn a_lane_that_is_being_looked_at_can_be_taken() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::small(folder.path());
    drop(setup.engine());
    let tree = DiskTree::open(&setup.options.path).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                tree.lanes(&mut || true).unwrap();
            }
        });
        for _ in 0..20 {
            drop(setup.engine());
        }
    });
}

#[test]
fn what_is_no_disk_path_is_refused_and_nothing_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let open = |path: &Path| DiskTree::open(path).map(|_| ()).unwrap_err();
    assert!(matches!(open(&path.join("none")), Error::Disk(_)));
    assert!(matches!(open(path), Error::Foreign(_)));
    assert!(names(path).is_empty());
    fs::write(
        path.join("hybrid-pages-disk"),
        "hybrid-pages disk store, format 2\n",
    )
    .unwrap();
    let error = open(path).to_string();
    assert!(
        error.contains("format 1") && error.contains("format 2"),
        "{error}"
    );
    std::os::unix::fs::symlink(path, path.join("link")).unwrap();
    for link in ["link", "link/", "link/."] {
        assert!(matches!(open(&path.join(link)), Error::Disk(_)), "{link}");
    }
    let setup = Setup::small(path);
    drop(setup.engine());
    let tree = DiskTree::open(&setup.options.path).unwrap();
    for (lane, identity) in [
        ("lane-1", hex(&IDENTITY)),
        (LANE, "..".into()),
        ("..", hex(&IDENTITY)),
    ] {
        let verdict = tree.verify(lane, &identity, None, &mut |_, _| true);
        assert!(
            matches!(verdict, Err(Error::InvalidArgument(_))),
            "{verdict:?}"
        );
    }
}
