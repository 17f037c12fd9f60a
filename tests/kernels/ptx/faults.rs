//! Faults planted in the shipped PTX: each must be found by few launches.

use super::{Fault, Module, Statement, program, shipped};
use crate::build::Sanitizer;
use crate::case::Limits;
use crate::harness::Harness;
use crate::mutants::LAUNCHES;
use crate::{compare, setting};

type Plant = fn(&Statement) -> Option<Statement>;

/// How a fault is made of a statement. Each changes what the statement does, wherever it is reached.
const PLANTS: &[(&str, Plant)] = &[
    ("operands change places", swap),
    ("an access is one element further", shift),
    ("memory is of the other space", misplace),
];

fn swap(statement: &Statement) -> Option<Statement> {
    let words: Vec<&str> = statement.opcode.split('.').collect();
    let ordered = matches!(
        words[..],
        ["sub" | "div" | "rem" | "selp", ..] | ["setp", "lt" | "gt" | "le" | "ge", ..]
    );
    ordered.then(|| {
        let mut swapped = statement.clone();
        swapped.operands.swap(1, 2);
        swapped
    })
}

fn shift(statement: &Statement) -> Option<Statement> {
    let mut shifted = statement.clone();
    let words: Vec<&str> = statement.opcode.split('.').collect();
    let bits: u32 = words.last()?.get(1..)?.parse().ok()?;
    let elements = if words.contains(&"v2") { 2 } else { 1 };
    let address = shifted
        .operands
        .iter_mut()
        .find(|operand| operand.starts_with('['))?;
    let place = address.trim_matches(['[', ']']);
    let (base, offset) = place.split_once('+').unwrap_or((place, "0"));
    let offset = offset.parse::<u32>().ok()? + elements * bits / 8;
    *address = format!("[{base}+{offset}]");
    Some(shifted)
}

fn misplace(statement: &Statement) -> Option<Statement> {
    let mut misplaced = statement.clone();
    let words: Vec<&str> = statement.opcode.split('.').collect();
    let (from, to) = match words[..] {
        ["ld", "global", "nc", ..] => (".global.nc", ".shared"),
        ["ld" | "st", "global", ..] => (".global", ".shared"),
        ["ld" | "st", "shared", ..] => (".shared", ".global"),
        _ => return None,
    };
    misplaced.opcode = statement.opcode.replace(from, to);
    Some(misplaced)
}

/// Runs the module with each of the faults, and says which are not found although the statement was reached.
fn survivors(module: &Module, named: Vec<(String, Fault)>, sanitizer: Sanitizer) -> Vec<String> {
    let limits = match sanitizer {
        Sanitizer::Address => Limits::default(),
        Sanitizer::Thread => Limits::TOGETHER,
    };
    let (names, faults): (Vec<_>, Vec<_>) = named.into_iter().unzip();
    let program = program(module, &faults, sanitizer);
    let survives = |index: usize| {
        let mut harness = Harness::new(&program, sanitizer, index + 1);
        let found = compare(&mut harness, limits, 0..LAUNCHES);
        let said = found.as_deref().and_then(|text| text.lines().next());
        println!("{}: {}", names[index], said.unwrap_or("survives"));
        found.is_none()
            && module
                .reached(&harness.finish())
                .contains(&faults[index].line)
    };
    let survivors = (0..names.len()).filter(|&index| survives(index));
    survivors.map(|index| names[index].clone()).collect()
}

#[test]
fn faults_planted_in_shipped_ptx_are_found() {
    // One of 15 by default, all of them in a long run.
    let step = (30_000 / setting("HYBRID_PAGES_FUZZ", 2_000)).max(1);
    for module in shipped() {
        let named = module.statements().flat_map(|statement| {
            PLANTS.iter().filter_map(move |(what, plant)| {
                let instead = Some(plant(statement)?);
                let line = statement.line;
                Some((
                    format!("line {line}, `{statement}`: {what}"),
                    Fault { line, instead },
                ))
            })
        });
        let named = named.step_by(step as usize).collect();
        let survivors = survivors(&module, named, Sanitizer::Address);
        assert!(
            survivors.is_empty(),
            "{}: not found in {LAUNCHES} launches: {survivors:#?}",
            module.file
        );
    }
}

#[test]
fn barriers_that_shipped_ptx_lacks_are_found() {
    for module in shipped() {
        let mut named = Vec::new();
        for kernel in &module.kernels {
            let barriers = kernel
                .statements()
                .filter(|statement| statement.opcode == "bar.sync");
            let mut lines: Vec<usize> = barriers.map(|barrier| barrier.line).collect();
            assert!(
                lines.len() >= 4,
                "expected 4 barriers in {}, found {lines:?}",
                kernel.name
            );
            if kernel.name == "hybrid_pages_digest" {
                // The last one keeps a tile until it is stored: this kernel stores none.
                lines.pop();
            }
            named.extend(lines.into_iter().map(|line| {
                (
                    format!("line {line}: no barrier"),
                    Fault {
                        line,
                        instead: None,
                    },
                )
            }));
        }
        let survivors = survivors(&module, named, Sanitizer::Thread);
        assert!(
            survivors.is_empty(),
            "{}: not found in {LAUNCHES} launches: {survivors:#?}",
            module.file
        );
    }
}
