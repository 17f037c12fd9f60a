//! The tier's queues of work for the helper, and its knowledge about entries in the store.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use hybrid_pages::ids::SlotId;
use hybrid_pages::tier::CopyId;
use hybrid_pages_tiers::{ByName, CircuitBreaker, Identity, Name, Recent, Speed};

use crate::staging::{MOST_GET_BATCHES, MOST_GETS, MOST_PUTS, MOST_QUESTIONS};

/// How long an answer of the store is valid. Mooncake keeps an entry longer after a question: 10 seconds by default.
const FRESH: Duration = Duration::from_secs(4);
/// Most answers, suspects and names of written entries that are remembered, of each.
pub(crate) const MOST_NAMES: usize = 1 << 20;
/// Most questions that wait. Further entries count as absent.
pub(crate) const MOST_WAITING: usize = 1 << 16;
/// Most items that are handled under one hold of the lock, since the cache may wait for it.
pub(crate) const PORTION: usize = 128;
/// Most bytes of a batch of several writes.
const BATCH_BYTES: usize = 64 << 20;

/// The store's answer about one entry.
#[derive(Debug)]
struct StoreAnswer {
    sums: Option<Vec<u64>>,
    at: Instant,
}

/// The answer to a lookup that does not wait for the store.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum KnownEntry {
    Here(Vec<u64>),
    Absent,
    /// The store is being asked about the entry.
    Asking,
    /// The store has not been asked about the entry.
    Unknown,
}

/// A question about an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question {
    pub(crate) name: Name,
    pub(crate) class: usize,
    pub(crate) begun: Instant,
}

/// A read.
#[derive(Debug, Clone)]
pub(crate) struct Get {
    /// `None` once the end of the copy was reported, so that the bytes are not wanted any more.
    pub(crate) copy: Option<CopyId>,
    pub(crate) name: Name,
    pub(crate) class: usize,
    pub(crate) slots: Vec<SlotId>,
    pub(crate) begun: Instant,
    /// The cell of the staging memory that the value arrives in, once the helper has the read.
    pub(crate) cell: usize,
}

/// A write.
#[derive(Debug, Clone)]
pub(crate) struct Put {
    /// `None` for a mark.
    pub(crate) copy: Option<CopyId>,
    pub(crate) name: Name,
    pub(crate) class: usize,
    pub(crate) slots: Vec<SlotId>,
    pub(crate) sums: Vec<u64>,
    pub(crate) begun: Instant,
    /// Whether the entry has left the cache, so that its value has to be removed again.
    pub(crate) undone: bool,
}

/// The content of a batch for the helper.
#[derive(Debug, Clone)]
pub(crate) enum HelperWork {
    Ask(Vec<Question>),
    Get(Vec<Get>),
    Put(Vec<Put>),
    Remove(Vec<Name>),
}

impl HelperWork {
    pub(crate) const fn kind(&self) -> BatchKind {
        match self {
            Self::Ask(_) => BatchKind::Ask,
            Self::Get(_) => BatchKind::Get,
            Self::Put(_) => BatchKind::Put,
            Self::Remove(_) => BatchKind::Remove,
        }
    }

    /// The copies of the batch whose ends were not reported.
    pub(crate) fn copies(&self) -> Vec<CopyId> {
        match self {
            Self::Get(gets) => gets.iter().filter_map(|get| get.copy).collect(),
            Self::Put(puts) => puts.iter().filter_map(|put| put.copy).collect(),
            Self::Ask(_) | Self::Remove(_) => Vec::new(),
        }
    }
}

/// The kind of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BatchKind {
    Ask,
    Get,
    Put,
    Remove,
}

#[derive(Debug)]
pub(crate) struct HelperBatch {
    pub(crate) work: HelperWork,
    pub(crate) given: Instant,
}

