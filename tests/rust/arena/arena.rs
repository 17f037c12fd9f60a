//! The arena: shared slots, and everything that is not one of ours refused at the door.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use hybrid_pages::error::{Error, Result};
use hybrid_pages::geometry::{Dtype, Geometry, Group, Layer, Segment};
use hybrid_pages::ids::{ClassKind, SlotId};
use hybrid_pages_arena::{Arena, PlaneOptions, prefault};

fn geometry(bytes: usize) -> Geometry {
    let segment = Segment::new("data", Dtype::Uint8, vec![bytes]).unwrap();
    let layer = Layer::new("layer", vec![segment]).unwrap();
    let group = Group::new(ClassKind::Attention, vec![layer], None).unwrap();
    Geometry::new(16, vec![group], 1, BTreeMap::new()).unwrap()
}

/// The path of an arena's only plane.
fn path_of(arena: &Arena) -> &str {
    let [plane] = arena.planes() else {
        panic!("expected one plane, found {:?}", arena.planes());
    };
    plane.path().expect("shared memory has a path")
}

/// A copy of an arena in an ordinary file, removed in the end.
struct Copy(PathBuf);

impl Copy {
    fn of(arena: &Arena, name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hybrid-pages-{}-{name}", std::process::id()));
        fs::write(&path, fs::read(path_of(arena)).unwrap()).unwrap();
        Self(path)
    }

    fn patch(&self, offset: u64, bytes: &[u8]) {
        let file = OpenOptions::new().write(true).open(&self.0).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }

    fn open(&self) -> Result<Arena> {
        Arena::open(&[self.0.to_str().unwrap()], &geometry(8))
    }

