//! Seals: how the bytes of an entry are encrypted, and to what they are bound. `docs/encryption.md` describes every
//! byte.
//!
//! Bytes are sealed tile by tile: AES-256-GCM with a key that is derived for one *lot*, the tiles of one write, from the
//! tenant's key and a random number. The associated data names the format, the identity, the entry, its place, rank,
//! tile, length and checksum, so bytes that were moved, replaced or sealed with another key are not opened.

use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;
use hybrid_pages::error::Cause;
use hybrid_pages::ids::EntryKey;
use hybrid_pages::transfer::TILE_BYTES;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::key_tree::{KEY_BYTES, Key};
use crate::keys::{EncryptKeys, TenantKey, derive};
use crate::lock::{PriorityMutex, lock};
use crate::name::{Identity, Name, name_of, tail_group};

/// Version of seals, and of encrypted entries in remote stores.
pub const SEALED_FORMAT_VERSION: u32 = 2;

const TAG_BYTES: usize = 16;
const LOT_BYTES: usize = 16;
/// Bytes that a seal adds to each tile.
pub const SEAL_BYTES: usize = TAG_BYTES + LOT_BYTES;
/// Bytes by which those who have the key for all find out which tenant's key an entry is sealed with.
pub const OWNER_BYTES: usize = KEY_BYTES + CHECK_BYTES;
const CHECK_BYTES: usize = 8;
/// Most namespaces, and most tenants, whose keys are remembered.
const MOST_NAMESPACES: usize = 4096;
const BOUND_BYTES: usize = 132;

/// How a tier names entries and seals their bytes. Without keys, names are plain digests and bytes stay as they are.
#[derive(Debug, Default)]
pub struct Seals(Option<Sealed>);

#[derive(Debug)]
struct Sealed {
    keys: EncryptKeys,
    known: PriorityMutex<HashMap<Arc<[u8]>, Arc<SealedNamespace>>>,
    /// Keys of tenants that were found by what entries tell of their owner.
    owners: PriorityMutex<HashMap<Key, Arc<TenantKey>>>,
}

#[derive(Debug)]
struct SealedNamespace {
    /// What stands for the namespace in names, which nobody can compute without the key.
    hidden: Arc<[u8]>,
    key: Arc<TenantKey>,
}

impl Seals {
    /// Seals with these keys, or none.
    #[must_use]
    pub fn new(keys: Option<EncryptKeys>) -> Self {
        Self(keys.map(|keys| Sealed {
            keys,
            known: PriorityMutex::default(),
            owners: PriorityMutex::default(),
        }))
    }

    /// The keys that entries are encrypted with; `None` without any.
    #[must_use]
    pub fn keys(&self) -> Option<&EncryptKeys> {
        self.0.as_ref().map(|sealed| &sealed.keys)
    }

    /// The format of entries: that of plain ones, or that of encrypted ones.
    #[must_use]
    pub const fn format(&self, plain: u32, sealed: u32) -> u32 {
        if self.0.is_some() { sealed } else { plain }
    }

    /// Bytes that a tile takes beyond its own.
    #[must_use]
    pub const fn tile_bytes(&self) -> usize {
        if self.0.is_some() { SEAL_BYTES } else { 0 }
    }

    /// The identity under which entries are kept: another one for each key and each store. `place` is what all call the
    /// store, if the key file does not name it; empty if they may call it differently.
    #[must_use]
    pub fn identity(&self, identity: &Identity, place: &str) -> Identity {
        let sealed = self.0.as_ref();
        sealed.map_or(*identity, |sealed| sealed.keys.identity(identity, place))
    }

    /// The name of an entry, and its seal if there are keys.
    #[must_use]
    pub fn entry(&self, key: &EntryKey) -> (Name, Option<Seal>) {
        let Some(sealed) = &self.0 else {
            return (name_of(key), None);
        };
        let namespace = sealed.namespace(&key.namespace);
        let name = name_of(&EntryKey {
            namespace: Arc::clone(&namespace.hidden),
            ..key.clone()
        });
        let key = Arc::clone(&namespace.key);
        (name, Some(Seal { key, name }))
    }

