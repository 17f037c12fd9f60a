//! Random places of tokens in pages, for the tests of transfers.
#![allow(dead_code, reason = "each test file uses a part of it")]

use hybrid_pages::geometry::Geometry;
use hybrid_pages::ids::ClassKind;
use hybrid_pages::transfer::{TokenDim, TokenPart};

use super::transfer_support::Dice;

/// The places of the tokens in each layer's block, by group and layer.
pub struct Tokens {
    parts: Vec<Vec<Option<Vec<TokenPart>>>>,
}

impl Tokens {
    /// Of any shape; now and then a layer has none.
    pub fn random(dice: &mut Dice, geometry: &Geometry) -> Self {
        let groups = geometry.groups().iter().map(|group| {
            let tokens = geometry.block_tokens() / group.blocks_per_entry();
            let known = group.kind() != ClassKind::Recurrent
                && geometry
                    .block_tokens()
                    .is_multiple_of(group.blocks_per_entry());
            let layers = group.layers().iter().map(|layer| {
                let known = known && layer.bytes().is_multiple_of(tokens) && dice.roll(20) > 0;
                known.then(|| random_parts(dice, tokens, layer.bytes() / tokens))
            });
            layers.collect()
        });
        Self {
            parts: groups.collect(),
        }
    }

    pub fn of(&self, group: usize, layer: usize) -> Option<Vec<TokenPart>> {
        self.parts[group][layer].clone()
    }

    /// Whether pages of a class can be stored in part.
    pub fn all_known(&self, geometry: &Geometry, class: usize) -> bool {
        let mut groups = geometry.classes()[class].groups.iter();
        groups.all(|&group| self.parts[group].iter().all(Option::is_some))
    }

    /// The token of each byte of this rank's shard of a page.
    pub fn of_bytes(&self, geometry: &Geometry, class: usize) -> Vec<usize> {
        let mut tokens = Vec::new();
        for &group in &geometry.classes()[class].groups {
            let blocks = geometry.groups()[group].blocks_per_entry();
            for block in 0..blocks {
                for parts in &self.parts[group] {
                    let first = block * (geometry.block_tokens() / blocks);
                    for part in parts.as_ref().unwrap() {
                        tokens.extend(of_part(part).map(|token| first + token));
                    }
                }
            }
        }
        tokens
    }
}

/// The token of each byte of a part, cell by cell.
fn of_part(part: &TokenPart) -> impl Iterator<Item = usize> + '_ {
    let cells: usize = part.dims.iter().map(|dim| dim.extent).product();
    (0..cells * part.bytes).map(|byte| {
        let (mut cell, mut token) = (byte / part.bytes, part.first);
        for dim in part.dims.iter().rev() {
            token += cell % dim.extent * dim.tokens;
            cell /= dim.extent;
        }
        token
    })
}

/// Parts of `tokens` tokens with so many bytes each.
pub fn random_parts(dice: &mut Dice, tokens: usize, bytes: usize) -> Vec<TokenPart> {
    // Kernel blocks, each with some bytes of its tokens after the other ones.
    let kernel = divisor(dice, tokens);
    let cut = 1 + dice.roll(bytes);
    let mut parts = Vec::new();
    for first in (0..tokens).step_by(kernel) {
        for bytes in [cut, bytes - cut].into_iter().filter(|&bytes| bytes > 0) {
            let cell = divisor(dice, bytes);
            let repeats = bytes / cell;
            let outer = divisor(dice, repeats);
            let inner = divisor(dice, kernel);
            let dim = |extent, tokens| TokenDim { extent, tokens };
            let mut dims = vec![
                dim(outer, 0),
                dim(kernel / inner, inner),
                dim(repeats / outer, 0),
                dim(inner, 1),
            ];
            if dice.roll(3) == 0 {
                dice.shuffle(&mut dims);
            }
            if dice.roll(2) == 0 {
                dims.retain(|dim| dim.extent > 1);
            }
            parts.push(TokenPart {
                first,
                dims,
                bytes: cell,
            });
        }
    }
    parts
}

fn divisor(dice: &mut Dice, number: usize) -> usize {
    let all: Vec<usize> = (1..=number)
        .filter(|by| number.is_multiple_of(*by))
        .collect();
    all[dice.roll(all.len())]
}
