//! Geometry: what is rejected, how classes form, and that JSON and fingerprint say everything.

use std::collections::BTreeMap;

use hybrid_pages::error::{Error, Result};
use hybrid_pages::geometry::{Dtype, FORMAT_VERSION, Geometry, Group, Layer, Segment};
use hybrid_pages::ids::ClassKind;
use proptest::prelude::*;

fn segment(name: &str, dtype: Dtype, shape: &[usize]) -> Segment {
    Segment::new(name, dtype, shape.to_vec()).unwrap()
}

fn layer(name: &str, bytes: usize) -> Layer {
    Layer::new(name, vec![segment("data", Dtype::Uint8, &[bytes])]).unwrap()
}

fn group(kind: ClassKind, name: &str, bytes: usize) -> Group {
    Group::new(kind, vec![layer(name, bytes)], None).unwrap()
}

fn window(name: &str, bytes: usize, tokens: usize) -> Group {
    Group::new(ClassKind::Window, vec![layer(name, bytes)], Some(tokens)).unwrap()
}

fn identity() -> BTreeMap<String, String> {
    BTreeMap::from([("model".to_owned(), "tiny".to_owned())])
}

fn geometry(groups: Vec<Group>) -> Geometry {
    Geometry::new(16, groups, 1, identity()).unwrap()
}

fn refused<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(Error::Geometry(why)) => why.to_string(),
        other => panic!("expected a geometry error, found {other:?}"),
    }
}

#[test]
fn impossible_segments_are_refused_by_name() {
    let shape = |shape: Vec<usize>| refused(Segment::new("k", Dtype::Float64, shape));
    assert!(shape(vec![2, 0]).contains("\"k\": expected dimensions of at least 1, found [2, 0]"));
    assert!(shape(vec![usize::MAX, 2]).contains("exceeds memory"));
    assert!(shape(vec![usize::MAX / 8]).contains("exceeds memory"));
    assert!(shape(vec![1; 17]).contains("at most 16 dimensions, found 17"));
    assert!(refused(Segment::new("", Dtype::Bool, vec![1])).contains("expected a name"));
    assert!(refused(Dtype::parse("float8")).contains("float8_e4m3fn"));
    assert_eq!(segment("scale", Dtype::Float32, &[]).bytes(), 4);
}

#[test]
fn impossible_layers_and_groups_are_refused_by_name() {
    let k = || segment("k", Dtype::Int16, &[4]);
    assert!(refused(Layer::new("", vec![k()])).contains("expected a name"));
    assert!(refused(Layer::new("a", vec![])).contains("layer \"a\": expected 1 to 64 segments"));
    assert!(refused(Layer::new("a", vec![k(), k()])).contains("\"k\": expected once, found twice"));
    let huge = || segment("x", Dtype::Uint8, &[isize::MAX as usize]);
    let more = segment("y", Dtype::Uint8, &[1]);
    assert!(refused(Layer::new("a", vec![huge(), more])).contains("exceed memory"));
    let group = |kind, layers, window| refused(Group::new(kind, layers, window));
    assert!(group(ClassKind::Attention, vec![], None).contains("expected 1 to 4096 layers"));
    assert!(group(ClassKind::Window, vec![layer("a", 1)], None).contains("window_tokens"));
    assert!(group(ClassKind::Window, vec![layer("a", 1)], Some(0)).contains("at least 1"));
    let stray = group(ClassKind::Recurrent, vec![layer("a", 1)], Some(8));
    assert!(stray.contains("recurrent group: expected no window_tokens, found 8"));
}

