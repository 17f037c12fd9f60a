//! Maps of many entries by name, for tiers whose calls must not get slower with more entries.
//!
//! A hash table that grows moves all its entries, and one that is dropped frees them all. So a map consists of many
//! small tables.

use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::Name;

/// Number of tables in a map. Names are digests, so they spread evenly.
pub const PARTS: usize = 1024;

fn part_of(name: &Name) -> usize {
    usize::from(u16::from_le_bytes([name[0], name[1]])) % PARTS
}

/// A map of 1,024 tables. No call moves, frees or searches more than one of them.
#[derive(Debug)]
pub struct ByName<V> {
    parts: Box<[HashMap<Name, V>]>,
    len: usize,
}

impl<V> Default for ByName<V> {
    fn default() -> Self {
        Self {
            parts: (0..PARTS).map(|_| HashMap::new()).collect(),
            len: 0,
        }
    }
}

impl<V> ByName<V> {
    /// Number of names.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no names.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of a name.
    #[must_use]
    pub fn get(&self, name: &Name) -> Option<&V> {
        self.parts[part_of(name)].get(name)
    }

    /// Whether a name has a value.
    #[must_use]
    pub fn contains(&self, name: &Name) -> bool {
        self.get(name).is_some()
    }

    /// Sets the value of a name. Returns the value before.
    pub fn insert(&mut self, name: Name, value: V) -> Option<V> {
        let before = self.parts[part_of(&name)].insert(name, value);
        self.len += usize::from(before.is_none());
        before
    }

    /// Removes a name. Returns its value.
    pub fn remove(&mut self, name: &Name) -> Option<V> {
        let found = self.parts[part_of(name)].remove(name);
        self.len -= usize::from(found.is_some());
        found
    }

    /// The value of a name, to be changed.
    pub fn get_mut(&mut self, name: &Name) -> Option<&mut V> {
        self.parts[part_of(name)].get_mut(name)
    }

    /// All names, in any order.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.parts.iter().flat_map(HashMap::keys)
    }

    /// All names with their values, in any order.
    pub fn all(&self) -> impl Iterator<Item = (&Name, &V)> {
        self.parts.iter().flatten()
    }

    /// The names of one of the [tables](PARTS) with their values.
    pub fn part(&self, part: usize) -> impl Iterator<Item = (&Name, &V)> {
        self.parts[part].iter()
    }
}

/// A map that remembers the names that were inserted last: at least half as many as its limit.
#[derive(Debug)]
pub struct Recent<V> {
    parts: Box<[RecentPart<V>]>,
    /// Names in the younger table of a part.
    most: usize,
    /// The age at which values are forgotten. They may become twice as old.
    age: Option<Duration>,
    len: usize,
}

/// Two tables. When the younger is full, or its first value has reached the age limit, it becomes the older one, and
/// the older one is forgotten.
#[derive(Debug)]
struct RecentPart<V> {
    young: HashMap<Name, V>,
    old: HashMap<Name, V>,
    since: Option<Instant>,
}

impl<V> Recent<V> {
    /// An empty map. It has at most about `most` names, and forgets names older than twice `age` when others are
    /// inserted.
    #[must_use]
    pub fn new(most: usize, age: Option<Duration>) -> Self {
        let part = |_| RecentPart {
            young: HashMap::new(),
            old: HashMap::new(),
            since: None,
        };
        Self {
            parts: (0..PARTS).map(part).collect(),
            most: (most / (2 * PARTS)).max(1),
            age,
            len: 0,
        }
    }

    /// Number of names.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no names.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of a name.
    #[must_use]
    pub fn get(&self, name: &Name) -> Option<&V> {
        let part = &self.parts[part_of(name)];
        part.young.get(name).or_else(|| part.old.get(name))
    }

    /// Sets the value of a name. Returns how many other names were forgotten.
    pub fn insert(&mut self, name: Name, value: V, now: Instant) -> usize {
        self.remove(&name);
        let part = &mut self.parts[part_of(&name)];
        let since = *part.since.get_or_insert(now);
        let is_old = |age: Duration| now.saturating_duration_since(since) >= age;
        let mut forgotten = 0;
        if part.young.len() >= self.most || self.age.is_some_and(is_old) {
            std::mem::swap(&mut part.young, &mut part.old);
            forgotten = part.young.len();
            part.young.clear();
            part.since = Some(now);
        }
        part.young.insert(name, value);
        self.len = self.len + 1 - forgotten;
        forgotten
    }

