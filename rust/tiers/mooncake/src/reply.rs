//! Takes the helper's answers, which end copies and questions.

use std::time::{Duration, Instant};

use hybrid_pages::error::Error;
use hybrid_pages::guarded::unless_it_panics;
use hybrid_pages::transfer::{TILE_BYTES, combine};
use hybrid_pages_tiers::{Identity, refused};

use crate::shared::MooncakeShared;
use crate::state::{Get, HelperBatch, HelperWork, MooncakeState, PORTION, Put, Question};
use crate::stats::MooncakeFailure;
use crate::value::ValueHeader;
use crate::wire::{NO_ANSWER, NO_ROOM, NOT_FOUND, NOT_READY, WRONG_LENGTH};

/// Takes the answer to a batch and ends its copies, even after a panic. Nothing touches their slots afterwards. Bytes
/// are verified in `tile`, which nobody else writes.
pub(crate) fn take(
    shared: &MooncakeShared,
    identity: &Identity,
    (id, codes): (u64, &[i64]),
    tile: &mut [u8; TILE_BYTES],
) {
    let batch = {
        let mut state = shared.state();
        let batch = state.running.remove(&id);
        state.reading = batch.as_ref().map(|batch| batch.work.kind());
        batch
    };
    let Some(batch) = batch else {
        return; // The batch was given up with an earlier helper.
    };
    let copies = batch.work.copies();
    if unless_it_panics(|| understand(shared, identity, batch, codes, tile)).is_none() {
        shared.breaks();
        shared.state().reading = None;
        for copy in copies {
            // The cache ignores the end of a copy that has ended already.
            shared.end(
                copy,
                Err(refused("an answer that is understood", "a panic")),
            );
        }
    }
}

fn understand(
    shared: &MooncakeShared,
    identity: &Identity,
    batch: HelperBatch,
    codes: &[i64],
    tile: &mut [u8; TILE_BYTES],
) {
    // A missing code counts as an error of the store.
    let codes = codes.iter().copied().chain(std::iter::repeat(-1));
    let reply = Taking { shared, identity };
    let mut measured = Measured::Nothing;
    let health = match batch.work {
        HelperWork::Ask(questions) => {
            measured = Measured::Answer(batch.given.elapsed());
            reply.questions(&questions, codes)
        }
        HelperWork::Get(gets) => {
            let bytes = gets
                .iter()
                .map(|get| shared.classes[get.class].value_bytes as u64);
            let took = shared.state().read_for(batch.given);
            measured = Measured::Read(bytes.sum(), took);
            reply.gets(gets, codes, tile)
        }
        HelperWork::Put(puts) => reply.puts(puts, codes),
        HelperWork::Remove(names) => {
            let mut health = BatchHealth::default();
            let names: Vec<_> = names.iter().zip(codes).collect();
            for part in names.chunks(PORTION) {
                let mut state = shared.state();
                for &(name, code) in part {
                    if matches!(code, 0 | NOT_FOUND | NOT_READY) {
                        health.worked = true;
                        state.removed(name);
                    } else {
                        health.failed |= code <= NO_ANSWER;
                        state.removes_from = Some(Instant::now() + shared.options.retry);
                        shared.failed(MooncakeFailure::Remove, &format!("Mooncake's code {code}"));
                    }
                }
            }
            health
        }
    };
    let mut state = shared.state();
    state.reading = None;
    if health.failed {
        shared.store_failed(&mut state);
    } else if health.worked {
        state.breaker.worked();
        match measured {
            Measured::Answer(took) => state.speed.answered(took),
            Measured::Read(bytes, took) => state.speed.brought(bytes, bytes, took),
            Measured::Nothing => {}
        }
    }
}

/// A measurement of the store's speed by a batch.
enum Measured {
    Nothing,
    Answer(Duration),
    Read(u64, Duration),
}

/// Whether the store worked and whether it failed, apart from its answers about entries.
#[derive(Default)]
struct BatchHealth {
    worked: bool,
    failed: bool,
}

struct Taking<'a> {
    shared: &'a MooncakeShared,
    identity: &'a Identity,
}

