//! What the processor can do, found once a process, and proofs of it.
//!
//! A token such as [`Avx512`] has no public way to be made but detection. Every safe function that enters code compiled for a
//! set of instructions takes the token of that set: that the machine has them is then true by type.
//!
//! `PANDA_MACHINE=portable` or `avx2` in the environment holds wider instructions back, to see what another machine would compute.
use std::{env, sync::OnceLock};

/// Proof of 256-bit vectors and fused multiply-add: `avx2,fma`.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Avx2Fma(());

/// Proof of 512-bit vectors: `avx512f,avx512vl,avx512dq,avx512bw,fma`.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

/// Proof of [`Avx512`] and of products of bf16 pairs: `avx512bf16`.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Avx512Bf16(());

/// Proof of [`Avx512`] and of sums of products of 16-bit pairs: `avx512vnni`.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Avx512Vnni(());

/// Proof of [`Avx512Bf16`] and of bf16 tile registers that the system lets this process use.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[derive(Clone, Copy, Debug)]
pub struct Amx(());

/// A way to compute in the type of the rows, with its proof.
#[derive(Clone, Copy, Debug)]
pub enum Machine {
    /// Loops that any processor runs.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2Fma),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

/// A way to multiply numbers rounded to bf16, with its proof.
#[derive(Clone, Copy, Debug)]
pub enum Bf16 {
    /// Loops that any processor runs.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512Bf16),
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Amx(Amx, Avx512Bf16),
}

/// All that was found.
#[derive(Clone, Copy, Debug, Default)]
struct Features {
    #[cfg(target_arch = "x86_64")]
    avx2: Option<Avx2Fma>,
    #[cfg(target_arch = "x86_64")]
    avx512: Option<Avx512>,
    #[cfg(target_arch = "x86_64")]
    bf16: Option<Avx512Bf16>,
    #[cfg(target_arch = "x86_64")]
    vnni: Option<Avx512Vnni>,
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    amx: Option<Amx>,
}

/// Looked up once: rows are short, and five questions a row would show.
#[inline]
fn features() -> &'static Features {
    static FEATURES: OnceLock<Features> = OnceLock::new();
    FEATURES.get_or_init(detect)
}

/// What holds instructions back, in words that [`held_back`] has accepted.
fn limit() -> Option<String> {
    env::var("PANDA_MACHINE").ok().filter(|limit| !limit.is_empty())
}

/// Fails for a `PANDA_MACHINE` that says nothing to us, and otherwise has no effect.
///
/// # Errors
/// What was expected and found.
pub fn held_back() -> Result<(), String> {
    match limit().as_deref() {
        None | Some("portable" | "avx2") => Ok(()),
        Some(other) => Err(format!("PANDA_MACHINE: expected portable or avx2, found {other:?}")),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Features {
    Features::default()
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Features {
    let limit = limit();
    let fma = is_x86_feature_detected!("fma") && limit.as_deref() != Some("portable");
    let avx2 = (fma && is_x86_feature_detected!("avx2")).then_some(Avx2Fma(()));
    let wide = fma
        && limit.as_deref() != Some("avx2")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw");
    let bf16 = (wide && is_x86_feature_detected!("avx512bf16")).then_some(Avx512Bf16(()));
    Features {
        avx2,
        avx512: wide.then_some(Avx512(())),
        bf16,
        vnni: (wide && is_x86_feature_detected!("avx512vnni")).then_some(Avx512Vnni(())),
        #[cfg(target_os = "linux")]
        amx: (bf16.is_some() && crate::packed::half::amx::granted()).then_some(Amx(())),
    }
}

impl Machine {
    /// The best way that there is.
    #[inline]
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        match features() {
            Features { avx512: Some(token), .. } => return Self::Avx512(*token),
            Features { avx2: Some(token), .. } => return Self::Avx2(*token),
            _ => {}
        }
        Self::Portable
    }

    /// Every way that there is; says which there are not.
    #[cfg(test)]
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(features().avx2.map(Self::Avx2));
            all.extend(features().avx512.map(Self::Avx512));
        }
        if all.len() < 3 {
            println!("skipped: this machine has no AVX2 or no AVX-512; tested are {all:?}");
        }
        all
    }
}

#[cfg(target_arch = "x86_64")]
impl Avx512Vnni {
    /// The proof, on a machine that has it.
    #[inline]
    pub fn found() -> Option<Self> {
        features().vnni
    }
}

impl Bf16 {
    /// The best way that there is.
    #[inline]
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(wide) = features().bf16 {
            #[cfg(target_os = "linux")]
            if let Some(token) = features().amx {
                return Self::Amx(token, wide);
            }
            return Self::Avx512(wide);
        }
        Self::Portable
    }

    /// Every way that there is; says which there are not.
    #[cfg(test)]
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(features().bf16.map(Self::Avx512));
            #[cfg(target_os = "linux")]
            all.extend(features().amx.zip(features().bf16).map(|(tiles, wide)| Self::Amx(tiles, wide)));
        }
        if all.len() < 3 {
            println!("skipped: this machine has no AVX-512 BF16 or no AMX; tested are {all:?}");
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_way_is_the_last_of_all() {
        assert_eq!(format!("{:?}", Machine::best()), format!("{:?}", Machine::all().last().unwrap()));
        assert_eq!(format!("{:?}", Bf16::best()), format!("{:?}", Bf16::all().last().unwrap()));
        // One byte says which way; the proofs themselves take no room.
        assert_eq!([size_of::<Machine>(), size_of::<Bf16>()], [1, 1]);
    }
}
