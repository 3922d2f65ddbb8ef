//! `ScratchReq`: how many bytes of scratch memory an operation needs.
//!
//! Scratch memory is memory in addition to arguments and results.
use crate::buffers::CACHE_LINE;

/// Bytes of scratch memory that an operation needs.
///
/// Each operation defines its requirement next to the code that allocates. Plans of calls, steps
/// and runs compose them, as with `StackReq` of faer's `dyn-stack`. Two requirements apply at the
/// same time ([`and`](Self::and), a sum) or one after the other in the same memory
/// ([`or`](Self::or), the maximum). Arithmetic saturates at [`usize::MAX`], which exceeds any
/// budget.
///
/// ```
/// use kernels::ScratchReq;
///
/// let rows = ScratchReq::new::<f32>(512).times(100);
/// let (forward, backward) = (ScratchReq::new::<f64>(100), ScratchReq::aligned::<f32>(1000));
/// let call = rows.and(forward.or(backward));
/// assert_eq!(call.bytes(), 4 * 512 * 100 + (4 * 1000 + 64));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScratchReq {
    bytes: usize,
}

impl ScratchReq {
    /// No memory.
    pub const EMPTY: Self = Self { bytes: 0 };

    /// A vector of `len` elements.
    ///
    /// [`alloc`](crate::alloc) and [`ensure_len`](crate::ensure_len) allocate such vectors.
    pub const fn new<T>(len: usize) -> Self {
        Self { bytes: len.saturating_mul(size_of::<T>()) }
    }

    /// An [`AlignedVec`](crate::AlignedVec) of `len` elements.
    ///
    /// A [`PooledBuffer`](crate::PooledBuffer) has the same size.
    pub const fn aligned<T>(len: usize) -> Self {
        Self::new::<T>(len.saturating_add(CACHE_LINE / size_of::<T>()))
    }

    /// A given number of bytes.
    pub const fn from_bytes(bytes: usize) -> Self {
        Self { bytes }
    }

    /// Returns the bytes, at most [`usize::MAX`].
    pub const fn bytes(self) -> usize {
        self.bytes
    }

    /// Both at the same time: the sum.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes) }
    }

    /// One after the other in the same memory: the maximum.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self { bytes: if self.bytes > other.bytes { self.bytes } else { other.bytes } }
    }

    /// `count` of them at the same time.
    #[must_use]
    pub const fn times(self, count: usize) -> Self {
        Self { bytes: self.bytes.saturating_mul(count) }
    }

    /// All of them at the same time: the sum.
    pub fn all_of(requirements: impl IntoIterator<Item = Self>) -> Self {
        requirements.into_iter().fold(Self::EMPTY, Self::and)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedVec, BufferPool, alloc};
    use proptest::prelude::*;

    fn requirement() -> impl Strategy<Value = ScratchReq> {
        prop_oneof![0..1000usize, any::<usize>(), Just(usize::MAX)].prop_map(ScratchReq::from_bytes)
    }

    #[test]
    fn sizes_saturate() {
        assert_eq!(ScratchReq::new::<u64>(usize::MAX / 4).bytes(), usize::MAX);
        assert_eq!(ScratchReq::aligned::<u8>(usize::MAX).bytes(), usize::MAX);
        assert_eq!(ScratchReq::new::<u64>(usize::MAX).times(0), ScratchReq::EMPTY);
        assert_eq!(ScratchReq::new::<f32>(3).times(usize::MAX / 8).bytes(), usize::MAX);
        assert_eq!(ScratchReq::all_of([]), ScratchReq::EMPTY);
    }

    proptest! {
        #[test]
        fn requirements_equal_the_sizes_of_buffers(len in 0..5000usize) {
            prop_assert_eq!(ScratchReq::new::<f32>(len).bytes(), 4 * alloc(len, 0f32).capacity());
            prop_assert_eq!(ScratchReq::new::<(f32, f64)>(len).bytes(), 16 * alloc(len, (0f32, 0f64)).capacity());
            let mut buffer = AlignedVec::default();
            prop_assert_eq!(buffer.ensure_len(len, 0f64).len(), len);
            prop_assert_eq!(ScratchReq::aligned::<f64>(len).bytes(), buffer.bytes());
            let pool = BufferPool::<f32>::new();
            drop(pool.acquire("row", len));
            prop_assert_eq!(ScratchReq::aligned::<f32>(len).bytes(), pool.bytes());
        }

        #[test]
        fn sums_and_maxima_are_ordered(a in requirement(), b in requirement(), c in requirement()) {
            prop_assert_eq!(a.and(b), b.and(a));
            prop_assert_eq!(a.and(b).and(c), a.and(b.and(c)));
            prop_assert_eq!(a.or(b), b.or(a));
            prop_assert_eq!(a.or(b).or(c), a.or(b.or(c)));
            prop_assert_eq!(a.and(b.or(c)), a.and(b).or(a.and(c)));
            prop_assert!(a.or(b) >= a && a.or(b) >= b && a.and(b) >= a.or(b));
            prop_assert_eq!(ScratchReq::all_of([a, b, c]), a.and(b).and(c));
            prop_assert_eq!(a.times(3), a.and(a).and(a));
            prop_assert_eq!(a.and(ScratchReq::EMPTY), a);
            prop_assert_eq!(a.or(ScratchReq::EMPTY), a);
        }
    }
}
