//! The messages between the tier and its helper. Each is one line of JSON.

use serde::{Deserialize, Serialize};

/// A message to the helper. Each one except the first gets one answer with its number.
#[derive(Debug, Serialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub(crate) enum HelperMessage {
    /// The first message.
    Start {
        master: String,
        /// The path of each rank's plane, and the offset of its slots.
        planes: Vec<(String, usize)>,
        staging: usize,
    },
    /// Asks which of these keys are in the store. Headers of values go to `at` in the staging memory, `length` bytes
    /// apart.
    Ask {
        id: u64,
        keys: Vec<String>,
        at: usize,
        length: usize,
    },
    /// Reads values into the staging memory.
    Get { id: u64, items: Vec<GetItem> },
    /// Writes values, from headers in the staging memory and from slots. Afterwards the staging memory has the header
    /// of the value that is in the store, or zeros if there is none.
    Put {
        id: u64,
        items: Vec<PutItem>,
        length: usize,
    },
    /// Removes values.
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
    /// Stretches of memory: the plane, the offset in its slots, the length.
    pub(crate) parts: Vec<(usize, usize, usize)>,
}

/// A message from the helper.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Reply {
    /// One code per key. Negative codes are errors of Mooncake.
    Codes { id: u64, codes: Vec<i64> },
    /// The helper is connected to the store.
    Ready { ready: bool },
    /// The helper cannot go on, and ends.
    Failed { error: String },
}

/// This code and lower ones mean that the master did not answer.
pub(crate) const NO_ANSWER: i64 = -900;
/// The code for a key that is not in the store.
pub(crate) const NOT_FOUND: i64 = -704;
/// The code for a value that is not whole yet.
pub(crate) const NOT_READY: i64 = -703;
/// The code for a write when no segment has room.
pub(crate) const NO_ROOM: i64 = -200;
/// The code for a value that is longer than expected.
pub(crate) const WRONG_LENGTH: i64 = -600;
