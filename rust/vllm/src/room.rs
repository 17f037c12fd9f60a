//! Reserves room in the cache for the entries that block tables have.

use std::ops::{Deref, Range};

use hybrid_pages::cache::{Cache, WriteLease};
use hybrid_pages::ids::{NamespaceId, PrefixKey, SlotId};
use hybrid_pages::policy::Hints;

use crate::entries::{StoreEntries, StoreEntry};
use crate::tables::{EntrySource, TableColumns, Tables};

/// The pages and states of one prefix that are to be stored.
#[derive(Debug)]
pub struct RoomRequest<'a, T> {
    /// The namespace of the prefix.
    pub namespace: NamespaceId,
    /// The columns of entries in the block tables.
    pub columns: &'a TableColumns,
    /// The block tables.
    pub tables: &'a T,
    /// The blocks whose pages are stored, as far as the tables have them.
    pub blocks: Range<usize>,
    /// The states that are stored.
    pub states: &'a [StateSource],
    /// The tail behind the last block, if one is stored.
    pub tail: Option<&'a TailSource>,
    /// The application's hints about the request, if it gave any.
    pub hints: Option<Hints>,
}

/// The engine blocks of one state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateSource {
    /// The index of the state's class.
    pub class: usize,
    /// The index of the block at whose end the state is.
    pub block: usize,
    /// The engine blocks, one of each group of the class.
    pub blocks: Vec<u32>,
}

/// A tail of a prefix: its key, and the engine blocks of its pages and states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TailSource {
    /// The index of the block that the tail fills a part of.
    pub block: usize,
    /// The tail's key.
    pub key: PrefixKey,
    /// The tail's pages and states. Their engine blocks are in `blocks`.
    pub entries: Vec<EntrySource>,
    /// Engine blocks; 0 for those that lie wholly behind the tail's tokens.
    pub blocks: Vec<u32>,
}

/// Room for entries of a store.
pub struct Reserved {
    /// Publishes the entries, or gives them up.
    pub lease: WriteLease,
    /// The entries to copy.
    pub entries: StoreEntries,
    /// The indices of the entries whose engine blocks the next step overwrites.
    pub overwritten: Vec<usize>,
    /// How many leading blocks of those asked for the cache already had.
    pub resident: usize,
}

/// Reserves room for states, and for the pages that the cache lacks; `None` if there is nothing to store. `keys` gives
/// the keys of as many leading blocks as it is asked for.
///
/// # Errors
/// If the tables can't be read, or if the cache rejects the request.
pub fn make_room<T: Tables, K: Deref<Target = [PrefixKey]>>(
    cache: &Cache,
    request: &RoomRequest<'_, T>,
    keys: impl Fn(usize) -> Result<K, T::Error>,
) -> Result<Option<Reserved>, T::Error> {
    let (namespace, wished) = (request.namespace, request.blocks.clone());
    let unwritten = if request.hints.is_some() {
        wished.start // Hints also apply to entries that the cache already has.
    } else {
        cache.unwritten(namespace, &keys(wished.end)?, wished.start)?
    };
    let (sources, blocks) = sources(request, unwritten..wished.end)?;
    let Some(last) = sources.iter().map(|source| source.block).max() else {
        return Ok(None);
    };
    let whole = request.tail.map_or(last + 1, |tail| tail.block);
    let wanted: Vec<_> = sources
        .iter()
        .map(|source| (source.class, source.block))
        .collect();
    let mut entries = StoreEntries::with_capacity(wanted.len(), blocks.len());
    let mut overwritten = Vec::new();
    let mut next = 0; // Most often they come in the order of the sources.
    let each = |class: usize, block: usize, slots: &[SlotId]| {
        if wanted.get(next) != Some(&(class, block)) {
            next = wanted.partition_point(|&at| at < (class, block));
        }
        let source = &sources[next];
        if source.overwritten {
            overwritten.push(entries.len());
        }
        entries.push(StoreEntry {
            class,
            slots,
            blocks: &blocks[source.blocks.clone()],
            tokens: source.tokens,
        });
        next += 1;
    };
    let hints = request.hints.unwrap_or(Hints::NONE);
    let keys = keys(whole)?;
    let lease = match request.tail {
        None => cache.reserve_each(namespace, &keys, &wanted, &hints, each)?,
        Some(tail) => {
            let chain = [&keys[..], &[tail.key]].concat();
            cache.reserve_each(namespace, &chain, &wanted, &hints, each)?
        }
    };
    Ok(Some(Reserved {
        lease,
        entries,
        overwritten,
        resident: unwritten - wished.start,
    }))
}

/// The pages of `blocks`, the states and the tail, in the order of class and block, and the list of their engine
/// blocks.
fn sources<T: Tables>(
    request: &RoomRequest<'_, T>,
    blocks: Range<usize>,
) -> Result<(Vec<EntrySource>, Vec<u32>), T::Error> {
    let more = request.states.iter().map(|state| state.blocks.len()).sum();
    let (mut sources, mut ids) = request.columns.pages(request.tables, blocks, more)?;
    for state in request.states {
        let from = ids.len();
        ids.extend(&state.blocks);
        sources.push(EntrySource {
            class: state.class,
            block: state.block,
            blocks: from..ids.len(),
            tokens: None,
            overwritten: false,
        });
    }
    if let Some(tail) = request.tail {
        let from = ids.len();
        ids.extend(&tail.blocks);
        sources.extend(tail.entries.iter().map(|entry| EntrySource {
            blocks: from + entry.blocks.start..from + entry.blocks.end,
            ..entry.clone()
        }));
    }
    let order = |source: &EntrySource| (source.class, source.block);
    if !sources.is_sorted_by_key(order) {
        sources.sort_unstable_by_key(order);
    }
    Ok((sources, ids))
}
