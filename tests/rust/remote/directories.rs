//! Directories that fill up, become read-only, leave, and are replaced beside an engine at work.

mod support;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hybrid_pages_remote::{RemoteFailure, RemotePlace};
use support::{Engine, Setup};

/// Set in a process that may mount.
const INSIDE: &str = "HYBRID_PAGES_TEST_MOUNTS";
/// Programs that run one in a mount namespace of its own.
const UNSHARE: [&str; 4] = ["unshare", "--user", "--map-root-user", "--mount"];

/// Whether this process may mount. If not, it runs the test again in one that may, where the system lets it.
fn may_mount(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let inside = |program: &Path, args: &[&str]| {
        let mut command = Command::new(UNSHARE[0]);
        command.args(&UNSHARE[1..]).arg(program).args(args);
        command.env(INSIDE, "1").output()
    };
    if !inside(Path::new("true"), &[]).is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no mount namespaces here");
        return false;
    }
    let this = std::env::current_exe().unwrap();
    let output = inside(&this, &["--exact", test, "--nocapture"]).unwrap();
    assert!(output.status.success(), "{output:?}");
    false
}

fn run(program: &str, args: &[&str]) {
    let status = Command::new(program).args(args).status().unwrap();
    assert!(status.success(), "{program} {args:?}");
}

fn mount(folder: &Path, options: &[&str]) {
    let folder = folder.to_str().unwrap();
    run("mount", &[options, &["none", folder]].concat());
}

/// A file system of 256 KiB in memory.
const SMALL: [&str; 4] = ["-t", "tmpfs", "-o", "size=256k"];

fn setup(folder: &Path) -> Setup {
    let url = format!("file://{}", folder.display());
    let mut setup = Setup::at(RemotePlace::of_url(&url).unwrap());
    setup.options.whole = Duration::from_millis(100);
    // What could not be read is looked for again after that.
    setup.options.deadline = Duration::from_secs(3);
    setup
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| {
            if path.is_dir() {
                files(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

fn packs(folder: &Path) -> Vec<PathBuf> {
    let mut files = files(folder);
    files.retain(|file| file.extension().is_some_and(|suffix| suffix == "pack"));
    files
}

/// Stores prompts until writes pause. Returns what an operator is told.
fn fails(engine: &Engine) -> String {
    let (prompts, told) = (RefCell::new('g'..), RefCell::new(String::new()));
    engine.until("paused", |engine| {
        let prompt = prompts.borrow_mut().next().unwrap();
        engine.store(&format!("{prompt}x"));
        engine.settle();
        *told.borrow_mut() += &engine.below.take_notes().join("\n");
        told.borrow().contains("writes pause")
    });
    let stats = engine.stats();
    assert!(stats.failed(RemoteFailure::Write) >= 3, "{stats:?}");
    assert!(!stats.out, "reads go on");
    told.into_inner()
}

/// Stores prompts until one was written, and another engine finds it.
fn writes_again(engine: &Engine, setup: &Setup) {
    let before = engine.stats().writes;
    let (prompts, last) = (RefCell::new('g'..), RefCell::new(String::new()));
    engine.until("written", |engine| {
        let prompt = prompts.borrow_mut().next().unwrap().to_string();
        engine.store(&prompt);
        engine.settle();
        // It is tried again only after a while.
        std::thread::sleep(Duration::from_millis(10));
        *last.borrow_mut() = prompt;
        engine.stats().writes > before
    });
    assert_eq!(setup.engine().serve(&last.into_inner()), 1);
}

#[test]
fn a_full_directory_takes_no_writes_and_serves_reads() {
    if !may_mount("a_full_directory_takes_no_writes_and_serves_reads") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    mount(folder.path(), &SMALL);
    let setup = setup(folder.path());
    let engine = setup.engine();
    engine.keep("abc");
    let filler = folder.path().join("filler");
    // A table fits, and a part of the first entry.
    let free = 256 * 1024 - std::fs::metadata(&packs(folder.path())[0]).unwrap().len();
    let free = free as usize / 4096 * 4096;
    std::fs::write(&filler, vec![1; free - 3 * 4096]).unwrap();
    let told = fails(&engine);
    assert!(told.contains("No space left"), "{told}");
    assert_eq!(files(folder.path()).len(), 2, "nothing is half there");
    assert_eq!(setup.engine().serve("abc"), 3);
    std::fs::remove_file(filler).unwrap();
    writes_again(&engine, &setup);
}

#[test]
fn a_directory_that_becomes_read_only_serves_reads() {
    if !may_mount("a_directory_that_becomes_read_only_serves_reads") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    mount(folder.path(), &SMALL);
    let setup = setup(folder.path());
    let engine = setup.engine();
    engine.keep("abc");
    mount(folder.path(), &["-o", "remount,ro"]);
    let told = fails(&engine);
    assert!(told.contains("Read-only file system"), "{told}");
    assert_eq!(setup.engine().serve("abc"), 3);
    mount(folder.path(), &["-o", "remount,rw"]);
    writes_again(&engine, &setup);
}

#[test]
fn a_directory_that_is_replaced_has_what_is_in_the_new_one() {
    if !may_mount("a_directory_that_is_replaced_has_what_is_in_the_new_one") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    mount(folder.path(), &SMALL);
    let setup = setup(folder.path());
    setup.engine().keep("abc");
    let engine = setup.engine();
    assert_eq!(engine.ask("abc"), 3);
    mount(folder.path(), &SMALL);
    assert_eq!(engine.restore("abc"), 0);
    assert!(engine.stats().failed(RemoteFailure::Gone) > 0);
    writes_again(&engine, &setup);
    assert_eq!((packs(folder.path()).len(), engine.stats().outages), (1, 0));
    run("umount", &[folder.path().to_str().unwrap()]);
    engine.until("found", |engine| engine.serve("abc") == 3);
}

#[test]
fn a_directory_that_leaves_is_not_made_again() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("share");
    let setup = setup(&folder);
    let engine = setup.engine();
    engine.keep("abc");
    let reader = setup.engine();
    assert_eq!(reader.ask("abc"), 3);
    std::fs::remove_dir_all(&folder).unwrap();
    let told = fails(&engine);
    assert!(told.contains("No such file or directory"), "{told}");
    assert!(!folder.exists(), "another file system would be filled");
    assert_eq!(reader.restore("abc"), 0);
    assert_eq!(reader.stats().outages, 0);
    std::fs::create_dir(&folder).unwrap();
    writes_again(&engine, &setup);
}

#[test]
fn a_pack_that_lost_its_end_is_missed_and_others_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let setup = setup(folder.path());
    setup.engine().keep("abcdefgh");
    let pack = packs(folder.path()).remove(0);
    setup.engine().keep("xyz");
    let engine = setup.engine();
    assert_eq!((engine.ask("abcdefgh"), engine.ask("xyz")), (8, 3));
    // As a file system may leave it that was full when it wrote it down.
    let file = std::fs::File::options().write(true).open(pack).unwrap();
    file.set_len(2000).unwrap();
    for _ in 0..4 {
        assert_eq!(engine.restore("abcdefgh"), 0);
    }
    let stats = engine.stats();
    assert!(stats.failed(RemoteFailure::Short) > 0, "{stats:?}");
    assert_eq!((stats.failed(RemoteFailure::Read), stats.outages), (0, 0));
    assert_eq!(stats.packs, 1, "it is not looked at again");
    assert_eq!(engine.serve("xyz"), 3);
}
