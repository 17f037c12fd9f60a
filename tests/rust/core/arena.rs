//! The arena: shared slots, and everything that is not one of ours refused at the door.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use hybrid_pages::error::{Error, Result};
use hybrid_pages::geometry::{Dtype, Geometry, Group, Layer, Segment};
use hybrid_pages::ids::{ClassKind, SlotId};
use hybrid_pages::tier::Arena;

fn geometry(bytes: usize) -> Geometry {
    let segment = Segment::new("data", Dtype::Uint8, vec![bytes]).unwrap();
    let layer = Layer::new("layer", vec![segment]).unwrap();
    let group = Group::new(ClassKind::Attention, vec![layer], None).unwrap();
    Geometry::new(16, vec![group], 1, BTreeMap::new()).unwrap()
}

/// A copy of an arena in an ordinary file, removed in the end.
struct Copy(PathBuf);

impl Copy {
    fn of(arena: &Arena, name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hybrid-pages-{}-{name}", std::process::id()));
        fs::write(&path, fs::read(arena.path()).unwrap()).unwrap();
        Self(path)
    }

    fn patch(&self, offset: u64, bytes: &[u8]) {
        let file = OpenOptions::new().write(true).open(&self.0).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }

    fn open(&self) -> Result<Arena> {
        Arena::open(self.0.to_str().unwrap(), &geometry(8))
    }

    fn arena_error(&self) -> String {
        match self.open() {
            Err(Error::Arena(why)) => why,
            other => panic!("expected an arena error, found {other:?}"),
        }
    }

