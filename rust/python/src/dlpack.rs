//! Reads capsules of DLPack without consuming them: the library that made a capsule frees it.
//!
//! The structs are those of `dlpack.h` (<https://github.com/dmlc/dlpack>), up to major version 1.

use std::ffi::{CStr, c_void};

use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};

use crate::facts::{Facts, rejected};

pub const CUDA: i32 = 2;
pub const CUDA_MANAGED: i32 = 13;
pub const CPU: i32 = 1;
pub const METAL: i32 = 8;
const CUDA_HOST: i32 = 3;

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;
const MAX_DIMS: i32 = 64;

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: Tensor,
}

/// Reads the description of the array in a capsule.
pub fn read(object: &Bound<'_, PyAny>) -> PyResult<Facts> {
    let (tensor, read_only) = tensor(capsule(object)?)?;
    facts(tensor, read_only)
}

/// Appends bytes that identify the array in a capsule: address, dtype, shape, strides, and the values of `samples`
/// elements, spread evenly.
pub fn mark(object: &Bound<'_, PyAny>, samples: usize, marks: &mut Vec<u8>) -> PyResult<()> {
    let (tensor, _) = tensor(capsule(object)?)?;
    let facts = facts(tensor, false)?;
    if facts.device_type != "cpu" {
        return Err(rejected(format!(
            "expected memory of the host, found {}",
            facts.device_type
        )));
    }
    let strides = facts.strides()?;
    marks.extend(facts.address.to_ne_bytes());
    marks.extend([tensor.code, tensor.bits]);
    marks.extend(tensor.lanes.to_ne_bytes());
    marks.extend(facts.shape.len().to_ne_bytes());
    for (size, stride) in facts.shape.iter().zip(&strides) {
        marks.extend(size.to_ne_bytes());
        marks.extend(stride.to_ne_bytes());
    }
    let count: usize = facts.shape.iter().product();
    let samples = samples.min(count);
    for sample in 0..samples {
        let mut rest = (count - 1) / (samples - 1).max(1) * sample;
        let mut at = tensor.data.cast::<u8>().cast_const();
        at = at.wrapping_add(facts.address - tensor.data.addr());
        for (&size, &stride) in facts.shape.iter().zip(&strides).rev() {
            at = at.wrapping_offset((rest % size) as isize * stride);
            rest /= size;
        }
        for byte in 0..facts.itemsize {
            // SAFETY: the array's library vouches for the address, in host memory that the capsule keeps. A write at
            // this moment only changes the sample.
            marks.push(unsafe { at.wrapping_add(byte).read_volatile() });
        }
    }
    Ok(())
}

fn capsule<'a, 'py>(object: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, PyCapsule>> {
    object.cast::<PyCapsule>().map_err(|_| {
        rejected(format!(
            "__dlpack__: expected a capsule, found {}",
            object.get_type()
        ))
    })
}

/// The tensor of a capsule, and whether it is read-only.
fn tensor<'a>(capsule: &'a Bound<'_, PyCapsule>) -> PyResult<(&'a Tensor, bool)> {
    if capsule.is_valid_checked(Some(VERSIONED)) {
        let managed = capsule
            .pointer_checked(Some(VERSIONED))?
            .cast::<ManagedVersioned>();
        // SAFETY: by its name the capsule points to this struct. Every version of it begins with the version number,
        // and nothing else is read before that is known.
        let (major, minor) = unsafe { ((*managed.as_ptr()).major, (*managed.as_ptr()).minor) };
        if major != 1 {
            return Err(rejected(format!(
                "DLPack: expected version 1, found {major}.{minor}"
            )));
        }
        // SAFETY: as above, and the version number is this struct's. The capsule outlives the reference.
        let managed = unsafe { managed.as_ref() };
        if managed.flags & IS_COPIED != 0 {
            return Err(rejected(
                "expected the memory itself, found a copy made for DLPack".into(),
            ));
        }
        Ok((&managed.tensor, managed.flags & READ_ONLY != 0))
    } else if capsule.is_valid_checked(Some(PLAIN)) {
        let managed = capsule.pointer_checked(Some(PLAIN))?.cast::<Managed>();
        // SAFETY: by its name the capsule points to this struct, and it outlives the reference.
        Ok((&unsafe { managed.as_ref() }.tensor, false))
    } else {
        let name = capsule.name()?.map(|name| {
            // SAFETY: the name is read at once, while the capsule is held.
            unsafe { name.as_cstr() }.to_string_lossy().into_owned()
        });
        Err(rejected(format!(
            "DLPack: expected a capsule 'dltensor' or 'dltensor_versioned', found {name:?} (a used \
             one can't be read again)"
        )))
    }
}

fn facts(tensor: &Tensor, read_only: bool) -> PyResult<Facts> {
    let device_type = match tensor.device_type {
        CPU => "cpu",
        CUDA => "cuda",
        CUDA_HOST => "cuda_host",
        CUDA_MANAGED => "cuda_managed",
        other => {
            return Err(rejected(format!(
                "DLPack: expected memory of a CPU or of CUDA, found device type {other}"
            )));
        }
    };
    let bits = usize::from(tensor.bits) * usize::from(tensor.lanes);
    if bits == 0 || !bits.is_multiple_of(8) {
        return Err(rejected(format!(
            "DLPack: expected items of whole bytes, found {bits} bits"
        )));
    }
    let itemsize = bits / 8;
    let ndim = match usize::try_from(tensor.ndim) {
        Ok(ndim) if tensor.ndim <= MAX_DIMS => ndim,
        _ => {
            return Err(rejected(format!(
                "DLPack: expected 0 to {MAX_DIMS} dimensions, found {}",
                tensor.ndim
            )));
        }
    };
    if ndim > 0 && tensor.shape.is_null() {
        return Err(rejected("DLPack: expected a shape, found none".into()));
    }
    let numbers = |pointer: *const i64| {
        if ndim == 0 || pointer.is_null() {
            return &[][..];
        }
        // SAFETY: by the format, shape and strides point to one number per dimension.
        unsafe { std::slice::from_raw_parts(pointer, ndim) }
    };
    let shape = numbers(tensor.shape)
        .iter()
        .map(|&size| {
            usize::try_from(size)
                .map_err(|_| rejected(format!("DLPack: expected sizes from 0, found {size}")))
        })
        .collect::<PyResult<Vec<_>>>()?;
    let strides = (!tensor.strides.is_null()).then(|| {
        let in_bytes = |&stride: &i64| {
            isize::try_from(stride)
                .ok()
                .and_then(|stride| stride.checked_mul(itemsize as isize))
                .ok_or_else(|| rejected(format!("DLPack: expected a stride, found {stride} items")))
        };
        numbers(tensor.strides)
            .iter()
            .map(in_bytes)
            .collect::<PyResult<Vec<_>>>()
    });
    let address = usize::try_from(tensor.byte_offset)
        .ok()
        .and_then(|offset| tensor.data.addr().checked_add(offset))
        .ok_or_else(|| {
            rejected(format!(
                "DLPack: expected an offset, found {} bytes",
                tensor.byte_offset
            ))
        })?;
    Ok(Facts {
        address: if tensor.data.is_null() { 0 } else { address },
        shape,
        strides: strides.transpose()?,
        itemsize,
        device_type,
        device_id: Some(tensor.device_id),
        stream: None,
        read_only,
    })
}
