//! Builds the program that runs the kernels, once for each state of the sources.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sanitizer {
    /// AddressSanitizer and UndefinedBehaviorSanitizer.
    Address,
    Thread,
}

/// Where the kernels lie.
pub fn sources() -> PathBuf {
    root().join("csrc")
}

fn structs() -> PathBuf {
    sources().join("paging.h")
}

fn tests() -> PathBuf {
    root().join("tests/kernels")
}

fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.join("../..").canonicalize().expect("is there")
}

/// The program with the kernels of the folder `csrc`.
pub fn compiled(csrc: &Path, sanitizer: Sanitizer) -> PathBuf {
    let (source, tests) = (csrc.join("paging.cu"), tests());
    let shim = tests.join("shim.h");
    let options = [
        "-include".as_ref(),
        shim.as_os_str(),
        "-x".as_ref(),
        "c++".as_ref(),
    ];
    let kernels = compile(sanitizer, &source, &[csrc, &tests], &options);
    link(sanitizer, &kernels)
}

/// The program with kernels in C++ that were made of PTX.
pub fn translated(text: &str, sanitizer: Sanitizer) -> PathBuf {
    let source = place().join(format!("ptx-{:016x}.cpp", hash(&text)));
    produce(&source, |unfinished| {
        fs::write(unfinished, text).expect("the target folder can be written");
    });
    let (tests, include, structs) = (tests(), tests().join("ptx"), structs());
    let inputs = [&source, &tests, &include, &structs].map(PathBuf::as_path);
    let kernels = compile(
        sanitizer,
        &source,
        &inputs,
        &["-I".as_ref(), include.as_os_str()],
    );
    link(sanitizer, &kernels)
}

fn place() -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    fs::create_dir_all(&place).expect("the target folder can be written");
    place
}

fn link(sanitizer: Sanitizer, kernels: &Path) -> PathBuf {
    // The harness needs only the structs, which no mutant changes.
    let source = tests().join("harness.cpp");
    let harness = compile(sanitizer, &source, &[&structs(), &tests()], &[]);
    let names = [kernels, &harness].map(|path| path.file_stem().expect("has one"));
    let program = place().join(format!("{:016x}", hash(&names)));
    produce(&program, |unfinished| {
        run(
            sanitizer,
            &[kernels.as_os_str(), harness.as_os_str()],
            unfinished,
        );
    });
    program
}

fn compile(sanitizer: Sanitizer, source: &Path, inputs: &[&Path], options: &[&OsStr]) -> PathBuf {
    let contents: Vec<_> = inputs.iter().flat_map(|input| texts(input)).collect();
    let name = source.file_stem().expect("has one").to_string_lossy();
    let hash = hash(&(flags(sanitizer), contents));
    let object = place().join(format!("{name}-{hash:016x}.o"));
    produce(&object, |unfinished| {
        let arguments = [options, &["-c".as_ref(), source.as_os_str()]].concat();
        run(sanitizer, &arguments, unfinished);
    });
    object
}

/// The C++ sources at a path, in a fixed order.
fn texts(path: &Path) -> Vec<String> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let entries = path.read_dir().expect("can be listed");
        files = entries
            .map(|entry| entry.expect("can be listed").path())
            .collect();
        let is_source = |file: &PathBuf| {
            let extension = file.extension().and_then(|extension| extension.to_str());
            matches!(extension, Some("h" | "cuh" | "cu" | "cpp"))
        };
        files.retain(is_source);
        files.sort();
    }
    let read = |file: &PathBuf| {
        fs::read_to_string(file).unwrap_or_else(|why| panic!("{}: {why}", file.display()))
    };
    files.iter().map(read).collect()
}

fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    (of, compiler()).hash(&mut hasher);
    hasher.finish()
}

fn compiler() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "c++".into())
}

fn flags(sanitizer: Sanitizer) -> Vec<&'static str> {
    let mut flags = vec![
        "-std=c++17",
        "-O1",
        "-g1",
        "-pthread",
        "-fno-strict-aliasing",
        "-fno-sanitize-recover=all",
    ];
    flags.extend(match sanitizer {
        Sanitizer::Address => ["-fsanitize=address,undefined", "-DHARNESS_POISONS"].as_slice(),
        Sanitizer::Thread => &["-fsanitize=thread"],
    });
    flags
}

/// Makes a file that is not there yet.
fn produce(path: &Path, make: impl FnOnce(&Path)) {
    // Each test may be a process of its own; the first one builds.
    let lock = File::create(path.with_extension("lock")).expect("the target folder can be written");
    lock.lock().expect("files can be locked");
    if !path.exists() {
        let unfinished = path.with_extension("unfinished");
        make(&unfinished);
        fs::rename(&unfinished, path).expect("the target folder can be written");
    }
}

/// Runs the compiler.
fn run(sanitizer: Sanitizer, arguments: &[&OsStr], output: &Path) {
    let compiler = compiler();
    let mut command = Command::new(&compiler);
    command
        .args(flags(sanitizer))
        .args(arguments)
        .arg("-o")
        .arg(output);
    let output = command.output().unwrap_or_else(|why| {
        panic!(
            "expected a C++17 compiler with sanitizers as `{compiler}` ({why}): install g++ 9 or \
             clang++ 10 or newer (Debian, Ubuntu: apt install g++), or name yours in CXX"
        )
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "expected the harness to compile; if a sanitizer's library is missing, install it (Fedora: \
         dnf install libasan libubsan libtsan)\n{command:?}:\n{said}"
    );
}