    fn foreign_error(&self) -> String {
        match self.open() {
            Err(Error::Foreign(why)) => why,
            other => panic!("expected foreign bytes, found {other:?}"),
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

#[test]
fn what_one_mapping_writes_the_other_reads() {
    let ours = Arena::create(&geometry(8), 100, 3).unwrap();
    let theirs = Arena::open(ours.path(), &geometry(8)).unwrap();
    assert_eq!(
        (theirs.slots(), theirs.slot_bytes(), theirs.nbytes()),
        (3, 100, 300)
    );
    assert_eq!(theirs.fingerprint(), geometry(8).fingerprint());
    assert_eq!(ours.read(SlotId(1)).unwrap(), vec![0; 100]);
    ours.write(SlotId(1), &[7; 100]).unwrap();
    theirs.write(SlotId(2), b"end").unwrap();
    assert_eq!(theirs.read(SlotId(1)).unwrap(), vec![7; 100]);
    assert_eq!(&ours.read(SlotId(2)).unwrap()[..4], b"end\0");
    assert_eq!(ours.read(SlotId(0)).unwrap(), vec![0; 100]);
}

#[test]
fn slots_start_on_a_page() {
    let arena = Arena::create(&geometry(8), 4096, 2).unwrap();
    assert_eq!(arena.region().address().addr().get() % 4096, 0);
    assert_eq!(arena.region().nbytes(), 8192);
}

#[test]
fn a_mapping_outlives_its_creator_but_a_path_does_not() {
    let ours = Arena::create(&geometry(77), 100, 3).unwrap();
    let path = ours.path().to_owned();
    let theirs = Arena::open(&path, &geometry(77)).unwrap();
    ours.write(SlotId(0), b"still here").unwrap();
    drop(ours);
    assert_eq!(&theirs.read(SlotId(0)).unwrap()[..10], b"still here");
    // Another test may have taken over the descriptor's number: not with this geometry.
    assert!(Arena::open(&path, &geometry(77)).is_err());
    let gone = Arena::open("/proc/0/fd/3", &geometry(77));
    assert!(matches!(gone, Err(Error::Arena(why)) if why.contains("has its creator ended?")));
}

#[test]
fn impossible_sizes_are_refused() {
    let create = |slot_bytes, slots| Arena::create(&geometry(8), slot_bytes, slots);
    for (slot_bytes, slots) in [(0, 1), (1, 0), (1, Arena::MAX_SLOTS + 1)] {
        assert!(matches!(
            create(slot_bytes, slots),
            Err(Error::InvalidArgument(_))
        ));
    }
    for slot_bytes in [1 << 40, usize::MAX] {
        let why = create(slot_bytes, 1 << 20).unwrap_err();
        assert!(matches!(&why, Error::Budget(_)), "{why:?}");
        assert!(why.to_string().contains(&slot_bytes.to_string()), "{why}");
    }
}

#[test]
fn slots_that_do_not_exist_and_data_that_exceed_one_are_refused() {
    let arena = Arena::create(&geometry(8), 4, 2).unwrap();
    let refused = |result: Result<()>| matches!(result, Err(Error::InvalidArgument(_)));
    assert!(refused(arena.read(SlotId(2)).map(drop)));
    assert!(refused(arena.write(SlotId(2), b"x")));
    assert!(refused(arena.write(SlotId(1), b"12345")));
    assert_eq!(arena.read(SlotId(1)).unwrap(), [0; 4]);
}

#[test]
fn an_arena_of_another_geometry_is_foreign() {
    let arena = Arena::create(&geometry(8), 100, 3).unwrap();
    let (ours, other) = (geometry(8), geometry(9));
    match Arena::open(arena.path(), &other) {
        Err(Error::Foreign(why)) => {
            assert!(why.contains(&ours.fingerprint().to_string()), "{why}");
            assert!(why.contains(&other.fingerprint().to_string()), "{why}");
        }
        found => panic!("expected foreign bytes, found {found:?}"),
    }
}

#[test]
fn another_format_is_foreign() {
    let arena = Arena::create(&geometry(8), 100, 3).unwrap();
    let copy = Copy::of(&arena, "version");
    copy.patch(8, &9_u32.to_le_bytes());
    assert!(
        copy.foreign_error()
            .contains("expected format version 1, found 9")
    );
    copy.patch(0, b"NOTPAGES");
    assert!(copy.foreign_error().contains("found NOTPAGES"));
}

#[test]
fn a_truncated_arena_is_refused() {
    let arena = Arena::create(&geometry(8), 100, 3).unwrap();
    let copy = Copy::of(&arena, "truncated");
    let file = OpenOptions::new().write(true).open(&copy.0).unwrap();
    let size = file.metadata().unwrap().len();
    file.set_len(size - 1).unwrap();
    let why = copy.arena_error();
    assert!(why.contains("expected 3 slots of 100 bytes"), "{why}");
    assert!(why.contains(&format!("found {} bytes", size - 1)), "{why}");
    file.set_len(63).unwrap();
    assert!(copy.arena_error().contains("found 63 bytes"));
}

#[test]
fn a_header_that_lies_is_refused() {
    let arena = Arena::create(&geometry(8), 100, 3).unwrap();
    let copy = Copy::of(&arena, "lies");
    for (offset, word) in [(16, 0), (24, 0), (24, 4), (16, u64::MAX), (24, u64::MAX)] {
        let old = arena.slot_bytes() as u64;
        copy.patch(16, &old.to_le_bytes());
        copy.patch(24, &3_u64.to_le_bytes());
        copy.patch(offset, &word.to_le_bytes());
        copy.arena_error();
    }
}

#[test]
fn a_file_that_could_shrink_is_refused() {
    let arena = Arena::create(&geometry(8), 100, 3).unwrap();
    let copy = Copy::of(&arena, "unsealed");
    assert!(copy.arena_error().contains("sealed"));
}

#[test]
fn nobody_can_resize_an_arena() {
    let arena = Arena::create(&geometry(8), 100, 3).unwrap();
    let file = OpenOptions::new().write(true).open(arena.path()).unwrap();
    let size = file.metadata().unwrap().len();
    assert!(file.set_len(0).is_err());
    assert!(file.set_len(size + 1).is_err());
}

#[test]
fn what_is_no_file_is_refused_without_waiting_for_it() {
    for path in ["/dev/null", "/proc/self", "/nowhere/at/all", "", "\0"] {
        let opened = Arena::open(path, &geometry(8));
        assert!(
            matches!(opened, Err(Error::Arena(_))),
            "{path:?}: {opened:?}"
        );
    }
}
