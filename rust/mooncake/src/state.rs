//! What the tier knows and has to do.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};
use hybrid_pages::ids::SlotId;
use hybrid_pages::tier::{CopyId, Identity, Name, Speed};

use crate::breaker::Breaker;
use crate::staging::{MOST_PUTS, MOST_QUESTIONS};

/// An answer counts for so long. Mooncake keeps what was asked for longer than that: 10 seconds by default.
const FRESH: Duration = Duration::from_secs(4);
/// After this many answers, old ones go.
const MANY_ANSWERS: usize = 1 << 16;
/// Batches of reads that the helper has at a time: one moves, one waits.
const MOST_GET_BATCHES: usize = 2;
/// Reads in one batch at most.
const MOST_GETS: usize = 32;
/// Bytes that one batch of writes moves, or a single entry.
const BATCH_BYTES: usize = 64 << 20;

/// What the store said of an entry.
#[derive(Debug)]
struct Answer {
    sums: Option<Vec<u64>>,
    at: Instant,
}

/// What a lookup learns at once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Here(Vec<u64>),
    Absent,
    /// It is being asked.
    Asking,
    /// Somebody has to ask.
    Unknown,
}

/// A question about an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question {
    pub(crate) name: Name,
    pub(crate) class: usize,
}

/// A read.
#[derive(Debug)]
pub(crate) struct Get {
    /// None once its end was reported: the bytes are nobody's.
    pub(crate) copy: Option<CopyId>,
    pub(crate) name: Name,
    pub(crate) class: usize,
    pub(crate) slots: Vec<SlotId>,
    pub(crate) begun: Instant,
    /// Where it arrives, once it is given to the helper.
    pub(crate) cell: usize,
}

/// A write.
#[derive(Debug)]
pub(crate) struct Put {
    pub(crate) copy: CopyId,
    pub(crate) name: Name,
    pub(crate) class: usize,
    pub(crate) slots: Vec<SlotId>,
    pub(crate) sums: Vec<u64>,
    pub(crate) begun: Instant,
    /// What it writes is to go again.
    pub(crate) undone: bool,
}

/// What the helper was given and has not answered.
#[derive(Debug)]
pub(crate) enum Work {
    Ask(Vec<Question>),
    Get(Vec<Get>),
    Put(Vec<Put>),
    Remove(Vec<Name>),
}

/// What a batch is.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Ask,
    Get,
    Put,
    Remove,
}

#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) work: Work,
    pub(crate) given: Instant,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) identity: Option<Identity>,
    /// The identity no longer says what the engine computes: nothing is found and nothing taken.
    pub(crate) cleared: bool,
    pub(crate) closed: bool,
    /// Whether the helper takes work.
    pub(crate) ready: bool,
    /// The helper's socket closed.
    pub(crate) lost: bool,
    pub(crate) breaker: Breaker,
    /// No writes before then: there was no room.
    pub(crate) writes_from: Option<Instant>,
    pub(crate) questions: VecDeque<Question>,
    pub(crate) gets: VecDeque<Get>,
    pub(crate) puts: VecDeque<Put>,
    /// What is to go. Nobody finds it.
    pub(crate) removes: HashSet<Name>,
    /// No removal before then: one has failed.
    pub(crate) removes_from: Option<Instant>,
    pub(crate) running: HashMap<u64, Batch>,
    /// Batches whose answers are being read.
    pub(crate) reading_replies: usize,
    pub(crate) free_cells: Vec<usize>,
    cells: usize,
    /// What this process has put there.
    pub(crate) written: HashSet<Name>,
    pub(crate) speed: Speed,
    /// When the last batch of reads had come.
    brought: Option<Instant>,
    answers: HashMap<Name, Answer>,
    asking: HashMap<Name, Instant>,
    /// Entries whose read has failed, and until when nobody finds them.
    suspects: HashMap<Name, Instant>,
    next: u64,
}

impl State {
    pub(crate) fn new(retry: Duration, cells: usize) -> Self {
        Self {
            identity: None,
            cleared: false,
            closed: false,
            ready: false,
            lost: false,
            breaker: Breaker::new(retry),
            writes_from: None,
            questions: VecDeque::new(),
            gets: VecDeque::new(),
            puts: VecDeque::new(),
            removes: HashSet::new(),
            removes_from: None,
            running: HashMap::new(),
            reading_replies: 0,
            free_cells: (0..cells).collect(),
            cells,
            written: HashSet::new(),
            speed: Speed::default(),
            brought: None,
            answers: HashMap::new(),
            asking: HashMap::new(),
            suspects: HashMap::new(),
            next: 0,
        }
    }

    /// Whether entries may be found and read.
    pub(crate) fn answers_now(&self) -> bool {
        self.ready && !self.cleared && !self.closed && !self.breaker.is_open()
    }

    /// Whether entries may be written.
    pub(crate) fn takes_writes(&self) -> bool {
        let full = self.writes_from.is_some_and(|from| Instant::now() < from);
        self.answers_now() && !full
    }

    pub(crate) fn known(&mut self, name: &Name) -> Known {
        let now = Instant::now();
        if self.removes.contains(name) || self.suspects.get(name).is_some_and(|&at| now < at) {
            return Known::Absent;
        }
        if self.asking.contains_key(name) {
            return Known::Asking;
        }
        match self.answers.get(name) {
            Some(answer) if answer.at.elapsed() < FRESH => match &answer.sums {
                Some(sums) => Known::Here(sums.clone()),
                None => Known::Absent,
            },
            _ => Known::Unknown,
        }
    }