#[derive(Debug)]
pub(crate) struct MooncakeState {
    pub(crate) identity: Option<Identity>,
    /// Whether there was a reset. After it the identity does not describe the engine's results, so nothing is found
    /// or taken.
    pub(crate) cleared: bool,
    pub(crate) closed: bool,
    /// Whether the helper takes work.
    pub(crate) ready: bool,
    /// Whether the helper's socket has closed.
    pub(crate) lost: bool,
    pub(crate) breaker: CircuitBreaker,
    /// No writes before this time, since the store had no room.
    pub(crate) writes_from: Option<Instant>,
    /// Questions that wait, in the order in which they were asked.
    questions: VecDeque<Question>,
    /// Reads that wait, in the order in which they began.
    pub(crate) gets: VecDeque<Get>,
    /// Writes that wait, by number, in the order in which they came. A name has at most one.
    puts: BTreeMap<u64, Put>,
    waiting: ByName<u64>,
    /// Entries that will be removed from the store. Lookups don't find them.
    pub(crate) removes: ByName<()>,
    /// Entries that will be removed because of a reset, after which lookups find nothing.
    doomed: Recent<()>,
    /// No removals before this time, since one has failed.
    pub(crate) removes_from: Option<Instant>,
    /// Batches that the helper has and has not answered, by number.
    pub(crate) running: HashMap<u64, HelperBatch>,
    /// The kind of the batch whose answer is being read: its headers are still in the staging memory.
    pub(crate) reading: Option<BatchKind>,
    pub(crate) free_cells: Vec<usize>,
    cells: usize,
    /// Entries that this process has put into the store, as far as it remembers.
    written: Recent<()>,
    /// Number of entries that this process has put into the store and forgotten.
    pub(crate) forgotten: u64,
    pub(crate) speed: Speed,
    /// When the last batch of reads arrived.
    brought: Option<Instant>,
    answers: Recent<StoreAnswer>,
    /// Entries that the store is being asked about.
    asking: ByName<()>,
    /// Entries whose read has failed, with the time until which lookups don't find them.
    suspects: Recent<Instant>,
    /// How long lookups don't find an entry after its read has failed.
    suspicion: Duration,
    next: u64,
}

impl MooncakeState {
    pub(crate) fn new(retry: Duration, cells: usize) -> Self {
        Self::remembering(MOST_NAMES, retry, cells)
    }

    fn remembering(most: usize, retry: Duration, cells: usize) -> Self {
        Self {
            identity: None,
            cleared: false,
            closed: false,
            ready: false,
            lost: false,
            breaker: CircuitBreaker::new(retry),
            writes_from: None,
            questions: VecDeque::new(),
            gets: VecDeque::new(),
            puts: BTreeMap::new(),
            waiting: ByName::default(),
            removes: ByName::default(),
            doomed: Recent::new(most, None),
            removes_from: None,
            running: HashMap::new(),
            reading: None,
            free_cells: (0..cells).collect(),
            cells,
            written: Recent::new(most, None),
            forgotten: 0,
            speed: Speed::default(),
            brought: None,
            answers: Recent::new(most, Some(FRESH)),
            asking: ByName::default(),
            suspects: Recent::new(most, Some(8 * retry)),
            suspicion: 8 * retry,
            next: 0,
        }
    }

    /// Whether entries may be found and read. False also while there is no room to remember more entries that must
    /// not be found.
    pub(crate) fn answers_now(&self) -> bool {
        let works = self.ready && !self.cleared && !self.closed && !self.breaker.is_pausing();
        works && self.removes.len() < MOST_NAMES
    }

    /// Whether entries may be written.
    pub(crate) fn takes_writes(&self) -> bool {
        let full = self.writes_from.is_some_and(|from| Instant::now() < from);
        self.answers_now() && !full
    }

    pub(crate) fn known(&mut self, name: &Name) -> KnownEntry {
        let now = Instant::now();
        if self.removes.contains(name) || self.suspects.get(name).is_some_and(|&at| now < at) {
            return KnownEntry::Absent;
        }
        if self.asking.contains(name) {
            return KnownEntry::Asking;
        }
        match self.answers.get(name) {
            Some(answer) if now - answer.at < FRESH => match &answer.sums {
                Some(sums) => KnownEntry::Here(sums.clone()),
                None => KnownEntry::Absent,
            },
            _ => KnownEntry::Unknown,
        }
    }

    /// How long the helper worked on a batch of reads that has arrived. The helper works on one batch after another.
    pub(crate) fn read_for(&mut self, given: Instant) -> Duration {
        let now = Instant::now();
        let last = self.brought.replace(now);
        now - last.map_or(given, |last| last.max(given))
    }

    /// Whether there is room for another question.
    pub(crate) fn may_ask(&self) -> bool {
        self.questions.len() < MOST_WAITING
    }

    pub(crate) fn ask(&mut self, name: Name, class: usize) {
        self.asking.insert(name, ());
        let begun = Instant::now();
        self.questions.push_back(Question { name, class, begun });
    }

    /// Notes the store's answer about an entry: its checksums, or that it is not there.
    pub(crate) fn answered(&mut self, name: Name, sums: Option<Vec<u64>>) {
        self.asking.remove(&name);
        let at = Instant::now();
        self.answers.insert(name, StoreAnswer { sums, at }, at);
    }

    /// Forgets the store's answer about an entry.
    pub(crate) fn unsay(&mut self, name: &Name) {
        self.answers.remove(name);
    }

