//! The mock driver notices what a device would, and what a device might not.
#![cfg(target_os = "linux")]

mod mock_cuda;
#[path = "../shared/transfer_support.rs"]
mod transfer_support;

use std::ffi::{c_int, c_void};
use std::ptr;

use mock_cuda::{Handle, ILLEGAL_ADDRESS, Mock, Mode, Stream};
use transfer_support::Memory;

const INVALID_VALUE: c_int = 1;
const INVALID_CONTEXT: c_int = 201;
const INVALID_HANDLE: c_int = 400;
const NOT_READY: c_int = 600;
const ALREADY_REGISTERED: c_int = 712;

fn address(memory: &Memory) -> u64 {
    memory.region().address().addr().get() as u64
}

fn event(mock: &Mock) -> Handle {
    let mut event = ptr::null_mut();
    // SAFETY: a place for an event.
    assert_eq!(unsafe { mock.functions.event_create(&raw mut event, 0) }, 0);
    event
}

/// Copies from a device to pageable memory, which returns when it has ended.
fn read(mock: &Mock, stream: &Stream<'_>, source: u64, bytes: &mut [u8]) -> c_int {
    let target: *mut c_void = bytes.as_mut_ptr().cast();
    // SAFETY: as many bytes as said; what the device's address names is what is tested.
    unsafe {
        mock.functions
            .copy_to_host(target, source, bytes.len(), stream.raw())
    }
}

#[test]
fn calls_need_a_context_and_handles_of_their_own() {
    let mock = Mock::new();
    let (stream, mark) = (mock.stream(), event(&mock));
    // SAFETY: live handles, in contexts that they may not be used in.
    unsafe {
        mock.enter(1);
        let foreign = mock.functions.event_record(mark, stream.raw());
        mock.leave();
        let nowhere = mock.functions.event_record(mark, stream.raw());
        mock.enter(0);
        assert_eq!((foreign, nowhere), (INVALID_HANDLE, INVALID_CONTEXT));
        assert_eq!(mock.functions.event_record(mark, stream.raw()), 0);
        assert_eq!(mock.functions.event_destroy(mark), 0);
        assert_eq!(mock.functions.event_destroy(mark), INVALID_HANDLE);
    }
}

#[test]
fn an_event_stands_for_what_was_before_it_was_recorded() {
    let mock = Mock::new();
    let (first, second, mark) = (mock.stream(), mock.stream(), event(&mock));
    let memory = mock.memory(&[0; 64]);
    let hold = first.hold();
    first.write(memory.region().address().as_ptr(), &[7; 64]);
    let mut bytes = [9; 64];
    // SAFETY: live handles.
    unsafe {
        assert_eq!(mock.functions.event_query(mark), 0, "never recorded");
        assert_eq!(mock.functions.event_record(mark, first.raw()), 0);
        assert_eq!(mock.functions.event_query(mark), NOT_READY);
        // A stream that does not wait sees the bytes of before.
        assert_eq!(read(&mock, &second, address(&memory), &mut bytes), 0);
        assert_eq!(bytes, [0; 64]);
        assert_eq!(mock.functions.event_wait(second.raw(), mark, 0), 0);
        drop(hold);
        assert_eq!(read(&mock, &second, address(&memory), &mut bytes), 0);
        assert_eq!(bytes, [7; 64]);
        assert_eq!(mock.functions.event_query(mark), 0);
        mock.functions.event_destroy(mark);
    }
}

#[test]
fn a_copy_that_leaves_its_memory_breaks_the_device() {
    let mock = Mock::new();
    let stream = mock.stream();
    let memory = mock.memory(&[0; 1000]);
    mock.enter(1);
    let elsewhere = mock.memory(&[0; 1000]);
    mock.enter(0);
    let gone = address(&mock.memory(&[0; 1000]));
    let beyond = [
        (address(&memory) + 1, "one byte too far"),
        (gone, "freed"),
        (address(&elsewhere), "of another device"),
    ];
    for (source, what) in beyond {
        let mut bytes = [0; 1000];
        let code = read(&mock, &stream, source, &mut bytes);
        assert_eq!(code, ILLEGAL_ADDRESS, "{what}");
        assert_eq!(mock.count("violations"), 1);
        let next = read(&mock, &stream, address(&memory), &mut bytes);
        assert_eq!(next, ILLEGAL_ADDRESS, "{what}: for good");
        mock.reset();
    }
}

