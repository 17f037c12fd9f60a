//! What a test tells `make prove`: how much it did, and what it found.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;

/// A number from the environment.
pub fn setting(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else {
        return default;
    };
    let what = format!("{name}: expected a number, found {text:?}");
    text.parse().expect(&what)
}

/// Prints figures, and appends them to the report that is being written, if one is (tools/make/prove.py).
pub fn report<'a>(figures: impl IntoIterator<Item = (&'a str, u64)>) {
    let mut line = String::new();
    for (name, figure) in figures {
        let comma = if line.is_empty() { "" } else { ", " };
        write!(line, "{comma}{name:?}: {figure}").unwrap();
    }
    println!("{line}");
    let Ok(path) = std::env::var("HYBRID_PAGES_PROVE") else {
        return;
    };
    let file = OpenOptions::new().create(true).append(true).open(path);
    writeln!(file.unwrap(), "{{\"figures\": {{{line}}}}}").unwrap();
}