#[test]
fn impossible_geometries_are_refused() {
    let attention = |name: &str| group(ClassKind::Attention, name, 8);
    let make = |tokens, groups, ranks| refused(Geometry::new(tokens, groups, ranks, identity()));
    assert!(make(0, vec![attention("a")], 1).contains("block_tokens: expected at least 1"));
    assert!(make(16, vec![attention("a")], 0).contains("expected 1 to 1024 ranks, found 0"));
    assert!(make(16, vec![attention("a")], 1025).contains("found 1025"));
    assert!(make(16, vec![], 1).contains("expected 1 to 64 groups, found 0"));
    let many = (0..65).map(|i| attention(&format!("layer{i}"))).collect();
    assert!(make(16, many, 1).contains("found 65"));
    assert!(make(16, vec![attention("a"), attention("a")], 1).contains("\"a\": expected once"));
    let huge = group(ClassKind::Attention, "a", isize::MAX as usize);
    assert!(make(16, vec![huge], 2).contains("exceed memory"));
    let unnamed = BTreeMap::from([(String::new(), "x".to_owned())]);
    assert!(refused(Geometry::new(16, vec![attention("a")], 1, unnamed)).contains("identity"));
}

#[test]
fn groups_that_are_resumed_by_the_same_rule_form_one_class() {
    let groups = vec![
        group(ClassKind::Recurrent, "r0", 100),
        window("w0", 7, 128),
        group(ClassKind::Attention, "a0", 10),
        window("w1", 3, 18),
        group(ClassKind::Recurrent, "r1", 200),
        window("w2", 5, 128),
        group(ClassKind::Attention, "a1", 20),
    ];
    let geometry = Geometry::new(16, groups, 2, identity()).unwrap();
    let classes: Vec<_> = geometry
        .classes()
        .iter()
        .map(|c| {
            (
                c.index,
                c.kind,
                c.groups.as_slice(),
                c.window_blocks,
                c.rank_bytes,
                c.entry_bytes,
            )
        })
        .collect();
    assert_eq!(
        classes,
        [
            (0, ClassKind::Attention, &[2, 6][..], None, 30, 60),
            (1, ClassKind::Window, &[3], Some(2), 3, 6),
            (2, ClassKind::Window, &[1, 5], Some(8), 12, 24),
            (3, ClassKind::Recurrent, &[0, 4], None, 300, 600),
        ]
    );
}

#[test]
fn a_group_of_several_blocks_per_entry_counts_them_all() {
    let blocks = |group: Group, n| group.with_blocks_per_entry(n).unwrap();
    let groups = vec![
        blocks(group(ClassKind::Attention, "a0", 10), 3),
        group(ClassKind::Attention, "a1", 20),
        blocks(group(ClassKind::Recurrent, "r0", 100), 2),
    ];
    let geometry = Geometry::new(16, groups, 2, identity()).unwrap();
    let sizes: Vec<_> = geometry
        .classes()
        .iter()
        .map(|class| (class.rank_bytes, class.entry_bytes))
        .collect();
    assert_eq!(sizes, [(50, 100), (200, 400)]);
    assert_eq!(geometry.slots_per_entry(0, 60), Ok(2));
    assert!(matches!(
        geometry.slots_per_entry(0, 31),
        Err(Error::InvalidArgument(why)) if why.contains("a multiple of the number of ranks, 2, found 31")
    ));
    let first = &geometry.groups()[0];
    assert_eq!((first.blocks_per_entry(), first.bytes()), (3, 30));
    assert_eq!(first.layers()[0].bytes(), 10);
}

#[test]
fn impossible_blocks_per_entry_are_refused() {
    let with = |bytes, n| group(ClassKind::Attention, "a", bytes).with_blocks_per_entry(n);
    for n in [0, Group::MAX_BLOCKS_PER_ENTRY + 1, usize::MAX] {
        let why = refused(with(8, n));
        let expected = format!("attention group: expected 1 to 1024 blocks_per_entry, found {n}");
        assert!(why.contains(&expected), "{why}");
    }
    assert!(with(8, Group::MAX_BLOCKS_PER_ENTRY).is_ok());
    assert!(refused(with(isize::MAX as usize, 2)).contains("exceed memory"));
}