    /// How long the helper was at a batch of reads that has come: it takes one after the other.
    pub(crate) fn read_for(&mut self, given: Instant) -> Duration {
        let now = Instant::now();
        let last = self.brought.replace(now);
        now - last.map_or(given, |last| last.max(given))
    }

    pub(crate) fn ask(&mut self, question: Question) {
        self.asking.insert(question.name, Instant::now());
        self.questions.push_back(question);
    }

    /// The store said so of an entry: its checksums, or that it is not there.
    pub(crate) fn answered(&mut self, name: Name, sums: Option<Vec<u64>>) {
        self.asking.remove(&name);
        if self.answers.len() >= MANY_ANSWERS {
            self.answers.retain(|_, answer| answer.at.elapsed() < FRESH);
        }
        let at = Instant::now();
        self.answers.insert(name, Answer { sums, at });
    }

    /// What was said of the entry counts no more.
    pub(crate) fn unsay(&mut self, name: &Name) {
        self.answers.remove(name);
    }

    /// A read of the entry failed.
    pub(crate) fn suspect(&mut self, name: Name, pause: Duration) {
        let now = Instant::now();
        self.suspects.retain(|_, until| now < *until);
        self.suspects.insert(name, now + pause);
        self.answers.remove(&name);
    }

    /// Whoever asked before `limit` ago gets no answer any more. Returns how many these were.
    pub(crate) fn give_up_questions(&mut self, limit: Duration) -> u64 {
        let late: Vec<Name> = self
            .asking
            .iter()
            .filter(|(_, at)| at.elapsed() > limit)
            .map(|(&name, _)| name)
            .collect();
        for &name in &late {
            self.answered(name, None);
        }
        let asking = &self.asking;
        self.questions
            .retain(|question| asking.contains_key(&question.name));
        late.len() as u64
    }

    /// Takes back reads that have waited longer than `limit`.
    pub(crate) fn give_up_gets(&mut self, limit: Duration) -> Vec<(CopyId, Name)> {
        let mut late = Vec::new();
        self.gets.retain_mut(|get| {
            let is_late = get.begun.elapsed() > limit;
            if is_late {
                late.extend(get.copy.take().map(|copy| (copy, get.name)));
            }
            !is_late
        });
        for batch in self.running.values_mut() {
            if let Work::Get(gets) = &mut batch.work {
                for get in gets.iter_mut().filter(|get| get.begun.elapsed() > limit) {
                    late.extend(get.copy.take().map(|copy| (copy, get.name)));
                }
            }
        }
        late
    }

    /// Whether no copy and no removal is under way.
    pub(crate) fn is_idle(&self) -> bool {
        let moves = |batch: &Batch| !matches!(batch.work, Work::Ask(_));
        self.gets.is_empty()
            && self.puts.is_empty()
            && self.removes.is_empty()
            && self.reading_replies == 0
            && !self.running.values().any(moves)
    }

    /// Whether there is something for the helper that it can take.
    pub(crate) fn has_work(&self) -> bool {
        self.ready && !self.lost && self.next_kind().is_some()
    }

    fn next_kind(&self) -> Option<Kind> {
        let (mut asks, mut gets, mut puts) = (0, 0, 0);
        for batch in self.running.values() {
            match batch.work {
                Work::Ask(_) => asks += 1,
                Work::Get(_) => gets += 1,
                Work::Put(_) | Work::Remove(_) => puts += 1,
            }
        }
        let removes = self.removes_from.is_none_or(|from| Instant::now() >= from);
        if asks == 0 && !self.questions.is_empty() {
            Some(Kind::Ask)
        } else if gets < MOST_GET_BATCHES && !self.gets.is_empty() && !self.free_cells.is_empty() {
            Some(Kind::Get)
        } else if puts == 0 && removes && !self.removes.is_empty() {
            Some(Kind::Remove)
        } else if puts == 0 && !self.puts.is_empty() {
            Some(Kind::Put)
        } else {
            None
        }
    }

    /// The next batch for a helper that is ready, with its number.
    pub(crate) fn next_work(
        &mut self,
        value_bytes: impl Fn(usize) -> usize,
    ) -> Option<(u64, Work)> {
        let work = match self.next_kind()? {
            Kind::Ask => {
                let count = self.questions.len().min(MOST_QUESTIONS);
                Work::Ask(self.questions.drain(..count).collect())
            }
            Kind::Get => {
                // One batch leaves cells for the next, which moves while this one is verified.
                let most = MOST_GETS.min(self.cells / 2).min(self.free_cells.len());
                let count = self.gets.len().min(most);
                let mut batch: Vec<Get> = self.gets.drain(..count).collect();
                for get in &mut batch {
                    get.cell = self.free_cells.pop()?;
                }
                Work::Get(batch)
            }
            Kind::Remove => {
                Work::Remove(self.removes.iter().copied().take(MOST_QUESTIONS).collect())
            }
            Kind::Put => {
                let mut bytes = 0;
                let fits = |put: &&Put| {
                    bytes += value_bytes(put.class);
                    bytes <= BATCH_BYTES
                };
                let count = self.puts.iter().take(MOST_PUTS).take_while(fits).count();
                Work::Put(self.puts.drain(..count.max(1)).collect())
            }
        };
        self.next += 1;
        Some((self.next, work))
    }
}
