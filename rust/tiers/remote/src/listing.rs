//! Listings of the store, which find packs of other engines. A listing begins when a lookup finds the catalog old.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;
use std::time::Instant;

use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use hashbrown::HashSet;
use object_store::ObjectMeta;
use object_store::path::Path;
use tokio::time::timeout;

use crate::error::StoreError;
use crate::files;
use crate::pack::{PackId, PackName, PackTable, is_a_length, names_from, taken_back};
use crate::place::of_a_file;
use crate::shared::{GONE, PANICKED, RemoteConnection, RemoteShared, now};
use crate::stats::RemoteFailure;
use hybrid_pages_tiers::lock;

/// A listing of everything may miss packs that were made less than this many milliseconds before it began.
const MARGIN: u64 = 60_000;

/// Most names in a listing, per entry of the catalog. A longer listing counts as endless.
const MOST_LISTED: usize = 16;

const LATE: &str = "expected to find packs and resets within seconds, found one by a listing of everything alone: the clocks \
                    of all engines must agree to half a minute";

/// A listing that runs while its task does.
struct RunningListing<'a> {
    shared: &'a RemoteShared,
    ended: bool,
}

impl Drop for RunningListing<'_> {
    fn drop(&mut self) {
        if !self.ended && !lock(&self.shared.state).closed {
            self.shared.ledger.failed(RemoteFailure::Panic, PANICKED);
            self.shared.answered(false);
        }
        lock(&self.shared.state).freshness.end();
    }
}

/// Lists the store and reads the tables of new packs.
pub(crate) async fn list(shared: Arc<RemoteShared>) {
    let mut running = RunningListing {
        shared: &shared,
        ended: false,
    };
    if let Some(connection) = shared.connection.get() {
        refresh(&shared, connection).await;
    }
    running.ended = true;
}

async fn refresh(shared: &RemoteShared, connection: &RemoteConnection) {
    let (begun, began) = (Instant::now(), now());
    let (whole, listed_at) = lock(&shared.state).freshness.next(shared.options.whole);
    // A name has the time when the pack's upload began, by the writer's clock. The pack is there after `write_limit`
    // at most, or never. So packs that the last listing did not find have names from here on, if clocks differ by no
    // more than `skew`. The next listing of everything finds the others.
    let limit = shared.options.write_limit.as_millis() as u64;
    let skew = shared.options.skew.as_millis() as u64;
    let from = listed_at.min(began).saturating_sub(limit + skew);
    shared.ledger.count(|counts| counts.lists += 1);
    let late = if whole { from } else { 0 };
    let Some(names) = names(shared, connection, (!whole).then_some(from), late).await else {
        return;
    };
    if whole {
        lock(&shared.state).catalog.look_again();
    }
    learn(shared, connection, &names, late).await;
    if whole {
        let ids: HashSet<_> = names.iter().map(|(name, _)| name.id).collect();
        let made_by = began.saturating_sub(MARGIN + limit);
        forget(shared, |id| id.made < made_by && !ids.contains(&id));
    }
    let mut state = lock(&shared.state);
    state.freshness.worked(began, whole.then_some(begun));
}

/// Removes packs from the catalog, a few at a time, so that no thread waits long for the lock.
fn forget(shared: &RemoteShared, is_gone: impl Fn(PackId) -> bool) {
    let mut last = None;
    loop {
        let part = lock(&shared.state).catalog.after(last);
        last = part.last().copied();
        if last.is_none() {
            return;
        }
        for id in part.into_iter().filter(|&id| is_gone(id)) {
            shared.remove_pack(id, |_| ());
        }
    }
}