    /// The seal of the entry with this name, from what it tells of its owner; `None` if it was sealed with a key that is
    /// not there, such as that of a tenant which was destroyed.
    #[must_use]
    pub fn seal_of(&self, name: &Name, owner: &[u8; OWNER_BYTES]) -> Option<Seal> {
        let sealed = self.0.as_ref()?;
        let mut tenant = *blake3::keyed_hash(&sealed.keys.owners(), name).as_bytes();
        std::iter::zip(&mut tenant, owner).for_each(|(byte, hidden)| *byte ^= hidden);
        let key = {
            let mut owners = lock(&sealed.owners);
            if owners.len() >= MOST_NAMESPACES {
                owners.clear();
            }
            let found = owners.entry(tenant);
            Arc::clone(found.or_insert_with(|| Arc::new(sealed.keys.tenant_named(tenant))))
        };
        let seal = Seal { key, name: *name };
        (seal.owner() == *owner).then_some(seal)
    }

    /// The name of an entry.
    #[must_use]
    pub fn name_of(&self, key: &EntryKey) -> Name {
        self.entry(key).0
    }

    /// The group of the tails of a namespace whose keys have this stem.
    #[must_use]
    pub fn tail_group(&self, namespace: &[u8], stem: u64) -> u64 {
        match &self.0 {
            Some(sealed) => tail_group(&sealed.namespace(namespace).hidden, stem),
            None => tail_group(namespace, stem),
        }
    }
}

impl Sealed {
    fn namespace(&self, namespace: &[u8]) -> Arc<SealedNamespace> {
        let mut known = lock(&self.known);
        if let Some(found) = known.get(namespace) {
            return Arc::clone(found);
        }
        if known.len() >= MOST_NAMESPACES {
            known.clear();
        }
        let key = self.keys.tenant(namespace);
        let hidden = derive(&key.derived, &[b"namespace", namespace]);
        let made = Arc::new(SealedNamespace {
            hidden: hidden.as_slice().into(),
            key: Arc::new(key),
        });
        known.insert(namespace.into(), Arc::clone(&made));
        made
    }
}

/// Bytes that so many bytes of a shard, from the start of a tile, take below the host.
#[must_use]
pub const fn sealed_bytes(bytes: usize, tile_bytes: usize) -> usize {
    bytes + bytes.div_ceil(TILE_BYTES) * tile_bytes
}

/// The seal of one entry.
#[derive(Debug, Clone)]
pub struct Seal {
    key: Arc<TenantKey>,
    name: Name,
}

/// Where the bytes of an entry are kept, and what they are.
#[derive(Debug, Clone, Copy)]
pub struct SealedPlace<'a> {
    /// The identity of the store.
    pub identity: &'a Identity,
    /// Numbers that name the place; the first is the kind of tier's.
    pub place: [u64; 4],
    /// Bytes of one rank's shard.
    pub shard_bytes: usize,
    /// Checksums of the shards before they were sealed.
    pub sums: &'a [u64],
}

impl Seal {
    /// Hides checksums, or shows those that were hidden.
    #[must_use]
    pub fn mask(&self, sums: &[u64]) -> Box<[u64]> {
        let mut hasher = blake3::Hasher::new_keyed(&self.key.sums);
        hasher.update(&self.name);
        let mut reader = hasher.finalize_xof();
        let mask = |&sum: &u64| {
            let mut word = [0; 8];
            reader.fill(&mut word);
            sum ^ u64::from_le_bytes(word)
        };
        sums.iter().map(mask).collect()
    }

    /// What the entry tells of its owner, to those who have the key for all.
    #[must_use]
    pub fn owner(&self) -> [u8; OWNER_BYTES] {
        let mut owner = [0; OWNER_BYTES];
        let (tenant, check) = owner.split_at_mut(KEY_BYTES);
        let hidden = blake3::keyed_hash(&self.key.owners, &self.name);
        for ((byte, hidden), name) in tenant.iter_mut().zip(hidden.as_bytes()).zip(self.key.name) {
            *byte = hidden ^ name;
        }
        let sealed_with = blake3::keyed_hash(&self.key.check, &self.name);
        check.copy_from_slice(&sealed_with.as_bytes()[..CHECK_BYTES]);
        owner
    }