impl Taking<'_> {
    fn header<'a>(&'a self, name: &'a [u8; 32], class: usize) -> ValueHeader<'a> {
        ValueHeader {
            identity: self.identity,
            name,
            class,
            shard_bytes: self.shared.classes[class].shard_bytes,
        }
    }

    /// The checksums in a header in the staging memory.
    fn staged(&self, at: usize, name: &[u8; 32], class: usize) -> Option<Vec<u64>> {
        let mut bytes = vec![0; self.shared.header_bytes()];
        self.shared.staging.read(at, &mut bytes);
        self.header(name, class).sums(&bytes, self.shared.ranks)
    }

    /// Handles a value that is not the entry of its key. This is damage, so the value is removed, and the entry can
    /// be written again.
    fn damaged(
        &self,
        state: &mut MooncakeState,
        name: &[u8; 32],
        reason: MooncakeFailure,
        what: &str,
    ) {
        self.shared.failed(reason, what);
        state.unsay(name);
        state.removes.insert(*name, ());
    }

    fn questions(&self, questions: &[Question], codes: impl Iterator<Item = i64>) -> BatchHealth {
        let mut health = BatchHealth::default();
        let read = |(index, (question, code)): (usize, (&Question, i64))| {
            let at = self.shared.staging.question(index);
            let staged = || self.staged(at, &question.name, question.class);
            (question.name, code, (code == 1).then(staged).flatten())
        };
        let answers: Vec<_> = questions.iter().zip(codes).enumerate().map(read).collect();
        let mut state = self.shared.state();
        for (index, (name, code, sums)) in answers.into_iter().enumerate() {
            if index % PORTION == PORTION - 1 {
                drop(state); // Another thread may wait for the lock.
                state = self.shared.state();
            }
            health.worked |= code >= 0 || matches!(code, NOT_FOUND | NOT_READY | WRONG_LENGTH);
            match code {
                1 if sums.is_none() => {
                    let what = "expected the header of the entry, found other bytes";
                    self.damaged(&mut state, &name, MooncakeFailure::Header, what);
                }
                WRONG_LENGTH => {
                    let what = "expected a value with a header, found a shorter one";
                    self.damaged(&mut state, &name, MooncakeFailure::Header, what);
                }
                0 | 1 | NOT_FOUND | NOT_READY => {}
                code => {
                    health.failed = true;
                    self.shared
                        .failed(MooncakeFailure::Ask, &format!("Mooncake's code {code}"));
                }
            }
            state.answered(name, sums);
        }
        health
    }

    fn gets(
        &self,
        gets: Vec<Get>,
        codes: impl Iterator<Item = i64>,
        tile: &mut [u8; TILE_BYTES],
    ) -> BatchHealth {
        let mut health = BatchHealth::default();
        for (get, code) in gets.into_iter().zip(codes) {
            let class = self.shared.classes[get.class];
            let result = match code {
                code if code == class.value_bytes as i64 => {
                    health.worked = true;
                    self.arrived(&get, tile)
                }
                NOT_FOUND | NOT_READY => {
                    health.worked = true;
                    Err((MooncakeFailure::Gone, "it had left".to_owned()))
                }
                WRONG_LENGTH => {
                    health.worked = true;
                    Err((
                        MooncakeFailure::Header,
                        "a value of another length".to_owned(),
                    ))
                }
                code => {
                    health.failed = true;
                    Err((MooncakeFailure::Read, format!("Mooncake's code {code}")))
                }
            };
            let mut state = self.shared.state();
            state.free_cells.push(get.cell);
            let Some(copy) = get.copy else {
                continue; // The end of this read was reported at the deadline.
            };
            let result = result.map_err(|(reason, found)| {
                let what = format!("expected an entry, found {found}");
                match reason {
                    MooncakeFailure::Header | MooncakeFailure::Checksum => {
                        self.damaged(&mut state, &get.name, reason, &what);
                    }
                    MooncakeFailure::Gone => {
                        state.unsay(&get.name);
                        self.shared.failed(reason, &what);
                    }
                    _ => {
                        state.suspect(get.name);
                        self.shared.failed(reason, &what);
                    }
                }
                Error::remote(what)
            });
            drop(state);
            if result.is_ok() {
                let took = get.begun.elapsed().as_micros() as u64;
                self.shared.ledger.count(|counts| {
                    counts.reads += 1;
                    counts.read_bytes += (class.shard_bytes * self.shared.ranks) as u64;
                    counts.read_us += took;
                });
            }
            self.shared.end(copy, result);
        }
        health
    }

    /// Copies a value into the slots. Returns the checksums of the bytes that are there now.
    fn arrived(
        &self,
        get: &Get,
        tile: &mut [u8; TILE_BYTES],
    ) -> Result<Vec<u64>, (MooncakeFailure, String)> {
        let shared = self.shared;
        if get.copy.is_none() {
            return Ok(Vec::new());
        }
        let shard_bytes = shared.classes[get.class].shard_bytes;
        let cell = shared.staging.cell(get.cell);
        let Some(told) = self.staged(cell, &get.name, get.class) else {
            return Err((MooncakeFailure::Header, "another value".into()));
        };
        let Some(planes) = shared.planes.get() else {
            return Err((MooncakeFailure::Read, "no arena".into()));
        };
        let mut found = Vec::with_capacity(shared.ranks);
        for rank in 0..shared.ranks {
            let shard = cell + shared.header_bytes() + rank * shard_bytes;
            let mut digests = Vec::with_capacity(shard_bytes.div_ceil(TILE_BYTES));
            // Each tile is copied out once, so the bytes that are hashed are the bytes that the slots get.
            for offset in (0..shard_bytes).step_by(TILE_BYTES) {
                let tile = &mut tile[..TILE_BYTES.min(shard_bytes - offset)];
                shared.staging.read(shard + offset, tile);
                // SAFETY: the cache keeps the slots for this copy until its end is reported. Only this thread does
                // that, since it has taken the batch.
                digests.push(unsafe { planes.scatter(rank, &get.slots, offset, tile) });
            }
            found.push(combine(digests.into_iter(), shard_bytes));
        }
        if found != told {
            return Err((
                MooncakeFailure::Checksum,
                "bytes with other checksums".into(),
            ));
        }
        Ok(found)
    }

    fn puts(&self, puts: Vec<Put>, codes: impl Iterator<Item = i64>) -> BatchHealth {
        let mut health = BatchHealth::default();
        let mut state = self.shared.state();
        for (index, (put, code)) in puts.into_iter().zip(codes).enumerate() {
            let at = self.shared.staging.put(index);
            let there = (code == 0)
                .then(|| self.staged(at, &put.name, put.class))
                .flatten();
            let failed = |reason, found: &str| {
                let what = format!("expected a write, found {found}");
                self.shared.failed(reason, &what);
                Err(Error::remote(what))
            };
            health.worked |= matches!(code, 0 | NOT_FOUND | NOT_READY | NO_ROOM);
            let result = match code {
                0 => match there {
                    Some(sums) if sums == put.sums => Ok(Vec::new()),
                    Some(_) => failed(MooncakeFailure::Kept, "the entry with other bytes"),
                    None => {
                        state.removes.insert(put.name, ());
                        failed(MooncakeFailure::Header, "another value under its key")
                    }
                },
                NOT_FOUND | NOT_READY => {
                    failed(MooncakeFailure::Write, "that the store took and lost it")
                }
                NO_ROOM => {
                    state.writes_from = Some(Instant::now() + self.shared.options.retry);
                    failed(MooncakeFailure::Full, "no room")
                }
                code => {
                    health.failed = true;
                    failed(MooncakeFailure::Write, &format!("Mooncake's code {code}"))
                }
            };
            let kept = code == 0 && result.is_err();
            if !kept && (put.undone || state.cleared) {
                state.removes.insert(put.name, ());
            } else if !kept {
                state.wrote(put.name); // Even after an error the value may be there.
            }
            state.unsay(&put.name);
            let Some(copy) = put.copy else {
                continue;
            };
            if result.is_ok() {
                let bytes = self.shared.classes[put.class].value_bytes as u64;
                let took = put.begun.elapsed().as_micros() as u64;
                self.shared.ledger.count(|counts| {
                    counts.writes += 1;
                    counts.written_bytes += bytes;
                    counts.write_us += took;
                });
            }
            let result = if put.undone {
                Err(refused("an entry that is wanted", "that it is to go"))
            } else {
                result
            };
            self.shared.end(copy, result);
        }
        health
    }
}