/// As computed before groups had `blocks_per_entry`.
#[test]
fn a_fingerprint_without_blocks_per_entry_is_what_it_was() {
    let segments = vec![
        segment("conv", Dtype::Bfloat16, &[3]),
        segment("ssm", Dtype::Float32, &[4, 4]),
    ];
    let kv = vec![segment("kv", Dtype::Bfloat16, &[2, 16, 4])];
    let attention = vec![Layer::new("a", kv).unwrap()];
    let state = vec![Layer::new("r", segments).unwrap()];
    let groups = |blocks| {
        vec![
            Group::new(ClassKind::Attention, attention.clone(), None)
                .and_then(|group| group.with_blocks_per_entry(blocks))
                .unwrap(),
            Group::new(ClassKind::Recurrent, state.clone(), None).unwrap(),
            window("w", 8, 40),
        ]
    };
    let made = |blocks| Geometry::new(16, groups(blocks), 2, identity()).unwrap();
    assert_eq!(
        made(1).fingerprint().to_string(),
        "616a958e80c30abb0aa84844da86200fd157f7994b6e1997757fc191ad0dc92d"
    );
    assert!(!made(1).to_json().contains("blocks_per_entry"));
    assert_ne!(made(2).fingerprint(), made(1).fingerprint());
    let written = r#""groups":[{"blocks_per_entry":2,"kind":"attention","#;
    assert!(made(2).to_json().contains(written));
}

#[test]
fn a_window_needs_the_blocks_that_hold_its_tokens_before_the_last() {
    let blocks = |tokens| geometry(vec![window("w", 1, tokens)]).classes()[0].window_blocks;
    let expected = [(1, 1), (2, 1), (16, 1), (17, 1), (18, 2), (33, 2), (34, 3)];
    for (tokens, needed) in expected {
        assert_eq!(blocks(tokens), Some(needed), "{tokens} tokens");
    }
}

#[test]
fn canonical_json_is_sorted_and_dense() {
    let layers = vec![layer("l0", 8)];
    let windowed = Group::new(ClassKind::Window, layers, Some(4)).unwrap();
    let geometry = geometry(vec![windowed]);
    assert_eq!(
        geometry.to_json(),
        r#"{"block_tokens":16,"format_version":2,"groups":[{"kind":"window","layers":[{"name":"l0","segments":[{"dtype":"uint8","name":"data","shape":[8]}]}],"window_tokens":4}],"identity":{"model":"tiny"},"ranks":1}"#
    );
    assert_eq!(
        geometry.fingerprint().to_string(),
        blake3::hash(geometry.to_json().as_bytes()).to_string()
    );
}

#[test]
fn malformed_json_is_a_geometry_error_and_another_version_is_foreign() {
    let json = geometry(vec![group(ClassKind::Attention, "a", 8)])
        .to_json()
        .to_owned();
    let reads = |text: &str| Geometry::from_json(text);
    let fields = [
        ("ranks\":1", "ranks\":0"),
        ("\"ranks\":1", "\"x\":1"),
        ("uint8", "u8"),
        ("[8]", "[-8]"),
    ];
    for (from, to) in fields {
        let changed = json.replace(from, to);
        assert_ne!(changed, json);
        refused(reads(&changed));
    }
    for text in ["", "[]", "{}", "null", &json[1..], &format!("{json}x")] {
        refused(reads(text));
    }
    let other = json.replace("\"format_version\":2", "\"format_version\":3,\"unknown\":3");
    let expected = format!("expected format version {FORMAT_VERSION}, found 3");
    assert!(matches!(reads(&other), Err(Error::Foreign(why)) if why.contains(&expected)));
}

