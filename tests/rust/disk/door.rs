//! A door to a disk's files that does what disks do: it refuses, ends early, flips bits, hangs, and loses what
//! was not synced.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use hybrid_pages_disk::{Door, DoorFile, SystemDoor};

/// What the door does to the calls of files whose names contain `file`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Reads fail so.
    Reads(io::ErrorKind),
    /// Reads that reach this byte fail.
    Unreadable(u64),
    /// The same, and it takes so long.
    SlowlyUnreadable(u64, Duration),
    /// Writes fail so.
    Writes(io::ErrorKind),
    /// Syncs fail so.
    Syncs(io::ErrorKind),
    /// Reads and writes move one block less than asked for, until one is left.
    Short,
    /// One bit of what is read is another.
    Flip,
    /// Reads and writes wait until the fault is gone.
    Hang,
    /// Writes do.
    HangWrites,
    /// Reads and writes take so long.
    Slow(Duration),
    /// Nothing can be opened past the system's cache.
    Undirect,
    /// Holes can't be punched.
    Unpunched,
}

#[derive(Debug, Default)]
struct State {
    faults: Vec<(&'static str, Fault)>,
    /// Calls that wait now.
    hanging: usize,
    /// Calls that a fault has met.
    met: usize,
    /// Bytes of the longest read of a slab file.
    longest_read: usize,
    /// Added to the time.
    later: u64,
    /// Files whose unsynced writes are known.
    journal: Option<HashMap<String, Journal>>,
}

/// What a loss of power may take from a file.
#[derive(Debug)]
struct Journal {
    file: Arc<dyn DoorFile>,
    synced: Vec<u8>,
    since: Vec<Change>,
}

#[derive(Debug, Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

/// Numbers that a seed gives.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// One below `most`, or 0.
    pub fn below(&mut self, most: usize) -> usize {
        self.0 += 1;
        let hash = blake3::hash(&self.0.to_le_bytes());
        let word = u64::from_le_bytes(hash.as_bytes()[..8].try_into().unwrap());
        word as usize % most.max(1)
    }
}

/// The door, shared by those who hold it.
#[derive(Debug, Clone, Default)]
pub struct BadDoor(Arc<(Mutex<State>, Condvar)>);

impl BadDoor {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap()
    }

    pub fn set(&self, file: &'static str, fault: Fault) {
        self.state().faults.push((file, fault));
    }

    pub fn mend(&self) {
        self.state().faults.clear();
        self.0.1.notify_all();
    }

    /// Only this fault is left; what hangs goes on.
    pub fn leave(&self, file: &'static str, fault: Fault) {
        self.state().faults = vec![(file, fault)];
        self.0.1.notify_all();
    }

    /// Bytes of the longest read of a slab file so far.
    pub fn longest_read(&self) -> usize {
        self.state().longest_read
    }

    /// Time passes.
    pub fn pass(&self, seconds: u64) {
        self.state().later += seconds;
    }

    pub fn hanging(&self) -> usize {
        self.state().hanging
    }

    /// Calls that a fault has met.
    pub fn met(&self) -> usize {
        self.state().met
    }

    /// From now on remembers what was not synced.
    pub fn remember(&self) {
        self.state().journal = Some(HashMap::new());
    }

    /// The power fails: of what was not synced, files keep some, in any order, and of some of that a part.
    /// Nothing may use them meanwhile.
    pub fn lose_power(&self, seed: u64) {
        let mut random = Random(seed);
        let mut below = |most: usize| random.below(most);
        let journal = self.state().journal.take().unwrap();
        for (_, mut file) in journal {
            let mut bytes = file.synced;
            for at in (1..file.since.len()).rev() {
                file.since.swap(at, below(at + 1));
            }
            for change in file.since {
                match (below(8), change) {
                    (0, _) => {}
                    (_, Change::Length(length)) => bytes.resize(length as usize, 0),
                    (kept, Change::Write(offset, mut data)) => {
                        if kept == 1 {
                            data.truncate(below(data.len() / 512 + 1) * 512);
                        }
                        let (from, to) = (offset as usize, offset as usize + data.len());
                        bytes.resize(bytes.len().max(to), 0);
                        bytes[from..to].copy_from_slice(&data);
                    }
                }
            }
            file.file.set_length(0).unwrap();
            file.file.write_all(&bytes, 0).unwrap();
        }
    }

    /// The faults of a file. Waits while it hangs.
    fn meet(&self, file: &str, wanted: impl Fn(Fault) -> bool) -> Option<Fault> {
        let mut state = self.state();
        loop {
            let hit = |(name, fault): &&(&str, Fault)| file.contains(name) && wanted(*fault);
            let found = state.faults.iter().find(hit).map(|(_, fault)| *fault);
            state.met += usize::from(found.is_some());
            if !matches!(found, Some(Fault::Hang | Fault::HangWrites)) {
                return found;
            }
            state.hanging += 1;
            state = self.0.1.wait(state).unwrap();
            state.hanging -= 1;
        }
    }
}

impl Door for BadDoor {
    fn rename(&self, directory: BorrowedFd<'_>, from: &str, to: &str) -> io::Result<()> {
        self.meet(from, |fault| fault == Fault::Hang);
        SystemDoor.rename(directory, from, to)
    }