    fn arena_error(&self) -> String {
        match self.open() {
            Err(Error::Arena(why)) => why.to_string(),
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
    let theirs = Arena::open(&[path_of(&ours)], &geometry(8)).unwrap();
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
    assert_eq!(arena.planes()[0].region().address().addr().get() % 4096, 0);
    assert_eq!(arena.planes()[0].region().nbytes(), 8192);
}

#[test]
fn a_mapping_outlives_its_creator_but_a_path_does_not() {
    let ours = Arena::create(&geometry(77), 100, 3).unwrap();
    let path = path_of(&ours).to_owned();
    let theirs = Arena::open(&[&path], &geometry(77)).unwrap();
    ours.write(SlotId(0), b"still here").unwrap();
    drop(ours);
    assert_eq!(&theirs.read(SlotId(0)).unwrap()[..10], b"still here");
    // Another test may have taken over the descriptor's number: not with this geometry.
    assert!(Arena::open(&[&path], &geometry(77)).is_err());
    let gone = Arena::open(&["/proc/0/fd/3"], &geometry(77));
    assert!(matches!(gone, Err(Error::Arena(why)) if why.contains("has its creator ended?")));
}

#[test]
fn an_error_of_the_system_is_the_source() {
    let gone = Arena::open(&["/proc/0/fd/3"], &geometry(77)).unwrap_err();
    let source = gone.source().and_then(|source| source.downcast_ref());
    let kind = source.map(std::io::Error::kind);
    assert_eq!(kind, Some(std::io::ErrorKind::NotFound));
    let malformed = Geometry::from_json("{").unwrap_err();
    let source = malformed
        .source()
        .expect("the reader's error is the source");
    assert!(malformed.to_string().ends_with(&source.to_string()));
    let refused = Arena::create(&geometry(8), 0, 1).unwrap_err();
    assert!(refused.source().is_none(), "no other error is behind it");
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
    match Arena::open(&[path_of(&arena)], &other) {
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
            .contains("expected format version 2, found 9")
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
    file.set_len(71).unwrap();
    assert!(copy.arena_error().contains("found 71 bytes"));
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
    let file = OpenOptions::new()
        .write(true)
        .open(path_of(&arena))
        .unwrap();
    let size = file.metadata().unwrap().len();
    assert!(file.set_len(0).is_err());
    assert!(file.set_len(size + 1).is_err());
}

#[test]
fn what_is_no_file_is_refused_without_waiting_for_it() {
    for path in ["/dev/null", "/proc/self", "/nowhere/at/all", "", "\0"] {
        let opened = Arena::open(&[path], &geometry(8));
        assert!(
            matches!(opened, Err(Error::Arena(_))),
            "{path:?}: {opened:?}"
        );
    }
}

/// The same on several ranks.
fn on_ranks(ranks: usize) -> Geometry {
    let one = geometry(8);
    Geometry::new(16, one.groups().to_vec(), ranks, BTreeMap::new()).unwrap()
}

fn plane(rank: usize, slot_bytes: usize, slots: usize) -> Arena {
    Arena::create_plane(
        &on_ranks(3),
        rank,
        slot_bytes,
        slots,
        PlaneOptions::default(),
    )
    .unwrap()
}

#[test]
fn planes_of_several_processes_make_one_arena() {
    let workers = [plane(2, 30, 4), plane(0, 30, 4), plane(1, 30, 4)];
    let paths: Vec<&str> = workers.iter().map(path_of).collect();
    let all = Arena::open(&paths, &on_ranks(3)).unwrap();
    let ranks: Vec<_> = all.planes().iter().map(|plane| plane.rank()).collect();
    assert_eq!(ranks, [0, 1, 2]);
    assert_eq!((all.slots(), all.slot_bytes(), all.nbytes()), (4, 30, 120));
    assert_eq!(all.planes()[1].slot_bytes(), 10);
    let bytes: Vec<u8> = (0..30).collect();
    all.write(SlotId(3), &bytes).unwrap();
    assert_eq!(all.read(SlotId(3)).unwrap(), bytes);
    for (worker, rank) in workers.iter().zip([2_usize, 0, 1]) {
        let memory = worker.memory(rank).unwrap();
        assert_eq!((memory.slot_bytes(), memory.slots()), (10, 4));
        // SAFETY: the plane has four slots of ten bytes, which nobody writes now.
        let slots = unsafe { std::slice::from_raw_parts(memory.region().address().as_ptr(), 40) };
        assert_eq!(slots[30..], bytes[rank * 10..][..10]);
    }
}

#[test]
fn a_process_with_one_plane_has_no_other() {
    let one = plane(1, 30, 4);
    assert!(one.memory(1).is_ok());
    let why = one.memory(0).unwrap_err().to_string();
    assert!(
        why.contains("expected the plane of rank 0, found those of [1]"),
        "{why}"
    );
    assert!(one.read(SlotId(0)).is_err() && one.write(SlotId(0), b"x").is_err());
}

#[test]
fn planes_that_do_not_belong_together_are_refused() {
    let refused = |planes: &[Arena]| {
        let paths: Vec<&str> = planes.iter().map(path_of).collect();
        Arena::open(&paths, &on_ranks(3)).unwrap_err().to_string()
    };
    assert!(refused(&[plane(0, 30, 4), plane(0, 30, 4)]).contains("for rank 0"));
    assert!(refused(&[plane(0, 30, 4), plane(1, 30, 5)]).contains("expected 4 slots of 10 bytes"));
    assert!(refused(&[plane(0, 30, 4), plane(1, 60, 4)]).contains("found 4 of 20"));
    assert!(refused(&[]).contains("found none"));
    let two = Arena::create(&on_ranks(2), 30, 4).unwrap();
    let paths: Vec<&str> = two
        .planes()
        .iter()
        .filter_map(|plane| plane.path())
        .collect();
    assert!(matches!(
        Arena::open(&paths, &on_ranks(3)),
        Err(Error::Foreign(_))
    ));
}

#[test]
fn slots_that_ranks_cannot_share_and_ranks_that_do_not_exist_are_refused() {
    let refused = |arena: Result<Arena>| match arena {
        Err(Error::InvalidArgument(why)) => why,
        other => panic!("expected a refusal, found {other:?}"),
    };
    let why = refused(Arena::create(&on_ranks(3), 31, 4));
    assert!(
        why.contains("a multiple of the number of ranks, 3, found 31"),
        "{why}"
    );
    let usual = PlaneOptions::default();
    let why = refused(Arena::create_plane(&on_ranks(3), 3, 30, 4, usual));
    assert!(why.contains("expected a rank below 3, found 3"), "{why}");
}

#[test]
fn huge_pages_are_used_or_refused_with_a_remedy() {
    let options = PlaneOptions {
        huge_pages: true,
        ..PlaneOptions::default()
    };
    match Arena::create_with(&geometry(8), 3 << 20, 3, options) {
        Ok(arena) => {
            let region = arena.planes()[0].region();
            assert_eq!(region.address().addr().get() % (2 << 20), 0);
            arena.write(SlotId(2), b"here").unwrap();
            let other = Arena::open(&[path_of(&arena)], &geometry(8)).unwrap();
            assert_eq!(&other.read(SlotId(2)).unwrap()[..4], b"here");
        }
        Err(Error::Budget(why)) => {
            assert!(why.contains("expected 6 free ones of 2 MiB"), "{why}");
            assert!(why.contains("sysctl -w vm.nr_hugepages=6"), "{why}");
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn core_dumps_leave_planes_out() {
    let ours = Arena::create(&geometry(8), 4096, 3).unwrap();
    let opened = Arena::open(&[path_of(&ours)], &geometry(8)).unwrap();
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    for arena in [&ours, &opened] {
        let plane = &arena.planes()[0];
        let start = plane.region().address().addr().get() - plane.first_slot_at();
        let (_, mapping) = maps.split_once(&format!("{start:x}-")).unwrap();
        let flags = mapping.lines().find(|line| line.starts_with("VmFlags:"));
        assert!(flags.unwrap().contains(" dd"), "{flags:?}");
    }
}

#[test]
fn memory_is_taken_from_a_node_that_exists() {
    let on = |node| {
        let options = PlaneOptions {
            numa_node: Some(node),
            ..PlaneOptions::default()
        };
        Arena::create_with(&geometry(8), 100, 3, options)
    };
    let arena = on(0).unwrap();
    arena.write(SlotId(1), b"there").unwrap();
    // It is a wish, and many containers forbid it.
    for node in [4095, 4096, u32::MAX] {
        let arena = on(node).unwrap();
        arena.write(SlotId(1), b"elsewhere").unwrap();
        let warning = arena.planes()[0].warning().unwrap();
        assert!(warning.contains("mbind failed"), "{warning}");
    }
}

#[test]
fn private_memory_has_slots_and_no_path() {
    let private = PlaneOptions {
        private: true,
        ..PlaneOptions::default()
    };
    let arena = Arena::create_with(&on_ranks(2), 200, 5, private).unwrap();
    assert_eq!(arena.read(SlotId(4)).unwrap(), [0; 200]);
    let data: Vec<u8> = (0..200).collect();
    arena.write(SlotId(3), &data).unwrap();
    assert_eq!(arena.read(SlotId(3)).unwrap(), data);
    for plane in arena.planes() {
        assert_eq!(plane.path(), None);
        assert_eq!(plane.warning(), None);
        assert_eq!(plane.region().nbytes(), 500);
        prefault(plane.region(), 2, Some(0)).unwrap();
    }
    assert_eq!(arena.read(SlotId(3)).unwrap(), data);
}

#[test]
fn private_memory_of_huge_pages_is_refused() {
    let both = PlaneOptions {
        private: true,
        huge_pages: true,
        ..PlaneOptions::default()
    };
    match Arena::create_with(&geometry(8), 100, 3, both) {
        Err(Error::InvalidArgument(why)) => assert!(why.contains("private"), "{why}"),
        other => panic!("expected a refusal, found {other:?}"),
    }
}
