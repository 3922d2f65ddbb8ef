//! Builds uncompressed FLAC files for tests, of given samples or zeros (RFC 9639).

#![allow(dead_code)] // Each test program uses a part.

/// A file of blocks of 4096 samples of 16 bits.
///
/// Its header contains the number of samples if `known`.
pub(crate) fn flac(rate: u32, samples: &[i16], known: bool) -> Vec<u8> {
    let mut file = b"fLaC\x80\0\0\x22".to_vec();
    file.extend([0x10, 0, 0x10, 0]);
    file.extend([0; 6]);
    let total = if known { samples.len() as u64 } else { 0 };
    // 20 bits of rate, 3 of channels - 1, 5 of depth - 1, 36 of samples.
    file.extend(((u64::from(rate) << 44) | (15 << 36) | total).to_be_bytes());
    file.extend([0; 16]);
    for (number, block) in samples.chunks(4096).enumerate() {
        // Fixed blocks, with their 16-bit size after the number; the rate as in the header; one
        // channel of 16 bits.
        let mut frame = vec![0xff, 0xf8, 0x70, 0x08, u8::try_from(number).unwrap()];
        frame.extend((block.len() as u16 - 1).to_be_bytes());
        frame.push(crc(&frame, 8, 0x07) as u8);
        frame.push(0b0000_0010);
        block.iter().for_each(|sample| frame.extend(sample.to_be_bytes()));
        frame.extend(crc(&frame, 16, 0x8005).to_be_bytes());
        file.extend(frame);
    }
    file
}

/// A file of `blocks` blocks of 65,535 zeros, a few bytes each.
pub(crate) fn silence(rate: u32, blocks: u16, known: bool) -> Vec<u8> {
    let mut file = b"fLaC\x80\0\0\x22\xff\xff\xff\xff\0\0\0\0\0\0".to_vec();
    let total = if known { u64::from(blocks) * 65_535 } else { 0 };
    file.extend(((u64::from(rate) << 44) | (15 << 36) | total).to_be_bytes());
    file.extend([0; 16]);
    for number in 0..blocks {
        let mut frame = vec![0xff, 0xf8, 0x70, 0x08];
        frame.extend(char::from_u32(u32::from(number)).unwrap().to_string().bytes());
        frame.extend(65_534u16.to_be_bytes());
        frame.push(crc(&frame, 8, 0x07) as u8);
        // One value for all samples of the block.
        frame.extend([0, 0, 0]);
        frame.extend(crc(&frame, 16, 0x8005).to_be_bytes());
        file.extend(frame);
    }
    file
}

/// A cyclic redundancy check of 8 or 16 bits.
fn crc(bytes: &[u8], bits: u32, polynomial: u16) -> u16 {
    let (top_bit, mask) = (1u16 << (bits - 1), if bits == 16 { u16::MAX } else { 0xff });
    bytes.iter().fold(0, |crc, &byte| {
        let start = crc ^ (u16::from(byte) << (bits - 8));
        (0..8).fold(start, |crc, _| ((crc << 1) ^ (if crc & top_bit != 0 { polynomial } else { 0 })) & mask)
    })
}
