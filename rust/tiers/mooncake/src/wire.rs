//! What the tier and its helper say to each other: one line of JSON each.

use serde::{Deserialize, Serialize};

/// To the helper. Each but the first is answered once, by its number.
#[derive(Debug, Serialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub(crate) enum Message {
    /// First of all.
    Start {
        master: String,
        /// The path of each rank's plane, and where its slots begin.
        planes: Vec<(String, usize)>,
        staging: usize,
    },
    /// Which of these keys are there; headers to `at` in the staging memory, `length` bytes apart.
    Ask {
        id: u64,
        keys: Vec<String>,
        at: usize,
        length: usize,
    },
    /// Values to the staging memory.
    Get { id: u64, items: Vec<GetItem> },
    /// Values from headers in the staging memory and slots. Where a value is there afterwards, its header, whoever
    /// put it, replaces the one in the staging memory; else zeros do.
    Put {
        id: u64,
        items: Vec<PutItem>,
        length: usize,
    },
    /// Values go.
    Remove { id: u64, keys: Vec<String> },
}

#[derive(Debug, Serialize)]
pub(crate) struct GetItem {
    pub(crate) key: String,
    pub(crate) at: usize,
    pub(crate) length: usize,
}

#[derive(Debug, Serialize)]
pub(crate) struct PutItem {
    pub(crate) key: String,
    pub(crate) at: usize,
    /// Plane, offset in its slots, length.
    pub(crate) parts: Vec<(usize, usize, usize)>,
}

/// From the helper.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Reply {
    /// One code per key: negative ones are Mooncake's.
    Codes { id: u64, codes: Vec<i64> },
    /// It is connected.
    Ready { ready: bool },
    /// It can't go on, and ends.
    Failed { error: String },
}

/// From here down: the master did not answer.
pub(crate) const NO_ANSWER: i64 = -900;
/// No such key.
pub(crate) const NOT_FOUND: i64 = -704;
/// The key's value is not whole yet.
pub(crate) const NOT_READY: i64 = -703;
/// No segment has room.
pub(crate) const NO_ROOM: i64 = -200;
/// The value is longer than what it should be.
pub(crate) const WRONG_LENGTH: i64 = -600;