#[test]
fn the_first_difference_is_named() {
    let recurrent = |dtype, shape: &[usize]| {
        let segments = vec![
            segment("conv", Dtype::Bfloat16, &[4]),
            segment("ssm", dtype, shape),
        ];
        Group::new(
            ClassKind::Recurrent,
            vec![Layer::new("x", segments).unwrap()],
            None,
        )
        .unwrap()
    };
    let base = || recurrent(Dtype::Float32, &[2, 3]);
    let expected = geometry(vec![base()]);
    let difference = |found: &Geometry| expected.difference(found).unwrap();
    assert_eq!(expected.difference(&geometry(vec![base()])), None);
    let found = geometry(vec![recurrent(Dtype::Bfloat16, &[2, 3])]);
    let line = "layer 'x': segment 'ssm': dtype expected float32, found bfloat16";
    assert_eq!(difference(&found), line);
    let found = geometry(vec![recurrent(Dtype::Float32, &[3, 2])]);
    let line = "layer 'x': segment 'ssm': shape expected [2, 3], found [3, 2]";
    assert_eq!(difference(&found), line);
    let found = geometry(vec![base(), group(ClassKind::Attention, "a", 1)]);
    assert_eq!(difference(&found), "groups expected 1, found 2");
    let found = geometry(vec![group(ClassKind::Attention, "a", 1)]);
    assert_eq!(
        difference(&found),
        "group 0: kind expected recurrent, found attention"
    );
    let found = geometry(vec![group(ClassKind::Recurrent, "a", 1)]);
    assert_eq!(difference(&found), "group 0: layer expected 'x', found 'a'");
    let found = geometry(vec![group(ClassKind::Recurrent, "x", 1)]);
    assert_eq!(
        difference(&found),
        "layer 'x': segments expected 2, found 1"
    );
    let found = Geometry::new(8, vec![base()], 1, identity()).unwrap();
    assert_eq!(difference(&found), "block_tokens expected 16, found 8");
    let found = Geometry::new(16, vec![base()], 2, identity()).unwrap();
    assert_eq!(difference(&found), "ranks expected 1, found 2");
    let found = Geometry::new(16, vec![base()], 1, BTreeMap::new()).unwrap();
    assert_eq!(
        difference(&found),
        "identity \"model\" expected \"tiny\", found nothing"
    );
    let (wide, narrow) = (
        geometry(vec![window("w", 1, 9)]),
        geometry(vec![window("w", 1, 8)]),
    );
    let line = "group 0: window_tokens expected 9, found 8";
    assert_eq!(wide.difference(&narrow).unwrap(), line);
    let found = geometry(vec![base().with_blocks_per_entry(3).unwrap()]);
    assert_eq!(
        difference(&found),
        "group 0: blocks_per_entry expected 1, found 3"
    );
}

#[test]
fn slots_of_an_entry_are_rounded_up_and_bad_questions_refused() {
    let geometry = geometry(vec![group(ClassKind::Attention, "a", 1000)]);
    assert_eq!(geometry.slots_per_entry(0, 1000), Ok(1));
    assert_eq!(geometry.slots_per_entry(0, 999), Ok(2));
    assert!(matches!(
        geometry.slots_per_entry(1, 512),
        Err(Error::InvalidArgument(_))
    ));
    assert!(matches!(
        geometry.slots_per_entry(0, 0),
        Err(Error::InvalidArgument(_))
    ));
}

#[test]
fn a_27b_hybrid_gets_slots_that_waste_little() {
    let attention = (0..16)
        .map(|i| layer(&format!("a{i}"), 784 * 4096))
        .collect();
    let mut groups = vec![Group::new(ClassKind::Attention, attention, None).unwrap()];
    for group in 0..3 {
        let layers = (0..16)
            .map(|i| layer(&format!("r{group}.{i}"), 61_440 + 3_145_728))
            .collect();
        groups.push(Group::new(ClassKind::Recurrent, layers, None).unwrap());
    }
    let geometry = Geometry::new(784, groups, 1, identity()).unwrap();
    let bytes: Vec<_> = geometry.classes().iter().map(|c| c.entry_bytes).collect();
    assert_eq!(bytes, [51_380_224, 153_944_064]);
    assert_eq!(geometry.suggest_slot_bytes(), 2 << 20);
}

prop_compose! {
    fn any_segment(name: usize)(
        dtype in prop::sample::select(Dtype::ALL.to_vec()),
        shape in prop::collection::vec(1_usize..9, 0..4),
    ) -> Segment {
        Segment::new(format!("s{name}"), dtype, shape).unwrap()
    }
}

