//! Compiling the kernels where they run, for GPUs that no shipped image fits.
//!
//! NVRTC is looked up as the driver is: nothing links against it. Signatures: NVRTC reference,
//! CUDA 11.1 and later.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library;

use crate::error::{CudaError, Result, told};

/// Names the library to compile with, and then no other is tried.
pub const LIBRARY_VARIABLE: &str = "HYBRID_PAGES_NVRTC";

/// Version 12 first: drivers of CUDA 12 and 13 load what it makes.
const LIBRARIES: [&str; 2] = ["libnvrtc.so.12", "libnvrtc.so.13"];

/// As `csrc/build.py` compiles, beside the architecture.
const OPTIONS: [&str; 1] = ["--std=c++17"];

const SOURCE: Source = Source {
    name: "paging.cu",
    text: include_str!("../../../../csrc/paging.cu"),
};
const HEADERS: [Source; 2] = [
    Source {
        name: "digest.cuh",
        text: include_str!("../../../../csrc/digest.cuh"),
    },
    Source {
        name: "paging.h",
        text: include_str!("../../../../csrc/paging.h"),
    },
];

struct Source {
    name: &'static str,
    text: &'static str,
}

type Code = c_int;
type Program = *mut std::ffi::c_void;
type SizeOf = unsafe extern "C" fn(program: Program, size: *mut usize) -> Code;
type BytesOf = unsafe extern "C" fn(program: Program, bytes: *mut c_char) -> Code;
type Strings = *const *const c_char;

const SUCCESS: Code = 0;

macro_rules! functions {
    ($($name:ident = $symbol:literal: $kind:ty;)*) => {
        struct Functions {
            $($name: $kind,)*
        }

        impl Functions {
            fn load(library: &Library) -> std::result::Result<Self, libloading::Error> {
                Ok(Self {
                    $($name: {
                        // SAFETY: NVRTC's function of that name has this signature.
                        let symbol = unsafe { library.get::<$kind>(concat!($symbol, "\0")) };
                        *symbol?
                    },)*
                })
            }
        }
    };
}

functions! {
    version = "nvrtcVersion": unsafe extern "C" fn(*mut c_int, *mut c_int) -> Code;
    error_string = "nvrtcGetErrorString": unsafe extern "C" fn(Code) -> *const c_char;
    create = "nvrtcCreateProgram": unsafe extern "C" fn(
        *mut Program, *const c_char, *const c_char, c_int, Strings, Strings
    ) -> Code;
    destroy = "nvrtcDestroyProgram": unsafe extern "C" fn(*mut Program) -> Code;
    compile = "nvrtcCompileProgram": unsafe extern "C" fn(Program, c_int, Strings) -> Code;
    log_size = "nvrtcGetProgramLogSize": SizeOf;
    log = "nvrtcGetProgramLog": BytesOf;
    cubin_size = "nvrtcGetCUBINSize": SizeOf;
    cubin = "nvrtcGetCUBIN": BytesOf;
}

/// Where to look: what [`LIBRARY_VARIABLE`] names, or these paths and then the system's libraries.
#[must_use]
pub fn places(paths: &[PathBuf]) -> Vec<PathBuf> {
    match env::var_os(LIBRARY_VARIABLE).filter(|value| !value.is_empty()) {
        Some(path) => vec![path.into()],
        None => paths
            .iter()
            .cloned()
            .chain(LIBRARIES.map(PathBuf::from))
            .collect(),
    }
}

/// Everything that decides the bytes of a compilation, beside the architecture and the compiler.
pub(super) fn inputs() -> Vec<u8> {
    let mut inputs = Vec::new();
    let sources = [&SOURCE].into_iter().chain(&HEADERS);
    for word in sources
        .flat_map(|source| [source.name, source.text])
        .chain(OPTIONS)
    {
        inputs.extend_from_slice(word.as_bytes());
        inputs.push(0);
    }
    inputs
}

/// A compiler.
pub struct Nvrtc {
    functions: Functions,
    version: (u32, u32),
    // The functions are valid for as long as these are loaded.
    _libraries: Vec<Library>,
}

impl Nvrtc {
    /// Loads a library, by its path or, for the system to find, its name.
    ///
    /// # Errors
    /// [`CudaError::Compile`] if there is none, or it is none of NVRTC.
    pub fn open(place: &Path) -> Result<Self> {
        let wrong = |error: libloading::Error| {
            CudaError::Compile(format!(
                "{}: expected the library NVRTC of CUDA 12 or 13, found none: {}",
                place.display(),
                told(&error)
            ))
        };
        // SAFETY: NVRTC's initialisation has no conditions.
        let library = unsafe { Library::new(place) }.map_err(wrong)?;
        let functions = Functions::load(&library).map_err(wrong)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: places for two ints.
        let code = unsafe { (functions.version)(&raw mut major, &raw mut minor) };
        let mut nvrtc = Self {
            functions,
            version: (major.unsigned_abs(), minor.unsigned_abs()),
            _libraries: vec![library],
        };
        nvrtc.check("nvrtcVersion", code)?;

        // NVRTC asks for this one by name, and some packages leave it where names are not looked up.
        if let Some(folder) = place.parent().filter(|folder| folder.is_dir()) {
            let builtins = folder.join(format!("libnvrtc-builtins.so.{major}.{minor}"));
            if builtins.is_file() {
                // SAFETY: as above.
                nvrtc
                    ._libraries
                    .push(unsafe { Library::new(builtins) }.map_err(wrong)?);
            }
        }
        Ok(nvrtc)
    }

