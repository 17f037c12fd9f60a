//! Loads kernels on a device and launches them.

use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;

use crate::driver::{Device, Handle, Stream};
use crate::error::Result;

use super::abi::Paging;

/// Threads of a CUDA block.
const THREADS: u32 = 512;
/// How many CUDA blocks a multiprocessor runs at a time.
const BLOCKS_EACH: u32 = 2;

/// One of the kernels of `csrc/paging.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Copies strided pieces to packed ones.
    Gather,
    /// Copies packed pieces to strided ones.
    Scatter,
    /// Computes digests of strided pieces.
    Digest,
}

/// How many multiprocessors a launch may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    /// The share that the engine's options name, for kernels that wait for the bus most of the time.
    Share,
    /// All, for kernels that touch the device's memory alone: the sooner they end, the less they disturb.
    All,
}

/// An image that is loaded on a device.
pub(crate) struct Module {
    device: Arc<Device>,
    module: Handle,
    functions: [Handle; 3],
    /// Most CUDA blocks of a launch, for each width.
    blocks: [u32; 2],
}

// SAFETY: modules may be used from any thread.
unsafe impl Send for Module {}

impl Module {
    const NAMES: [&CStr; 3] = [
        c"hybrid_pages_gather",
        c"hybrid_pages_scatter",
        c"hybrid_pages_digest",
    ];

    /// Loads an image: a cubin, or PTX that ends with a zero. Launches take one CUDA block each.
    pub(crate) fn load(device: &Arc<Device>, image: &[u8]) -> Result<Self> {
        let _entered = device.enter()?;
        let driver = device.driver();
        let mut module = ptr::null_mut();
        // SAFETY: the image is whole, since it was built with this crate or checked when it was read.
        unsafe {
            driver.module_load(
                &raw mut module,
                image.as_ptr().cast(),
                0,
                ptr::null_mut(),
                ptr::null_mut(),
            )?;
        }
        let mut loaded = Self {
            device: Arc::clone(device),
            module,
            functions: [ptr::null_mut(); 3],
            blocks: [1; 2],
        };
        for (name, function) in Self::NAMES.iter().zip(&mut loaded.functions) {
            // SAFETY: a place for a function; the name is a C string.
            unsafe { driver.module_function(&raw mut *function, module, name.as_ptr())? };
        }
        Ok(loaded)
    }

    /// Lets launches take several multiprocessors: with [`Width::Share`], this share of them.
    pub(crate) fn with_share(mut self, share: f64) -> Self {
        let all = self.device.description().multiprocessors;
        self.blocks = [((f64::from(all) * share) as u32).max(1), BLOCKS_EACH * all];
        self
    }

    /// Gives a launch to a stream. The context must be entered.
    ///
    /// # Safety
    /// Lists, digests and all bytes of the tiles in the lists stay valid until the launch has ended.
    pub(crate) unsafe fn launch(
        &self,
        kernel: Kernel,
        paging: Paging,
        width: Width,
        on: &Stream,
    ) -> Result<()> {
        let tiles = u32::try_from(paging.tile_count).unwrap_or(u32::MAX);
        if tiles == 0 {
            return Ok(());
        }
        let mut paging = paging;
        let mut parameters: [Handle; 1] = [(&raw mut paging).cast()];
        // SAFETY: the caller promises this; the driver copies the parameter before it returns.
        unsafe {
            self.device.driver().launch(
                self.functions[kernel as usize],
                tiles.min(self.blocks[width as usize]),
                1,
                1,
                THREADS,
                1,
                1,
                0,
                on.handle(),
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Ok(_entered) = self.device.enter_to_free() {
            // SAFETY: no launch is under way; a failure leaves nothing to be done.
            let _ = unsafe { self.device.driver().module_unload(self.module) };
        }
    }
}
