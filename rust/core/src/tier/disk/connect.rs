//! A disk opens its store when the arena and the identity are known.

use std::sync::Arc;
use std::sync::mpsc::{self, SendError};
use std::thread::Builder;
use std::time::Duration;

use super::book::{Book, Trash, minute};
use super::crew::{self, Member};
use super::folder::{Other, directory_of};
use super::format::Place;
use super::index::{Found, Index};
use super::keeper::{Keeper, owner, shrink};
use super::lock;
use super::shared::Shared;
use super::stats::Reason;
use super::store::{Store, StoreNames};
use crate::error::{Error, Result};
use crate::tier::{Arena, Identity, Name, Planes};

/// Opens the store of an identity over an arena and starts the threads.
pub(super) fn connect(shared: &Arc<Shared>, arena: &Arena, identity: &Identity) -> Result<()> {
    let planes = Planes::of(arena, shared.ranks, shared.slot_bytes)?;
    let mut keeper = lock(&shared.keeper);
    if shared.planes.set(planes).is_err() {
        return Err(Error::Disk(
            "expected to be connected once, found a second time: make a new cache".into(),
        ));
    }
    let directory = directory_of(identity);
    let failed = |what: &str, error: std::io::Error| {
        let lane = shared.lane.name();
        Error::Disk(format!("{lane}: expected {what}, found {error}"))
    };
    let others = shared.lane.others(&directory, |name, error| {
        shared.failed(Reason::Directory, &format!("cannot read {name}: {error}"));
    });
    let (others, cleared) = others.map_err(|error| failed("a list of directories", error))?;
    {
        let mut book = lock(&shared.book);
        book.others.extend(others);
        let trash = cleared
            .into_iter()
            .map(|Other { name, bytes, .. }| Trash { name, bytes });
        book.trash.extend(trash);
    }
    let folder = shared.lane.identity(&directory);
    let names = StoreNames {
        identity: *identity,
        epoch: 0,
        directory,
        persistent: true,
    };
    let store = folder
        .and_then(|folder| Store::open(&*shared.options.door, folder, names, shared.shapes.len()));
    let store = store.map_err(|error| failed("files of this user", error))?;
    let index = open_index(shared, &store);
    shrink(shared, &store);
    let room: Vec<_> = {
        let book = lock(&shared.book);
        book.cells()
            .iter()
            .map(|cells| (cells.end(), cells.gaps()))
            .collect()
    };
    if let Err(error) = store.tidy(&shared.shapes, &room) {
        shared.failed(Reason::Upkeep, &format!("cannot give back room: {error}"));
    }
    {
        let mut book = lock(&shared.book);
        book.store = Some(Arc::new(store));
        book.connected = true;
        if book.cleared_early {
            clear(shared, &mut book);
        }
    }
    let thread = Keeper::new(Arc::clone(shared), index.map(|index| (0, index)));
    let thread = Builder::new()
        .name("hybrid-pages-disk-keeper".into())
        .spawn(move || thread.run())
        .map_err(|error| Error::Disk(format!("disk threads cannot start: {error}")))?;
    *keeper = Some(thread);
    crew::start(shared, shared.queue.new_crew())?;
    shared.bell.ring();
    Ok(())
}

/// Forgets everything, for this process and those after it. A disk that hangs is waited for up to the deadline.
pub(super) fn clear(shared: &Arc<Shared>, book: &mut Book) {
    if !book.connected {
        book.cleared_early = true;
        return;
    }
    let aside = match book.store.clone() {
        Some(store) if store.persistent => set_aside(shared, &store),
        Some(store) => Some(store.directory.clone()),
        None => None,
    };
    book.clear(&shared.shapes, aside);
}

/// Has a store's directory moved away, and says under which name; `None` if it was not, or not yet.
fn set_aside(shared: &Arc<Shared>, store: &Arc<Store>) -> Option<String> {
    // Without a buffer, what is told is either heard or known to be late.
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
            shared.failed(Reason::Directory, &what);
            None
        }
    }
}

fn move_away(shared: &Shared, store: &Store) -> Option<String> {
    let moved = shared
        .lane
        .set_aside(&*shared.options.door, &store.directory);
    let error = match moved {
        Ok(name) => return Some(name),
        Err(error) => error,
    };
    let without = Index::forget(&store.folder);
    let what = format!(
        "cannot move {} away ({error}), so its index was removed: {without:?}",
        store.directory
    );
    shared.failed(Reason::Directory, &what);
    None
}

/// Opens the index and takes over what it has. Whatever is wrong with it costs entries, not the start.
fn open_index(shared: &Shared, store: &Store) -> Option<Index> {
    let owner = owner(shared, store);
    let opened = Index::open(&*shared.options.door, &store.folder, &owner);
    let (index, found) = match opened {
        Ok(opened) => opened,
        Err(why) => {
            shared.failed(Reason::Index, &format!("cannot open the index: {why}"));
            return None;
        }
    };
    let Found {
        places,
        damaged,
        learnt,
        aside,
        is_new,
    } = found;
    let lost =
        is_new && aside.is_none() && (0..shared.shapes.len()).any(|class| has_cells(store, class));
    let aside = aside.or_else(|| lost.then(|| "slabs without one".to_owned()));
    if let Some(why) = aside {
        shared.failed(
            Reason::IndexDamaged,
            &format!("expected an index, found {why}: what there was is set aside"),
        );
    }
    for _ in &damaged {
        shared.failed(
            Reason::Record,
            "expected a record of the index, found damage",
        );
    }
    if learnt.is_none_or(|learnt| !learnt.is_empty() && !shared.learner.recall(&learnt)) {
        shared.failed(
            Reason::Learnt,
            "expected what the policy has learned, found damage or another version: it learns anew",
        );
    }
    let (mut places, short) = within(shared, store, places);
    let now = minute(&*shared.options.door);
    // A clock that was wrong once must not keep entries for ever.
    for (_, place) in &mut places {
        place.used = place.used.min(now);
    }
    for _ in &short {
        shared.failed(
            Reason::Short,
            "expected a whole slab, found one that ends early",
        );
    }
    // Their cells are free: the index must forget them before others get these cells.
    let gone = damaged.into_iter().chain(short);
    let mut book = lock(&shared.book);
    book.changes.extend(gone.map(|name| (name, None)));
    book.fill(&shared.shapes, places);
    drop(book);
    Some(index)
}

fn has_cells(store: &Store, class: usize) -> bool {
    // A slab that can't be measured has been counted, or will be.
    store.slab(class).length().is_ok_and(|length| length > 0)
}

/// The entries whose cells lie inside the slabs, and the names of the others.
fn within(
    shared: &Shared,
    store: &Store,
    places: Vec<(Name, Place)>,
) -> (Vec<(Name, Place)>, Vec<Name>) {
    let cells = |class: usize| {
        let length = store.slab(class).length().unwrap_or_else(|error| {
            shared.failed(Reason::Read, &format!("a slab's length: {error}"));
            0
        });
        length / shared.shapes[class].cell_bytes
    };
    let cells: Vec<u64> = (0..shared.shapes.len()).map(cells).collect();
    let inside = |(_, place): &(Name, Place)| place.cell < cells[place.class];
    let (inside, outside): (Vec<_>, Vec<_>) = places.into_iter().partition(inside);
    (inside, outside.into_iter().map(|(name, _)| name).collect())
}
