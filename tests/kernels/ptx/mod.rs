//! The PTX of `csrc/images/`, as it is shipped, on a CPU: translated to C++, it runs in the same harness as the
//! kernels' sources, on the same lists, and faults planted in it are found.

mod faults;
mod module;
mod translate;

use std::fs;
use std::path::{Path, PathBuf};

use crate::build::{self, Sanitizer};
use crate::{check, setting};
use module::{Module, Statement};
use translate::Fault;

fn shipped() -> Vec<Module> {
    let images = build::sources().join("images");
    let entries = images.read_dir().expect("can be listed");
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("can be listed").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "ptx"))
        .collect();
    paths.sort();
    assert!(
        !paths.is_empty(),
        "expected PTX in {}: run `make kernels`",
        images.display()
    );
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Module {
    let name = path.file_name().expect("has one").to_string_lossy();
    let text = fs::read_to_string(path).expect("can be read");
    Module::parse(&name, &text).unwrap_or_else(|why| panic!("{why}"))
}

fn program(module: &Module, faults: &[Fault], sanitizer: Sanitizer) -> PathBuf {
    let text = module
        .translate(faults)
        .unwrap_or_else(|why| panic!("{why}"));
    build::translated(&text, sanitizer)
}

#[test]
fn shipped_ptx_equals_its_twins_on_random_lists() {
    for module in shipped() {
        let program = program(&module, &[], Sanitizer::Address);
        let reached = module.reached(&check(&program, Sanitizer::Address).finish());
        let missed = module
            .statements()
            .filter(|statement| !reached.contains(&statement.line));
        let missed: Vec<String> = missed
            .map(|missed| format!("{}: {missed}", missed.line))
            .collect();
        let coverage = format!(
            "{}: {} statements are reached, these {} are not:\n{}",
            module.file,
            reached.len(),
            missed.len(),
            missed.join("\n")
        );
        println!("{coverage}");
        // No list reaches the division of 2^32 tiles, nor the last stripe in the second half of an unrolled loop.
        let enough =
            setting("HYBRID_PAGES_FUZZ", 2_000) < 2_000 || 50 * missed.len() <= reached.len();
        assert!(enough, "expected 98 % of {coverage}");
    }
}

#[test]
fn threads_of_a_block_do_not_race_in_shipped_ptx() {
    for module in shipped() {
        check(&program(&module, &[], Sanitizer::Thread), Sanitizer::Thread);
    }
}

#[test]
fn unknown_ptx_is_named() {
    let text = |body: &str| {
        format!(
            ".visible .entry k(\n.param .align 8 .b8 k_param_0[48]\n)\n{{\n.reg .b32 %r<3>;\n{body}\n}}\n"
        )
    };
    let translate = |body: &str| Module::parse("a.ptx", &text(body))?.translate(&[]);
    assert!(translate("add.s32 %r1, %r2, -1;").is_ok());
    for unknown in [
        "atom.global.add.u32 %r1, [%r2], 1;",
        "add.sat.s32 %r1, %r2, 1;",
        "add.f32 %r1, %r2, %r2;",
        "add.s32 %r1, %r2, %r3;",
        "ld.volatile.global.u32 %r1, [%r2];",
        "mov.u32 %r1, %laneid;",
        "bar.sync 1;",
    ] {
        let why = translate(unknown).expect_err(unknown);
        assert!(
            why.contains("a.ptx:6:") && why.contains(unknown),
            "{unknown}: {why}"
        );
    }
    let why = translate(".local .b8 depot[8]").expect_err("a declaration");
    assert!(
        why.contains("a.ptx:6:") && why.contains(".local .b8 depot[8]"),
        "{why}"
    );
}