    /// Removes a name. Returns its value.
    pub fn remove(&mut self, name: &Name) -> Option<V> {
        let part = &mut self.parts[part_of(name)];
        let found = part.young.remove(name).or_else(|| part.old.remove(name));
        self.len -= usize::from(found.is_some());
        found
    }

    /// Removes the names of one part and returns them. Empty if the map is.
    pub fn take_some(&mut self) -> Vec<Name> {
        let filled = |part: &&mut RecentPart<V>| !part.young.is_empty() || !part.old.is_empty();
        let Some(part) = self.parts.iter_mut().find(filled) else {
            return Vec::new();
        };
        let RecentPart { young, old, .. } = part;
        let taken = young.drain().chain(old.drain()).map(|(name, _)| name);
        let taken: Vec<Name> = taken.collect();
        self.len -= taken.len();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u64) -> Name {
        *blake3::hash(&number.to_le_bytes()).as_bytes()
    }

    #[test]
    fn the_last_half_is_known_and_never_more_than_the_most() {
        const MOST: usize = 1 << 14;
        let mut recent = Recent::new(MOST, None);
        let now = Instant::now();
        let mut forgotten = 0;
        for number in 0..10 * MOST as u64 {
            let gone = recent.insert(name(number), number, now);
            assert!(gone <= MOST / PARTS, "few are forgotten at a time: {gone}");
            forgotten += gone;
            assert!(recent.len() <= MOST);
        }
        assert_eq!(recent.len() + forgotten, 10 * MOST);
        // Parts fill unevenly: some of the last half may be forgotten, the last quarter is not.
        let last = 10 * MOST as u64 - MOST as u64 / 4..10 * MOST as u64;
        let known = |number: &u64| recent.get(&name(*number)) == Some(number);
        assert!(last.clone().filter(known).count() as u64 > (last.end - last.start) * 99 / 100);
        assert_eq!(recent.get(&name(0)), None);
    }

    #[test]
    fn what_is_noted_again_counts_once_and_takes_no_room() {
        let mut recent = Recent::new(1 << 12, None);
        let now = Instant::now();
        for round in 0..100_000 {
            recent.insert(name(1), round, now);
            recent.insert(name(round), round, now);
            recent.remove(&name(round));
        }
        assert!(recent.len() <= 1);
    }

    #[test]
    fn what_is_too_old_goes_when_others_come() {
        let age = Duration::from_secs(4);
        let mut recent = Recent::new(1 << 20, Some(age));
        let begun = Instant::now();
        // A month of questions, some every second.
        for second in 0..2_592_000_u64 / 64 {
            for number in 0..4 {
                let now = begun + Duration::from_secs(64 * second);
                recent.insert(name(4 * second + number), (), now);
            }
        }
        assert!(recent.len() <= 2 * 4 * PARTS, "{}", recent.len());
    }

    #[test]
    fn all_can_be_taken_out_a_few_at_a_time() {
        let mut recent = Recent::new(1 << 16, None);
        let now = Instant::now();
        for number in 0..10_000 {
            recent.insert(name(number), (), now);
        }
        let mut taken = Vec::new();
        loop {
            let some = recent.take_some();
            assert!(some.len() < 64);
            if some.is_empty() {
                break;
            }
            taken.extend(some);
        }
        assert!(recent.is_empty());
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 10_000);
    }

    #[test]
    fn a_map_of_parts_is_a_map() {
        let mut map = ByName::default();
        for number in 0..5_000 {
            assert_eq!(map.insert(name(number), number), None);
        }
        assert_eq!(map.insert(name(7), 8), Some(7));
        assert_eq!((map.len(), map.names().count()), (5_000, 5_000));
        let parts = (0..PARTS).map(|part| map.part(part).count());
        assert_eq!((map.all().count(), parts.sum()), (5_000, 5_000));
        *map.get_mut(&name(9)).unwrap() = 10;
        assert_eq!(map.get(&name(9)), Some(&10));
        for number in 0..5_000 {
            assert!(map.contains(&name(number)));
            assert!(map.remove(&name(number)).is_some());
            assert_eq!(map.remove(&name(number)), None);
        }
        assert!(map.is_empty() && map.get(&name(1)).is_none());
    }
}
