//! A door to a disk's files at which any call may meet a fault, and behind which a process can be killed.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use hybrid_pages_disk::{Door, DoorFile};

use super::bad_door::BadDoor;
use crate::wild::Random;

/// What a call may meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It moves less than it was asked to.
    Short,
    /// It was interrupted, and is to be made again.
    Interrupted,
    /// It takes some time.
    Slow,
    /// The clock jumps, by up to a month in either direction.
    Clock,
    /// The system refuses it.
    Refused,
    /// A part is written, and then it is refused.
    Torn,
    /// A bit of what is read, or written, is another.
    Flipped,
    /// It is said to have been written, and was not.
    Lost,
}

impl Kind {
    pub const ALL: [Self; 8] = [
        Self::Short,
        Self::Interrupted,
        Self::Slow,
        Self::Clock,
        Self::Refused,
        Self::Torn,
        Self::Flipped,
        Self::Lost,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Short => "short calls",
            Self::Interrupted => "interrupted calls",
            Self::Slow => "slow calls",
            Self::Clock => "clock jumps",
            Self::Refused => "refused calls",
            Self::Torn => "torn writes",
            Self::Flipped => "flipped bits",
            Self::Lost => "lost writes",
        }
    }

    /// Whether it may cost an entry.
    pub const fn harms(self) -> bool {
        matches!(
            self,
            Self::Refused | Self::Torn | Self::Flipped | Self::Lost
        )
    }
}

/// EIO, ENOMEM, EACCES, EMFILE, ENOSPC, EROFS.
const ERRORS: [i32; 6] = [5, 12, 13, 24, 28, 30];
const MONTH: i64 = 30 * 86_400;
/// Writes that are under way when a process is killed: as many as there are threads and a keeper.
const CUT: u32 = 3;

#[derive(Debug)]
struct State {
    inner: BadDoor,
    random: Random,
    kinds: Vec<Kind>,
    /// Of a thousand calls so many meet a fault.
    rate: AtomicU32,
    met: [AtomicU64; Kind::ALL.len()],
    later: AtomicI64,
    dead: AtomicBool,
    /// Writes of a dead process that still reach the file, in part.
    cut: AtomicU32,
}

/// The door, shared by those who hold it.
#[derive(Debug, Clone)]
pub struct WildDoor(Arc<State>);

impl WildDoor {
    /// A door with faults of these kinds, over one that can remember what was not synced.
    pub fn new(inner: BadDoor, seed: u64, kinds: &[Kind]) -> Self {
        Self(Arc::new(State {
            inner,
            random: Random::new(seed),
            kinds: kinds.to_vec(),
            rate: AtomicU32::new(0),
            met: Default::default(),
            later: AtomicI64::new(0),
            dead: AtomicBool::new(false),
            cut: AtomicU32::new(CUT),
        }))
    }

    /// From now on so many of a thousand calls meet a fault.
    pub fn set(&self, rate: u32) {
        self.0.rate.store(rate, Ordering::SeqCst);
    }

    /// The process is killed: nothing it does from now on reaches a file.
    pub fn kill(&self) {
        self.0.dead.store(true, Ordering::SeqCst);
    }

    /// How many calls have met faults of a kind.
    pub fn met(&self, kind: Kind) -> u64 {
        self.0.met[kind as usize].load(Ordering::SeqCst)
    }

    /// How many calls have met what may cost an entry.
    pub fn harmed(&self) -> u64 {
        let harmful = Kind::ALL.into_iter().filter(|kind| kind.harms());
        harmful.map(|kind| self.met(kind)).sum()
    }

    /// What a call meets, of what it can meet.
    fn meets(&self, possible: &[Kind]) -> io::Result<Option<Kind>> {
        let state = &self.0;
        if state.dead.load(Ordering::SeqCst) {
            return Err(refusal(5));
        }
        let rate = state.rate.load(Ordering::SeqCst) as usize;
        if rate == 0 || state.kinds.is_empty() || state.random.below(1000) >= rate {
            return Ok(None);
        }
        let kind = state.kinds[state.random.below(state.kinds.len())];
        if !possible.contains(&kind) {
            return Ok(None);
        }
        state.met[kind as usize].fetch_add(1, Ordering::SeqCst);
        match kind {
            Kind::Refused => Err(refusal(ERRORS[state.random.below(ERRORS.len())])),
            Kind::Interrupted => Err(io::ErrorKind::Interrupted.into()),
            Kind::Slow => {
                let time = state.random.below(3_000) as u64;
                std::thread::sleep(Duration::from_micros(time));
                Ok(None)
            }
            kind => Ok(Some(kind)),
        }
    }
}

