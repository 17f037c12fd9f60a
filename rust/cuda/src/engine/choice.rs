//! Which way a transfer takes.

use hybrid_pages::transfer::Direction;

use crate::line::Line;

use super::costs::Calibration;
use super::method::Method;

/// The methods that work here, and what they cost.
pub(super) struct Choice {
    methods: Vec<Method>,
    calibration: Option<Calibration>,
}

impl Choice {
    /// At least one method, the best guess first.
    pub(super) fn new(methods: Vec<Method>, calibration: Option<Calibration>) -> Self {
        debug_assert!(!methods.is_empty());
        Self {
            methods,
            calibration,
        }
    }

    /// The cheapest method for a transfer; without a calibration, the first.
    pub(super) fn method(&self, direction: Direction, line: &Line) -> Method {
        let Some(calibration) = &self.calibration else {
            return self.methods[0];
        };
        let cost = |method: Method| {
            let copies = match method {
                Method::Copy => line.runs(),
                Method::Staged => line.packed.len() as u64,
                Method::Kernel => 0,
            };
            let costs = calibration.costs(direction, method);
            costs.map_or(f64::INFINITY, |costs| costs.of(copies, line.bytes))
        };
        let cheapest = self
            .methods
            .iter()
            .copied()
            .min_by(|a, b| cost(*a).total_cmp(&cost(*b)));
        cheapest.unwrap_or(self.methods[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::costs::Costs;
    use crate::kernels::abi::{Packed, Strided};

    fn line(runs: u32, run: u32) -> Line {
        let bytes = u64::from(runs) * u64::from(run);
        let strided = Strided {
            position: 0,
            address: 0,
            bytes,
            run,
            extent: [1, 1, 1, runs],
            reserved: 0,
            stride: [0; 4],
        };
        let packed = Packed {
            position: 0,
            address: 0,
            bytes,
        };
        Line {
            strided: vec![strided],
            packed: vec![packed],
            entries: vec![(0, bytes)],
            tiles: bytes.div_ceil(16384),
            partial: false,
            bytes,
        }
    }

    #[test]
    fn many_small_runs_take_the_kernel_and_few_large_ones_the_copy_engine() {
        let costs = |fixed, per_copy, per_byte| Costs {
            fixed,
            per_copy,
            per_byte,
        };
        let calibration = Calibration::from_costs([
            (Direction::Store, Method::Copy, costs(5e-6, 2e-6, 2e-11)),
            (
                Direction::Store,
                Method::Staged,
                costs(30e-6, 2e-6, 2.1e-11),
            ),
            (Direction::Store, Method::Kernel, costs(8e-6, 0.0, 3e-11)),
        ]);
        let methods = vec![Method::Staged, Method::Copy, Method::Kernel];
        let choice = Choice::new(methods, Some(calibration));
        let method = |runs, run| choice.method(Direction::Store, &line(runs, run));
        assert_eq!(method(1, 64 << 20), Method::Copy);
        assert_eq!(method(4096, 16 << 10), Method::Staged);
        assert_eq!(method(4, 1 << 10), Method::Kernel);
    }

    #[test]
    fn without_a_calibration_the_first_method_is_taken() {
        let choice = Choice::new(vec![Method::Staged, Method::Copy], None);
        assert_eq!(choice.method(Direction::Load, &line(1, 1)), Method::Staged);
    }
}
