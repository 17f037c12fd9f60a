//! Opens, clears and closes the store of a disk. The store is opened when the arena and the identity are known, or
//! later if the system refuses a call.
//!
//! A file counts as damaged only after it was opened and read. Until then nothing on the disk is changed or cut.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, SendError, SyncSender};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::book::{Book, BookContents, Trash, minute};
use crate::crew::{self, Member};
use crate::format::IndexRecord;
use crate::index::{self, DiskIndex, IndexContents};
use crate::keeper::{Keeper, owner, shrink};
use crate::path::folder::{Other, directory_of};
use crate::path::key_mark::require_key;
use crate::path::trouble::Trouble;
use crate::shared::DiskShared;
use crate::stats::DiskFailure;
use crate::store::{DiskStore, StoreNames};
use hybrid_pages::error::{Cause, Error, Result};
use hybrid_pages_arena::Arena;
use hybrid_pages_tiers::{CONNECTED_TWICE, Identity, Name, Planes, lock};

/// Number of attempts at the start, since refused calls often work a moment later.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(20);
const NAP: Duration = Duration::from_millis(1);

/// Gives a disk the arena and the identity that it is to be opened with.
pub(crate) fn prepare(shared: &DiskShared, arena: &Arena, identity: &Identity) -> Result<()> {
    let planes = Planes::of(arena, shared.ranks, shared.slot_bytes)?;
    if shared.planes.set(planes).is_err() {
        return Err(Error::disk(CONNECTED_TWICE));
    }
    shared
        .identity
        .get_or_init(|| shared.seals.identity(identity, ""));
    Ok(())
}

/// Bytes of the index that is to be opened, as far as the system tells.
pub(crate) fn index_bytes(shared: &DiskShared) -> u64 {
    let Some(identity) = shared.identity.get() else {
        return 0;
    };
    let folder = Path::new(&shared.place).join(directory_of(identity));
    let length = |name| std::fs::symlink_metadata(folder.join(name)).map_or(0, |it| it.len());
    [index::FILE, index::journal::FILE].map(length).iter().sum()
}

/// Opens the store of a disk that was prepared. If the system refuses a call, the disk is out, and is tried again as
/// after an outage.
pub(crate) fn connect(shared: &Arc<DiskShared>) -> Result<()> {
    let mut why = Cause::from("");
    for attempt in 1..=ATTEMPTS {
        let opened = open(shared).and_then(|()| {
            crew::start(shared, shared.queue.new_crew())
                .map_err(|error| Trouble::Passing(DiskFailure::Read, Cause::of(error)))
        });
        match opened {
            Ok(()) => return Ok(()),
            Err(Trouble::Refused(error)) => return Err(error),
            Err(Trouble::Passing(reason, what)) => {
                shared.ledger.failed(reason, &what);
                why = what;
                if attempt < ATTEMPTS {
                    std::thread::sleep(PAUSE * attempt);
                }
            }
        }
    }
    shared.ledger.note(&format!(
        "the disk is left alone, all that is there stays, and it is tried again: {why}"
    ));
    lock(&shared.health).take_out();
    shared.ledger.count_outage();
    Ok(())
}

/// Opens the lane and the store, unless that was done, and starts the keeper. All calls that can be refused come
/// before the first change on the disk.
pub(crate) fn open(shared: &Arc<DiskShared>) -> std::result::Result<(), Trouble> {
    // No other process gets the lane while this thread is counted.
    let _counted = Member::of(shared);
    let _alone = lock(&shared.opening);
    let connected = lock(&shared.book).connected;
    let Some(identity) = shared.identity.get().filter(|_| !connected) else {
        return Ok(());
    };
    let lane = shared.take_lane()?;
    let door = &*shared.options.door;
    require_key(door, lane.folder(), &shared.place, shared.seals.keys())?;
    let directory = directory_of(identity);
    let place = format!("{}/{directory}", shared.place);
    let refused = |reason, what| move |error| Trouble::of(reason, &place, what, error);
    let (others, cleared) = lane
        .others(&directory, |name, error| {
            shared.ledger.failed(
                DiskFailure::Directory,
                &format!("cannot read {name}: {error}"),
            );
        })
        .map_err(refused.clone()(
            DiskFailure::Directory,
            "a list of directories",
        ))?;
    let names = StoreNames {
        identity: *identity,
        epoch: 0,
        directory: directory.clone(),
        persistent: true,
    };
    let store = lane
        .identity(&directory)
        .and_then(|folder| {
            DiskStore::open(&*shared.options.door, folder, names, shared.shapes.len())
        })
        .map_err(refused.clone()(
            DiskFailure::Directory,
            "files of this user",
        ))?;
    let cells = store.cells(&shared.shapes).map_err(refused.clone()(
        DiskFailure::Read,
        "the lengths of its slabs",
    ))?;
    let owner = owner(shared, &store);
    let (index, found) = DiskIndex::open(&*shared.options.door, &store.folder, &owner)
        .map_err(refused(DiskFailure::Index, "to open its index"))?;
    let keeper = Starting::new(shared)?;
    if lock(&shared.health).is_closed() {
        return Ok(()); // Closed meanwhile: another process may have the lane next.
    }

    {
        let mut book = lock(&shared.book);
        book.others.extend(others);
        let trash = cleared
            .into_iter()
            .map(|Other { name, bytes, .. }| Trash { name, bytes });
        book.trash.extend(trash);
    }
    let room = take_over(shared, found, &cells);
    shrink(shared, &store);
    let index = forget_what_went(shared, index);
    if let Err(error) = store.tidy(&shared.shapes, &room) {
        shared.ledger.failed(
            DiskFailure::Upkeep,
            &format!("cannot give back room: {error}"),
        );
    }
    {
        let mut book = lock(&shared.book);
        book.store = Some(Arc::new(store));
        book.connected = true;
        if book.cleared_early {
            clear(shared, &mut book);
        }
    }
    keeper.run(shared, index);
    shared.describe();
    shared.bell.ring();
    Ok(())
}

