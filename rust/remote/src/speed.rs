//! How fast a store is, as measured.

use std::time::{Duration, Instant};

/// Weight of a new measurement.
const WEIGHT: f64 = 0.3;
/// What was measured counts half after so long: a store that was slow once is tried again.
const HALF_LIFE: Duration = Duration::from_secs(30);
/// Reads of fewer bytes say nothing of bandwidth.
const LEAST_BYTES: u64 = 256 << 10;

/// Latency and bandwidth.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Speed {
    latency: Option<f64>,
    bandwidth: Option<f64>,
    measured: Option<Instant>,
}

impl Speed {
    /// A small answer took so long.
    pub(crate) fn answered(&mut self, took: Duration) {
        self.latency = Some(mix(self.latency, took.as_secs_f64()));
    }

    /// Reads that ran beside each other brought so many bytes in that time.
    pub(crate) fn brought(&mut self, bytes: u64, took: Duration) {
        let took = (took.as_secs_f64() - self.latency.unwrap_or(0.0)).max(1e-6);
        if bytes >= LEAST_BYTES {
            self.bandwidth = Some(mix(self.bandwidth, bytes as f64 / took));
            self.measured = Some(Instant::now());
        }
    }

    /// How long reading so many bytes takes; nothing before anything was measured.
    pub(crate) fn expects(&self, bytes: u64) -> Duration {
        let age = self.measured.map_or(0.0, |at| at.elapsed().as_secs_f64());
        let trust = 0.5_f64.powf(age / HALF_LIFE.as_secs_f64());
        let moving = self.bandwidth.map_or(0.0, |rate| bytes as f64 / rate);
        Duration::from_secs_f64(self.latency.unwrap_or(0.0) + trust * moving)
    }

    /// Microseconds, and bytes a second; 0 before they were measured.
    pub(crate) fn measured(&self) -> (u64, u64) {
        let latency = self.latency.map_or(0.0, |seconds| seconds * 1e6);
        (latency as u64, self.bandwidth.unwrap_or(0.0) as u64)
    }
}

fn mix(old: Option<f64>, new: f64) -> f64 {
    old.map_or(new, |old| old + WEIGHT * (new - old))
}
