//! What was reported durable outlives a kill at any instant, and whatever a crash or a loss of power leaves, no
//! wrong byte is shown.
//!
//! `HYBRID_PAGES_KILLS` is the number of kills, `HYBRID_PAGES_SEED` chooses their instants.

mod door;
mod support;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use door::{BadDoor, Fault, Random};
use support::{Engine, IDENTITY, Setup};

/// Where a writer works: set in the process that a test starts.
const PLACE: &str = "HYBRID_PAGES_DISK_PLACE";
const TIGHT: &str = "HYBRID_PAGES_DISK_TIGHT";

fn setting(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else {
        return default;
    };
    let what = format!("{name}: expected a number, found {text:?}");
    text.parse().expect(&what)
}

fn kills() -> u64 {
    setting("HYBRID_PAGES_KILLS", 20)
}

fn seed() -> u64 {
    setting("HYBRID_PAGES_SEED", u64::from(std::process::id()))
}

fn setup(place: &Path, tight: bool) -> Setup {
    let mut setup = Setup::small(place);
    if tight {
        setup.options.quota_bytes = 40 * 20_480;
    }
    setup
}

fn prompt(number: usize) -> String {
    let letter = |digit: usize| char::from(b'a' + (number >> (4 * digit) & 15) as u8);
    (0..4).map(letter).collect()
}

/// Not a test of its own: a process that stores prompts until it is killed, and says which are durable.
#[test]
#[ignore = "run by the tests that kill it"]
fn writer() {
    let Ok(place) = std::env::var(PLACE) else {
        return;
    };
    let tight = std::env::var(TIGHT).is_ok();
    let engine = setup(Path::new(&place), tight).engine();
    let mut durable = 0;
    let mut pending: Vec<usize> = Vec::new();
    let mut out = std::io::stdout();
    for number in 0.. {
        engine.store_whole(&prompt(number));
        pending.push(number);
        if number % 3 == 0 {
            engine.settle();
            durable += pending.len();
            writeln!(out, "\ndurable {durable}").unwrap();
            out.flush().unwrap();
            pending.clear();
        }
        if number % 17 == 11 {
            // An entry that leaves while others are written.
            let keys = support::cache_support::keys(&prompt(number));
            let lease = engine.cache.acquire(engine.namespace, &keys, 0).unwrap();
            if tight && let Some(lease) = lease {
                engine.cache.invalidate(&lease).unwrap();
            }
        }
    }
}

/// Starts the writer, kills it after so long, and returns how many prompts it had reported durable.
fn kill_writer(place: &Path, tight: bool, after: Duration) -> usize {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "writer", "--ignored", "--nocapture"])
        .env(PLACE, place)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if tight {
        command.env(TIGHT, "1");
    }
    let mut writer = command.spawn().unwrap();
    let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    let counted = std::thread::spawn(move || {
        let mut durable = 0;
        for line in lines.map_while(Result::ok) {
            if let Some(count) = line.strip_prefix("durable ") {
                durable = count.parse().unwrap();
            }
        }
        durable
    });
    std::thread::sleep(after);
    writer.kill().unwrap();
    writer.wait().unwrap();
    counted.join().unwrap()
}

/// Restores every prompt that the writer may have begun. Returns how many came back whole.
fn restored(engine: &Engine, most: usize) -> Vec<bool> {
    let whole = |number| {
        let prompt = prompt(number);
        let hit = engine.hit(&prompt);
        engine.restore(&prompt) == prompt.len() && hit.blocks == prompt.len()
    };
    (0..most).map(whole).collect()
}

#[test]
fn what_was_durable_outlives_kills() {
    let mut random = Random(seed());
    let mut total = 0;
    for round in 0..kills() {
        let place = tempfile::tempdir().unwrap();
        let after = Duration::from_millis(30 + random.below(300) as u64);
        let durable = kill_writer(place.path(), false, after);
        let engine = setup(place.path(), false).engine();
        let whole = restored(&engine, durable + 10);
        assert!(
            whole[..durable].iter().all(|&whole| whole),
            "round {round}, {after:?}: {whole:?}"
        );
        assert_eq!(engine.stats().failures, [0; 17], "round {round}, {after:?}");
        total += durable;
    }
    println!("{total} prompts were durable before {} kills", kills());
    assert!(total as u64 > kills(), "the writers wrote {total} prompts");
}

