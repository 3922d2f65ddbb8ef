//! Decodes QuickTime's IMA ADPCM in AIFF-C and CAF audio files.
//!
//! ```text
//! packet of a channel, 34 bytes: predictor (upper 9 bits) and step index (7 bits),
//!                                then 64 codes of 4 bits, lower half first
//! ```

/// Bytes of a packet of one channel.
pub(super) const PACKET_BYTES: usize = 34;
/// Samples of a packet of one channel.
pub(super) const PACKET_SAMPLES: usize = 64;

/// Changes of the step index, by the lower bits of a code.
const INDEX_CHANGES: [i32; 8] = [-1, -1, -1, -1, 2, 4, 6, 8];
/// Step sizes of the quantizer.
#[rustfmt::skip]
const STEP_SIZES: [i32; 89] = [
    7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 19, 21, 23, 25, 28, 31, 34, 37, 41, 45, 50, 55, 60, 66, 73, 80, 88, 97, 107, 118,
    130, 143, 157, 173, 190, 209, 230, 253, 279, 307, 337, 371, 408, 449, 494, 544, 598, 658, 724, 796, 876, 963, 1060,
    1166, 1282, 1411, 1552, 1707, 1878, 2066, 2272, 2499, 2749, 3024, 3327, 3660, 4026, 4428, 4871, 5358, 5894, 6484,
    7132, 7845, 8630, 9493, 10442, 11487, 12635, 13899, 15289, 16818, 18500, 20350, 22385, 24623, 27086, 29794, 32767,
];

/// Largest index into [`STEP_SIZES`].
const MAX_STEP_INDEX: i32 = 88;

/// IMA ADPCM decoder of one channel.
#[derive(Clone, Copy, Default)]
pub(super) struct Ima4Decoder {
    /// The last sample.
    predictor: i32,
    /// Index into [`STEP_SIZES`].
    step_index: i32,
}

impl Ima4Decoder {
    /// Decodes a packet.
    ///
    /// `visit` receives the index of each sample and its value as a 16-bit integer.
    pub(super) fn decode(&mut self, packet: &[u8; PACKET_BYTES], mut visit: impl FnMut(usize, i32)) {
        let header = i16::from_be_bytes([packet[0], packet[1]]);
        let (predictor, step_index) =
            (i32::from(header & !0x7f), i32::from(header & 0x7f).min(MAX_STEP_INDEX));
        // The header has only the upper bits of the predictor: keep a predictor that agrees with
        // them.
        if step_index != self.step_index || (predictor - self.predictor).abs() > 0x7f {
            (self.predictor, self.step_index) = (predictor, step_index);
        }
        for (byte_index, &byte) in packet[2..].iter().enumerate() {
            for (half, code) in [byte & 15, byte >> 4].into_iter().enumerate() {
                visit(2 * byte_index + half, self.decode_code(code));
            }
        }
    }

    /// Decodes a code: sign (8) and sum of step fractions (4, 2, 1).
    fn decode_code(&mut self, code: u8) -> i32 {
        let step = STEP_SIZES[self.step_index as usize];
        let add_if = |mask: u8, fraction: i32| if code & mask != 0 { fraction } else { 0 };
        let difference = (step >> 3) + add_if(4, step) + add_if(2, step >> 1) + add_if(1, step >> 2);
        let change = if code & 8 != 0 { -difference } else { difference };
        self.predictor = (self.predictor + change).clamp(-32768, 32767);
        self.step_index = (self.step_index + INDEX_CHANGES[usize::from(code & 7)]).clamp(0, MAX_STEP_INDEX);
        self.predictor
    }
}
