//! Where the tiers of `tier_sizes` keep their entries: a disk, an object store or a shared directory, a Mooncake Store.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hybrid_pages::geometry::{Dtype, Geometry, Group, Layer, Segment};
use hybrid_pages::guarded::lock;
use hybrid_pages::ids::{ClassKind, SlotId};
use hybrid_pages::policy::{self, Policy};
use hybrid_pages::tier::Below;
use hybrid_pages::transfer::checksum;
use hybrid_pages_arena::Arena;
use hybrid_pages_disk::{Disk, DiskHandle, DiskOptions, Door, DoorFile, SystemDoor};
use hybrid_pages_mooncake::{Mooncake, MooncakeHandle, MooncakeOptions};
use hybrid_pages_remote::{Admit, Remote, RemoteHandle, RemoteOptions, RemotePlace};

pub const LIMIT: Duration = Duration::from_secs(600);
/// Bytes of an entry, and of a slot.
const BYTES: usize = 64;

/// Files whose slabs take no room while it is told so: their cells become holes.
#[derive(Debug, Default)]
pub struct Holes(AtomicBool);

#[derive(Debug)]
struct Slab(Box<dyn DoorFile>, Arc<Holes>);

#[derive(Debug)]
struct HoleDoor(Arc<Holes>);

impl Door for HoleDoor {
    fn open(
        &self,
        directory: BorrowedFd<'_>,
        name: &str,
        direct: bool,
    ) -> io::Result<Box<dyn DoorFile>> {
        let file = SystemDoor.open(directory, name, direct)?;
        Ok(if name.ends_with(".slab") {
            Box::new(Slab(file, Arc::clone(&self.0)))
        } else {
            file
        })
    }
}

impl DoorFile for Slab {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(bytes, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let end = offset + bytes.len() as u64;
        if !self.1.0.load(Ordering::Relaxed) {
            return self.0.write_at(bytes, offset);
        }
        // Threads at once: none makes it shorter than another needs it.
        static GROWS: Mutex<()> = Mutex::new(());
        let _alone = lock(&GROWS);
        if self.0.length()? < end {
            self.0.set_length(end)?;
        }
        Ok(bytes.len())
    }
    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
    fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        self.0.punch(offset, length)
    }
    fn length(&self) -> io::Result<u64> {
        self.0.length()
    }
    fn set_length(&self, length: u64) -> io::Result<()> {
        self.0.set_length(length)
    }
}

/// Where a tier keeps its entries.
pub enum Place {
    Disk(PathBuf, Arc<Holes>),
    Remote(RemotePlace),
    /// The address of a master, and the command of the helper.
    Mooncake(String, Vec<OsString>),
}

/// The handle of a tier.
#[derive(Clone)]
pub enum Handle {
    Disk(DiskHandle),
    Remote(RemoteHandle),
    Mooncake(MooncakeHandle),
}

/// A tier with its slots, which all hold the same bytes.
pub struct Opened {
    pub tier: Box<dyn Below>,
    pub handle: Handle,
    arena: Arena,
}

impl Place {
    /// How often an operation is measured.
    pub fn rounds(&self) -> usize {
        match self {
            Self::Mooncake(..) => 3, // It takes longest.
            Self::Disk(..) | Self::Remote(_) => 5,
        }
    }

    /// The place that the first argument names.
    pub fn of(arguments: &[String], folder: &std::path::Path) -> Self {
        match arguments.first().map(String::as_str) {
            Some("disk") => Self::Disk(folder.join("disk"), Arc::default()),
            Some("directory") => {
                let url = format!("file://{}", folder.display());
                Self::Remote(RemotePlace::of_url(&url).expect("a directory"))
            }
            Some(url) if url.contains("://") => {
                Self::Remote(RemotePlace::of_url(url).expect("a URL"))
            }
            Some("mooncake") => {
                let command = arguments[2..].iter().map(OsString::from).collect();
                Self::Mooncake(arguments[1].clone(), command)
            }
            other => panic!(
                "expected disk, directory, a URL, or mooncake MASTER COMMAND, found {other:?}"
            ),
        }
    }

    /// Waits until what was found of others counts as old.
    pub fn ages(&self) {
        if let Self::Remote(place) = self {
            std::thread::sleep(RemoteOptions::new(place.clone()).refresh);
        }
    }

    /// Whether others may put entries there.
    pub fn is_shared(&self) -> bool {
        !matches!(self, Self::Disk(..))
    }

