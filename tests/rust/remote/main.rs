//! The tests of the remote tier, in one binary. What starts itself again has a binary of its own.

mod chaos;
mod encrypted;
mod faults;
mod hostile;
mod month;
mod outages;
#[path = "../restores/mod.rs"]
mod restores;
mod sharing;
mod support;
mod wild;