/// Lists the packs in the store, or the newest ones if there are many, with the bytes of their objects. `None` if the
/// listing fails. Reports signs from before `late`, which should have been found earlier.
async fn names(
    shared: &RemoteShared,
    connection: &RemoteConnection,
    from: Option<u64>,
    late: u64,
) -> Option<Vec<(PackName, u64)>> {
    let most = shared.options.most_entries;
    let mut listing = objects(shared, connection, from);
    let mut names = BTreeMap::new();
    let begun = Instant::now();
    for seen in 0_usize.. {
        let next = timeout(shared.options.deadline, listing.next()).await;
        if seen == 0 && next.is_ok() {
            lock(&shared.state).speed.answered(begun.elapsed());
        }
        let (reason, what) = match next {
            Ok(None) => break,
            Ok(Some(Ok(_))) if seen / MOST_LISTED >= most => {
                let most = most.saturating_mul(MOST_LISTED);
                let what = format!("expected a listing of at most {most} names, found more");
                (RemoteFailure::List, what)
            }
            Ok(Some(Ok((name, bytes)))) => {
                sort(shared, &name, bytes, late, &mut names);
                if names.len() > most {
                    names.pop_first();
                }
                continue;
            }
            Ok(Some(Err(object_store::Error::NotFound { .. }))) => continue,
            Ok(Some(Err(error))) => (RemoteFailure::List, StoreError::of(&error).to_string()),
            Err(_) => {
                let deadline = shared.options.deadline;
                let what = format!(
                    "expected a listing within {deadline:?}, found none; a wrong address, and credentials that the \
                     client looks for in vain, take as long"
                );
                (RemoteFailure::Deadline, what)
            }
        };
        shared.ledger.failed(reason, &what);
        shared.answered(false);
        return None;
    }
    shared.answered(true);
    Some(names.into_values().collect())
}

/// Names and bytes of all objects, or of those made since a time.
fn objects(
    shared: &RemoteShared,
    connection: &RemoteConnection,
    from: Option<u64>,
) -> BoxStream<'static, object_store::Result<(String, u64)>> {
    let (place, folder) = (&shared.options.place, connection.folder.clone());
    let from = from.map(names_from);
    if let Some(directory) = &place.directory {
        let path = match directory.path_to_filesystem(&folder) {
            Ok(path) => path,
            Err(error) => return stream::once(ready(Err(error))).boxed(),
        };
        let is_wanted = move |name: &str| {
            let is_ours = PackName::parse(name).is_some() || taken_back(name).is_some();
            is_ours && from.as_deref().is_none_or(|from| name > from)
        };
        return files::list(path, is_wanted).map_err(of_a_file).boxed();
    }
    let listing = match from {
        Some(from) => place
            .store
            .list_with_offset(Some(&folder), &folder.clone().join(from)),
        None => place.store.list(Some(&folder)),
    };
    let named = move |meta: ObjectMeta| {
        let mut below = meta.location.prefix_match(&folder)?;
        let name = below.next()?.as_ref().to_owned();
        below.next().is_none().then_some((name, meta.size))
    };
    let named = listing.try_filter_map(move |meta| ready(Ok(named(meta))));
    named.boxed()
}

/// Handles the name of an object: the sign of a writer, or a pack.
fn sort(
    shared: &RemoteShared,
    name: &str,
    bytes: u64,
    late: u64,
    names: &mut BTreeMap<PackId, (PackName, u64)>,
) {
    if let Some((made, writer)) = taken_back(name) {
        let is_new = lock(&shared.state).catalog.take_back(writer);
        if is_new {
            if made < late {
                shared.ledger.failed(RemoteFailure::Late, LATE);
            }
            forget(shared, |id| id.writer == writer);
        }
    } else if let Some(name) = PackName::parse(name) {
        names.insert(name.id, (name, bytes));
    }
}

