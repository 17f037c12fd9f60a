//! The measured speed of a store beyond this machine.

use std::time::{Duration, Instant};

/// Weight of a new measurement in the average.
const WEIGHT: f64 = 0.3;
/// Time after which a measurement counts half, so that a store that was slow is tried again.
const HALF_LIFE: Duration = Duration::from_secs(30);
/// Reads of fewer bytes are too small to measure bandwidth.
const LEAST_BYTES: u64 = 256 << 10;
/// Reads that brought less than a quarter of the bytes asked for count as if they had brought a quarter.
const LEAST_PART: u64 = 4;
/// The longest expected time, in seconds.
const LONGEST: f64 = 3600.0;

/// Latency and bandwidth of a tier, from which it computes [`expects`](hybrid_pages::tier::Below::expects).
#[derive(Debug, Default, Clone, Copy)]
pub struct Speed {
    latency: Option<f64>,
    bandwidth: Option<f64>,
    measured: Option<Instant>,
}

impl Speed {
    /// Adds a measurement of latency: the time of a small answer.
    pub fn answered(&mut self, took: Duration) {
        self.latency = Some(mix(self.latency, took.as_secs_f64()));
    }

    /// Adds a measurement of reads that ran at the same time: the bytes asked for, the bytes that came, and the time.
    pub fn brought(&mut self, asked: u64, bytes: u64, took: Duration) {
        let took = (took.as_secs_f64() - self.latency.unwrap_or(0.0)).max(1e-6);
        if asked >= LEAST_BYTES {
            let bytes = bytes.max(asked / LEAST_PART);
            self.bandwidth = Some(mix(self.bandwidth, bytes as f64 / took));
            self.measured = Some(Instant::now());
        }
    }

    /// The weight of the last measurement: 1 at first, and half as much after each half-life.
    fn trust(&self) -> f64 {
        let age = self.measured.map_or(0.0, |at| at.elapsed().as_secs_f64());
        0.5_f64.powf(age / HALF_LIFE.as_secs_f64())
    }

    /// The expected time of a read of `bytes` bytes. Zero before anything was measured.
    #[must_use]
    pub fn expects(&self, bytes: u64) -> Duration {
        let moving = self.bandwidth.map_or(0.0, |rate| bytes as f64 / rate);
        let expected = self.latency.unwrap_or(0.0) + self.trust() * moving;
        Duration::from_secs_f64(expected.min(LONGEST))
    }

    /// The number of bytes that are expected to come within a time limit; `None` before anything was measured.
    #[must_use]
    pub fn in_time(&self, limit: Duration) -> Option<u64> {
        let moving = limit.as_secs_f64() - self.latency.unwrap_or(0.0);
        let bytes = self.bandwidth? * moving.max(0.0) / self.trust();
        Some(bytes as u64)
    }

    /// Latency in microseconds and bandwidth in bytes per second, each 0 before it was measured.
    #[must_use]
    pub fn measured(&self) -> (u64, u64) {
        let latency = self.latency.map_or(0.0, |seconds| seconds * 1e6);
        (latency as u64, self.bandwidth.unwrap_or(0.0) as u64)
    }
}

fn mix(old: Option<f64>, new: f64) -> f64 {
    old.map_or(new, |old| old + WEIGHT * (new - old))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_slow_once_is_tried_again() {
        let mut speed = Speed::default();
        assert_eq!(speed.expects(1 << 30), Duration::ZERO);
        speed.answered(Duration::from_millis(10));
        speed.brought(LEAST_BYTES - 1, LEAST_BYTES - 1, Duration::from_secs(1));
        assert_eq!(speed.expects(1 << 30), Duration::from_millis(10));
        speed.brought(
            1 << 20,
            1 << 20,
            Duration::from_millis(10) + Duration::from_secs(1),
        );
        let now = speed.expects(10 << 20);
        assert!(now > Duration::from_secs(9), "{now:?}");
        speed.measured = Instant::now().checked_sub(10 * HALF_LIFE);
        let later = speed.expects(10 << 20);
        assert!(later < Duration::from_millis(21), "{later:?}");
        assert_eq!(speed.measured(), (10_000, 1 << 20));
    }

    #[test]
    fn what_comes_in_time_is_what_takes_no_longer() {
        let mut speed = Speed::default();
        let limit = Duration::from_secs(5);
        assert_eq!(speed.in_time(limit), None);
        speed.answered(Duration::from_secs(1));
        speed.brought(1 << 30, 1 << 30, Duration::from_secs(3));
        let bytes = speed.in_time(limit).unwrap();
        assert!(
            (bytes as f64 / (2_u64 << 30) as f64 - 1.0).abs() < 0.1,
            "{bytes}"
        );
        assert!(speed.expects(bytes).abs_diff(limit) < Duration::from_millis(100));
    }

    #[test]
    fn reads_that_brought_nothing_let_less_be_expected() {
        let mut speed = Speed::default();
        let limit = Duration::from_secs(5);
        speed.brought(1 << 30, 0, limit);
        let first = speed.in_time(limit).unwrap();
        assert!(0 < first && first < 1 << 29, "{first}");
        for _ in 0..20 {
            let asked = speed.in_time(limit).unwrap();
            speed.brought(asked, 0, limit);
        }
        assert!(speed.in_time(limit).unwrap() < first / 4);
    }
}