    /// Notes that a read of an entry failed.
    pub(crate) fn suspect(&mut self, name: Name) {
        let now = Instant::now();
        self.suspects.insert(name, now + self.suspicion, now);
        self.answers.remove(&name);
    }

    /// Gives up questions that have waited longer than `limit`: a portion of the queue, and those that the helper
    /// has. Returns how many there were.
    pub(crate) fn give_up_questions(&mut self, limit: Duration) -> u64 {
        let now = Instant::now();
        let is_late = |question: &Question| now - question.begun > limit;
        let given = self.running.values().flat_map(|batch| match &batch.work {
            HelperWork::Ask(questions) => &questions[..],
            _ => &[],
        });
        let given =
            given.filter(|question| is_late(question) && self.asking.contains(&question.name));
        let mut late: Vec<Name> = given.map(|question| question.name).collect();
        for _ in 0..PORTION {
            let Some(question) = self.questions.pop_front_if(|question| is_late(question)) else {
                break;
            };
            late.push(question.name);
        }
        for &name in &late {
            self.answered(name, None);
        }
        late.len() as u64
    }

    /// Takes back reads that have waited longer than `limit`: a portion of the queue, and those that the helper has.
    pub(crate) fn give_up_gets(&mut self, limit: Duration) -> Vec<(CopyId, Name)> {
        let now = Instant::now();
        let is_late = |get: &Get| now - get.begun > limit;
        let mut late = Vec::new();
        for _ in 0..PORTION {
            let Some(get) = self.gets.pop_front_if(|get| is_late(get)) else {
                break;
            };
            late.extend(get.copy.map(|copy| (copy, get.name)));
        }
        for batch in self.running.values_mut() {
            if let HelperWork::Get(gets) = &mut batch.work {
                for get in gets.iter_mut().filter(|get| is_late(get)) {
                    late.extend(get.copy.take().map(|copy| (copy, get.name)));
                }
            }
        }
        late
    }

    /// Adds a write. No other write of its name may be waiting.
    pub(crate) fn put(&mut self, put: Put) {
        self.next += 1;
        self.waiting.insert(put.name, self.next);
        self.puts.insert(self.next, put);
    }

    /// Takes back the waiting write of a name.
    pub(crate) fn take_put(&mut self, name: &Name) -> Option<Put> {
        let number = self.waiting.remove(name)?;
        self.puts.remove(&number)
    }

    /// Takes the first waiting writes, at most `most` and as long as they `fit`.
    pub(crate) fn take_puts(&mut self, most: usize, mut fit: impl FnMut(&Put) -> bool) -> Vec<Put> {
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(first) = self.puts.first_entry()
            && fit(first.get())
        {
            let put = first.remove();
            self.waiting.remove(&put.name);
            taken.push(put);
        }
        taken
    }

    /// Takes a portion of the waiting questions.
    pub(crate) fn take_questions(&mut self) -> Vec<Question> {
        let count = self.questions.len().min(PORTION);
        self.questions.drain(..count).collect()
    }

    /// Number of writes that wait.
    pub(crate) fn puts_waiting(&self) -> usize {
        self.puts.len()
    }

    /// Notes that this process has put an entry into the store, or may have.
    pub(crate) fn wrote(&mut self, name: Name) {
        self.forgotten += self.written.insert(name, (), Instant::now()) as u64;
    }

    /// Whether a write of a name waits.
    pub(crate) fn is_waiting(&self, name: &Name) -> bool {
        self.waiting.contains(name)
    }

    /// Marks an entry for removal if this process has put it into the store. Returns whether it has, as far as it
    /// remembers.
    pub(crate) fn take_back(&mut self, name: Name) -> bool {
        let ours = self.written.remove(&name).is_some();
        if ours {
            self.removes.insert(name, ());
        }
        ours
    }

    /// Marks all entries that this process has put into the store for removal.
    pub(crate) fn take_all_back(&mut self) {
        self.doomed = std::mem::replace(&mut self.written, Recent::new(1, None));
    }

    /// Notes that an entry is gone from the store.
    pub(crate) fn removed(&mut self, name: &Name) {
        self.removes.remove(name);
        self.written.remove(name);
    }

    /// Number of entries that are still to be removed.
    pub(crate) fn to_go(&self) -> usize {
        self.removes.len() + self.doomed.len()
    }

    /// Whether no copy and no removal is under way.
    pub(crate) fn is_idle(&self) -> bool {
        let moves = |batch: &HelperBatch| !matches!(batch.work, HelperWork::Ask(_));
        self.gets.is_empty()
            && self.puts.is_empty()
            && self.to_go() == 0
            && self.reading.is_none()
            && !self.running.values().any(moves)
    }

