//! The functions of the CUDA driver that this crate uses, looked up in `libcuda.so.1`.
//!
//! The signatures are those of the CUDA Driver API reference, 12.0 and later. Functions that are not marked optional
//! exist since CUDA 11.

use std::collections::HashMap;
use std::env;
use std::ffi::{CStr, OsString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

use hybrid_pages::guarded::lock;

use libloading::Library;

use crate::error::{CudaError, Result, told};

/// The environment variable that names a driver library to load instead of `libcuda.so.1`.
pub const LIBRARY_VARIABLE: &str = "HYBRID_PAGES_LIBCUDA";
const LIBRARY: &str = "libcuda.so.1";

pub(crate) type Code = c_int;
pub(crate) type Handle = *mut c_void;
pub(crate) type DevicePointer = u64;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
const NOT_INITIALIZED: Code = 3;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const STREAM_CAPTURE_IMPLICIT: Code = 906;
pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: Code = 712;

/// `CUmemLocation` of CUDA 12.2: a kind and a number.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// `CUmemcpyAttributes` of CUDA 12.8.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CopyAttributes {
    pub(crate) source_access_order: c_int,
    pub(crate) source: Location,
    pub(crate) destination: Location,
    pub(crate) flags: c_uint,
}

type CopyBatch = unsafe extern "C" fn(
    destinations: *mut DevicePointer,
    sources: *mut DevicePointer,
    sizes: *mut usize,
    count: usize,
    attributes: *mut CopyAttributes,
    attribute_indices: *mut usize,
    attribute_count: usize,
    failed: *mut usize,
    stream: Handle,
) -> Code;

type WriteValue = unsafe extern "C" fn(Handle, DevicePointer, u64, c_uint) -> Code;

type Describe = unsafe extern "C" fn(Code, *mut *const c_char) -> Code;

type ProcAddress = unsafe extern "C" fn(
    symbol: *const c_char,
    function: *mut Handle,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> Code;

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ident: $kind:ty),*);)*) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($kind),*) -> Code,)*
        }

        impl Functions {
            fn load(library: &Library) -> Result<Self> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the driver's function of that name has this signature.
                        let symbol = unsafe { library.get(concat!($symbol, "\0")) };
                        *symbol.map_err(|error| CudaError::Unavailable(format!(
                            "expected a CUDA driver with {}, found none: {}", $symbol, told(&error)
                        )))?
                    },)*
                })
            }
        }

        impl Driver {
            $(
                /// # Safety
                /// The arguments meet the demands of the driver's function with this name.
                #[allow(clippy::too_many_arguments)]
                pub(crate) unsafe fn $name(&self, $($argument: $kind),*) -> Result<()> {
                    // SAFETY: the caller promises this.
                    self.check($symbol, unsafe { (self.functions.$name)($($argument),*) })
                }
            )*
        }
    };
}

functions! {
    init = "cuInit"(flags: c_uint);
    driver_version = "cuDriverGetVersion"(version: *mut c_int);
    device_count = "cuDeviceGetCount"(count: *mut c_int);
    device_get = "cuDeviceGet"(device: *mut c_int, ordinal: c_int);
    device_name = "cuDeviceGetName"(name: *mut c_char, length: c_int, device: c_int);
    device_uuid = "cuDeviceGetUuid_v2"(uuid: *mut [u8; 16], device: c_int);
    device_attribute = "cuDeviceGetAttribute"(value: *mut c_int, attribute: c_int, device: c_int);
    context_retain = "cuDevicePrimaryCtxRetain"(context: *mut Handle, device: c_int);
    context_release = "cuDevicePrimaryCtxRelease_v2"(device: c_int);
    context_push = "cuCtxPushCurrent_v2"(context: Handle);
    context_pop = "cuCtxPopCurrent_v2"(context: *mut Handle);
    priority_range = "cuCtxGetStreamPriorityRange"(least: *mut c_int, greatest: *mut c_int);
    stream_create = "cuStreamCreateWithPriority"(stream: *mut Handle, flags: c_uint, priority: c_int);
    stream_destroy = "cuStreamDestroy_v2"(stream: Handle);
    stream_wait_event = "cuStreamWaitEvent"(stream: Handle, event: Handle, flags: c_uint);
    stream_synchronize = "cuStreamSynchronize"(stream: Handle);
    stream_query = "cuStreamQuery"(stream: Handle);
    stream_is_capturing = "cuStreamIsCapturing"(stream: Handle, status: *mut c_int);
    exchange_capture_mode = "cuThreadExchangeStreamCaptureMode"(mode: *mut c_int);
    event_create = "cuEventCreate"(event: *mut Handle, flags: c_uint);
    event_destroy = "cuEventDestroy_v2"(event: Handle);
    event_record = "cuEventRecord"(event: Handle, stream: Handle);
    event_query = "cuEventQuery"(event: Handle);
    memory_allocate = "cuMemAlloc_v2"(address: *mut DevicePointer, nbytes: usize);
    memory_free = "cuMemFree_v2"(address: DevicePointer);
    host_allocate = "cuMemHostAlloc"(address: *mut Handle, nbytes: usize, flags: c_uint);
    host_free = "cuMemFreeHost"(address: Handle);
    host_register = "cuMemHostRegister_v2"(address: Handle, nbytes: usize, flags: c_uint);
    host_unregister = "cuMemHostUnregister"(address: Handle);
    host_device_pointer = "cuMemHostGetDevicePointer_v2"(device: *mut DevicePointer, host: Handle, flags: c_uint);
    pointer_attribute = "cuPointerGetAttribute"(data: Handle, attribute: c_int, address: DevicePointer);
    copy_to_device = "cuMemcpyHtoDAsync_v2"(destination: DevicePointer, source: *const c_void, nbytes: usize, stream: Handle);
    copy_to_host = "cuMemcpyDtoHAsync_v2"(destination: *mut c_void, source: DevicePointer, nbytes: usize, stream: Handle);
    module_load = "cuModuleLoadDataEx"(module: *mut Handle, image: *const c_void, options: c_uint, keys: *mut c_int, values: *mut Handle);
    module_unload = "cuModuleUnload"(module: Handle);
    module_function = "cuModuleGetFunction"(function: *mut Handle, module: Handle, name: *const c_char);
    launch = "cuLaunchKernel"(
        function: Handle,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: Handle, parameters: *mut Handle, extra: *mut Handle
    );
}

