//! A disk path: the directory that several processes share, with a lane for each.

pub(crate) mod folder;
pub(crate) mod key_mark;
pub(crate) mod lane;
mod marker;
pub(crate) mod trouble;
