//! The mock of the CUDA driver in `tests/mock-cuda`: built where it is missing, and what tests do
//! with it.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::ffi::{CString, c_int, c_long, c_uint, c_void};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hybrid_pages::transfer::Region;
use libloading::Library;

use super::transfer_support::Memory;

pub const ILLEGAL_ADDRESS: c_int = 700;
pub const UNKNOWN: c_int = 999;

/// How an injected error strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// That call fails, and no other.
    Once = 0,
    /// That call and all later ones of its context fail.
    Sticky = 1,
    /// The call succeeds, and what it put into a stream fails there, for good.
    Late = 2,
}

/// The driver's handle of a stream.
pub type Handle = *mut c_void;

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        /// A function is looked up when it is called: some may be hidden.
        impl Functions {
            $(pub unsafe fn $name(&self, $($argument: $kind),*) -> $result {
                type Function = unsafe extern "C" fn($($kind),*) -> $result;
                // SAFETY: the mock's function of that name has this signature.
                let function = unsafe { self.0.get::<Function>(concat!($symbol, "\0")) };
                // SAFETY: the caller's.
                unsafe { function.unwrap()($($argument),*) }
            })*
        }
    };
}

/// The driver's functions, and the mock's own.
#[derive(Clone)]
pub struct Functions(Arc<Library>);

functions! {
    init = "cuInit"(flags: c_uint) -> c_int;
    retain = "cuDevicePrimaryCtxRetain"(context: *mut Handle, device: c_int) -> c_int;
    release = "cuDevicePrimaryCtxRelease_v2"(device: c_int) -> c_int;
    set_current = "cuCtxSetCurrent"(context: Handle) -> c_int;
    exchange_mode = "cuThreadExchangeStreamCaptureMode"(mode: *mut c_int) -> c_int;
    allocate = "cuMemAlloc_v2"(address: *mut u64, nbytes: usize) -> c_int;
    register = "cuMemHostRegister_v2"(address: Handle, nbytes: usize, flags: c_uint) -> c_int;
    unregister = "cuMemHostUnregister"(address: Handle) -> c_int;
    free = "cuMemFree_v2"(address: u64) -> c_int;
    stream_create = "cuStreamCreateWithPriority"(stream: *mut Handle, flags: c_uint, priority: c_int) -> c_int;
    stream_destroy = "cuStreamDestroy_v2"(stream: Handle) -> c_int;
    stream_synchronize = "cuStreamSynchronize"(stream: Handle) -> c_int;
    event_create = "cuEventCreate"(event: *mut Handle, flags: c_uint) -> c_int;
    event_destroy = "cuEventDestroy_v2"(event: Handle) -> c_int;
    event_record = "cuEventRecord"(event: Handle, stream: Handle) -> c_int;
    event_query = "cuEventQuery"(event: Handle) -> c_int;
    event_wait = "cuStreamWaitEvent"(stream: Handle, event: Handle, flags: c_uint) -> c_int;
    proc_address = "cuGetProcAddress_v2"(symbol: *const i8, function: *mut Handle, version: c_int, flags: u64, status: *mut c_int) -> c_int;
    copy_to_host = "cuMemcpyDtoHAsync_v2"(target: *mut c_void, source: u64, nbytes: usize, stream: Handle) -> c_int;
    copy_to_device = "cuMemcpyHtoDAsync_v2"(target: u64, source: *const c_void, nbytes: usize, stream: Handle) -> c_int;
    fail = "mock_cuda_fail"(function: *const i8, nth: c_long, code: c_int, mode: c_int) -> ();
    calls = "mock_cuda_calls"(function: *const i8) -> c_long;
    count = "mock_cuda_count"(what: *const i8) -> c_long;
    unpinnable = "mock_cuda_unpinnable"(memory: *mut c_void, nbytes: usize) -> ();
    set = "mock_cuda_set"(name: *const i8, value: c_long) -> ();
    depth = "mock_cuda_depth"() -> c_long;
    outside = "mock_cuda_outside"(change: c_int) -> ();
    pass = "mock_cuda_pass"(stream: Handle, microseconds: c_long) -> u64;
    delay = "mock_cuda_delay"(microseconds: c_int, seed: u64) -> ();
    reset = "mock_cuda_reset"() -> ();
    hold = "mock_cuda_hold"(stream: Handle) -> u64;
    release_hold = "mock_cuda_release"(hold: u64) -> ();
    streams = "mock_cuda_streams"(flags: *mut c_uint, priorities: *mut c_int, room: c_int) -> c_int;
    begin_capture = "mock_cuda_begin_capture"(stream: Handle) -> c_int;
    end_capture = "mock_cuda_end_capture"(stream: Handle) -> c_int;
}

