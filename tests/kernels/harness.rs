//! The program that runs the kernels, fed with launches.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::build::Sanitizer;
use crate::case::{Case, Kernel};

/// Memory and hashes after a launch.
pub struct Answer {
    pub regions: Vec<Vec<u8>>,
    pub digests: Vec<u64>,
}

pub struct Harness {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    complaints: PathBuf,
}

impl Harness {
    /// Starts the `program`; in what was made of PTX, with planted fault `fault`, if it is not 0.
    pub fn new(program: &Path, sanitizer: Sanitizer, fault: usize) -> Self {
        // A fault that makes a launch endless does not take long.
        let seconds = if fault == 0 { "300" } else { "5" };
        let complaints = program.with_extension(format!("{}.log", std::process::id()));
        let mut command = match sanitizer {
            Sanitizer::Thread if fixes_addresses() => {
                let mut command = Command::new("setarch");
                command.arg("-R").arg(program);
                command
            }
            _ => Command::new(program),
        };
        let mut child = command
            .env("HARNESS_FAULT", fault.to_string())
            .env("HARNESS_SECONDS", seconds)
            .env("ASAN_OPTIONS", "detect_leaks=0:quarantine_size_mb=1")
            .env("UBSAN_OPTIONS", "print_stacktrace=1")
            .env("TSAN_OPTIONS", "halt_on_error=1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&complaints).expect("the target folder can be written"))
            .spawn()
            .unwrap_or_else(|why| panic!("{}: {why}", program.display()));
        let stdin = child.stdin.take();
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
        let stdin = self.stdin.as_mut().expect("piped");
        let written = stdin.write_all(&message(case));
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

    /// Ends the program, and says which blocks of the PTX it reached: their first lines.
    pub fn finish(mut self) -> BTreeSet<usize> {
        drop(self.stdin.take());
        let status = self.child.wait().expect("it was started");
        let said = fs::read_to_string(&self.complaints).expect("it was written");
        assert!(status.success(), "the harness died ({status}): {said}");
        let lines = said
            .lines()
            .filter_map(|line| line.strip_prefix("reached: "));
        lines.map(|line| line.parse().expect("a number")).collect()
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
