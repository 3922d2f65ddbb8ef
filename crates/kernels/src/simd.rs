//! Run-time detection of CPU instruction sets, with tokens as proof.
//!
//! Only detection creates a token such as [`Avx512`]. A safe function that calls code compiled for
//! an instruction set takes the token of that set, so its availability is guaranteed by type.
//!
//! `PANDA_MACHINE=portable`, `avx2` or `avx512` in the environment disables wider instructions, to
//! reproduce the results of another machine; `avx512` disables AMX.
#![allow(unsafe_code)]
use std::{env, sync::OnceLock};

/// Token for 256-bit vectors and fused multiply-add: `avx2,fma`.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Avx2Fma(());

/// Token for 512-bit vectors: `avx512f,avx512vl,avx512dq,avx512bw,fma`.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

/// Token for [`Avx512`] and dot products of bf16 pairs: `avx512bf16`.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Avx512Bf16(());

/// Token for [`Avx512`] and dot products of 8-bit and 16-bit integers: `avx512vnni`.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Avx512Vnni(());

/// Token for 256-bit integers and conversions of f16: `avx2,f16c`.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2F16c(());

/// Token for [`Avx2F16c`] and 256-bit dot products of 8-bit integers: `avxvnni`.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AvxVnni(Avx2F16c);

/// Token for tile registers of bf16 and 8-bit numbers.
///
/// The system permits this process to use them. Includes [`Avx512Bf16`] and [`Avx512Vnni`].
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Amx(());

/// Instructions for `f32` and `f64`, with their token.
#[derive(Clone, Copy, Debug)]
pub enum SimdLevel {
    /// Plain loops for any CPU.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2Fma),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

/// Instructions for products of bf16 numbers, with their token.
#[derive(Clone, Copy, Debug)]
pub enum Bf16 {
    /// Plain loops for any CPU.
    Portable,
    /// Products of numbers expanded to `f32`.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2Fma),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512Bf16),
    #[cfg(target_arch = "x86_64")]
    Amx(Amx, Avx512Bf16),
}

/// Instructions for products of 8-bit integers, with their token.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Int8 {
    /// Plain loops for any CPU.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2F16c),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(AvxVnni),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512Vnni),
    /// Few rows have the products of AVX-512.
    #[cfg(target_arch = "x86_64")]
    Amx(Amx, Avx512Vnni),
}

/// Tokens of all detected instruction sets.
#[derive(Clone, Copy, Debug, Default)]
struct CpuFeatures {
    #[cfg(target_arch = "x86_64")]
    avx2: Option<Avx2Fma>,
    #[cfg(target_arch = "x86_64")]
    avx512: Option<Avx512>,
    #[cfg(target_arch = "x86_64")]
    bf16: Option<Avx512Bf16>,
    #[cfg(target_arch = "x86_64")]
    vnni: Option<Avx512Vnni>,
    #[cfg(target_arch = "x86_64")]
    avx2_f16c: Option<Avx2F16c>,
    #[cfg(target_arch = "x86_64")]
    avx_vnni: Option<AvxVnni>,
    #[cfg(target_arch = "x86_64")]
    amx: Option<Amx>,
}

/// Returns the detected features; cached, as detection for every short row would be slow.
#[inline]
fn features() -> &'static CpuFeatures {
    static FEATURES: OnceLock<CpuFeatures> = OnceLock::new();
    FEATURES.get_or_init(detect)
}

/// Returns the value of `PANDA_MACHINE`, if it is set.
fn simd_override() -> Option<String> {
    env::var("PANDA_MACHINE").ok().filter(|limit| !limit.is_empty())
}

/// Checks the value of `PANDA_MACHINE`.
///
/// # Errors
/// An unknown value.
pub fn check_simd_override() -> Result<(), String> {
    match simd_override().as_deref() {
        None | Some("portable" | "avx2" | "avx512") => Ok(()),
        Some(other) => Err(format!("PANDA_MACHINE: expected portable, avx2 or avx512, found {other:?}")),
    }
}

/// Returns no feature: other CPUs use the portable loops.
#[cfg(not(target_arch = "x86_64"))]
fn detect() -> CpuFeatures {
    CpuFeatures::default()
}

/// Detects the features, except those that `PANDA_MACHINE` disables.
#[cfg(target_arch = "x86_64")]
fn detect() -> CpuFeatures {
    let limit = simd_override();
    let fma = is_x86_feature_detected!("fma") && limit.as_deref() != Some("portable");
    let avx2 = (fma && is_x86_feature_detected!("avx2")).then_some(Avx2Fma(()));
    let has_avx512 = fma
        && limit.as_deref() != Some("avx2")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw");
    let bf16 = (has_avx512 && is_x86_feature_detected!("avx512bf16")).then_some(Avx512Bf16(()));
    let vnni = (has_avx512 && is_x86_feature_detected!("avx512vnni")).then_some(Avx512Vnni(()));
    let avx2_f16c = (avx2.is_some() && is_x86_feature_detected!("f16c")).then_some(Avx2F16c(()));
    CpuFeatures {
        avx2,
        avx512: has_avx512.then_some(Avx512(())),
        bf16,
        vnni,
        avx2_f16c,
        avx_vnni: avx2_f16c.filter(|_| is_x86_feature_detected!("avxvnni")).map(AvxVnni),
        amx: (bf16.is_some() && vnni.is_some() && limit.as_deref() != Some("avx512") && request_amx())
            .then_some(Amx(())),
    }
}

