//! The CUDA driver: its functions, and devices, streams and memory that are freed when dropped.

mod device;
mod memory;
mod numa;
mod registration;
mod stream;
mod table;

pub use device::{Description, Device, Entered};
pub(crate) use memory::{DeviceMemory, HostMemory, memory_kind};
pub use numa::numa_node;
pub use registration::Registration;
pub(crate) use stream::{Event, Priority, Stream};
pub(crate) use table::{CopyAttributes, DevicePointer, Handle, Location};
pub use table::{Driver, LIBRARY_VARIABLE};