    /// Whether there is work that the helper can take now.
    pub(crate) fn has_work(&self) -> bool {
        self.ready && !self.lost && self.next_kind().is_some()
    }

    fn next_kind(&self) -> Option<BatchKind> {
        let (mut asks, mut gets, mut puts) = (0, 0, 0);
        let given = self.running.values().map(|batch| batch.work.kind());
        // A read has a cell of its own until that is given back.
        let read = |kind: &BatchKind| !matches!(kind, BatchKind::Get);
        for kind in given.chain(self.reading.filter(read)) {
            match kind {
                BatchKind::Ask => asks += 1,
                BatchKind::Get => gets += 1,
                BatchKind::Put | BatchKind::Remove => puts += 1,
            }
        }
        let removes = self.removes_from.is_none_or(|from| Instant::now() >= from);
        if asks == 0 && !self.questions.is_empty() {
            Some(BatchKind::Ask)
        } else if gets < MOST_GET_BATCHES && !self.gets.is_empty() && !self.free_cells.is_empty() {
            Some(BatchKind::Get)
        } else if puts == 0 && removes && self.to_go() > 0 {
            Some(BatchKind::Remove)
        } else if puts == 0 && !self.puts.is_empty() && !self.cleared {
            Some(BatchKind::Put)
        } else {
            None
        }
    }

