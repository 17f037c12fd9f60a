//! Chats whose every turn goes on from the end of the answer before: how many tokens are computed with tails and
//! without, in how much room.

use std::collections::BTreeMap;

use hybrid_pages::cache::{Arrival, Cache, CacheConfig};
use hybrid_pages::ids::{ClassKind, NamespaceId, PrefixKey};
use hybrid_pages::policy::Hints;

use crate::cache_support::{class, commit, config};

/// Tokens of a block.
const BLOCK: u64 = 784;

/// A small generator of numbers that are the same everywhere.
struct Dice(u64);

impl Dice {
    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }

    /// A length around `middle`, most often near it and sometimes eight times as large.
    fn length(&mut self, middle: u64) -> u64 {
        let octaves = self.below(7) as i32 - 3;
        let scale = 2_f64.powi(octaves) * (1.0 + self.below(100) as f64 / 100.0) / 1.5;
        ((middle as f64 * scale) as u64).max(4)
    }
}

/// One turn: when it comes, whose it is, and its tokens before and behind its answer.
#[derive(Debug, Clone, Copy)]
struct Turn {
    at: u64,
    chat: u64,
    before: u64,
    prompt: u64,
    end: u64,
}

fn turns(chats: u64) -> Vec<Turn> {
    let mut dice = Dice(7);
    let mut turns = Vec::new();
    for chat in 0..chats {
        let mut at = dice.below(chats * 4_000);
        let mut before = 0;
        let mut tokens = 200;
        for _ in 0..1 + dice.below(8) {
            let prompt = tokens + dice.length(40);
            let end = prompt + dice.length(220);
            turns.push(Turn {
                at,
                chat,
                before,
                prompt,
                end,
            });
            (before, tokens) = (end, end);
            at += 5_000 + dice.length(20_000);
        }
    }
    turns.sort_by_key(|turn| turn.at);
    turns
}

fn key(chat: u64, block: u64) -> PrefixKey {
    let name = [chat, block].map(u64::to_le_bytes).concat();
    PrefixKey::new(blake3::hash(&name).as_bytes()).unwrap()
}

/// The keys of the whole blocks of the first tokens of a chat.
fn blocks(chat: u64, tokens: u64) -> Vec<PrefixKey> {
    (0..tokens / BLOCK).map(|block| key(chat, block)).collect()
}

/// The keys of the first tokens of a chat, with a tail if they end inside a block.
fn keys(chat: u64, tokens: u64) -> Vec<PrefixKey> {
    let mut keys = blocks(chat, tokens);
    if !tokens.is_multiple_of(BLOCK) {
        let hash = blake3::hash(&[chat, tokens, 1].map(u64::to_le_bytes).concat());
        let tail = PrefixKey::tail(keys.last(), hash.as_bytes(), (tokens % BLOCK) as u32);
        keys.push(tail.unwrap());
    }
    keys
}

struct Server {
    cache: Cache,
    namespace: NamespaceId,
    tails: bool,
    computed: u64,
}

impl Server {
    fn new(policy: &str, slots: usize, tails: bool) -> Self {
        let classes = [
            class(ClassKind::Attention, 0, 1),
            class(ClassKind::Recurrent, 0, 3),
        ];
        let config = CacheConfig {
            policy: policy.into(),
            ..config(&classes, slots)
        };
        let cache = Cache::new(&config).unwrap();
        Self {
            namespace: cache.namespace(b"engine").unwrap(),
            cache,
            tails,
            computed: 0,
        }
    }

    fn depth(&self, keys: &[PrefixKey]) -> usize {
        self.cache.lookup(self.namespace, keys).unwrap().blocks
    }

    fn serve(&mut self, turn: Turn) {
        let (cache, namespace) = (&self.cache, self.namespace);
        let prompt = blocks(turn.chat, turn.prompt);
        let arrival = Arrival {
            now: turn.at,
            tokens: turn.prompt,
            limit: ((turn.prompt - 1) / BLOCK) as usize,
            hints: Hints::NONE,
        };
        let admission = cache.admit(namespace, &prompt, arrival).unwrap();
        let limit = &prompt[..arrival.limit];
        let mut resumed = self.depth(limit) as u64 * BLOCK;
        let before = keys(turn.chat, turn.before);
        let is_tail = self.tails && before.last().is_some_and(PrefixKey::is_tail);
        let mut loads = limit;
        if is_tail && self.depth(&before) == before.len() {
            (resumed, loads) = (turn.before, &before);
            cache.continue_tail(namespace, &before).unwrap();
        }
        self.computed += turn.prompt - resumed;
        drop(cache.acquire(namespace, loads, 0).unwrap());
        let whole = (turn.end / BLOCK) as usize;
        let mut chain = blocks(turn.chat, turn.end);
        let mut entries: Vec<(usize, usize)> = (0..whole).map(|block| (0, block)).collect();
        let wanted = admission.boundaries.iter().chain(&admission.fork);
        let new = wanted.filter(|&&boundary| boundary as u64 * BLOCK > resumed);
        entries.extend(new.map(|&boundary| (1, boundary - 1)));
        if self.tails {
            chain = keys(turn.chat, turn.end);
            entries.extend([(0, chain.len() - 1), (1, chain.len() - 1)]);
        }
        commit(&mut cache.reserve(namespace, &chain, &entries).unwrap());
        if !prompt.is_empty() {
            let all = blocks(turn.chat, turn.end);
            let output = turn.end - turn.prompt;
            cache.finish(namespace, &all, prompt.len(), output).unwrap();
        }
        if is_tail {
            cache.supersede(namespace, &before).unwrap();
        }
    }
}

/// Tokens that are computed, as a multiple of those that nobody had computed before.
fn computed(turns: &[Turn], policy: &str, slots: usize, tails: bool) -> f64 {
    let mut server = Server::new(policy, slots, tails);
    turns.iter().for_each(|&turn| server.serve(turn));
    assert_eq!(server.cache.audit(), None);
    let new: u64 = turns.iter().map(|turn| turn.prompt - turn.before).sum();
    server.computed as f64 / new as f64
}

#[test]
fn tails_save_more_than_they_cost_in_any_room() {
    let turns = turns(600);
    let mut chats = BTreeMap::new();
    for turn in &turns {
        chats.insert(turn.chat, turn.end);
    }
    let footprint: u64 = chats.values().map(|end| end.div_ceil(BLOCK) + 3).sum();
    for (policy, shares) in [("lru", &[100, 20, 5][..]), ("reuse", &[100, 20, 5, 2, 1])] {
        for &share in shares {
            let slots = (footprint * share / 100) as usize;
            let [without, with] = [false, true].map(|tails| computed(&turns, policy, slots, tails));
            println!("{policy} {share} %: {without:.2} without tails, {with:.2} with them");
            assert!(
                with < without,
                "{policy}, {share} %: {with} with tails, {without} without"
            );
            assert!(
                share < 100 || with < 1.01,
                "{policy}: {with} with room for all"
            );
        }
    }
}
