//! What others have written: the store is listed when a lookup finds the catalog old.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use hashbrown::HashSet;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt as _};
use tokio::time::timeout;

use crate::lock;
use crate::pack::{MOST_TABLE_BYTES, PackName, Table, names_from, taken_back};
use crate::place::plain;
use crate::shared::{Connection, Shared, now};
use crate::stats::Reason;

/// Clocks of writers may differ by so many milliseconds; what is further behind is found by the next whole listing.
const OVERLAP: u64 = 600_000;
/// So often everything is listed: packs may be gone, or their writers' clocks wrong.
const WHOLE: Duration = Duration::from_secs(600);
/// A whole listing may miss what was made so few milliseconds before it began.
const MARGIN: u64 = 60_000;

/// Lists the store and reads the tables of new packs.
pub(crate) async fn list(shared: Arc<Shared>) {
    if let Some(connection) = shared.connection.get() {
        let (begun, began) = (Instant::now(), now());
        let (whole, from) = {
            let state = lock(&shared.state);
            let (whole, listed_at) = state.freshness.next(WHOLE);
            (whole, listed_at.saturating_sub(OVERLAP))
        };
        shared.count(|counts| counts.lists += 1);
        let listed = names(&shared, connection, (!whole).then_some(from)).await;
        if let Some(names) = &listed {
            learn(&shared, connection, names).await;
        }
        let mut state = lock(&shared.state);
        if let Some(names) = listed {
            state.freshness.worked(began, whole.then_some(begun));
            if whole {
                let ids: HashSet<_> = names.iter().map(|(name, _)| name.id).collect();
                let limit = shared.options.write_limit.as_millis() as u64;
                let made_by = began.saturating_sub(MARGIN + limit);
                state.catalog.keep(&ids, made_by, &shared.classes);
            }
        }
    }
    lock(&shared.state).freshness.end();
}

/// The packs that there are, with the bytes of their objects. `None` if the store doesn't say.
async fn names(
    shared: &Shared,
    connection: &Connection,
    from: Option<u64>,
) -> Option<Vec<(PackName, u64)>> {
    let (store, folder) = (&shared.options.place.store, &connection.folder);
    let mut listing = match from {
        Some(from) => store.list_with_offset(Some(folder), &folder.clone().join(names_from(from))),
        None => store.list(Some(folder)),
    };
    let mut names = Vec::new();
    let begun = Instant::now();
    let mut first = true;
    loop {
        let next = timeout(shared.options.deadline, listing.next()).await;
        if std::mem::take(&mut first) && next.is_ok() {
            lock(&shared.state).speed.answered(begun.elapsed());
        }
        let (reason, what) = match next {
            Ok(None) => break,
            Ok(Some(Ok(meta))) => {
                sort(shared, &meta, &mut names);
                continue;
            }
            Ok(Some(Err(object_store::Error::NotFound { .. }))) => continue,
            Ok(Some(Err(error))) => (Reason::List, plain(&error)),
            Err(_) => {
                let deadline = shared.options.deadline;
                let what = format!("expected a listing within {deadline:?}, found none");
                (Reason::Deadline, what)
            }
        };
        shared.failed(reason, &what);
        shared.answered(false);
        return None;
    }
    shared.answered(true);
    Some(names)
}

/// Takes note of an object.
fn sort(shared: &Shared, meta: &ObjectMeta, names: &mut Vec<(PackName, u64)>) {
    let Some(name) = meta.location.filename() else {
        return;
    };
    if let Some(writer) = taken_back(name) {
        let mut state = lock(&shared.state);
        state.catalog.take_back(writer, &shared.classes);
    } else if let Some(name) = PackName::parse(name) {
        names.push((name, meta.size));
    }
}

/// Reads the tables of the packs that are new, the newest first.
async fn learn(shared: &Shared, connection: &Connection, names: &[(PackName, u64)]) {
    let mut new: Vec<(PackName, u64)> = {
        let mut state = lock(&shared.state);
        let wanted = |(name, _): &&(PackName, u64)| state.catalog.wants(name.id);
        let mut new: Vec<_> = names.iter().filter(wanted).copied().collect();
        if new.is_empty() && state.reads.is_open() {
            // Something to read, to find out whether that works again.
            new.extend(names.last());
            if names.is_empty() {
                state.reads.worked();
            }
        }
        new
    };
    new.sort_unstable_by_key(|(name, _)| std::cmp::Reverse(name.id));
    let tables = futures::stream::iter(new)
        .map(|(name, bytes)| async move { (name, table(shared, connection, name, bytes).await) });
    let mut tables = tables.buffer_unordered(shared.options.requests);
    let mut full = false;
    while let Some((name, table)) = tables.next().await {
        let mut state = lock(&shared.state);
        match table {
            Outcome::Table(table) if !state.cleared => {
                state.catalog.add(name, table, &shared.classes, false);
                full |= state
                    .catalog
                    .shrink(shared.options.most_entries, &shared.classes);
            }
            Outcome::Refused => state.catalog.refuse(name.id),
            Outcome::Table(_) | Outcome::Later => {}
        }
        if state.reads.is_open() {
            break; // The others are read when it answers.
        }
    }
    if full {
        shared.note("it has more entries than fit into the catalog: the oldest are not found");
    }
}

enum Outcome {
    Table(Table),
    /// It is none, and never will be.
    Refused,
    /// It could not be read.
    Later,
}

async fn table(shared: &Shared, connection: &Connection, name: PackName, bytes: u64) -> Outcome {
    if name.table_bytes > MOST_TABLE_BYTES || name.table_bytes > bytes {
        let what = format!("expected a table inside {bytes} bytes, found {name}");
        shared.failed(Reason::Table, &what);
        return Outcome::Refused;
    }
    let path: Path = connection.folder.clone().join(name.to_string());
    let reading = shared
        .options
        .place
        .store
        .get_range(&path, 0..name.table_bytes);
    let read = timeout(shared.options.deadline, reading).await;
    shared.count(|counts| counts.gets += 1);
    let (reason, what) = match read {
        Ok(Ok(found)) => {
            shared.read_answered(true);
            let (identity, classes) = (&connection.identity, &shared.classes);
            match Table::decode(&found, identity, name, bytes, classes, shared.ranks) {
                Ok(table) => return Outcome::Table(table),
                Err(what) => {
                    shared.failed(Reason::Table, &format!("{name}: {what}"));
                    return Outcome::Refused;
                }
            }
        }
        Ok(Err(object_store::Error::NotFound { .. })) => return Outcome::Later,
        Ok(Err(error)) => (Reason::Read, plain(&error)),
        Err(_) => (
            Reason::Deadline,
            format!("{name}: expected its table, found no answer"),
        ),
    };
    shared.failed(reason, &what);
    shared.read_answered(false);
    Outcome::Later
}