/// The keeper's thread, before it has an index.
struct Starting {
    thread: JoinHandle<()>,
    index: SyncSender<Option<DiskIndex>>,
}

impl Starting {
    fn new(shared: &Arc<DiskShared>) -> std::result::Result<Self, Trouble> {
        let (index, given) = mpsc::sync_channel::<Option<DiskIndex>>(1);
        let here = Arc::clone(shared);
        let run = move || {
            if let Ok(index) = given.recv() {
                Keeper::new(here, index.map(|index| (0, index))).run();
            }
        };
        let thread = Builder::new()
            .name("hybrid-pages-disk-keeper".into())
            .spawn(run)
            .map_err(|error| {
                Trouble::of(
                    DiskFailure::Index,
                    &shared.place,
                    "a thread to start",
                    error,
                )
            })?;
        Ok(Self { thread, index })
    }

    fn run(self, shared: &DiskShared, index: Option<DiskIndex>) {
        // The thread waits for the index.
        let _ = self.index.send(index);
        *lock(&shared.keeper) = Some(self.thread);
    }
}

/// Removes the entries that the start has dropped from the index, before their cells are cut off or reused. Returns
/// `None` if the index can't be written; then the keeper writes it anew from the book.
fn forget_what_went(shared: &DiskShared, mut index: DiskIndex) -> Option<DiskIndex> {
    let changes = std::mem::take(&mut lock(&shared.book).changes);
    let changes: Vec<_> = changes.into_iter().collect();
    match index.commit(&changes) {
        Ok(()) => Some(index),
        Err(why) => {
            shared.ledger.failed(
                DiskFailure::Index,
                &format!("cannot write the index: {why}"),
            );
            drop(index.close());
            None
        }
    }
}

/// Makes this process and later ones forget all entries. Waits for a disk that hangs until the deadline.
pub(crate) fn clear(shared: &Arc<DiskShared>, book: &mut Book) {
    if !book.connected {
        book.cleared_early = true;
        if shared.identity.get().is_some() {
            let what = "expected to move what was cleared away at once, found that the disk could not be opened yet: \
                        if this process is killed before that, the next one finds what was cleared";
            shared.ledger.count_failures(DiskFailure::Directory, 1);
            shared.ledger.note(what);
        }
        return;
    }
    let aside = match book.store.clone() {
        Some(store) if store.persistent => set_aside(shared, &store),
        Some(store) => Some(store.directory.clone()),
        None => None,
    };
    let known = book.clear(&shared.shapes, aside);
    lock(&shared.discarded).push(known);
}

/// Moves the directory of a store away. Returns the new name, or `None` if that failed or is not done yet.
fn set_aside(shared: &Arc<DiskShared>, store: &Arc<DiskStore>) -> Option<String> {
    // The channel has no buffer, so a sender knows whether the result was received.
    let (told, heard) = mpsc::sync_channel(0);
    let (here, there) = (Arc::clone(shared), Arc::clone(store));
    let member = Member::of(shared);
    let run = move || {
        let _counted = member;
        let moved = move_away(&here, &there);
        if let Err(SendError(Some(late))) = told.send(moved) {
            lock(&here.book).throw_away(late);
            here.bell.ring();
        }
    };
    let thread = Builder::new().name("hybrid-pages-disk-clear".into());
    let Ok(_) = thread.spawn(run) else {
        return move_away(shared, store);
    };
    let hangs = lock(&shared.health).is_out();
    let limit = if hangs {
        Duration::ZERO
    } else {
        shared.options.deadline
    };
    match heard.recv_timeout(limit) {
        Ok(moved) => moved,
        Err(_) => {
            let what = format!(
                "expected {} to be moved away at once, found that the disk hangs: if this process is killed \
                 before it answers, the next one finds what was cleared",
                store.directory
            );
            shared.ledger.failed(DiskFailure::Directory, &what);
            None
        }
    }
}

