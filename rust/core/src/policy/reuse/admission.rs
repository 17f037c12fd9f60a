//! Admission: which boundaries of a request get a checkpoint, and what the request shows about earlier checkpoints.

use super::eviction::scale;
use super::hazard::{BINS, Features};
use super::origin::{CheckpointKind, Origin, Standing};
use super::record::CLIMB;
use super::selection::Unwanted;
use super::sessions::SessionTurn;
use super::state::Reuse;
use crate::policy::NewRequest;

/// One request in so many makes records for boundaries that get no checkpoint.
const SAMPLE: u64 = 8;
/// Distances from the end of a prompt, in blocks, at which a checkpoint is considered.
const OFFSETS: [usize; 4] = [1, 3, 8, 21];

/// Blocks of computing that a write must be expected to save for each page that it takes: a write wears the medium.
const PRICE: f32 = 0.1;

impl Reuse {
    /// Chooses the boundaries of a request that get a checkpoint: the end of the prompt, the fork and the boundary
    /// before the end; further ones before that while their learned worth is at least the threshold.
    pub(super) fn choose(&mut self, request: &NewRequest<'_>, admitted: &mut Vec<usize>) {
        let mut origin = self.observe(request);
        if !request.hints.store {
            return;
        }
        self.follow(request, &mut origin);
        let priority = request.hints.priority;
        let (from, end, fork) = (
            request.resumed,
            request.blocks(),
            request.seen.min(request.limit),
        );
        let mut add = |this: &mut Self, depth: usize, kind| {
            this.plan(request.boundaries[depth - 1], depth, kind, origin, priority);
            admitted.extend((depth > from).then_some(depth));
        };
        if end > 0 {
            add(self, end, CheckpointKind::End);
        }
        if fork > from && fork < end {
            add(self, fork, CheckpointKind::Fork);
        }
        // Remembers a sample of boundaries that get no checkpoint: what is never tried is never learned.
        let sample = self.requests.is_multiple_of(SAMPLE);
        let mut pays = true;
        for (step, offset) in OFFSETS.into_iter().enumerate() {
            if end <= from + offset || end - offset == fork {
                break;
            }
            let kind = CheckpointKind::Before(offset as u32);
            if step > 0 && pays {
                let index = self.hazards.index(&Features::new(kind, 0, &origin), 0);
                let blocks = (end - offset - from) as f32;
                let worth = index * blocks / (self.shape.checkpoint as f32) * scale(priority);
                pays = worth >= self.threshold;
            }
            if pays {
                add(self, end - offset, kind);
            } else if sample {
                let depth = end - offset;
                self.plan(request.boundaries[depth - 1], depth, kind, origin, priority);
            } else {
                break;
            }
        }
        self.link(request);
    }

    /// Finds the record of the checkpoint that a request would have used, and learns from those that it passed. Returns
    /// the origin of the checkpoints that it will make.
    fn observe(&mut self, request: &NewRequest<'_>) -> Origin {
        let mut known = std::mem::take(&mut self.known);
        known.clear();
        let places = request.boundaries.iter().zip(1..);
        // Keys that are not chained may name a boundary at several depths: its record is at one of them.
        known.extend(places.filter_map(|(&name, depth)| {
            let at = self.records.find(name)?;
            (self.records.past[at].depth as usize == depth).then_some((depth, at))
        }));
        let mut deepest = known.iter().rev().copied();
        let wanted = deepest.find(|&(depth, _)| depth <= request.limit);
        let reached = wanted.map_or(0, |(depth, _)| depth).max(request.resumed);
        let mut origin = Origin {
            added: request.blocks().saturating_sub(reached) as u32,
            tokens: request.tokens.min(u32::MAX.into()) as u32,
            ..Origin::UNKNOWN
        };
        if let Some((depth, at)) = wanted {
            let (kind, from) = self.count_use(at);
            if kind != CheckpointKind::Fork && (kind != CheckpointKind::Continued || from.turn > 0)
            {
                origin.turn = from.turn.saturating_add(1);
                origin.gap = (self.now - self.records[at].since).clamp(1, u32::MAX.into()) as u32;
            }
            self.records[at].priority = request.hints.priority;
            let goes_on = request.blocks() > depth;
            self.begin(
                at,
                if goes_on {
                    CheckpointKind::Continued
                } else {
                    kind
                },
                from,
            );
        }
        known.retain(|&(depth, at)| {
            let past = &self.records.past[at];
            let fresh = matches!(
                past.kind,
                CheckpointKind::End | CheckpointKind::Left | CheckpointKind::Before(_)
            ) && past.hits == 0;
            if fresh && depth <= reached && Some((depth, at)) != wanted {
                let from = past.origin;
                self.conclude(at, false);
                if !self.records[at].is_resident() {
                    // The record of a passed checkpoint that is gone would teach nothing that those of resident
                    // ones do not.
                    self.forget(at);
                    return false;
                }
                self.begin(at, CheckpointKind::Passed, from);
            }
            true
        });
        self.known = known;
        origin
    }

    /// Learns that a request wants a checkpoint, whose life ends with that. Returns its kind and origin.
    fn count_use(&mut self, at: u32) -> (CheckpointKind, Origin) {
        self.conclude(at, true);
        self.disinherit(at);
        let past = &mut self.records.past[at];
        past.hits = past.hits.saturating_add(1);
        (past.kind, past.origin)
    }

    /// Learns that a request goes on from a tail.
    pub(super) fn continue_at(&mut self, boundary: u64) {
        if let Some(at) = self.records.find(boundary) {
            let (_, from) = self.count_use(at);
            self.begin(at, CheckpointKind::Continued, from);
        }
    }