    /// Major and minor version.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The kernels as a cubin for GPUs of that compute capability.
    ///
    /// # Errors
    /// [`CudaError::Compile`] with the compiler's log.
    pub fn compile(&self, (major, minor): (u32, u32)) -> Result<Vec<u8>> {
        self.compile_source(SOURCE.text, &format!("sm_{major}{minor}"))
    }

    fn compile_source(&self, text: &str, architecture: &str) -> Result<Vec<u8>> {
        let architecture = format!("--gpu-architecture={architecture}");
        let options = c_strings(OPTIONS.into_iter().chain([&*architecture]));
        let [name, text] = [SOURCE.name, text].map(c_string);
        let names = c_strings(HEADERS.iter().map(|header| header.name));
        let texts = c_strings(HEADERS.iter().map(|header| header.text));
        let [options, names, texts] = [&options, &names, &texts].map(|words| pointers(words));

        let mut program = Compilation {
            nvrtc: self,
            program: ptr::null_mut(),
        };
        // SAFETY: a place for a program; strings and as many of them as the counts say.
        let code = unsafe {
            (self.functions.create)(
                &raw mut program.program,
                text.as_ptr(),
                name.as_ptr(),
                HEADERS.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        self.check("nvrtcCreateProgram", code)?;
        // SAFETY: a program, and as many strings as the count says.
        let code = unsafe {
            (self.functions.compile)(program.program, options.len() as c_int, options.as_ptr())
        };
        if let Err(CudaError::Compile(error)) = self.check("nvrtcCompileProgram", code) {
            let log = program.bytes(
                "nvrtcGetProgramLog",
                self.functions.log_size,
                self.functions.log,
            )?;
            let log = String::from_utf8_lossy(&log);
            return Err(CudaError::Compile(format!(
                "{error}; {architecture}:\n{}",
                log.trim_end_matches('\0').trim_end()
            )));
        }
        program.bytes(
            "nvrtcGetCUBIN",
            self.functions.cubin_size,
            self.functions.cubin,
        )
    }

    fn check(&self, call: &str, code: Code) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: returns a string that lives as long as the library, whatever the code.
        let text = unsafe { CStr::from_ptr((self.functions.error_string)(code)) };
        let (major, minor) = self.version;
        Err(CudaError::Compile(format!(
            "{call} of NVRTC {major}.{minor} failed: {} ({code})",
            text.to_string_lossy()
        )))
    }
}

/// A program of NVRTC, destroyed when dropped.
struct Compilation<'nvrtc> {
    nvrtc: &'nvrtc Nvrtc,
    program: Program,
}

impl Compilation<'_> {
    fn bytes(&self, call: &str, size_of: SizeOf, bytes_of: BytesOf) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: a program and a place for a size.
        let code = unsafe { size_of(self.program, &raw mut size) };
        self.nvrtc.check(call, code)?;
        let mut bytes = vec![0; size];
        // SAFETY: room for as many bytes as the function has said.
        let code = unsafe { bytes_of(self.program, bytes.as_mut_ptr().cast()) };
        self.nvrtc.check(call, code)?;
        Ok(bytes)
    }
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: created once. A failure leaves nothing to be done.
            let _ = unsafe { (self.nvrtc.functions.destroy)(&raw mut self.program) };
        }
    }
}

fn c_string(text: &str) -> CString {
    CString::new(text).expect("sources and options hold no zero")
}

fn c_strings<'a>(words: impl Iterator<Item = &'a str>) -> Vec<CString> {
    words.map(c_string).collect()
}

fn pointers(words: &[CString]) -> Vec<*const c_char> {
    words.iter().map(|word| word.as_ptr()).collect()
}

/// For tests: the first compiler there is. `None`, said aloud, where there is none.
#[cfg(test)]
pub(super) fn any() -> Option<Nvrtc> {
    let found = places(&[]).iter().find_map(|place| Nvrtc::open(place).ok());
    if found.is_none() {
        eprintln!("skipped: no NVRTC here; {LIBRARY_VARIABLE} can name one");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_sources_compile_for_gpus_with_and_without_an_image() {
        let Some(nvrtc) = any() else { return };
        for arch in [(7, 5), (9, 0)] {
            let image = nvrtc.compile(arch).unwrap();
            assert_eq!(&image[..4], b"\x7fELF", "{arch:?}");
        }
    }

    #[test]
    fn a_failed_compilation_says_where_and_why() {
        let Some(nvrtc) = any() else { return };
        let error = nvrtc.compile_source("int x = y;", "sm_90").unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("paging.cu(1)") && text.contains("sm_90"),
            "{text}"
        );
    }

    #[test]
    fn an_unknown_architecture_is_named() {
        let Some(nvrtc) = any() else { return };
        let text = nvrtc.compile((1, 0)).unwrap_err().to_string();
        assert!(text.contains("sm_10"), "{text}");
    }

    #[test]
    fn what_is_no_nvrtc_is_refused_with_its_place() {
        for place in ["/nowhere/libnvrtc.so.12", "libc.so.6"] {
            let error = Nvrtc::open(Path::new(place)).err().unwrap();
            let text = error.to_string();
            assert!(
                matches!(error, CudaError::Compile(_)) && text.contains(place),
                "{text}"
            );
        }
    }
}
