//! Loads the kernels that fit a device.

use std::sync::Arc;

use crate::driver::Device;
use crate::error::{CudaError, Result};
use crate::kernels::{Module, image};

/// Loads the first image that the device accepts. If it accepts none, adds a warning and returns `None`.
pub(super) fn load(
    device: &Arc<Device>,
    share: f64,
    warnings: &mut Vec<String>,
) -> Result<Option<Module>> {
    let blocks = f64::from(device.description().multiprocessors) * share;
    let blocks = (blocks as u32).max(1);
    let (major, minor) = device.description().capability;
    let mut rejected = Vec::new();
    for image in image::candidates(major, minor) {
        match Module::load(device, image.bytes, blocks) {
            Ok(module) => return Ok(Some(module)),
            Err(error) if is_of_image(&error) => rejected.push(error.to_string()),
            Err(error) => return Err(error),
        }
    }
    let why = if rejected.is_empty() {
        "expected 8.0 or newer".into()
    } else {
        rejected.join("; ")
    };
    warnings.push(format!(
        "no kernels for compute capability {major}.{minor}, many small pieces move slower and \
         checksums are computed on the host: {why}"
    ));
    Ok(None)
}

/// Whether the driver rejected the image that it was given, by `CUresult`: invalid image, no binary
/// for this device, invalid PTX, no compiler for PTX, PTX newer than the driver, function not found.
fn is_of_image(error: &CudaError) -> bool {
    const REFUSALS: [i32; 7] = [200, 209, 218, 221, 222, 223, 500];
    matches!(error, CudaError::Driver { code, .. } if REFUSALS.contains(code))
}
