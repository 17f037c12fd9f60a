//! The NUMA node that a device is nearest to.

use std::ffi::c_int;
use std::path::Path;

use crate::error::Result;

use super::device::find;
use super::table::Driver;

const PCI_BUS: c_int = 33;
const PCI_DEVICE: c_int = 34;
const PCI_DOMAIN: c_int = 50;
/// `CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID`, since CUDA 12.2.
const HOST_NUMA_NODE: c_int = 134;

/// The number of the host's NUMA node that is nearest to a device; `None` if neither driver nor system knows one.
/// Makes no context.
///
/// # Errors
/// The errors of [`Description::of`](super::Description::of).
pub fn numa_node(driver: &Driver, ordinal: usize) -> Result<Option<usize>> {
    let id = find(driver, ordinal)?;
    let attribute = |which| {
        let mut value = -1;
        // SAFETY: a place for an int.
        let told = unsafe { driver.device_attribute(&raw mut value, which, id) };
        told.ok().and_then(|()| usize::try_from(value).ok())
    };
    if let Some(node) = attribute(HOST_NUMA_NODE) {
        return Ok(Some(node));
    }
    let place = [PCI_DOMAIN, PCI_BUS, PCI_DEVICE].map(attribute);
    let [Some(domain), Some(bus), Some(device)] = place else {
        return Ok(None);
    };
    let name = format!("{domain:04x}:{bus:02x}:{device:02x}.0");
    Ok(of_file(
        &Path::new("/sys/bus/pci/devices")
            .join(name)
            .join("numa_node"),
    ))
}

/// Reads the node from a file of the system, which contains -1 if the node is unknown.
fn of_file(path: &Path) -> Option<usize> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}
