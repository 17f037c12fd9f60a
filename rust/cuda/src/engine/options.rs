//! How an engine is told to work.

use std::path::PathBuf;

use super::method::Method;

/// How an engine works; the defaults are right unless something was measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// The device's number.
    pub device: usize,
    /// Share of the multiprocessors that kernels may take, above 0, at most 1.
    pub share: f64,
    /// Bytes of each direction's ring on the device.
    pub staging_bytes: usize,
    /// Always this way; `None` for the cheapest by calibration.
    pub method: Option<Method>,
    /// Where calibrations and compiled kernels are kept; `None` for the user's cache directory.
    pub cache_dir: Option<PathBuf>,
    /// Libraries to look for NVRTC in, before the system's.
    pub nvrtc: Vec<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            device: 0,
            share: 0.125,
            staging_bytes: 16 << 20,
            method: None,
            cache_dir: None,
            nvrtc: Vec::new(),
        }
    }
}
