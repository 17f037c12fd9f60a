//! The compiled kernels that this crate contains. `make kernels` compiles them from `csrc/`.

/// The format of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageKind {
    /// Machine code: for GPUs of the same major version and at least the same minor one. Machine code for Tegra runs
    /// on no other GPU, nor that of others on Tegra.
    Cubin,
    /// Intermediate code that the driver compiles: for GPUs of at least this version, and drivers no older
    /// than the compiler.
    Ptx,
}

/// One compilation of the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// Compute capability, major and minor.
    pub arch: (u32, u32),
    /// Machine code or PTX.
    pub kind: ImageKind,
    /// The image's bytes for `cuModuleLoadData`. PTX ends with a zero.
    pub bytes: &'static [u8],
}

macro_rules! cubin {
    ($major:literal, $minor:literal) => {
        Image {
            arch: ($major, $minor),
            kind: ImageKind::Cubin,
            bytes: include_bytes!(concat!(
                "../../../../csrc/images/sm_",
                $major,
                $minor,
                ".cubin"
            )),
        }
    };
}

/// Compute capabilities of Tegra: Orin, and Thor as it was numbered before CUDA 13.
const TEGRA: [(u32, u32); 2] = [(8, 7), (10, 1)];

static IMAGES: [Image; 7] = [
    cubin!(12, 0),
    cubin!(10, 0),
    cubin!(9, 0),
    cubin!(8, 7),
    cubin!(8, 0),
    cubin!(7, 5),
    Image {
        arch: (8, 0),
        kind: ImageKind::Ptx,
        bytes: concat!(include_str!("../../../../csrc/images/compute_80.ptx"), "\0").as_bytes(),
    },
];

/// All images: cubins, newest first, then PTX.
#[must_use]
pub fn images() -> &'static [Image] {
    &IMAGES
}

/// The images that a GPU of this compute capability may run, best first. A driver may reject an image that is newer
/// than the driver.
pub fn candidates(major: u32, minor: u32) -> impl Iterator<Item = &'static Image> {
    let is_tegra = |arch| TEGRA.contains(&arch);
    images().iter().filter(move |image| match image.kind {
        ImageKind::Cubin => {
            let same_kind = is_tegra(image.arch) == is_tegra((major, minor));
            image.arch.0 == major && image.arch.1 <= minor && same_kind
        }
        ImageKind::Ptx => image.arch <= (major, minor),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(major: u32, minor: u32) -> Vec<(ImageKind, (u32, u32))> {
        candidates(major, minor)
            .map(|image| (image.kind, image.arch))
            .collect()
    }

    #[test]
    fn a_gpu_gets_machine_code_of_its_major_version_and_then_ptx() {
        let ptx = (ImageKind::Ptx, (8, 0));
        for (gpu, cubin) in [
            ((8, 0), (8, 0)),
            ((8, 7), (8, 7)),
            ((8, 9), (8, 0)),
            ((9, 0), (9, 0)),
            ((10, 3), (10, 0)),
            ((12, 1), (12, 0)),
        ] {
            assert_eq!(chosen(gpu.0, gpu.1), [(ImageKind::Cubin, cubin), ptx]);
        }
        assert_eq!(chosen(11, 0), [ptx]);
        assert_eq!(chosen(10, 1), [ptx]);
        assert_eq!(chosen(7, 5), [(ImageKind::Cubin, (7, 5))]);
        assert_eq!(chosen(7, 2), []);
    }

    #[test]
    fn every_image_is_of_its_kind_and_has_every_kernel() {
        for image in images() {
            match image.kind {
                ImageKind::Cubin => assert_eq!(&image.bytes[..4], b"\x7fELF"),
                ImageKind::Ptx => assert_eq!(image.bytes.iter().position(|byte| *byte == 0), {
                    Some(image.bytes.len() - 1)
                }),
            }
            for kernel in ["gather", "scatter", "digest"] {
                let name = format!("hybrid_pages_{kernel}");
                assert!(
                    image
                        .bytes
                        .windows(name.len())
                        .any(|at| at == name.as_bytes()),
                    "{:?} {:?}: {name}",
                    image.kind,
                    image.arch
                );
            }
        }
    }
}