    /// Whether what is written from now on takes no room.
    pub fn fills(&self, yes: bool) {
        if let Self::Disk(_, holes) = self {
            holes.0.store(yes, Ordering::Relaxed);
        }
    }

    /// Makes a tier with so many slots.
    pub fn tier(&self, slots: usize) -> Opened {
        let segment = Segment::new("kv", Dtype::Uint8, vec![BYTES]).expect("a segment");
        let layer = Layer::new("attention", vec![segment]).expect("a layer");
        let group = Group::new(ClassKind::Attention, vec![layer], None).expect("a group");
        let geometry = Geometry::new(16, vec![group], 1, BTreeMap::new()).expect("a geometry");
        let arena = Arena::create(&geometry, BYTES, slots).expect("memory");
        for slot in 0..slots {
            let slot = SlotId(slot as u32);
            arena.write(slot, &[7; BYTES]).expect("a slot");
        }
        let (tier, handle) = self.below(&geometry);
        Opened {
            tier,
            handle,
            arena,
        }
    }

    fn below(&self, geometry: &Geometry) -> (Box<dyn Below>, Handle) {
        let shape = policy::EntrySizes {
            page: 1,
            window: 0,
            checkpoint: 0,
        };
        let policy: Box<dyn Policy> = policy::by_name("reuse", shape).expect("a policy");
        match self {
            Self::Disk(path, holes) => {
                let mut options = DiskOptions::new(path, 1 << 40);
                options.deadline = LIMIT;
                options.door = Arc::new(HoleDoor(Arc::clone(holes)));
                let disk = Disk::open(options, geometry, BYTES, policy).expect("a disk");
                let handle = Handle::Disk(disk.handle());
                (Box::new(disk), handle)
            }
            Self::Remote(place) => {
                let mut options = RemoteOptions::new(place.clone());
                options.admit = Admit::All;
                options.deadline = LIMIT;
                options.write_limit = LIMIT;
                options.pack_age = Duration::from_millis(5);
                let remote = Remote::open(options, geometry, BYTES, policy).expect("a store");
                let handle = Handle::Remote(remote.handle());
                (Box::new(remote), handle)
            }
            Self::Mooncake(master, command) => {
                let mut options = MooncakeOptions::new(master.clone(), command.clone());
                options.weighs = false;
                options.deadline = LIMIT;
                let mooncake = Mooncake::open(options, geometry, BYTES, policy).expect("a store");
                let handle = Handle::Mooncake(mooncake.handle());
                (Box::new(mooncake), handle)
            }
        }
    }
}

impl Opened {
    /// Opens the store of an identity, as an engine does that serves requests already.
    pub fn connect(&self, identity: u8) {
        let (arena, identity) = (&self.arena, [identity; 32]);
        let connected = match &self.handle {
            Handle::Disk(it) => it.connect_meanwhile(arena, &identity),
            Handle::Remote(it) => it.connect(arena, &identity),
            Handle::Mooncake(it) => it.connect(arena, &identity),
        };
        connected.expect("a connection");
    }

    pub fn sums(&self) -> [u64; 1] {
        [checksum(&[7; BYTES])]
    }
}

impl Handle {
    /// Reads the counts, under the tier's lock.
    pub fn stats(&self) {
        match self {
            Self::Disk(it) => drop(it.stats()),
            Self::Remote(it) => drop(it.stats()),
            Self::Mooncake(it) => drop(it.stats()),
        }
    }

    /// Whether the tier is open and, as far as it can say without being asked, has so many entries.
    pub fn knows(&self, entries: usize) -> bool {
        match self {
            Self::Disk(it) => !it.stats().out && it.stats().entries >= entries as u64,
            Self::Remote(it) => it.stats().entries >= entries as u64,
            Self::Mooncake(it) => !it.stats().out,
        }
    }

    pub fn settle(&self) {
        let settled = match self {
            Self::Disk(it) => it.settle(LIMIT),
            Self::Remote(it) => it.settle(LIMIT),
            Self::Mooncake(it) => it.settle(LIMIT),
        };
        assert!(settled, "{}", self.told());
    }

    pub fn close(&self) {
        match self {
            Self::Disk(it) => it.close(),
            Self::Remote(it) => it.close(),
            Self::Mooncake(it) => it.close(),
        }
    }

    pub fn told(&self) -> String {
        match self {
            Self::Disk(it) => format!("{:?} {:?}", it.stats(), it.take_notes()),
            Self::Remote(it) => format!("{:?} {:?}", it.stats(), it.take_notes()),
            Self::Mooncake(it) => format!("{:?} {:?}", it.stats(), it.take_notes()),
        }
    }
}