/// One test's use of the mock: no other test uses it meanwhile.
pub struct Mock {
    pub functions: Functions,
    contexts: Vec<Handle>,
    _session: MutexGuard<'static, ()>,
}

impl Mock {
    pub const DEVICES: usize = 2;

    /// The mock with all its functions; device 0 is this thread's.
    pub fn new() -> Self {
        Self::without(&[])
    }

    /// The mock with some functions hidden from whoever loads it.
    pub fn without(hidden: &[&str]) -> Self {
        let mut mock = Self::unused(hidden);
        // SAFETY: as the driver's reference tells to call them.
        unsafe {
            assert_eq!(mock.functions.init(0), 0);
            for device in 0..Self::DEVICES {
                let mut context = ptr::null_mut();
                assert_eq!(mock.functions.retain(&raw mut context, device as c_int), 0);
                mock.contexts.push(context);
            }
        }
        mock.enter(0);
        mock
    }

    /// As [`Mock::without`], before any call.
    pub fn unused(hidden: &[&str]) -> Self {
        static SESSION: Mutex<()> = Mutex::new(());
        let session = SESSION.lock().unwrap_or_else(PoisonError::into_inner);
        let path = library(hidden);
        // SAFETY: the tests of a process that use the driver follow each other.
        unsafe {
            std::env::set_var("HYBRID_PAGES_LIBCUDA", &path);
        }
        // SAFETY: the mock may be loaded by any program.
        let functions = Functions(Arc::new(unsafe { Library::new(path).unwrap() }));
        // SAFETY: nothing of the last test is under way.
        unsafe {
            functions.reset();
        }
        Self {
            functions,
            contexts: Vec::new(),
            _session: session,
        }
    }

    /// Makes a device this thread's.
    pub fn enter(&self, device: usize) {
        // SAFETY: the context is held.
        let code = unsafe { self.functions.set_current(self.contexts[device]) };
        assert_eq!(code, 0);
    }

    /// Makes none this thread's.
    pub fn leave(&self) {
        // SAFETY: null stands for none.
        assert_eq!(unsafe { self.functions.set_current(ptr::null_mut()) }, 0);
    }

    /// From now on, a function fails the `nth` time, from 1.
    pub fn fail(&self, function: &str, nth: usize, code: c_int, mode: Mode) {
        let function = CString::new(function).unwrap();
        // SAFETY: a C string.
        unsafe {
            self.functions
                .fail(function.as_ptr(), nth as c_long, code, mode as c_int);
        }
    }

    /// Calls of a function since the mock was made.
    pub fn calls(&self, function: &str) -> usize {
        let function = CString::new(function).unwrap();
        // SAFETY: a C string.
        unsafe { self.functions.calls(function.as_ptr()) as usize }
    }

    /// Of all functions; in a forked child, those that it called itself.
    pub fn all_calls(&self) -> usize {
        // SAFETY: null stands for all.
        unsafe { self.functions.calls(ptr::null()) as usize }
    }

    /// Live objects, or what was counted: see `mock_cuda_count`.
    pub fn count(&self, what: &str) -> usize {
        let what = CString::new(what).unwrap();
        // SAFETY: a C string.
        unsafe { self.functions.count(what.as_ptr()) as usize }
    }

