//! Loads the kernels that fit a device, and proves them.

use std::sync::Arc;

use crate::driver::Device;
use crate::error::{CudaError, Result};
use crate::kernels::{Module, image, prove};

/// Loads the first image that the device accepts. Without one, or if it fails its proof, adds a warning and returns
/// `None`.
///
/// # Errors
/// [`CudaError::Driver`] if the device breaks.
pub(super) fn load(
    device: &Arc<Device>,
    share: f64,
    warnings: &mut Vec<String>,
) -> Result<Option<Module>> {
    let (major, minor) = device.description().capability;
    let mut rejected = Vec::new();
    for image in image::candidates(major, minor) {
        match load_proven(device, image.bytes) {
            Ok(module) => return Ok(Some(module.with_share(share))),
            Err(error) if error.is_sticky() => return Err(error),
            Err(error) => {
                rejected.push(error.to_string());
                if !is_of_image(&error) {
                    break;
                }
            }
        }
    }
    let why = if rejected.is_empty() {
        "expected 7.5 or newer".into()
    } else {
        rejected.join("; ")
    };
    warnings.push(format!(
        "no kernels for compute capability {major}.{minor}, many small pieces move slower and \
         checksums are computed on the host: {why}"
    ));
    Ok(None)
}

fn load_proven(device: &Arc<Device>, image: &[u8]) -> Result<Module> {
    let module = Module::load(device, image)?;
    prove(device, &module)?;
    Ok(module)
}

/// Whether the driver rejected the image that it was given, by `CUresult`: invalid image, no binary
/// for this device, invalid PTX, no compiler for PTX, PTX newer than the driver, function not found.
fn is_of_image(error: &CudaError) -> bool {
    const REFUSALS: [i32; 7] = [200, 209, 218, 221, 222, 223, 500];
    matches!(error, CudaError::Driver { code, .. } if REFUSALS.contains(code))
}
