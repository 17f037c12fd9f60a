//! The first thing in which two geometries differ, in words.

use super::group::kind_name;
use super::whole::Geometry;

impl Geometry {
    /// One line naming the first thing that differs, this side being the expected one; `None` if nothing does.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<String> {
        let keys = self.identity().keys().chain(other.identity().keys());
        let mut keys: Vec<&String> = keys.collect();
        keys.sort_unstable();
        let mut pairs = facts(self, &keys).into_iter().zip(facts(other, &keys));
        let ((what, expected), (_, found)) = pairs.find(|(expected, found)| expected != found)?;
        Some(format!("{what} expected {expected}, found {found}"))
    }
}

/// All that can differ, each with its name, and the number of things before the things: up to the first difference, the
/// facts of two geometries have the same names.
fn facts(geometry: &Geometry, keys: &[&String]) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    let mut add = |what: String, value: String| facts.push((what, value));
    add("block_tokens".into(), geometry.block_tokens().to_string());
    add("ranks".into(), geometry.ranks().to_string());
    for &key in keys {
        let value = geometry.identity().get(key);
        let value = value.map_or("nothing".into(), |value| format!("{value:?}"));
        add(format!("identity {key:?}"), value);
    }
    add("groups".into(), geometry.groups().len().to_string());
    for (index, group) in geometry.groups().iter().enumerate() {
        let window = group.window_tokens();
        let window = window.map_or("none".into(), |tokens| tokens.to_string());
        let (blocks, layers) = (group.blocks_per_entry(), group.layers().len());
        let kind = kind_name(group.kind()).into();
        add(format!("group {index}: kind"), kind);
        add(format!("group {index}: window_tokens"), window);
        add(
            format!("group {index}: blocks_per_entry"),
            blocks.to_string(),
        );
        add(format!("group {index}: layers"), layers.to_string());
        for layer in group.layers() {
            let (layer, segments) = (format!("'{}'", layer.name()), layer.segments());
            add(format!("group {index}: layer"), layer.clone());
            add(
                format!("layer {layer}: segments"),
                segments.len().to_string(),
            );
            for segment in segments {
                let name = format!("'{}'", segment.name());
                let (dtype, shape) = (segment.dtype().name(), segment.shape());
                add(format!("layer {layer}: segment"), name.clone());
                add(
                    format!("layer {layer}: segment {name}: dtype"),
                    dtype.into(),
                );
                add(
                    format!("layer {layer}: segment {name}: shape"),
                    format!("{shape:?}"),
                );
            }
        }
    }
    facts
}