    /// Everything that somebody has to give back.
    pub fn live(&self) -> [(&'static str, usize); 7] {
        [
            "contexts",
            "streams",
            "events",
            "modules",
            "device_memory",
            "host_memory",
            "registrations",
        ]
        .map(|what| (what, self.count(what)))
    }

    /// See `MOCK_CUDA_...` in `tests/mock-cuda`.
    pub fn set(&self, name: &str, value: usize) {
        let name = CString::new(name).unwrap();
        // SAFETY: a C string.
        unsafe { self.functions.set(name.as_ptr(), value as c_long) };
    }

    /// Forgets injected errors, settings, counts and whatever has broken a device.
    pub fn reset(&self) {
        // SAFETY: nothing is asked of the caller.
        unsafe { self.functions.reset() };
    }

    /// From now on, memory of this region can't be pinned. Without a region, all memory can.
    pub fn refuse_to_pin(&self, region: Option<Region>) {
        let (memory, nbytes) = region.map_or((ptr::null_mut(), 0), |region| {
            (region.address().as_ptr().cast(), region.nbytes())
        });
        // SAFETY: an address and a number.
        unsafe { self.functions.unpinnable(memory, nbytes) };
    }

    /// Pins memory as somebody else in the process would; unpins it.
    pub fn pin(&self, region: Region) -> bool {
        let address = region.address().as_ptr().cast();
        // SAFETY: mapped memory.
        unsafe { self.functions.register(address, region.nbytes(), 3) == 0 }
    }

    /// Undoes [`Mock::pin`].
    pub fn unpin(&self, region: Region) -> bool {
        // SAFETY: mapped memory.
        unsafe { self.functions.unregister(region.address().as_ptr().cast()) == 0 }
    }

    /// The longest pause in streams, in microseconds.
    pub fn delay(&self, microseconds: usize, seed: u64) {
        // SAFETY: two numbers.
        unsafe { self.functions.delay(microseconds as c_int, seed) };
    }

    /// A thread must find these as they were: how many contexts it has pushed, and its capture mode.
    pub fn thread(&self) -> (usize, c_int) {
        let mut mode = 0;
        // SAFETY: a place for a mode; what it was is set again.
        unsafe {
            self.functions.exchange_mode(&raw mut mode);
            let found = mode;
            self.functions.exchange_mode(&raw mut mode);
            (self.functions.depth() as usize, found)
        }
    }

    /// Does something that a capture elsewhere must not notice.
    pub fn relaxed<T>(&self, act: impl FnOnce() -> T) -> T {
        let mut mode = 2;
        // SAFETY: a place for a mode.
        unsafe { self.functions.exchange_mode(&raw mut mode) };
        let done = act();
        // SAFETY: as above.
        unsafe { self.functions.exchange_mode(&raw mut mode) };
        done
    }

    /// Does something of the test's own that an engine may not do while it serves.
    pub fn outside<T>(&self, act: impl FnOnce() -> T) -> T {
        // SAFETY: a number.
        unsafe { self.functions.outside(1) };
        let done = act();
        // SAFETY: a number.
        unsafe { self.functions.outside(-1) };
        done
    }

    /// Memory of this thread's device.
    pub fn memory(&self, bytes: &[u8]) -> Memory {
        let mut address = 0;
        // SAFETY: a place for an address.
        let code =
            self.outside(|| unsafe { self.functions.allocate(&raw mut address, bytes.len()) });
        assert_eq!(code, 0);
        let address = ptr::with_exposed_provenance_mut::<u8>(address as usize);
        let functions = self.functions.clone();
        let free = move |address: *mut u8, _| {
            // SAFETY: allocated above. Whether it worked, the counts tell.
            unsafe {
                functions.outside(1);
                functions.free(address.addr() as u64);
                functions.outside(-1);
            }
        };
        // SAFETY: the mock's devices have their memory on the host.
        unsafe {
            address.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            Memory::at(address, bytes.len(), free)
        }
    }

    /// A stream of this thread's device, as a framework makes it.
    pub fn stream(&self) -> Stream<'_> {
        self.stream_with(1)
    }

    /// A stream that waits for the default stream, and the default stream for it.
    pub fn blocking_stream(&self) -> Stream<'_> {
        self.stream_with(0)
    }

    fn stream_with(&self, flags: c_uint) -> Stream<'_> {
        let mut handle = ptr::null_mut();
        // SAFETY: a place for a handle.
        let code =
            self.outside(|| unsafe { self.functions.stream_create(&raw mut handle, flags, 0) });
        assert_eq!(code, 0);
        Stream { mock: self, handle }
    }

    /// The stream that frameworks use unless told otherwise.
    pub fn legacy(&self) -> Stream<'_> {
        let handle = ptr::null_mut();
        Stream { mock: self, handle }
    }

    /// Flags and priorities of all live streams but the legacy ones.
    pub fn streams(&self) -> Vec<(u32, i32)> {
        let (mut flags, mut priorities) = ([0; 64], [0; 64]);
        // SAFETY: places for as many as said.
        let count = unsafe {
            self.functions
                .streams(flags.as_mut_ptr(), priorities.as_mut_ptr(), 64)
        };
        std::iter::zip(flags, priorities)
            .take(count as usize)
            .collect()
    }
}

