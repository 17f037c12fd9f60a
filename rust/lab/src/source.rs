//! Reads a trace file, which may be compressed: the first bytes tell the format.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Error, Read};
use std::path::Path;

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Opens a file or a pipe. Compressed files are read to the end of the last member or frame.
pub(crate) fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    let mut file = File::open(path)?;
    let mut magic = Vec::new();
    file.by_ref().take(4).read_to_end(&mut magic)?;
    let source = BufReader::new(Cursor::new(magic.clone()).chain(file));
    Ok(match magic.as_slice() {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(source)),
        // A zstd frame, or a frame to skip, with which parallel compressors begin.
        [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Box::new(ZstdFrames {
            source,
            decoder: FrameDecoder::new(),
        }),
        _ => Box::new(source),
    })
}

/// Reads all frames of a zstd file, one after another.
struct ZstdFrames<R> {
    source: R,
    decoder: FrameDecoder,
}

impl<R: BufRead> ZstdFrames<R> {
    /// Starts the next frame; false at the end of the file.
    fn advance(&mut self) -> io::Result<bool> {
        let (computed, stored) = (
            self.decoder.get_calculated_checksum(),
            self.decoder.get_checksum_from_data(),
        );
        if stored.is_some() && stored != computed {
            return Err(Error::other("the checksum of a zstd frame differs"));
        }
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut skipped = self.source.by_ref().take(u64::from(length));
                    io::copy(&mut skipped, &mut io::sink())?;
                }
                Err(error) => return Err(Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            while self.decoder.can_collect() < buffer.len() && !self.decoder.is_finished() {
                let wanted = BlockDecodingStrategy::UptoBytes(buffer.len());
                self.decoder
                    .decode_blocks(&mut self.source, wanted)
                    .map_err(Error::other)?;
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() || !self.advance()? {
                return Ok(read);
            }
        }
    }
}