    /// Notes that the conversation of a checkpoint has a later end.
    pub(super) fn give_way(&mut self, at: u32) {
        self.records[at].superseded = true;
        self.place(at);
    }

    /// Notes in a record that a boundary gets a checkpoint of a kind, or would get it if it were admitted.
    fn plan(
        &mut self,
        boundary: u64,
        depth: usize,
        kind: CheckpointKind,
        origin: Origin,
        priority: i8,
    ) {
        let Some(at) = self.records.find(boundary) else {
            let at = self.records.add(boundary, depth as u32);
            self.known.push((depth, at));
            self.records[at].priority = priority;
            self.begin(at, kind, origin);
            return;
        };
        let past = &self.records.past[at];
        if self.records[at].since == self.now && past.kind == CheckpointKind::Continued {
            return;
        }
        let better = matches!(
            (past.kind, kind),
            (CheckpointKind::Passed, _)
                | (
                    CheckpointKind::End | CheckpointKind::Left,
                    CheckpointKind::End
                )
                | (
                    CheckpointKind::Before(_),
                    CheckpointKind::End | CheckpointKind::Fork
                )
        );
        if better {
            let kind = if past.hits > 0 {
                CheckpointKind::Continued
            } else {
                kind
            };
            self.conclude(at, false);
            self.records[at].priority = priority;
            self.begin(at, kind, origin);
        }
    }

    /// Notes in the records of a prompt which one is above each, and that a running request passes them.
    fn link(&mut self, request: &NewRequest<'_>) {
        let mut known = std::mem::take(&mut self.known);
        known.sort_unstable();
        for pair in known.windows(2) {
            let [(depth, upper), (_, at)] = *pair else {
                continue;
            };
            self.records.past[at].above = request.boundaries[depth - 1];
            self.records.past[upper].running = self.requests;
        }
        self.known = known;
    }

    /// Learns that the request whose prompt ended at a boundary has produced so many tokens.
    pub(super) fn end(&mut self, boundary: u64, output_tokens: u64) {
        let Some(at) = self.records.find(boundary) else {
            return;
        };
        let mut upper = at;
        for _ in 0..CLIMB {
            let Some(next) = self.records.above(upper) else {
                break;
            };
            upper = next;
            self.records.past[upper].running = 0;
        }
        let past = &mut self.records.past[at];
        if !matches!(past.kind, CheckpointKind::End | CheckpointKind::Left) {
            return;
        }
        past.origin.output_tokens = output_tokens.min(u32::MAX.into()) as u32;
        self.records[at].features = Features::new(past.kind, past.hits, &past.origin);
        self.watch(at);
        self.place(at);
    }

    /// Adds to a request's origin what its session tells, and notes the request as its last turn.
    pub(super) fn follow(&mut self, request: &NewRequest<'_>, origin: &mut Origin) {
        let (Some(session), Some(&end)) = (request.hints.session, request.boundaries.last()) else {
            return;
        };
        origin.standing = match self.sessions.turn(session) {
            None => Standing::First,
            Some(turn) if request.boundaries.get(turn.depth - 1) == Some(&turn.end) => {
                origin.turn = origin.turn.max(turn.number.saturating_add(1));
                origin.gap = (self.now - turn.since).clamp(1, u32::MAX.into()) as u32;
                Standing::Next
            }
            Some(turn) => {
                self.leave_behind(turn.end);
                Standing::Apart
            }
        };
        let turn = SessionTurn {
            end,
            depth: request.blocks(),
            number: origin.turn,
            since: self.now,
        };
        self.sessions.note(session, turn);
    }

    /// Notes that the session of a prompt's end has gone on elsewhere, so that the end is less likely to be used.
    fn leave_behind(&mut self, end: u64) {
        let Some(at) = self.records.find(end) else {
            return;
        };
        let past = &mut self.records.past[at];
        if past.kind == CheckpointKind::End && past.hits == 0 {
            past.kind = CheckpointKind::Left;
            self.records[at].features = Features::new(CheckpointKind::Left, 0, &past.origin);
            self.watch(at);
            self.place(at);
        }
    }

    /// Judges which checkpoints of a request are worth a write to a full tier, each with the pages that it needs beyond
    /// resident ones. A boundary that was not wanted is judged again with every request that passes it.
    pub(super) fn select(&mut self, request: &NewRequest<'_>) {
        let Some(mut selection) = self.selection.take() else {
            return;
        };
        let resident = |&&(_, at): &&(usize, u32)| self.records[at].is_resident();
        let base = self.known.iter().filter(resident).map(|&(depth, _)| depth);
        let base = base.max().unwrap_or(0);
        let mut wanted = Vec::new();
        for &(depth, at) in self.known.iter().filter(|&&(depth, _)| depth > base) {
            let record = &self.records[at];
            let blocks = (depth - base) as f32;
            let size = self.shape.checkpoint as f32 + blocks * self.shape.page as f32;
            let uses = self.hazards.uses(&record.features, 0..BINS);
            let chance = 1.0 - (-uses).exp();
            if chance * blocks * scale(record.priority) >= PRICE * size {
                wanted.push(depth);
            }
        }
        let reach = wanted.iter().copied().max().unwrap_or(base);
        for (depth, &boundary) in (1..).zip(request.boundaries).skip(base) {
            if depth > reach {
                selection.decline(boundary, Unwanted::All);
            } else if wanted.contains(&depth) {
                selection.accept(boundary);
            } else {
                selection.decline(boundary, Unwanted::Checkpoint);
            }
        }
        self.selection = Some(selection);
    }
}