impl Drop for Mock {
    fn drop(&mut self) {
        for device in 0..self.contexts.len() {
            // SAFETY: retained once.
            unsafe { self.functions.release(device as c_int) };
        }
    }
}

/// A stream of the test's.
pub struct Stream<'a> {
    mock: &'a Mock,
    handle: Handle,
}

impl<'a> Stream<'a> {
    pub fn raw(&self) -> Handle {
        self.handle
    }

    /// As an engine is told.
    pub fn handle(&self) -> usize {
        self.handle.expose_provenance()
    }

    /// Nothing that is given to the stream from now on starts before the hold is dropped.
    pub fn hold(&self) -> Hold<'a> {
        // SAFETY: a stream of this thread's context.
        let number = unsafe { self.mock.functions.hold(self.handle) };
        assert_ne!(number, 0);
        Hold {
            mock: self.mock,
            number,
        }
    }

    /// As [`Stream::hold`], by a kernel on all multiprocessors.
    pub fn pass(&self) -> Hold<'a> {
        // SAFETY: a stream of this thread's context.
        let number = unsafe { self.mock.functions.pass(self.handle, 0) };
        assert_ne!(number, 0);
        Hold {
            mock: self.mock,
            number,
        }
    }

    /// Writes bytes of a device when the stream comes to it.
    pub fn write(&self, target: *mut u8, bytes: &[u8]) {
        let (target, source) = (target.addr() as u64, bytes.as_ptr().cast());
        // SAFETY: pageable memory is staged at once, so that `bytes` may go.
        let code = unsafe {
            self.mock
                .functions
                .copy_to_device(target, source, bytes.len(), self.handle)
        };
        assert_eq!(code, 0);
    }

    /// Waits until it has done all it was given.
    pub fn finish(&self) {
        // SAFETY: a stream of this thread's context.
        let finish = || unsafe { self.mock.functions.stream_synchronize(self.handle) };
        assert_eq!(self.mock.outside(finish), 0);
    }

    /// As [`Stream::finish`], while a capture elsewhere forbids it.
    pub fn finish_in_vain(&self) {
        // SAFETY: a stream of this thread's context.
        let code = unsafe { self.mock.functions.stream_synchronize(self.handle) };
        assert_eq!(code, 900);
    }

    /// Runs something while the stream is captured, and says whether the capture stayed valid.
    pub fn capture<T>(&self, act: impl FnOnce() -> T) -> (T, bool) {
        // SAFETY: a stream of this thread's context.
        unsafe {
            assert_eq!(self.mock.functions.begin_capture(self.handle), 0);
            let done = act();
            (done, self.mock.functions.end_capture(self.handle) == 0)
        }
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: made by `Mock::stream`.
            unsafe { self.mock.functions.stream_destroy(self.handle) };
        }
    }
}

/// Keeps a stream from going on.
pub struct Hold<'a> {
    mock: &'a Mock,
    number: u64,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        // SAFETY: a number that `mock_cuda_hold` gave.
        unsafe { self.mock.functions.release_hold(self.number) };
    }
}

/// Builds the mock unless it is there: with ThreadSanitizer, if `HYBRID_PAGES_TSAN` is set.
fn library(hidden: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let watched = std::env::var_os("HYBRID_PAGES_TSAN").is_some();
    let folder = if watched {
        "mock-cuda-tsan"
    } else {
        "mock-cuda"
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    fs::create_dir_all(&folder).unwrap();
    let lock = File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let name = [&["libcuda"], hidden].concat().join("-");
    let path = folder.join(name + ".so.1");
    let mut build = Command::new(root.join("tests/mock-cuda/build.sh"));
    build.arg(&path).env_remove("LD_PRELOAD");
    if watched {
        build.env("CXXFLAGS", "-fsanitize=thread -g");
    }
    for function in hidden {
        build.args(["--hide", function]);
    }
    let built = build.output().unwrap();
    let why = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "the mock was not built: {why}");
    path
}
