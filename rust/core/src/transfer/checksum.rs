//! XXH3-64 of a stream whose pieces become ready in any order.

use std::sync::Mutex;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::lock;

/// XXH3-64: what this crate checks bytes by.
#[must_use]
pub fn checksum(data: &[u8]) -> u64 {
    xxh3_64(data)
}

/// Hashes steps in order while several threads make them ready in any order, each step soon
/// after it was written, when it is still in a cache. One thread at a time holds the hasher and
/// takes every step that is due; the others go on copying.
pub(super) struct InOrder {
    state: Mutex<State>,
}

struct State {
    /// Absent while a thread hashes.
    hasher: Option<Box<Xxh3>>,
    ready: Vec<bool>,
    next: usize,
}

impl InOrder {
    pub(super) fn new(steps: usize) -> Self {
        let hasher = Some(Box::new(Xxh3::new()));
        Self {
            state: Mutex::new(State {
                hasher,
                ready: vec![false; steps],
                next: 0,
            }),
        }
    }

    /// Marks a step ready and hashes all that are due, unless another thread is at it.
    pub(super) fn ready(&self, step: usize, hash: impl Fn(usize, &mut Xxh3)) {
        let mut state = lock(&self.state);
        state.ready[step] = true;
        // Whoever has the hasher looks at `ready` again before giving it back.
        let Some(mut hasher) = state.hasher.take() else {
            return;
        };
        while state.ready.get(state.next) == Some(&true) {
            let due = state.next;
            drop(state);
            hash(due, &mut hasher);
            state = lock(&self.state);
            state.next = due + 1;
        }
        state.hasher = Some(hasher);
    }

    /// The checksum, once every step has been hashed.
    pub(super) fn value(&self) -> Option<u64> {
        let state = lock(&self.state);
        let whole = state.next == state.ready.len();
        state
            .hasher
            .as_ref()
            .filter(|_| whole)
            .map(|hasher| hasher.digest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_ready_in_any_order_hash_like_the_whole() {
        let data: Vec<u8> = (0..1000_u32).flat_map(u32::to_le_bytes).collect();
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
            let hash = InOrder::new(4);
            for step in order {
                assert_eq!(hash.value(), None);
                hash.ready(step, |step, hasher| {
                    hasher.update(&data[step * 1000..][..1000])
                });
            }
            assert_eq!(hash.value(), Some(checksum(&data)));
        }
    }
}