#[test]
fn kills_while_cells_are_reused_show_no_wrong_byte() {
    let mut random = Random(seed() << 20);
    let place = tempfile::tempdir().unwrap();
    let mut whole = 0;
    for _ in 0..kills().div_ceil(2) {
        let after = Duration::from_millis(100 + random.below(300) as u64);
        let durable = kill_writer(place.path(), true, after);
        let engine = setup(place.path(), true).engine();
        whole += restored(&engine, durable + 10)
            .iter()
            .filter(|&&it| it)
            .count();
        engine.audit();
    }
    println!("{whole} prompts came back whole");
    assert!(whole > 0);
}

#[test]
fn a_loss_of_power_costs_entries_and_no_byte_is_wrong() {
    let mut whole: HashMap<bool, usize> = HashMap::new();
    for seed in 0..25 {
        let place = tempfile::tempdir().unwrap();
        let door = BadDoor::default();
        let mut setup = setup(place.path(), seed % 2 == 1);
        setup.options.door = Arc::new(door.clone());
        let mut random = Random(seed << 32);
        // Something from before, all of it synced.
        let engine = setup.engine();
        engine.keep("old");
        drop(engine);
        door.remember();
        let engine = setup.engine();
        let prompts = 4 + random.below(20);
        for number in 0..prompts {
            engine.store(&prompt(number));
            if random.below(3) == 0 {
                engine.settle();
            }
        }
        std::thread::sleep(Duration::from_millis(random.below(60) as u64));
        door.set("", Fault::Writes(ErrorKind::Other));
        door.set("", Fault::Syncs(ErrorKind::Other));
        drop(engine);
        door.mend();
        door.lose_power(seed);
        let engine = setup.engine();
        let _ = engine.restore("old");
        let found = restored(&engine, prompts).iter().filter(|&&it| it).count();
        *whole.entry(found > 0).or_default() += 1;
        engine.audit();
        engine.keep("zyx");
        let stats = engine.stats();
        drop(engine);
        let engine = setup.engine();
        assert_eq!(
            engine.restore("zyx"),
            3,
            "seed {seed}: {stats:?} {:?}",
            engine.stats()
        );
    }
    assert!(whole[&true] > 0, "{whole:?}");
}

#[test]
fn a_kill_right_after_a_clear_leaves_nothing_to_find() {
    let place = tempfile::tempdir().unwrap();
    let setup = setup(place.path(), false);
    let engine = setup.engine();
    engine.keep("abc");
    engine.cache.clear();
    // As a kill leaves it: nobody closes anything, and the lane's lock is the process's.
    let lane = setup.options.path.join("lane-0");
    let copy = place.path().join("after");
    std::fs::create_dir_all(copy.join("lane-0")).unwrap();
    std::fs::copy(
        setup.options.path.join("hybrid-pages-disk"),
        copy.join("hybrid-pages-disk"),
    )
    .unwrap();
    for folder in std::fs::read_dir(&lane).unwrap().map(Result::unwrap) {
        if folder.file_type().unwrap().is_dir() {
            let to = copy.join("lane-0").join(folder.file_name());
            std::fs::create_dir(&to).unwrap();
            let files = std::fs::read_dir(folder.path()).into_iter().flatten();
            for file in files.map_while(Result::ok) {
                // The keeper may remove it at this moment.
                let _ = std::fs::copy(file.path(), to.join(file.file_name()));
            }
        }
    }
    let mut again = setup.clone();
    again.options.path = copy;
    assert_eq!(again.identity, IDENTITY);
    assert_eq!(again.engine().restore("abc"), 0);
}