fn any_group() -> impl Strategy<Value = (Group, usize)> {
    let kind = prop::sample::select(vec![
        ClassKind::Attention,
        ClassKind::Window,
        ClassKind::Recurrent,
    ]);
    let layer = (1_usize..4).prop_flat_map(|n| (0..n).map(any_segment).collect::<Vec<_>>());
    (
        kind,
        prop::collection::vec(layer, 1..4),
        1_usize..70,
        1_usize..4,
        any::<u16>(),
    )
        .prop_map(|(kind, layers, tokens, blocks, tag)| {
            let layers = layers.into_iter().enumerate();
            let named = layers.map(|(i, s)| Layer::new(format!("{tag}\"\u{e9}{i}"), s).unwrap());
            let window = (kind == ClassKind::Window).then_some(tokens);
            (
                Group::new(kind, named.collect(), window)
                    .and_then(|group| group.with_blocks_per_entry(blocks))
                    .unwrap(),
                usize::from(tag),
            )
        })
}

prop_compose! {
    fn any_geometry()(
        groups in prop::collection::vec(any_group(), 1..6)
            .prop_filter("layer names must differ", |groups| {
                let tags: std::collections::HashSet<_> = groups.iter().map(|g| g.1).collect();
                tags.len() == groups.len()
            }),
        block_tokens in 1_usize..100,
        ranks in 1_usize..9,
        identity in prop::collection::btree_map("[a-z]{1,4}", ".*", 0..4),
    ) -> Geometry {
        let groups = groups.into_iter().map(|(group, _)| group).collect();
        Geometry::new(block_tokens, groups, ranks, identity).unwrap()
    }
}

proptest! {
    #[test]
    fn json_says_everything(geometry in any_geometry()) {
        let read = Geometry::from_json(geometry.to_json()).unwrap();
        prop_assert_eq!(&read, &geometry);
        prop_assert_eq!(read.to_json(), geometry.to_json());
        prop_assert_eq!(read.groups(), geometry.groups());
        prop_assert_eq!(read.classes(), geometry.classes());
        prop_assert_eq!(read.difference(&geometry), None);
        let pretty: serde_json::Value = serde_json::from_str(geometry.to_json()).unwrap();
        let pretty = serde_json::to_string_pretty(&pretty).unwrap();
        prop_assert_eq!(Geometry::from_json(&pretty).unwrap(), geometry);
    }

    #[test]
    fn fingerprints_are_equal_exactly_when_nothing_differs(a in any_geometry(), b in any_geometry()) {
        prop_assert_eq!(a == b, a.difference(&b).is_none());
    }

    #[test]
    fn every_group_is_in_one_class_of_its_kind(geometry in any_geometry()) {
        let mut seen: Vec<usize> =
            geometry.classes().iter().flat_map(|c| c.groups.iter().copied()).collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..geometry.groups().len()).collect::<Vec<_>>());
        for class in geometry.classes() {
            let bytes: usize = class.groups.iter().map(|g| geometry.groups()[*g].bytes()).sum();
            prop_assert_eq!(class.rank_bytes, bytes);
            prop_assert_eq!(class.entry_bytes, bytes * geometry.ranks());
            for group in &class.groups {
                prop_assert_eq!(geometry.groups()[*group].kind(), class.kind);
            }
        }
    }

    #[test]
    fn the_suggested_slot_is_the_largest_that_wastes_little(geometry in any_geometry()) {
        let classes = geometry.classes();
        let ranks = geometry.ranks();
        let used: usize = classes.iter().map(|c| c.rank_bytes).sum();
        let fits = |slot: &usize| {
            let taken = |c: usize| geometry.slots_per_entry(c, *slot * ranks).unwrap() * slot;
            let taken: usize = (0..classes.len()).map(taken).sum();
            (taken - used) * 64 <= used
        };
        let best = (9..=21).rev().map(|power| 1_usize << power).find(fits).unwrap_or(512);
        prop_assert_eq!(geometry.suggest_slot_bytes(), best * ranks);
    }
}