    /// The next batch for a helper that is ready, with its number.
    pub(crate) fn next_work(
        &mut self,
        value_bytes: impl Fn(usize) -> usize,
    ) -> Option<(u64, HelperWork)> {
        let work = match self.next_kind()? {
            BatchKind::Ask => {
                let count = self.questions.len().min(MOST_QUESTIONS);
                HelperWork::Ask(self.questions.drain(..count).collect())
            }
            BatchKind::Get => {
                // A batch leaves cells for the next one, which moves while this one is verified.
                let most = MOST_GETS.min(self.cells / 2).min(self.free_cells.len());
                let count = self.gets.len().min(most);
                let mut batch: Vec<Get> = self.gets.drain(..count).collect();
                for get in &mut batch {
                    get.cell = self.free_cells.pop()?;
                }
                HelperWork::Get(batch)
            }
            BatchKind::Remove => {
                while self.removes.len() < MOST_QUESTIONS && !self.doomed.is_empty() {
                    for name in self.doomed.take_some() {
                        self.removes.insert(name, ());
                    }
                }
                HelperWork::Remove(self.removes.names().copied().take(MOST_QUESTIONS).collect())
            }
            BatchKind::Put => {
                let mut bytes = 0;
                HelperWork::Put(self.take_puts(MOST_PUTS, |put| {
                    let first = bytes == 0;
                    bytes += value_bytes(put.class);
                    first || bytes <= BATCH_BYTES
                }))
            }
        };
        self.next += 1;
        Some((self.next, work))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn name(number: u64) -> Name {
        let mut name = [0; 32];
        let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        name[..8].copy_from_slice(&spread.to_be_bytes());
        name
    }

    fn ready() -> MooncakeState {
        let mut state = MooncakeState::new(Duration::from_secs(1), 8);
        state.ready = true;
        state
    }

    fn put(number: u64) -> Put {
        Put {
            copy: Some(CopyId(number)),
            name: name(number),
            class: 0,
            slots: Vec::new(),
            sums: Vec::new(),
            begun: Instant::now(),
            undone: false,
        }
    }

    #[test]
    fn of_very_many_writes_any_one_can_be_taken_back_and_the_rest_go_in_order() {
        let mut state = ready();
        let many = 1 << 14;
        (0..many).for_each(|number| state.put(put(number)));
        for number in (1..many).step_by(2) {
            let taken = state.take_put(&name(number)).and_then(|put| put.copy);
            assert_eq!(taken, Some(CopyId(number)));
            assert!(state.take_put(&name(number)).is_none());
        }
        let mut written = Vec::new();
        while let Some((id, HelperWork::Put(puts))) = state.next_work(|_| BATCH_BYTES / 8) {
            assert!(id > 0 && puts.len() <= 8);
            written.extend(puts.iter().filter_map(|put| put.copy).map(|copy| copy.0));
        }
        assert!(written.into_iter().eq((0..many).step_by(2)));
        assert!(state.waiting.is_empty() && state.is_idle());
    }

    #[test]
    fn nothing_takes_the_place_of_headers_that_are_being_read() {
        let mut state = ready();
        state.ask(name(1), 0);
        state.put(put(2));
        state.reading = Some(BatchKind::Ask);
        assert!(matches!(
            state.next_work(|_| 1),
            Some((_, HelperWork::Put(_)))
        ));
        state.put(put(3));
        state.reading = Some(BatchKind::Put);
        assert!(matches!(
            state.next_work(|_| 1),
            Some((_, HelperWork::Ask(_)))
        ));
        assert!(state.next_work(|_| 1).is_none());
        state.reading = None;
        assert!(matches!(
            state.next_work(|_| 1),
            Some((_, HelperWork::Put(_)))
        ));
    }

    #[test]
    fn an_entry_larger_than_a_batch_goes_alone() {
        let mut state = ready();
        (0..3).for_each(|number| state.put(put(number)));
        let count = |work: Option<(u64, HelperWork)>| match work {
            Some((_, HelperWork::Put(puts))) => puts.len(),
            _ => 0,
        };
        for expected in [1, 1, 1, 0] {
            assert_eq!(count(state.next_work(|_| 2 * BATCH_BYTES)), expected);
        }
    }

    #[test]
    fn what_waits_too_long_is_given_up_a_portion_at_a_time_the_oldest_first() {
        let mut state = ready();
        let many = 3 * PORTION as u64;
        (0..many).for_each(|number| state.ask(name(number), 0));
        assert_eq!(state.give_up_questions(MINUTE), 0);
        let mut given = Vec::new();
        loop {
            let count = state.give_up_questions(Duration::ZERO);
            if count == 0 {
                break;
            }
            assert!(count <= PORTION as u64);
            given.push(count);
        }
        assert_eq!(given.iter().sum::<u64>(), many);
        assert!(state.asking.is_empty() && state.questions.is_empty());
        assert_eq!(state.known(&name(0)), KnownEntry::Absent);
        // A question that the helper has is also given up only once, and its late answer still counts.
        state.ask(name(many), 0);
        let (id, work) = state.next_work(|_| 1).expect("a question");
        let given = Instant::now();
        state.running.insert(id, HelperBatch { work, given });
        assert_eq!(state.give_up_questions(Duration::ZERO), 1);
        assert_eq!(state.give_up_questions(Duration::ZERO), 0);
        state.answered(name(many), Some(vec![7]));
        assert_eq!(state.known(&name(many)), KnownEntry::Here(vec![7]));
    }

    #[test]
    fn no_more_questions_wait_than_there_is_room_for() {
        let mut state = ready();
        (0..MOST_WAITING as u64).for_each(|number| state.ask(name(number), 0));
        assert!(!state.may_ask());
        let (_, HelperWork::Ask(batch)) = state.next_work(|_| 1).expect("questions") else {
            panic!("expected questions");
        };
        assert_eq!(batch.len(), MOST_QUESTIONS);
        assert!(state.may_ask());
    }

    #[test]
    fn after_a_reset_all_that_was_written_goes_in_batches() {
        let mut state = ready();
        let many = 5_000;
        (0..many).for_each(|number| state.wrote(name(number)));
        assert!(state.take_back(name(0)) && !state.take_back(name(0)));
        state.cleared = true;
        state.take_all_back();
        assert_eq!(state.to_go(), many as usize);
        let mut gone = Vec::new();
        while let Some((_, HelperWork::Remove(names))) = state.next_work(|_| 1) {
            assert!((1..=MOST_QUESTIONS).contains(&names.len()));
            names.iter().for_each(|name| state.removed(name));
            gone.extend(names);
        }
        gone.sort_unstable();
        gone.dedup();
        assert_eq!(
            (gone.len(), state.to_go(), state.forgotten),
            (many as usize, 0, 0)
        );
        assert!(state.is_idle());
    }

    #[test]
    fn a_month_of_entries_takes_the_room_of_the_last_ones() {
        const MOST: usize = 1 << 14;
        let mut state = MooncakeState::remembering(MOST, Duration::from_secs(1), 8);
        let many = 10 * MOST as u64;
        for number in 0..many {
            state.answered(name(number), None);
            state.wrote(name(number));
        }
        let written = state.written.len();
        assert!(state.answers.len() <= MOST && written <= MOST);
        assert_eq!(
            written as u64 + state.forgotten,
            many,
            "what is forgotten is counted"
        );
        assert!(state.take_back(name(many - 1)) && !state.take_back(name(0)));
        (0..many).for_each(|number| state.suspect(name(number)));
        assert!(state.suspects.len() <= MOST);
        assert_eq!(state.known(&name(many - 1)), KnownEntry::Absent);
    }
}
