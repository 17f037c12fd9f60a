//! A damaged marker stops no engine, and what is somebody else's stays theirs.

use crate::support;

use std::fs;

use hybrid_pages::error::Error;
use hybrid_pages_disk::{DiskFailure, DiskTree};
use support::Setup;

const MARKER: &str = "hybrid-pages-disk";
const OURS: &[u8] = b"hybrid-pages disk store, format 1\n";
/// Where the number of the format is.
const NUMBER: usize = OURS.len() - 2;

/// A start over such a marker finds what was durable, counts the damage and mends it.
fn mends(setup: &Setup, bytes: &[u8], what: &str) {
    let marker = setup.options.path.join(MARKER);
    fs::write(&marker, bytes).unwrap();
    let entries = |tree: DiskTree| tree.lanes(&mut || true).unwrap()[0].identities[0].entries();
    assert_eq!(entries(DiskTree::open(&setup.options.path).unwrap()), 4);
    assert_eq!(fs::read(&marker).unwrap(), bytes, "{what}: tools only look");
    let engine = setup.engine();
    assert_eq!(engine.restore("abc"), 3, "{what}");
    assert_eq!(engine.stats().failed(DiskFailure::Directory), 1, "{what}");
    assert!(engine.below.take_notes()[0].contains("written anew"));
    assert_eq!(fs::read(&marker).unwrap(), OURS, "{what}");
}

/// A start is refused by name and changes nothing.
fn refuses(setup: &Setup, name: &str) {
    let marker = setup.options.path.join(MARKER);
    let before = fs::read(&marker).ok();
    for _ in 0..2 {
        let error = setup.try_engine().err();
        let Some(Error::Foreign(text)) = error else {
            panic!("expected {name} to be refused, found {error:?}");
        };
        assert!(text.contains(name) && text.contains("expected"), "{text}");
    }
    let tree = DiskTree::open(&setup.options.path);
    assert!(matches!(tree, Err(Error::Foreign(_))), "{name}");
    assert_eq!(fs::read(&marker).ok(), before);
}

#[test]
fn a_flipped_bit_in_the_marker_is_mended() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    setup.engine().keep("abc");
    for at in 0..8 * OURS.len() {
        let mut bytes = OURS.to_vec();
        bytes[at / 8] ^= 1 << (at % 8);
        if bytes[NUMBER].is_ascii_digit() && bytes[NUMBER] > b'1' {
            // Nothing tells it from a marker of that format.
            let text = format!("format {}", char::from(bytes[NUMBER]));
            fs::write(setup.options.path.join(MARKER), &bytes).unwrap();
            refuses(&setup, &text);
        } else {
            mends(&setup, &bytes, &format!("bit {at}"));
        }
    }
    fs::write(setup.options.path.join(MARKER), OURS).unwrap();
    assert_eq!(setup.engine().stats().failures, [0; 17]);
}

#[test]
fn a_marker_that_was_cut_emptied_or_zeroed_is_mended() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    setup.engine().keep("abc");
    for length in 0..OURS.len() {
        mends(&setup, &OURS[..length], &format!("cut to {length} bytes"));
        let mut torn = OURS.to_vec();
        torn[length..].fill(0);
        mends(&setup, &torn, &format!("zeros from byte {length} on"));
    }
    mends(&setup, &[0; 4096], "a block of zeros");
    mends(&setup, &[OURS, b"\0\0\0"].concat(), "zeros behind it");
}

#[test]
fn a_damaged_marker_beside_somebodys_files_is_mended_if_enough_of_it_is_left() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    setup.engine().keep("abc");
    fs::write(setup.options.path.join("letters"), "dear").unwrap();
    let mut flipped = OURS.to_vec();
    flipped[3] ^= 4;
    mends(&setup, &flipped, "a flipped bit");
    for unclear in [&b""[..], &[0; 34], b"hyb"] {
        fs::write(setup.options.path.join(MARKER), unclear).unwrap();
        refuses(&setup, MARKER);
    }
    fs::write(setup.options.path.join(MARKER), OURS).unwrap();
}

#[test]
fn other_formats_and_other_programs_are_refused_by_name() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    setup.engine().keep("abc");
    for others in [
        "hybrid-pages disk store, format 2",
        "hybrid-pages disk store, format 12",
        "hybrid-pages disk store, format 1.2",
        "somebody's photos",
        "another disk store of some program",
    ] {
        fs::write(setup.options.path.join(MARKER), format!("{others}\n")).unwrap();
        refuses(&setup, others.strip_suffix("'s photos").unwrap_or(others));
    }
    fs::write(setup.options.path.join(MARKER), OURS).unwrap();
    assert_eq!(setup.engine().restore("abc"), 3);
}

#[test]
fn files_without_a_marker_are_refused_by_name() {
    let place = tempfile::tempdir().unwrap();
    let setup = Setup::small(place.path());
    fs::create_dir(&setup.options.path).unwrap();
    fs::write(setup.options.path.join("letters"), "dear").unwrap();
    let error = setup.try_engine().err().unwrap();
    assert!(matches!(&error, Error::Foreign(text) if text.contains("letters")));
    assert_eq!(fs::read_dir(&setup.options.path).unwrap().count(), 1);
}
