//! Keeps what was compiled on this machine.
//!
//! A file is an image and its checksum; its name says what the image depends on. Whatever is wrong
//! with a file, or with writing one, costs a compilation and nothing else.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hybrid_pages::transfer::checksum;

use crate::cache_dir;
use crate::error::{CudaError, Result};

use super::nvrtc::{self, Nvrtc};

/// The kernels for GPUs of that compute capability, from `directory` or compiled and kept there,
/// with the first NVRTC of [`nvrtc::places`] that can.
///
/// # Errors
/// [`CudaError::Compile`] with what was wrong with each of them.
pub fn load_or_compile(
    directory: Option<&Path>,
    libraries: &[PathBuf],
    capability: (u32, u32),
) -> Result<Vec<u8>> {
    let mut reasons = Vec::new();
    for place in nvrtc::places(libraries) {
        let image = Nvrtc::open(&place).and_then(|nvrtc| {
            let path = directory.map(|directory| path(directory, nvrtc.version(), capability));
            if let Some(kept) = path.as_deref().and_then(read) {
                return Ok(kept);
            }
            let image = nvrtc.compile(capability)?;
            if let Some(path) = path {
                // Nobody waits for the file: without it the kernels are compiled again.
                let _ = write(&path, &image);
            }
            Ok(image)
        });
        match image {
            Ok(image) => return Ok(image),
            Err(CudaError::Compile(reason)) => reasons.push(reason),
            Err(error) => return Err(error),
        }
    }
    Err(CudaError::Compile(format!(
        "none shipped for compute capability {}.{}, and none could be compiled: {}. Install \
         nvidia-cuda-nvrtc-cu12, or name its libnvrtc.so.12 in {}",
        capability.0,
        capability.1,
        reasons.join("; "),
        nvrtc::LIBRARY_VARIABLE
    )))
}

fn path(directory: &Path, version: (u32, u32), capability: (u32, u32)) -> PathBuf {
    let (major, minor) = capability;
    let (nvrtc_major, nvrtc_minor) = version;
    let inputs = checksum(&nvrtc::inputs());
    directory.join("kernels").join(format!(
        "sm_{major}{minor}-nvrtc-{nvrtc_major}.{nvrtc_minor}-{inputs:016x}.cubin"
    ))
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(path).ok()?;
    let end = bytes.len().checked_sub(size_of::<u64>())?;
    let kept = bytes[end..].try_into().map(u64::from_le_bytes).ok()?;
    bytes.truncate(end);
    (kept == checksum(&bytes)).then_some(bytes)
}

fn write(path: &Path, image: &[u8]) -> io::Result<()> {
    cache_dir::write(path, &[image, &checksum(image).to_le_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPABILITY: (u32, u32) = (7, 5);

    /// A directory that is removed with its files.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("hybrid-pages-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn file(&self) -> PathBuf {
            path(&self.0, (12, 9), CAPABILITY)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn what_was_written_is_read_and_leaves_nothing_else() {
        let scratch = Scratch::new("written");
        write(&scratch.file(), b"image").unwrap();
        write(&scratch.file(), b"another").unwrap();
        assert_eq!(read(&scratch.file()).unwrap(), b"another");
        assert_eq!(fs::read_dir(scratch.0.join("kernels")).unwrap().count(), 1);
    }

    #[test]
    fn a_file_with_any_byte_lost_or_changed_is_not_read() {
        let scratch = Scratch::new("damaged");
        let path = scratch.file();
        write(&path, b"image").unwrap();
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(read(&path), None, "cut to {length} bytes");
            let mut changed = whole.clone();
            changed[length] ^= 1;
            fs::write(&path, &changed).unwrap();
            assert_eq!(read(&path), None, "byte {length} changed");
        }
        fs::write(&path, &whole).unwrap();
        assert_eq!(read(&path).unwrap(), b"image");
    }

    #[test]
    fn names_differ_by_gpu_and_compiler() {
        let at = |version, capability| path(Path::new(""), version, capability);
        assert_ne!(at((12, 9), (7, 5)), at((13, 0), (7, 5)));
        assert_ne!(at((12, 9), (7, 5)), at((12, 9), (8, 0)));
    }

    #[test]
    fn a_compilation_is_kept_and_a_damaged_one_made_again() {
        let Some(compiler) = nvrtc::any() else { return };
        let scratch = Scratch::new("kept");
        let path = path(&scratch.0, compiler.version(), CAPABILITY);
        let image = load_or_compile(Some(&scratch.0), &[], CAPABILITY).unwrap();
        assert_eq!(read(&path).unwrap(), image);

        write(&path, b"kept").unwrap();
        let kept = load_or_compile(Some(&scratch.0), &[], CAPABILITY).unwrap();
        assert_eq!(kept, b"kept", "a whole file is used");

        fs::write(&path, &image).unwrap();
        let again = load_or_compile(Some(&scratch.0), &[], CAPABILITY).unwrap();
        assert_eq!((&again, read(&path)), (&image, Some(image.clone())));
    }

    #[test]
    fn a_directory_that_cannot_be_written_costs_nothing_but_the_file() {
        let Some(compiler) = nvrtc::any() else { return };
        let scratch = Scratch::new("refused");
        fs::write(scratch.0.join("kernels"), b"a file, not a directory").unwrap();
        let expected = compiler.compile(CAPABILITY).unwrap();
        for directory in [Some(&*scratch.0), None] {
            let image = load_or_compile(directory, &[], CAPABILITY).unwrap();
            assert_eq!(image, expected);
        }
    }

    #[test]
    fn without_a_compiler_the_error_says_what_was_tried_and_what_to_do() {
        let error = load_or_compile(None, &["/nowhere/libnvrtc.so.12".into()], (1, 0)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("1.0") && text.contains("nvidia-cuda-nvrtc-cu12"),
            "{text}"
        );
    }
}