/// Returns whether this process may use tiles of bf16 and 8-bit numbers.
///
/// The CPU must have them, and the system must permit their larger register state.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn request_amx() -> bool {
    /// Bits of bf16 products, tiles and 8-bit products.
    const TILES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    const SYSTEM_CALL_ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let features = std::arch::x86_64::__cpuid_count(7, 0).edx;
    if features & TILES != TILES {
        return false;
    }
    let status: i64;
    // SAFETY: the call requests a larger register state; older kernels return an error.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") SYSTEM_CALL_ARCH_PRCTL => status, in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA, out("rcx") _, out("r11") _, options(nostack));
    }
    status == 0
}

/// Returns false: only Linux permits the registers on request.
#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn request_amx() -> bool {
    false
}

impl SimdLevel {
    /// Returns the widest instructions of this machine.
    #[inline]
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        match features() {
            CpuFeatures { avx512: Some(token), .. } => return Self::Avx512(*token),
            CpuFeatures { avx2: Some(token), .. } => return Self::Avx2(*token),
            _ => {}
        }
        Self::Portable
    }

    /// Returns all instructions of this machine; prints which are missing.
    #[cfg(test)]
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(features().avx2.map(Self::Avx2));
            all.extend(features().avx512.map(Self::Avx512));
        }
        if all.len() < 3 {
            println!("skipped: no AVX2 or AVX-512 on this machine; tested: {all:?}");
        }
        all
    }
}

#[cfg(target_arch = "x86_64")]
impl Avx512Vnni {
    /// Returns the token, if the CPU has these instructions.
    #[inline]
    pub fn detect() -> Option<Self> {
        features().vnni
    }
}

#[cfg(target_arch = "x86_64")]
impl AvxVnni {
    /// Returns the token of the instructions that it includes.
    #[inline]
    pub(crate) fn avx2(self) -> Avx2F16c {
        self.0
    }
}

impl Int8 {
    /// Returns the widest instructions of this machine.
    #[inline]
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        match features() {
            CpuFeatures { amx: Some(amx), vnni: Some(vnni), .. } => return Self::Amx(*amx, *vnni),
            CpuFeatures { vnni: Some(token), .. } => return Self::Avx512(*token),
            CpuFeatures { avx_vnni: Some(token), .. } => return Self::AvxVnni(*token),
            CpuFeatures { avx2_f16c: Some(token), .. } => return Self::Avx2(*token),
            _ => {}
        }
        Self::Portable
    }

    /// Returns all instructions of this machine; prints which are missing.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        let mut all = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(features().avx2_f16c.map(Self::Avx2));
            all.extend(features().avx_vnni.map(Self::AvxVnni));
            all.extend(features().vnni.map(Self::Avx512));
            all.extend(features().amx.zip(features().vnni).map(|(amx, vnni)| Self::Amx(amx, vnni)));
        }
        if all.len() < 5 {
            println!("skipped: no AVX2, AVX-VNNI, AVX-512 VNNI or AMX on this machine; tested: {all:?}");
        }
        all
    }
}

impl Bf16 {
    /// Returns the widest instructions of this machine.
    #[inline]
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(bf16) = features().bf16 {
            if let Some(token) = features().amx {
                return Self::Amx(token, bf16);
            }
            return Self::Avx512(bf16);
        }
        #[cfg(target_arch = "x86_64")]
        if let Some(avx2) = features().avx2 {
            return Self::Avx2(avx2);
        }
        Self::Portable
    }

    /// Returns all instructions of this machine; prints which are missing.
    #[cfg(test)]
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(features().avx2.map(Self::Avx2));
            all.extend(features().bf16.map(Self::Avx512));
            all.extend(features().amx.zip(features().bf16).map(|(amx, bf16)| Self::Amx(amx, bf16)));
        }
        if all.len() < 4 {
            println!("skipped: no AVX2, AVX-512 BF16 or AMX on this machine; tested: {all:?}");
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_instructions_are_the_last_of_the_list() {
        assert_eq!(format!("{:?}", SimdLevel::best()), format!("{:?}", SimdLevel::all().last().unwrap()));
        assert_eq!(format!("{:?}", Bf16::best()), format!("{:?}", Bf16::all().last().unwrap()));
        assert_eq!(format!("{:?}", Int8::best()), format!("{:?}", Int8::all().last().unwrap()));
        // A level takes one byte; tokens have no size.
        assert_eq!([size_of::<SimdLevel>(), size_of::<Bf16>()], [1, 1]);
    }
}
