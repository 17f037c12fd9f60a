//! The program that runs the kernels: built here, once for each state of the sources, and fed with
//! launches.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::case::{Case, Kernel};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sanitizer {
    /// AddressSanitizer and UndefinedBehaviorSanitizer.
    Address,
    Thread,
}

/// Memory and hashes after a launch.
pub struct Answer {
    pub regions: Vec<Vec<u8>>,
    pub digests: Vec<u64>,
}

pub struct Harness {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    complaints: PathBuf,
}

/// Where the kernels lie.
pub fn sources() -> PathBuf {
    root().join("csrc")
}

fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.join("../..").canonicalize().expect("is there")
}

impl Harness {
    pub fn new(csrc: &Path, sanitizer: Sanitizer) -> Self {
        let program = build(csrc, sanitizer);
        let complaints = program.with_extension(format!("{}.log", std::process::id()));
        let mut command = match sanitizer {
            Sanitizer::Thread if fixes_addresses() => {
                let mut command = Command::new("setarch");
                command.arg("-R").arg(&program);
                command
            }
            _ => Command::new(&program),
        };
        let mut child = command
            .env("ASAN_OPTIONS", "detect_leaks=0:quarantine_size_mb=1")
            .env("UBSAN_OPTIONS", "print_stacktrace=1")
            .env("TSAN_OPTIONS", "halt_on_error=1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&complaints).expect("the target folder can be written"))
            .spawn()
            .unwrap_or_else(|why| panic!("{}: {why}", program.display()));
        let stdin = child.stdin.take().expect("piped");
        let stdout = child.stdout.take().expect("piped");
        Self {
            child,
            stdin,
            stdout,
            complaints,
        }
    }

    /// Starts a launch; what it leaves must be [received](Self::receive) before the next one.
    pub fn send(&mut self, case: &Case) -> Result<(), String> {
        let written = self.stdin.write_all(&message(case));
        written.map_err(|why| self.post_mortem(&why))
    }

    pub fn receive(&mut self, case: &Case) -> Result<Answer, String> {
        self.answer(case).map_err(|why| self.post_mortem(&why))
    }

    fn answer(&mut self, case: &Case) -> io::Result<Answer> {
        let mut regions = case.regions.clone();
        for region in &mut regions {
            self.stdout.read_exact(region)?;
        }
        let count = if case.digests { case.tile_count } else { 0 };
        let digest = |_| {
            let mut bytes = [0; 8];
            self.stdout.read_exact(&mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let digests = (0..count).map(digest).collect::<io::Result<_>>()?;
        Ok(Answer { regions, digests })
    }

    /// Output of the program before it died.
    fn post_mortem(&mut self, why: &io::Error) -> String {
        let status = self.child.wait().expect("it was started");
        let said = fs::read(&self.complaints).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let tells = ["runtime error: ", "Sanitizer: ", "harness: ", "shim: "];
        let is_told = |line: &&str| tells.iter().any(|tell| line.contains(tell));
        let what = said.lines().find(is_told).unwrap_or_default();
        let lines: Vec<&str> = said.lines().take(40).collect();
        format!(
            "the harness died ({status}, {why}): {what}\n{}",
            lines.join("\n")
        )
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        // Nobody waits for what it would still say; one that has ended needs no end.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.complaints);
    }
}

/// The launch as `harness.cpp` reads it.
fn message(case: &Case) -> Vec<u8> {
    let kernel = match case.kernel {
        Kernel::Gather => 0,
        Kernel::Scatter => 1,
        Kernel::Digest => 2,
    };
    let mut words = vec![
        kernel,
        case.grid,
        case.block,
        case.blocks as u64,
        u64::from(case.together),
        case.threads as u64,
        case.seed,
        case.first_tile,
        case.tile_count,
        u64::from(case.digests),
        case.regions.len() as u64,
        case.strided.len() as u64,
        case.packed.len() as u64,
    ];
    let mut message = Vec::new();
    for region in &case.regions {
        words.push(region.len() as u64);
        message.extend(words.drain(..).flat_map(u64::to_le_bytes));
        message.extend(region);
    }
    for placed in &case.strided {
        let piece = placed.piece;
        words.extend([
            placed.region as u64,
            piece.position,
            piece.address,
            piece.bytes,
        ]);
        let reserved = u64::from(piece.reserved) << 32;
        words.extend([piece.stride as u64, u64::from(piece.run) | reserved]);
    }
    for placed in &case.packed {
        let piece = placed.piece;
        words.extend([
            placed.region as u64,
            piece.position,
            piece.address,
            piece.bytes,
        ]);
    }
    message.extend(words.into_iter().flat_map(u64::to_le_bytes));
    message
}

/// Whether programs can be started with their addresses where the older ThreadSanitizers need them.
fn fixes_addresses() -> bool {
    let tried = Command::new("setarch").args(["-R", "true"]).output();
    tried.is_ok_and(|output| output.status.success())
}

/// The harness with the kernels of `csrc`.
fn build(csrc: &Path, sanitizer: Sanitizer) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    fs::create_dir_all(&place).expect("the target folder can be written");
    // Each test is a process of its own; the first one builds.
    let lock = File::create(place.join("lock")).expect("the target folder can be written");
    lock.lock().expect("files can be locked");

    let shim = root().join("tests/kernels");
    let kernels = compile(&place, sanitizer, &csrc.join("paging.cu"), &[csrc, &shim]);
    // The harness needs only the structs, which no mutant changes.
    let harness = compile(
        &place,
        sanitizer,
        &shim.join("harness.cpp"),
        &[&sources().join("paging.h"), &shim],
    );
    let names = [&kernels, &harness].map(|path| path.file_stem().expect("has one"));
    let program = place.join(format!("{:016x}", hash(&names)));
    produce(&program, |command| {
        command.args(flags(sanitizer)).args([&kernels, &harness]);
    });
    program
}

fn compile(place: &Path, sanitizer: Sanitizer, source: &Path, inputs: &[&Path]) -> PathBuf {
    let mut contents = Vec::new();
    for input in inputs {
        contents.extend(texts(input));
    }
    let name = source.file_stem().expect("has one").to_string_lossy();
    let hash = hash(&(flags(sanitizer), contents));
    let object = place.join(format!("{name}-{hash:016x}.o"));
    let shim = root().join("tests/kernels/shim.h");
    produce(&object, |command| {
        command.args(flags(sanitizer)).arg("-c");
        if source
            .extension()
            .is_some_and(|extension| extension == "cu")
        {
            command.arg("-include").arg(&shim).args(["-x", "c++"]);
        }
        command.arg(source);
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

/// Runs the compiler for a file that is not there yet.
fn produce(path: &Path, arguments: impl FnOnce(&mut Command)) {
    if path.exists() {
        return;
    }
    let compiler = compiler();
    let unfinished = path.with_extension("unfinished");
    let mut command = Command::new(&compiler);
    arguments(&mut command);
    let output = command.arg("-o").arg(&unfinished).output();
    let output = output.unwrap_or_else(|why| {
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
    fs::rename(&unfinished, path).expect("the target folder can be written");
}
