//! Restores of random trees of prompts, with ends inside blocks, through host, disk and remote store, while any call
//! to a file and any request may meet a fault, and processes are ended, killed and started again.
//!
//! Every byte is compared. What was reported durable comes back, or something that was counted, or done to the
//! files, explains why not. `HYBRID_PAGES_RESTORES` is how many restores there are, `HYBRID_PAGES_SEED` the first
//! world's number: a world that failed is named, and runs again alone with it and no restores.

#[path = "../disk/door.rs"]
mod bad_door;
mod claims;
mod door;
#[path = "../shared/report.rs"]
mod report;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::wild::PLANTED;
use report::{report, setting};
use world::{LOST_UNHARMED, Tally, World, seeds};

/// They mostly wait, for a sync or a deadline.
const THREADS: u64 = 24;

/// Panics that a faulty store has are not printed.
fn quiet() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let planted = panic.payload_as_str() == Some(PLANTED);
        if !planted {
            print(panic);
        }
    }));
}

#[test]
fn what_was_durable_comes_back_with_its_bytes_or_something_explains_its_loss() {
    let wanted = setting("HYBRID_PAGES_RESTORES", 1_000);
    let first = setting("HYBRID_PAGES_SEED", u64::from(std::process::id()));
    quiet();
    let (done, all) = (AtomicU64::new(0), Mutex::new(Tally::default()));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            quiet();
            let (done, all) = (&done, &all);
            scope.spawn(move || {
                for seed in seeds(first, thread, THREADS) {
                    let mut world = World::new(seed);
                    let lived = catch_unwind(AssertUnwindSafe(|| world.live()));
                    let mut all = all.lock().unwrap();
                    if lived.is_err() {
                        println!("the world {seed} of the seed {first} failed");
                        done.store(u64::MAX, Ordering::SeqCst);
                        all.add("failed worlds", 1);
                    }
                    for (name, times) in world.tally.figures {
                        all.add(name, times);
                    }
                    let restores = all.figures.get("restores").copied().unwrap_or(0);
                    done.fetch_max(restores, Ordering::SeqCst);
                    if done.load(Ordering::SeqCst) >= wanted {
                        return;
                    }
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap();
    for none in [
        "failed worlds",
        "durable prompts lost with a cause",
        LOST_UNHARMED,
    ] {
        all.figures.entry(none.into()).or_default();
    }
    let figures = all.figures.iter().map(|(name, &it)| (name.as_str(), it));
    report(figures.clone());
    let figure = |name: &str| all.figures.get(name).copied().unwrap_or(0);
    assert_eq!((figure("failed worlds"), figure(LOST_UNHARMED)), (0, 0));
    assert!(figure("restores") >= wanted && figure("prompts reported durable") > 0);
}
