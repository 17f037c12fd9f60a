//! In place of the Linux mapping: every arena is rejected.

use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::geometry::Geometry;

use super::header::Header;
use super::plane::PlaneOptions;

/// Cannot be made here.
#[derive(Debug)]
pub(super) enum Mapping {}

impl Mapping {
    pub(super) fn create(_: &Header, _: PlaneOptions) -> Result<Self> {
        Err(unsupported())
    }

    pub(super) fn open(_: &str, _: &Geometry) -> Result<(Self, Header)> {
        Err(unsupported())
    }

    pub(super) fn warning(&self) -> Option<&str> {
        match *self {}
    }

    pub(super) fn path(&self) -> &str {
        match *self {}
    }

    pub(super) fn address(&self) -> NonNull<u8> {
        match *self {}
    }
}

pub(super) fn page_bytes(_: bool) -> usize {
    4096
}

pub(super) fn physical_memory() -> usize {
    usize::MAX
}

fn unsupported() -> Error {
    Error::Arena(format!(
        "expected Linux, whose memfd it needs, found {}",
        std::env::consts::OS
    ))
}