fn move_away(shared: &DiskShared, store: &DiskStore) -> Option<String> {
    let door = &*shared.options.door;
    let moved = shared
        .lane()
        .and_then(|lane| lane.set_aside(door, &store.directory));
    let error = match moved {
        Ok(name) => return Some(name),
        Err(error) => error,
    };
    let without = DiskIndex::forget(&store.folder);
    let what = format!(
        "cannot move {} away ({error}), so its index was removed: {without:?}",
        store.directory
    );
    shared.ledger.failed(DiskFailure::Directory, &what);
    None
}

/// Takes over the content of an index. Damage costs entries, but never fails the start. Returns for each class where
/// its last cell ends, and the gaps before it.
fn take_over(
    shared: &DiskShared,
    found: IndexContents,
    cells: &[u64],
) -> Vec<(u64, Vec<std::ops::Range<u64>>)> {
    let IndexContents {
        places,
        damaged,
        learnt,
        aside,
        is_new,
    } = found;
    let lost = is_new && aside.is_none() && cells.iter().any(|&cells| cells > 0);
    let aside = aside.or_else(|| lost.then(|| "slabs without one".to_owned()));
    if let Some(why) = aside {
        shared.ledger.failed(
            DiskFailure::IndexDamaged,
            &format!("expected an index, found {why}: what there was is set aside"),
        );
    }
    for _ in &damaged {
        shared.ledger.failed(
            DiskFailure::Record,
            "expected a record of the index, found damage",
        );
    }
    if learnt.is_none_or(|learnt| !learnt.is_empty() && !shared.learner.recall(&learnt)) {
        shared.ledger.failed(
            DiskFailure::Learnt,
            "expected what the policy has learned, found damage or another version: it learns anew",
        );
    }
    let inside = |(_, place): &(Name, IndexRecord)| place.cell < cells[place.class];
    let (mut places, short): (Vec<_>, Vec<_>) = places.into_iter().partition(inside);
    let now = minute(&*shared.options.door);
    // A use that a wrong clock noted in the future must not keep an entry for ever.
    for (_, place) in &mut places {
        place.used = place.used.min(now);
    }
    for _ in &short {
        shared.ledger.failed(
            DiskFailure::Short,
            "expected a whole slab, found one that ends early",
        );
    }
    // The cells of these entries are free. The index must forget the entries before others get the cells.
    let gone = damaged.into_iter().chain(short.into_iter().map(|it| it.0));
    let gone: Vec<_> = gone.map(|name| (name, None)).collect();
    let contents = BookContents::of(&shared.shapes, places);
    let room = contents.room();
    let before = {
        let mut book = lock(&shared.book);
        gone.into_iter().for_each(|it| book.changes.push(it));
        book.replace(contents)
    };
    drop(before);
    room
}

/// Ends the copies and the threads, and releases the lane. A second call does nothing.
pub(crate) fn close(shared: &DiskShared) {
    if shared.is_inherited() {
        return; // A forked process has none of the threads, and its parent has the lane.
    }
    let limit = shared.options.deadline.max(Duration::from_secs(1));
    let begun = Instant::now();
    let waits = || !shared.is_idle() && !lock(&shared.health).is_out() && !shared.is_broken();
    while waits() && begun.elapsed() < limit {
        std::thread::sleep(NAP);
    }
    if lock(&shared.health).close() {
        return;
    }
    shared.queue.stop();
    while shared.has_threads() && begun.elapsed() < 2 * limit {
        std::thread::sleep(NAP);
    }
    // After this no thread touches the slots, even if one hangs.
    while !shared.abandon_all() {
        std::thread::sleep(NAP);
    }
    shared.note_uses();
    shared.bell.stop();
    let keeper = lock(&shared.keeper).take();
    if let Some(keeper) = keeper {
        while !keeper.is_finished() && begun.elapsed() < 3 * limit {
            std::thread::sleep(NAP);
        }
        if !keeper.is_finished() {
            return; // The keeper may still write. The lane is free when all threads have ended.
        }
        if keeper.join().is_err() {
            shared
                .ledger
                .failed(DiskFailure::Index, "the thread of the index panicked");
        }
    }
    if shared.has_threads() {
        return;
    }
    if let Ok(lane) = shared.lane()
        && let Err(error) = lane.release()
    {
        shared
            .ledger
            .failed(DiskFailure::Directory, &format!("cannot unlock: {error}"));
    }
}
