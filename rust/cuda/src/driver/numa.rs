//! The NUMA node that a device is nearest to.

use std::ffi::c_int;
use std::path::Path;

use crate::error::Result;

use super::device::find;
use super::table::Driver;

const PCI_BUS: c_int = 33;
const PCI_DEVICE: c_int = 34;
const PCI_DOMAIN: c_int = 50;
/// From CUDA 12.2 on.
const HOST_NUMA_NODE: c_int = 134;

/// The NUMA node of the host that is nearest to a device, by its number; `None` where neither driver
/// nor system knows one. Makes no context.
///
/// # Errors
/// As for [`Description::of`](super::Description::of).
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

/// The system writes -1 where it does not know.
fn of_file(path: &Path) -> Option<usize> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}