    /// Begins a lot: tiles of one rank's shard that are sealed together, each one once.
    ///
    /// # Errors
    /// If the system has no random number.
    pub fn lot(&self) -> Result<SealLot<'_>, Cause> {
        let mut lot = [0; LOT_BYTES];
        SystemRandom::new()
            .fill(&mut lot)
            .map_err(|_| Cause::from("expected a random number, found none"))?;
        Ok(SealLot {
            seal: self,
            key: self.key_of(&lot),
            lot,
        })
    }

    /// Opens tiles of a rank's shard, in place: afterwards each has its own bytes before those of its seal. `first`
    /// is the number of the first tile. False if one of them is not what was sealed here with this key.
    #[must_use]
    pub fn open(&self, at: &SealedPlace<'_>, rank: usize, first: usize, bytes: &mut [u8]) -> bool {
        let mut last: Option<([u8; LOT_BYTES], LessSafeKey)> = None;
        let tiles = bytes.chunks_mut(TILE_BYTES + SEAL_BYTES);
        tiles.enumerate().all(|(tile, bytes)| {
            let Some((sealed, &mut lot)) = bytes.split_last_chunk_mut() else {
                return false;
            };
            let Some(length) = sealed.len().checked_sub(TAG_BYTES) else {
                return false;
            };
            let key = match &last {
                Some((of, key)) if *of == lot => key,
                _ => &last.insert((lot, self.key_of(&lot))).1,
            };
            let (nonce, bound) = self.bound(at, rank, first + tile, length);
            key.open_in_place(nonce, bound, sealed).is_ok()
        })
    }

    fn key_of(&self, lot: &[u8; LOT_BYTES]) -> LessSafeKey {
        let key = derive(&self.key.derived, &[b"lot", lot]);
        let key = UnboundKey::new(&AES_256_GCM, &key);
        LessSafeKey::new(key.expect("an AES-256 key has 32 bytes"))
    }

    /// The nonce of a tile, which no other tile of its lot has, and what the tile is bound to.
    fn bound(
        &self,
        at: &SealedPlace<'_>,
        rank: usize,
        tile: usize,
        length: usize,
    ) -> (Nonce, Aad<[u8; BOUND_BYTES]>) {
        let mut nonce = [0; NONCE_LEN];
        nonce[..4].copy_from_slice(&(rank as u32).to_le_bytes());
        nonce[4..].copy_from_slice(&(tile as u64).to_le_bytes());
        let mut bound = [0; BOUND_BYTES];
        bound[..4].copy_from_slice(&SEALED_FORMAT_VERSION.to_le_bytes());
        bound[4..36].copy_from_slice(at.identity);
        bound[36..68].copy_from_slice(&self.name);
        let sum = at.sums.get(rank).copied().unwrap_or_default();
        let [a, b, c, d] = at.place;
        let ranks = at.sums.len() as u64;
        let words = [a, b, c, d, at.shard_bytes as u64, ranks, sum, length as u64];
        for (place, word) in bound[68..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        (Nonce::assume_unique_for_key(nonce), Aad::from(bound))
    }
}

/// Tiles that are sealed together.
pub struct SealLot<'a> {
    seal: &'a Seal,
    key: LessSafeKey,
    lot: [u8; LOT_BYTES],
}

impl SealLot<'_> {
    /// Seals tiles of a rank's shard, in place: each has room for its seal behind its own bytes. `first` is the number
    /// of the first tile. No tile may be sealed twice in a lot.
    ///
    /// # Errors
    /// If the bytes are no whole tiles with room.
    pub fn seal(
        &self,
        at: &SealedPlace<'_>,
        rank: usize,
        first: usize,
        bytes: &mut [u8],
    ) -> Result<(), Cause> {
        for (tile, bytes) in bytes.chunks_mut(TILE_BYTES + SEAL_BYTES).enumerate() {
            let length = bytes.len().checked_sub(SEAL_BYTES);
            let length = length.ok_or("expected room for a seal, found none")?;
            let (bytes, room) = bytes.split_at_mut(length);
            let (nonce, bound) = self.seal.bound(at, rank, first + tile, length);
            let tag = self
                .key
                .seal_in_place_separate_tag(nonce, bound, bytes)
                .map_err(|_| "expected a tile that can be encrypted, found one that is too long")?;
            room[..TAG_BYTES].copy_from_slice(tag.as_ref());
            room[TAG_BYTES..].copy_from_slice(&self.lot);
        }
        Ok(())
    }
}

