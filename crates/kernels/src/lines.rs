//! Buffers that stay from wave to wave.
use crate::filled;

/// Makes a buffer at least so long, and no longer; a longer one is a new one, because nothing in it is needed any more.
pub fn grow<T: Clone>(buffer: &mut Vec<T>, len: usize, value: T) {
    if buffer.len() < len {
        *buffer = Vec::new();
        *buffer = filled(len, value);
    }
}

/// Makes room for at least so many elements; where there is not enough, what is there is lost, so that old and new never are
/// there at once.
pub fn reserve<T>(list: &mut Vec<T>, count: usize) {
    if list.capacity() < count {
        *list = Vec::new();
        list.reserve_exact(count);
    }
}

/// So many times a value, in a list that nobody needs.
pub fn refilled<T: Clone>(mut list: Vec<T>, len: usize, value: T) -> Vec<T> {
    reserve(&mut list, len);
    list.clear();
    list.resize(len, value);
    list
}

/// A buffer that begins with a cache line, so that no register of a kernel lies in two.
#[derive(Debug)]
pub struct Lines<T> {
    all: Vec<T>,
    first: usize,
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self { all: Vec::new(), first: 0 }
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

impl<T: Clone> Lines<T> {
    /// So many elements, whatever an earlier call left in them.
    pub fn room(&mut self, len: usize, value: T) -> &mut [T] {
        grow(&mut self.all, len + LINE / size_of::<T>(), value);
        self.first = self.all.as_ptr().align_offset(LINE);
        &mut self.all[self.first..][..len]
    }
}

impl<T: Clone> Lines<T> {
    /// Holds at least so many bytes, what [`Lines::bytes`] counts.
    pub fn hold(&mut self, bytes: usize, value: T) {
        grow(&mut self.all, bytes / size_of::<T>(), value);
        self.first = self.all.as_ptr().align_offset(LINE);
    }
}

impl<T> Lines<T> {
    /// A list as such a buffer.
    pub fn of(all: Vec<T>) -> Self {
        let first = all.as_ptr().align_offset(LINE).min(all.len());
        Self { all, first }
    }

    /// The list that it is made of.
    pub fn into_list(self) -> Vec<T> {
        self.all
    }

    /// Whether there is room for so many elements.
    pub fn holds(&self, len: usize) -> bool {
        len + LINE / size_of::<T>() <= self.all.len()
    }

    /// Bytes that are held.
    pub fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<T>()
    }
}

impl<T> std::ops::DerefMut for Lines<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.all[self.first..]
    }
}

impl<T> std::ops::Deref for Lines<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.all[self.first..]
    }
}
