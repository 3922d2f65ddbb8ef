//! Configuration of the tile registers of AMX.
#![allow(unsafe_code)]
use std::arch::asm;

use crate::simd::Amx;

/// The shape of each register, in the layout of `ldtilecfg`.
#[repr(C, align(64))]
pub(super) struct TileConfig([u8; 64]);

impl TileConfig {
    /// Creates a configuration from rows, 1 to 16, and bytes of a row, 4 to 64.
    pub(super) const fn new(tiles: [(usize, usize); 8]) -> Self {
        // The palette, 16-bit bytes per row from 16 on, rows from 48 on.
        const ROW_BYTES: usize = 16;
        const ROWS: usize = 48;
        let mut config = [0; 64];
        config[0] = 1;
        let mut tile = 0;
        while tile < tiles.len() {
            let (rows, row_bytes) = tiles[tile];
            assert!(1 <= rows && rows <= 16 && 4 <= row_bytes && row_bytes <= 64);
            config[ROW_BYTES + 2 * tile] = row_bytes as u8;
            config[ROWS + tile] = rows as u8;
            tile += 1;
        }
        TileConfig(config)
    }

    /// Configures the registers of this thread.
    pub(super) fn load(&self, _token: Amx) {
        // SAFETY: the token proves that the registers are there; the shapes are legal.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly)) };
    }
}

/// Releases the registers; their contents are lost.
pub(super) fn release(_token: Amx) {
    // SAFETY: the token proves that the registers are there.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}
