//! A segment: one typed piece of a page or checkpoint.

use crate::error::{Error, Result};

use super::checks::check_name;

/// Type of a segment's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Dtype {
    Bool,
    Uint8,
    Int8,
    Float8E4m3fn,
    Float8E5m2,
    Bfloat16,
    Float16,
    Float32,
    Float64,
    Int16,
    Int32,
    Int64,
}

impl Dtype {
    /// Every element type, in the order in which errors list them.
    pub const ALL: [Self; 12] = [
        Self::Bool,
        Self::Uint8,
        Self::Int8,
        Self::Float8E4m3fn,
        Self::Float8E5m2,
        Self::Bfloat16,
        Self::Float16,
        Self::Float32,
        Self::Float64,
        Self::Int16,
        Self::Int32,
        Self::Int64,
    ];

    /// The name of the type in canonical JSON (and in torch).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Uint8 => "uint8",
            Self::Int8 => "int8",
            Self::Float8E4m3fn => "float8_e4m3fn",
            Self::Float8E5m2 => "float8_e5m2",
            Self::Bfloat16 => "bfloat16",
            Self::Float16 => "float16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
        }
    }

    /// The type with this name.
    ///
    /// # Errors
    /// [`Error::Geometry`] listing the known names.
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|dtype| dtype.name() == name)
            .ok_or_else(|| {
                let known: Vec<_> = Self::ALL.iter().map(|dtype| dtype.name()).collect();
                Error::geometry(format!(
                    "dtype: expected one of {}, found {name:?}",
                    known.join(", ")
                ))
            })
    }

    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 | Self::Float8E4m3fn | Self::Float8E5m2 => 1,
            Self::Bfloat16 | Self::Float16 | Self::Int16 => 2,
            Self::Float32 | Self::Int32 => 4,
            Self::Float64 | Self::Int64 => 8,
        }
    }
}

/// A dense, typed piece of one layer's page or checkpoint on one rank: K, V, conv, ssm.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Segment {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: usize,
}

impl Segment {
    /// The most dimensions that a segment may have.
    pub const MAX_DIMENSIONS: usize = 16;

    /// A segment of the given shape; an empty shape has one element.
    ///
    /// # Errors
    /// [`Error::Geometry`] on an empty name, a zero dimension or a size beyond memory.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: Vec<usize>) -> Result<Self> {
        let name = name.into();
        check_name("segment", &name)?;
        if shape.len() > Self::MAX_DIMENSIONS {
            return Err(Error::geometry(format!(
                "segment {name:?}: expected at most {} dimensions, found {}",
                Self::MAX_DIMENSIONS,
                shape.len()
            )));
        }
        if shape.contains(&0) {
            return Err(Error::geometry(format!(
                "segment {name:?}: expected dimensions of at least 1, found {shape:?}"
            )));
        }
        let bytes = shape
            .iter()
            .try_fold(dtype.bytes(), |bytes, dimension| {
                bytes.checked_mul(*dimension)
            })
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| {
                Error::geometry(format!("segment {name:?}: shape {shape:?} exceeds memory"))
            })?;
        Ok(Self {
            name,
            dtype,
            shape,
            bytes,
        })
    }

    /// The name of the segment, unique in its layer.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Dimensions, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