#[test]
fn memory_is_poisoned_before_and_pinned_but_once() {
    let mock = Mock::new();
    let mut fresh = 0;
    // SAFETY: a place for an address.
    unsafe { assert_eq!(mock.functions.allocate(&raw mut fresh, 8), 0) };
    let mut bytes = [0; 8];
    assert_eq!(read(&mock, &mock.stream(), fresh, &mut bytes), 0);
    assert_eq!(bytes, [0xa5; 8]);
    // SAFETY: allocated above.
    unsafe { assert_eq!(mock.functions.free(fresh), 0) };

    let host = Memory::new(vec![0; 4096]);
    assert!(mock.pin(host.region()));
    let within: Handle = host.region().address().as_ptr().wrapping_add(100).cast();
    // SAFETY: mapped memory.
    let again = unsafe { mock.functions.register(within, 100, 3) };
    assert_eq!(again, ALREADY_REGISTERED);
    assert!(mock.unpin(host.region()) && !mock.unpin(host.region()));
}

/// `CUmemcpyAttributes`.
#[repr(C)]
struct Attributes {
    order: c_int,
    hints: [c_int; 4],
    flags: u32,
}

type Batch = unsafe extern "C" fn(
    *mut u64,
    *mut u64,
    *mut usize,
    usize,
    *mut Attributes,
    *mut usize,
    usize,
    *mut usize,
    Handle,
) -> c_int;

#[test]
fn a_batch_keeps_the_rules_of_its_reference() {
    let mock = Mock::new();
    let find = |version| {
        let (mut function, mut status) = (ptr::null_mut(), 0);
        // SAFETY: a C string and places for what is returned.
        unsafe {
            let name = c"cuMemcpyBatchAsync".as_ptr();
            let functions = &mock.functions;
            functions.proc_address(name, &raw mut function, version, 0, &raw mut status);
        }
        function
    };
    assert!(find(12070).is_null() && find(13000).is_null());
    // SAFETY: at this version, it has this signature.
    let copy = unsafe { std::mem::transmute::<Handle, Batch>(find(12080)) };
    let stream = mock.stream();
    let memory = mock.memory(&[1; 64]);
    let host = Memory::new(vec![0; 64]);
    let batch = |to: &Memory, from: &Memory, order, stream: Handle| {
        let (mut to, mut from) = ([address(to)], [address(from)]);
        let (mut sizes, mut first, mut failed) = ([64], [0], 0);
        let mut attributes = Attributes {
            order,
            hints: [0; 4],
            flags: 0,
        };
        let (to, from, sizes) = (to.as_mut_ptr(), from.as_mut_ptr(), sizes.as_mut_ptr());
        // SAFETY: one copy of as many bytes as both have.
        unsafe {
            let (at, which) = (&raw mut attributes, first.as_mut_ptr());
            copy(to, from, sizes, 1, at, which, 1, &raw mut failed, stream)
        }
    };
    let (in_order, any) = (1, 3);
    assert_eq!(
        batch(&host, &memory, in_order, mock.legacy().raw()),
        INVALID_VALUE
    );
    assert_eq!(batch(&host, &memory, any, stream.raw()), INVALID_VALUE);
    assert_eq!(batch(&host, &memory, 0, stream.raw()), INVALID_VALUE);
    assert_eq!(batch(&host, &memory, in_order, stream.raw()), 0);
    stream.finish();
    assert_eq!(host.bytes(), [1; 64]);
    assert_eq!(batch(&memory, &host, any, stream.raw()), 0);
    stream.finish();
}

#[test]
fn an_injected_error_strikes_when_and_how_it_was_told() {
    let mock = Mock::new();
    let stream = mock.stream();
    let memory = mock.memory(&[0; 8]);
    let read = || read(&mock, &stream, address(&memory), &mut [0; 8]);
    mock.fail("cuMemcpyDtoHAsync_v2", 2, 2, Mode::Once);
    assert_eq!([read(), read(), read()], [0, 2, 0]);
    mock.fail("cuMemcpyDtoHAsync_v2", 2, 719, Mode::Sticky);
    assert_eq!([read(), read(), read()], [0, 719, 719]);
    mock.reset();
    mock.fail("cuEventRecord", 1, 719, Mode::Late);
    let mark = event(&mock);
    // SAFETY: live handles.
    unsafe {
        assert_eq!(mock.functions.event_record(mark, stream.raw()), 0);
        assert_eq!(mock.functions.stream_synchronize(stream.raw()), 719);
        mock.functions.event_destroy(mark);
    }
}