impl fmt::Debug for SealLot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealLot")
    }
}

#[cfg(test)]
mod tests {
    use hybrid_pages::ids::PrefixKey;

    use super::*;

    const MAIN: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    const OTHER: &str = "10112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    const SHARD: usize = TILE_BYTES + 100;

    fn seals(key: &str) -> Seals {
        Seals::new(Some(EncryptKeys::parse(key).unwrap()))
    }

    fn key(namespace: &[u8], block_index: usize) -> EntryKey {
        EntryKey {
            namespace: namespace.into(),
            prefix: PrefixKey::new(&[3; 32]).unwrap(),
            block_index,
            class_index: 0,
        }
    }

    fn seal(seals: &Seals, namespace: &[u8], block: usize) -> Seal {
        seals.entry(&key(namespace, block)).1.unwrap()
    }

    fn place(identity: &Identity) -> SealedPlace<'_> {
        SealedPlace {
            identity,
            place: [1, 2, 3, 4],
            shard_bytes: SHARD,
            sums: &[7, 8],
        }
    }

    /// Two tiles with room for their seals, and the bytes in them.
    fn tiles() -> (Vec<u8>, Vec<u8>) {
        let bytes: Vec<u8> = (0..sealed_bytes(SHARD, SEAL_BYTES))
            .map(|at| (at * 7 / 3) as u8)
            .collect();
        let inside = [
            &bytes[..TILE_BYTES],
            &bytes[TILE_BYTES + SEAL_BYTES..][..100],
        ]
        .concat();
        (bytes, inside)
    }

    fn plain(bytes: &[u8]) -> Vec<u8> {
        let tiles = bytes.chunks(TILE_BYTES + SEAL_BYTES);
        tiles
            .flat_map(|tile| &tile[..tile.len() - SEAL_BYTES])
            .copied()
            .collect()
    }

    #[test]
    fn tiles_open_where_they_were_sealed_and_nowhere_else() {
        let (all, other) = (seals(MAIN), seals(OTHER));
        let one = seal(&all, b"", 0);
        let at = place(&[9; 32]);
        let (mut sealed, inside) = tiles();
        one.lot().unwrap().seal(&at, 1, 0, &mut sealed).unwrap();
        assert_ne!(plain(&sealed), inside);
        let opens = |seal: &Seal, at: &SealedPlace<'_>, rank, first, sealed: &[u8]| {
            let mut sealed = sealed.to_vec();
            let open = seal.open(at, rank, first, &mut sealed);
            assert!(!open || plain(&sealed) == inside);
            open
        };
        assert!(opens(&one, &at, 1, 0, &sealed));
        let tenant = [&b"tenant"[..], &4u64.to_le_bytes(), b"salt"].concat();
        for (what, wrong) in [
            ("key", &seal(&other, b"", 0)),
            ("tenant", &seal(&all, &tenant, 0)),
            ("namespace", &seal(&all, b"lora", 0)),
            ("entry", &seal(&all, b"", 1)),
        ] {
            assert!(!opens(wrong, &at, 1, 0, &sealed), "another {what}");
        }
        assert!(!opens(&one, &at, 0, 0, &sealed), "another rank");
        assert!(!opens(&one, &at, 1, 1, &sealed), "another tile");
        let elsewhere = [
            SealedPlace {
                identity: &[8; 32],
                ..at
            },
            SealedPlace {
                place: [1, 2, 3, 5],
                ..at
            },
            SealedPlace {
                shard_bytes: SHARD + 1,
                ..at
            },
            SealedPlace {
                sums: &[7, 9],
                ..at
            },
            SealedPlace {
                sums: &[7, 8, 9],
                ..at
            },
        ];
        for other in elsewhere {
            assert!(!opens(&one, &other, 1, 0, &sealed), "{other:?}");
        }
        let mut swapped = sealed.clone();
        swapped.rotate_left(TILE_BYTES + SEAL_BYTES);
        assert!(!opens(&one, &at, 1, 0, &swapped));
        for length in [0, 1, SEAL_BYTES, sealed.len() - 1] {
            assert!(length == 0 || !opens_short(&one, &at, &sealed[..length]));
        }
        for at_byte in (0..sealed.len()).step_by(97).chain([sealed.len() - 1]) {
            let mut flipped = sealed.clone();
            flipped[at_byte] ^= 1;
            assert!(!opens(&one, &at, 1, 0, &flipped), "byte {at_byte}");
        }
    }

    fn opens_short(seal: &Seal, at: &SealedPlace<'_>, sealed: &[u8]) -> bool {
        seal.open(at, 1, 0, &mut sealed.to_vec())
    }

    #[test]
    fn equal_bytes_are_sealed_to_other_ones_each_time() {
        let one = seal(&seals(MAIN), b"", 0);
        let at = place(&[9; 32]);
        let sealed = || {
            let (mut bytes, _) = tiles();
            one.lot().unwrap().seal(&at, 0, 0, &mut bytes).unwrap();
            bytes
        };
        let (first, second) = (sealed(), sealed());
        let equal = std::iter::zip(&first, &second).filter(|(a, b)| a == b);
        assert!(equal.count() < first.len() / 100);
    }

    #[test]
    fn names_groups_and_sums_are_hidden_by_the_key() {
        let (all, none) = (seals(MAIN), Seals::default());
        let entry = key(b"lora", 2);
        assert_eq!(none.entry(&entry).0, name_of(&entry));
        assert!(none.entry(&entry).1.is_none());
        assert_eq!(none.tail_group(b"lora", 5), tail_group(b"lora", 5));
        assert_eq!((none.tile_bytes(), none.format(1, 9)), (0, 1));
        assert_eq!(none.identity(&[1; 32], "s3://a"), [1; 32]);
        let names = [
            none.name_of(&entry),
            all.name_of(&entry),
            seals(OTHER).name_of(&entry),
        ];
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2]);
        assert_eq!(
            all.name_of(&entry),
            seals(MAIN).name_of(&entry),
            "after a restart"
        );
        assert_ne!(all.tail_group(b"lora", 5), tail_group(b"lora", 5));
        assert_ne!(
            all.identity(&[1; 32], ""),
            seals(OTHER).identity(&[1; 32], "")
        );
        let seal = seal(&all, b"lora", 2);
        let hidden = seal.mask(&[1, 2, 3]);
        assert!(
            hidden
                .iter()
                .zip([1, 2, 3])
                .all(|(&hidden, sum)| hidden != sum)
        );
        assert_eq!(&seal.mask(&hidden)[..], [1, 2, 3]);
    }

    #[test]
    fn the_key_for_all_finds_the_owner_of_an_entry_and_nobody_else_does() {
        let tenant = [&b"tenant"[..], &4u64.to_le_bytes(), b"salt"].concat();
        let all = seals(&format!("{MAIN}\ntenants {OTHER}"));
        for (namespace, block) in [(&tenant[..], 0), (&tenant, 1), (b"", 0)] {
            let one = seal(&all, namespace, block);
            let (name, owner) = (one.name, one.owner());
            let found = all.seal_of(&name, &owner).unwrap();
            assert_eq!((found.name, found.key.sums), (name, one.key.sums));
            assert!(all.seal_of(&[1; 32], &owner).is_none(), "another name");
            for others in [MAIN, OTHER] {
                assert!(seals(others).seal_of(&name, &owner).is_none(), "{others}");
            }
            for at in [0, 31, 32, 39] {
                let mut flipped = owner;
                flipped[at] ^= 1;
                assert!(all.seal_of(&name, &flipped).is_none(), "byte {at}");
            }
        }
        let (one, two) = (seal(&all, &tenant, 0), seal(&all, &tenant, 1));
        let equal = std::iter::zip(one.owner(), two.owner()).filter(|(a, b)| a == b);
        assert!(equal.count() < 8, "one tenant does not show");
    }

    #[test]
    fn namespaces_are_remembered_up_to_a_limit() {
        let all = seals(MAIN);
        for tenant in 0..MOST_NAMESPACES as u64 + 10 {
            let _ = all.name_of(&key(&tenant.to_le_bytes(), 0));
        }
        let known = lock(&all.0.as_ref().unwrap().known).len();
        assert!((1..=MOST_NAMESPACES).contains(&known));
    }
}