    fn seconds(&self) -> u64 {
        SystemDoor.seconds() + self.state().later
    }

    fn open(
        &self,
        directory: BorrowedFd<'_>,
        name: &str,
        direct: bool,
    ) -> io::Result<Box<dyn DoorFile>> {
        if direct && self.meet(name, |fault| fault == Fault::Undirect).is_some() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let journaled = self.state().journal.is_some();
        let inner: Arc<dyn DoorFile> =
            Arc::from(SystemDoor.open(directory, name, direct && !journaled)?);
        if journaled {
            let length = inner.length()?;
            let mut synced = vec![0; length as usize];
            inner.read_all(&mut synced, 0)?;
            let journal = Journal {
                file: Arc::clone(&inner),
                synced,
                since: Vec::new(),
            };
            self.state()
                .journal
                .as_mut()
                .unwrap()
                .insert(name.into(), journal);
        }
        Ok(Box::new(BadFile {
            inner,
            name: name.into(),
            door: self.clone(),
        }))
    }
}

#[derive(Debug)]
struct BadFile {
    inner: Arc<dyn DoorFile>,
    name: String,
    door: BadDoor,
}

impl BadFile {
    /// Changes the file and remembers it, in one step.
    fn change<T>(
        &self,
        run: impl FnOnce() -> io::Result<T>,
        change: impl FnOnce(&T) -> Change,
    ) -> io::Result<T> {
        let mut state = self.door.state();
        let done = run()?;
        if let Some(journal) = &mut state.journal {
            journal
                .get_mut(&self.name)
                .unwrap()
                .since
                .push(change(&done));
        }
        Ok(done)
    }
}

impl DoorFile for BadFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let reached = offset..offset + bytes.len() as u64;
        let wanted = |fault| match fault {
            Fault::Unreadable(at) | Fault::SlowlyUnreadable(at, _) => reached.contains(&at),
            fault => matches!(
                fault,
                Fault::Reads(_) | Fault::Short | Fault::Flip | Fault::Hang | Fault::Slow(_)
            ),
        };
        if self.name.contains("class") {
            let mut state = self.door.state();
            state.longest_read = state.longest_read.max(bytes.len());
        }
        match self.door.meet(&self.name, wanted) {
            Some(Fault::Reads(kind)) => Err(kind.into()),
            Some(Fault::Unreadable(_)) => Err(io::ErrorKind::Other.into()),
            Some(Fault::SlowlyUnreadable(_, time)) => {
                std::thread::sleep(time);
                Err(io::ErrorKind::Other.into())
            }
            Some(Fault::Slow(time)) => {
                std::thread::sleep(time);
                self.inner.read_at(bytes, offset)
            }
            Some(Fault::Short) if bytes.len() > 4096 => {
                let length = bytes.len() - 4096;
                self.inner.read_at(&mut bytes[..length], offset)
            }
            Some(Fault::Flip) => {
                let count = self.inner.read_at(bytes, offset)?;
                if let Some(byte) = bytes[..count].get_mut(count / 3) {
                    *byte ^= 1;
                }
                Ok(count)
            }
            _ => self.inner.read_at(bytes, offset),
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let wanted = |fault| {
            matches!(
                fault,
                Fault::Writes(_) | Fault::Short | Fault::Hang | Fault::HangWrites | Fault::Slow(_)
            )
        };
        let bytes = match self.door.meet(&self.name, wanted) {
            Some(Fault::Slow(time)) => {
                std::thread::sleep(time);
                bytes
            }
            Some(Fault::Writes(kind)) => return Err(kind.into()),
            Some(Fault::Short) if bytes.len() > 4096 => &bytes[..bytes.len() - 4096],
            _ => bytes,
        };
        self.change(
            || self.inner.write_at(bytes, offset),
            |&count| Change::Write(offset, bytes[..count].to_vec()),
        )
    }

    fn sync(&self) -> io::Result<()> {
        let wanted = |fault| matches!(fault, Fault::Syncs(_));
        if let Some(Fault::Syncs(kind)) = self.door.meet(&self.name, wanted) {
            return Err(kind.into());
        }
        let mut state = self.door.state();
        self.inner.sync()?;
        if let Some(journal) = &mut state.journal {
            let journal = journal.get_mut(&self.name).unwrap();
            journal.synced = vec![0; self.inner.length()? as usize];
            self.inner.read_all(&mut journal.synced, 0)?;
            journal.since.clear();
        }
        Ok(())
    }

    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        let wanted = |fault| matches!(fault, Fault::Unpunched | Fault::Writes(_));
        match self.door.meet(&self.name, wanted) {
            Some(Fault::Writes(kind)) => return Err(kind.into()),
            Some(_) => return Err(io::ErrorKind::Unsupported.into()),
            None => {}
        }
        self.change(
            || self.inner.punch(offset, length),
            |()| Change::Write(offset, vec![0; length as usize]),
        )
    }

    fn length(&self) -> io::Result<u64> {
        self.inner.length()
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        if let Some(Fault::Writes(kind)) = self
            .door
            .meet(&self.name, |fault| matches!(fault, Fault::Writes(_)))
        {
            return Err(kind.into());
        }
        self.change(
            || self.inner.set_length(length),
            |()| Change::Length(length),
        )
    }
}
