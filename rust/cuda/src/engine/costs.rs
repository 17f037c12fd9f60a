//! The costs of methods.

use hybrid_pages::transfer::Direction;
use serde::{Deserialize, Serialize};

use super::method::Method;

/// Cost of a method in one direction, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Of any transfer.
    pub fixed: f64,
    /// Of each copy that the copy engine is given.
    pub per_copy: f64,
    /// Of each byte.
    pub per_byte: f64,
}

impl Costs {
    /// Of a transfer of that many copies and bytes.
    #[must_use]
    pub fn of(&self, copies: u64, bytes: u64) -> f64 {
        self.fixed + self.per_copy * copies as f64 + self.per_byte * bytes as f64
    }
}

/// The costs of each method in each direction on one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    costs: Vec<Measured>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Measured {
    direction: String,
    method: String,
    costs: Costs,
}

impl Calibration {
    /// From costs that are known.
    pub fn from_costs(costs: impl IntoIterator<Item = (Direction, Method, Costs)>) -> Self {
        let measured = |(direction, method, costs): (Direction, Method, Costs)| Measured {
            direction: name(direction).to_owned(),
            method: method.name().to_owned(),
            costs,
        };
        Self {
            costs: costs.into_iter().map(measured).collect(),
        }
    }

    /// Cost of a method, if it was measured.
    #[must_use]
    pub fn costs(&self, direction: Direction, method: Method) -> Option<Costs> {
        let found = self
            .costs
            .iter()
            .find(|m| m.direction == name(direction) && m.method == method.name());
        found.map(|measured| measured.costs)
    }

    /// Whether every cost is one.
    pub(super) fn is_sound(&self) -> bool {
        let sound = |costs: &Costs| {
            [costs.fixed, costs.per_copy, costs.per_byte]
                .iter()
                .all(|cost| cost.is_finite() && *cost >= 0.0)
        };
        self.costs.iter().all(|measured| sound(&measured.costs))
    }
}

fn name(direction: Direction) -> &'static str {
    match direction {
        Direction::Store => "store",
        Direction::Load => "load",
    }
}