/// Reads the tables of new packs, the newest first. Reports packs from before `late`, which should have been found
/// earlier.
async fn learn(
    shared: &RemoteShared,
    connection: &RemoteConnection,
    names: &[(PackName, u64)],
    late: u64,
) {
    let mut unread = std::mem::take(&mut *lock(&shared.unread));
    for part in names.chunks(1024) {
        let state = lock(&shared.state);
        for &(name, bytes) in part {
            // This process knows its own packs. One that it doesn't know was not written for sure, and is removed.
            if name.id.writer != connection.writer
                && state.catalog.wants(name.id)
                && unread.insert(name.id, (name, bytes)).is_none()
                && name.id.made < late
            {
                shared.ledger.failed(RemoteFailure::Late, LATE);
            }
        }
    }
    let mut new: Vec<(PackName, u64)> = unread.values().rev().copied().collect();
    if new.is_empty() {
        let mut state = lock(&shared.state);
        if state.reads.is_open() {
            // Reads the newest table, to find out whether reads work again.
            new.extend(names.last());
            if names.is_empty() {
                state.reads.worked();
            }
        }
    }
    let tables = futures::stream::iter(new)
        .map(|(name, bytes)| async move { (name, table(shared, connection, name, bytes).await) });
    let mut tables = tables.buffer_unordered(shared.options.requests);
    while let Some((name, table)) = tables.next().await {
        if !matches!(table, TableOutcome::Later) {
            unread.remove(&name.id);
        }
        match table {
            TableOutcome::Table(table) => shared.add_pack(name, table.records, false, |_| true),
            TableOutcome::Refused => lock(&shared.state).catalog.refuse(name.id),
            TableOutcome::Gone => lock(&shared.state).catalog.miss(name.id),
            TableOutcome::None | TableOutcome::Later => {}
        }
        if lock(&shared.state).reads.is_open() {
            break; // The other tables are read when the store answers again.
        }
    }
    drop(tables);
    *lock(&shared.unread) = unread;
}

enum TableOutcome {
    Table(PackTable),
    /// The object is no pack, and never will be.
    Refused,
    /// The pack is gone, though it was listed.
    Gone,
    /// The table is not wanted any more.
    None,
    /// The table could not be read.
    Later,
}

async fn table(
    shared: &RemoteShared,
    connection: &RemoteConnection,
    name: PackName,
    bytes: u64,
) -> TableOutcome {
    let wanted = {
        let state = lock(&shared.state);
        // Reading a table that is not wanted shows whether reads work again.
        state.catalog.wants(name.id) || state.reads.is_open()
    };
    if !wanted {
        return TableOutcome::None;
    }
    if name.table_bytes > bytes || !is_a_length(name.table_bytes, shared.ranks) {
        let what = format!("expected a table of whole entries inside {bytes} bytes, found {name}");
        shared.ledger.failed(RemoteFailure::Table, &what);
        return TableOutcome::Refused;
    }
    let path: Path = connection.folder.clone().join(name.to_string());
    let reading = shared.options.place.range(&path, 0..name.table_bytes);
    let read = timeout(shared.options.deadline, reading).await;
    shared.ledger.count(|counts| counts.gets += 1);
    let (reason, what) = match read {
        Ok(Ok(found)) => {
            shared.read_answered(true);
            let (ours, classes) = ((shared.format(), &connection.identity), &shared.classes);
            match PackTable::decode(&found, ours, name, bytes, classes, shared.ranks) {
                Ok(table) => return TableOutcome::Table(table),
                Err(what) => {
                    shared
                        .ledger
                        .failed(RemoteFailure::Table, &format!("{name}: {what}"));
                    return TableOutcome::Refused;
                }
            }
        }
        Ok(Err(object_store::Error::NotFound { .. })) => {
            shared.read_answered(true);
            shared.ledger.failed(RemoteFailure::Gone, GONE);
            return TableOutcome::Gone;
        }
        Ok(Err(error)) => (RemoteFailure::Read, StoreError::of(&error).to_string()),
        Err(_) => (
            RemoteFailure::Deadline,
            format!("{name}: expected its table, found no answer"),
        ),
    };
    shared.ledger.failed(reason, &what);
    shared.read_answered(false);
    TableOutcome::Later
}
