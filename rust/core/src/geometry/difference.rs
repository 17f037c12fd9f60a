//! The first thing in which two geometries differ, in words.

use std::fmt::Display;

use super::group::{Group, Layer, kind_name};
use super::segment::Segment;
use super::whole::Geometry;

impl Geometry {
    /// One line naming the first thing that differs, this side being the expected one; `None` if nothing does.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<String> {
        difference(self, other)
    }
}

fn difference(expected: &Geometry, found: &Geometry) -> Option<String> {
    unequal(
        "block_tokens",
        expected.block_tokens(),
        found.block_tokens(),
    )
    .or_else(|| unequal("ranks", expected.ranks(), found.ranks()))
    .or_else(|| identities(expected, found))
    .or_else(|| unequal("groups", expected.groups().len(), found.groups().len()))
    .or_else(|| {
        let pairs = expected.groups().iter().zip(found.groups());
        pairs
            .enumerate()
            .find_map(|(index, (e, f))| groups(index, e, f))
    })
}

fn identities(expected: &Geometry, found: &Geometry) -> Option<String> {
    let (expected, found) = (expected.identity(), found.identity());
    let mut keys: Vec<_> = expected.keys().chain(found.keys()).collect();
    keys.sort_unstable();
    let value = |value: Option<&String>| value.map_or("nothing".to_owned(), |v| format!("{v:?}"));
    keys.into_iter().find_map(|key| {
        let (e, f) = (expected.get(key), found.get(key));
        unequal(&format!("identity {key:?}"), value(e), value(f))
    })
}

fn groups(index: usize, expected: &Group, found: &Group) -> Option<String> {
    let window = |group: &Group| {
        group
            .window_tokens()
            .map_or("none".into(), |w| w.to_string())
    };
    let name = format!("group {index}");
    unequal(
        &format!("{name}: kind"),
        kind_name(expected.kind()),
        kind_name(found.kind()),
    )
    .or_else(|| {
        unequal(
            &format!("{name}: window_tokens"),
            window(expected),
            window(found),
        )
    })
    .or_else(|| {
        unequal(
            &format!("{name}: blocks_per_entry"),
            expected.blocks_per_entry(),
            found.blocks_per_entry(),
        )
    })
    .or_else(|| {
        unequal(
            &format!("{name}: layers"),
            expected.layers().len(),
            found.layers().len(),
        )
    })
    .or_else(|| {
        let mut pairs = expected.layers().iter().zip(found.layers());
        pairs.find_map(|(e, f)| layers(&name, e, f))
    })
}

fn layers(group: &str, expected: &Layer, found: &Layer) -> Option<String> {
    let name = format!("layer '{}'", expected.name());
    let quoted = |name: &str| format!("'{name}'");
    unequal(
        &format!("{group}: layer"),
        quoted(expected.name()),
        quoted(found.name()),
    )
    .or_else(|| {
        let (e, f) = (expected.segments().len(), found.segments().len());
        unequal(&format!("{name}: segments"), e, f)
    })
    .or_else(|| {
        let mut pairs = expected.segments().iter().zip(found.segments());
        pairs.find_map(|(e, f)| segments(&name, e, f))
    })
}

fn segments(layer: &str, expected: &Segment, found: &Segment) -> Option<String> {
    let name = format!("{layer}: segment '{}'", expected.name());
    let quoted = |name: &str| format!("'{name}'");
    let shape = |segment: &Segment| format!("{:?}", segment.shape());
    unequal(
        &format!("{layer}: segment"),
        quoted(expected.name()),
        quoted(found.name()),
    )
    .or_else(|| {
        let (e, f) = (expected.dtype().name(), found.dtype().name());
        unequal(&format!("{name}: dtype"), e, f)
    })
    .or_else(|| unequal(&format!("{name}: shape"), shape(expected), shape(found)))
}

fn unequal<T: PartialEq + Display>(what: &str, expected: T, found: T) -> Option<String> {
    (expected != found).then(|| format!("{what} expected {expected}, found {found}"))
}