fn refusal(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

impl Door for WildDoor {
    fn open(&self, at: BorrowedFd<'_>, name: &str, direct: bool) -> io::Result<Box<dyn DoorFile>> {
        self.meets(&[Kind::Refused, Kind::Slow])?;
        Ok(Box::new(WildFile {
            file: self.0.inner.open(at, name, direct)?,
            door: self.clone(),
        }))
    }

    fn rename(&self, directory: BorrowedFd<'_>, from: &str, to: &str) -> io::Result<()> {
        self.meets(&[Kind::Refused, Kind::Slow])?;
        self.0.inner.rename(directory, from, to)
    }

    fn seconds(&self) -> u64 {
        if let Ok(Some(Kind::Clock)) = self.meets(&[Kind::Clock]) {
            let jump = self.0.random.below(2 * MONTH as usize) as i64 - MONTH;
            self.0.later.store(jump, Ordering::SeqCst);
        }
        let later = self.0.later.load(Ordering::SeqCst);
        self.0.inner.seconds().saturating_add_signed(later)
    }
}

#[derive(Debug)]
struct WildFile {
    file: Box<dyn DoorFile>,
    door: WildDoor,
}

impl WildFile {
    fn below(&self, most: usize) -> usize {
        self.door.0.random.below(most.max(1))
    }

    /// A length between 0 and all of it, at a sector.
    fn part(&self, bytes: usize) -> usize {
        self.below(bytes / 512 + 1) * 512
    }

    fn write_part(&self, bytes: &[u8], offset: u64) {
        let part = &bytes[..self.part(bytes.len())];
        // A file past the system's cache takes no odd lengths.
        let whole = &part[..part.len() / 4096 * 4096];
        let _ = self.file.write_all(part, offset);
        let _ = self.file.write_all(whole, offset);
    }
}

impl DoorFile for WildFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let possible = [
            Kind::Short,
            Kind::Interrupted,
            Kind::Slow,
            Kind::Refused,
            Kind::Flipped,
        ];
        match self.door.meets(&possible)? {
            Some(Kind::Short) if bytes.len() > 4096 => {
                let length = bytes.len() - 4096;
                self.file.read_at(&mut bytes[..length], offset)
            }
            Some(Kind::Flipped) => {
                let count = self.file.read_at(bytes, offset)?;
                if count > 0 {
                    bytes[self.below(count)] ^= 1 << self.below(8);
                }
                Ok(count)
            }
            _ => self.file.read_at(bytes, offset),
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let met = self.door.meets(&Kind::ALL);
        if self.door.0.dead.load(Ordering::SeqCst) {
            let left = |left: u32| left.checked_sub(1);
            let cut = &self.door.0.cut;
            let (set, get) = (Ordering::SeqCst, Ordering::SeqCst);
            if cut.fetch_update(set, get, left).is_ok() {
                self.write_part(bytes, offset);
            }
            return Err(refusal(5));
        }
        match met? {
            Some(Kind::Short) if bytes.len() > 4096 => {
                self.file.write_at(&bytes[..bytes.len() - 4096], offset)
            }
            Some(Kind::Torn) => {
                self.write_part(bytes, offset);
                Err(refusal(5))
            }
            Some(Kind::Lost) => Ok(bytes.len()),
            Some(Kind::Flipped) if bytes.len() >= 4096 => {
                let at = self.below(bytes.len());
                let count = self.file.write_at(bytes, offset)?;
                // Its whole block again, so that the file may be one past the system's cache.
                let mut aligned = Aligned([0; 4096]);
                let from = at / 4096 * 4096;
                if from + 4096 <= count {
                    aligned.0.copy_from_slice(&bytes[from..from + 4096]);
                    aligned.0[at - from] ^= 1 << self.below(8);
                    let _ = self.file.write_all(&aligned.0, offset + from as u64);
                }
                Ok(count)
            }
            _ => self.file.write_at(bytes, offset),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.door.meets(&[Kind::Refused, Kind::Slow])?;
        self.file.sync()
    }

    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        self.door.meets(&[Kind::Refused, Kind::Slow])?;
        self.file.punch(offset, length)
    }

    fn length(&self) -> io::Result<u64> {
        self.door.meets(&[Kind::Refused])?;
        self.file.length()
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.door.meets(&[Kind::Refused, Kind::Slow])?;
        self.file.set_length(length)
    }
}

/// A block at an address that files past the system's cache take.
#[repr(align(4096))]
struct Aligned([u8; 4096]);