/// The CUDA driver, loaded once for each library name and kept until the process ends.
pub struct Driver {
    functions: Functions,
    error_name: Option<Describe>,
    error_text: Option<Describe>,
    copy_batch: Option<CopyBatch>,
    write_value: Option<WriteValue>,
    version: i32,
    pinned: Mutex<HashMap<(usize, usize), usize>>,
}

impl Driver {
    /// Loads the driver of this machine: `libcuda.so.1`, or the library that [`LIBRARY_VARIABLE`] names.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] without a driver or with one that lacks a function;
    /// [`CudaError::Driver`] if it does not start.
    pub fn get() -> Result<Arc<Self>> {
        let name = library_name();
        let mut drivers = started();
        let drivers = drivers.get_or_insert_default();
        if let Some(driver) = drivers.get(&name) {
            return Ok(Arc::clone(driver));
        }
        let mut driver = Self::find(&name)?;
        driver.start()?;
        let driver = Arc::new(driver);
        drivers.insert(name, Arc::clone(&driver));
        Ok(driver)
    }

    /// How many devices there are, if anybody in this process has started the driver; `None` if nobody has. Starts
    /// nothing: a driver that is started before a fork can't be used after it.
    ///
    /// # Errors
    /// The errors of [`Driver::get`].
    pub fn devices_if_started() -> Result<Option<usize>> {
        let name = library_name();
        let known = started().as_ref().and_then(|all| all.get(&name).cloned());
        let is_known = known.is_some();
        let driver = match known {
            Some(driver) => driver,
            None => Arc::new(Self::find(&name)?),
        };
        let mut count = 0;
        // SAFETY: a place for an int.
        match unsafe { driver.device_count(&raw mut count) } {
            Ok(()) => Ok(Some(usize::try_from(count).unwrap_or(0))),
            Err(CudaError::Driver { code, .. }) if code == NOT_INITIALIZED && !is_known => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Loads the library, and calls nothing that starts the driver.
    fn find(name: &OsString) -> Result<Self> {
        // SAFETY: any program may load the driver, which runs its initialisers.
        let library = unsafe { Library::new(name) }.map_err(|error| {
            let why = told(&error);
            CudaError::Unavailable(format!("expected an NVIDIA driver, found none: {why}"))
        })?;
        let functions = Functions::load(&library)?;
        // SAFETY: the driver's functions of these names have these signatures.
        let (error_name, error_text, write_value, find) = unsafe {
            (
                library.get("cuGetErrorName\0").map(|symbol| *symbol).ok(),
                library.get("cuGetErrorString\0").map(|symbol| *symbol).ok(),
                library
                    .get("cuStreamWriteValue64_v2\0")
                    .map(|symbol| *symbol)
                    .ok(),
                library
                    .get::<ProcAddress>("cuGetProcAddress_v2\0")
                    .map(|symbol| *symbol)
                    .ok(),
            )
        };
        // The library is never unloaded: the driver's threads and contexts live until the process ends.
        std::mem::forget(library);
        Ok(Self {
            functions,
            error_name,
            error_text,
            copy_batch: find.and_then(find_copy_batch),
            write_value,
            version: 0,
            pinned: Mutex::default(),
        })
    }

    fn start(&mut self) -> Result<()> {
        let mut version = 0;
        // SAFETY: `version` is a place for an int.
        unsafe {
            self.init(0)?;
            self.driver_version(&raw mut version)?;
        }
        self.version = version;
        Ok(())
    }

    /// The CUDA version of the driver: 1000 times the major plus 10 times the minor version.
    #[must_use]
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Whether the driver takes many copies in one call (CUDA 12.8 and later).
    #[must_use]
    pub fn has_copy_batch(&self) -> bool {
        self.copy_batch.is_some()
    }

    /// Registered ranges of host memory, by address and bytes, with the number of holders of each.
    pub(crate) fn pinned(&self) -> MutexGuard<'_, HashMap<(usize, usize), usize>> {
        lock(&self.pinned)
    }

    /// Makes many copies in one call, if the driver has a function for it.
    ///
    /// # Safety
    /// `cuMemcpyBatchAsync` demands addresses and sizes of live memory, in lists of equal length.
    pub(crate) unsafe fn copy_batch(
        &self,
        destinations: &mut [DevicePointer],
        sources: &mut [DevicePointer],
        sizes: &mut [usize],
        mut attributes: CopyAttributes,
        stream: Handle,
    ) -> Result<()> {
        let copy = self.copy_batch.ok_or_else(|| {
            CudaError::Unavailable("expected a driver with cuMemcpyBatchAsync".into())
        })?;
        let (mut first, mut failed) = (0, usize::MAX);
        // SAFETY: the caller promises this; one set of attributes applies to all copies.
        let code = unsafe {
            copy(
                destinations.as_mut_ptr(),
                sources.as_mut_ptr(),
                sizes.as_mut_ptr(),
                sizes.len(),
                &raw mut attributes,
                &raw mut first,
                1,
                &raw mut failed,
                stream,
            )
        };
        self.check("cuMemcpyBatchAsync", code)
    }

    /// Lets a stream write a word, after all work given to it before is done and visible.
    ///
    /// # Safety
    /// `cuStreamWriteValue64` demands a live stream, and a word that the device may write.
    pub(crate) unsafe fn write_value(
        &self,
        stream: Handle,
        address: DevicePointer,
        value: u64,
    ) -> Result<()> {
        let write = self.write_value.ok_or_else(|| {
            CudaError::Unavailable("expected a driver with cuStreamWriteValue64".into())
        })?;
        // SAFETY: the caller promises this; by default, the write comes after a barrier.
        self.check("cuStreamWriteValue64_v2", unsafe {
            write(stream, address, value, 0)
        })
    }

    fn check(&self, call: &'static str, code: Code) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let call = call.split_once("_v").map_or(call, |(name, _)| name);
        let describe = |function: Option<Describe>| {
            let mut text = ptr::null();
            // SAFETY: the driver writes the address of a string that it never frees.
            let known = unsafe { function?(code, &raw mut text) } == SUCCESS && !text.is_null();
            // SAFETY: as above.
            let text = || unsafe { CStr::from_ptr(text) };
            known.then(|| text().to_string_lossy().into_owned())
        };
        Err(CudaError::Driver {
            call,
            code,
            name: describe(self.error_name).unwrap_or_else(|| "unknown result".into()),
            text: describe(self.error_text).unwrap_or_else(|| "no description".into()),
        })
    }
}

fn library_name() -> OsString {
    env::var_os(LIBRARY_VARIABLE)
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| LIBRARY.into())
}

/// The drivers that were started, by library name.
fn started() -> MutexGuard<'static, Option<HashMap<OsString, Arc<Driver>>>> {
    static DRIVERS: Mutex<Option<HashMap<OsString, Arc<Driver>>>> = Mutex::new(None);
    lock(&DRIVERS)
}

fn find_copy_batch(find: ProcAddress) -> Option<CopyBatch> {
    /// The first CUDA version with the function. Version 13.0 changed the signature, but this version's stays
    /// available.
    const VERSION: c_int = 12080;
    let (mut function, mut status) = (ptr::null_mut(), 0);
    // SAFETY: the name is a C string, the others are places for what the function returns.
    let code = unsafe {
        find(
            c"cuMemcpyBatchAsync".as_ptr(),
            &raw mut function,
            VERSION,
            0,
            &raw mut status,
        )
    };
    // SAFETY: at this version, the driver's function has this signature.
    (code == SUCCESS && status == 0 && !function.is_null())
        .then(|| unsafe { std::mem::transmute::<Handle, CopyBatch>(function) })
}
