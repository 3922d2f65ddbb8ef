//! Masks that were drawn.

use std::ops::Range;

use crate::Features;

/// Which bins and frames of a plane are masked; they may overlap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Masks {
    /// Stretches of bins.
    pub bins: Vec<Range<usize>>,
    /// Stretches of frames, which may lie beyond the utterance's own.
    pub frames: Vec<Range<usize>>,
}

impl Masks {
    /// Overwrites what is masked; stretches beyond the plane are cut.
    ///
    /// Cost: O(masked values).
    pub fn apply(&self, features: &mut Features, value: f32) {
        let (frames, dim) = (features.frames, features.dim);
        let cut = |stretch: &Range<usize>, most: usize| {
            let end = stretch.end.min(most);
            stretch.start.min(end)..end
        };
        for stretch in self.bins.iter().map(|stretch| cut(stretch, dim)) {
            for row in features.data.chunks_exact_mut(dim.max(1)) {
                row[stretch.clone()].fill(value);
            }
        }
        for stretch in self.frames.iter().map(|stretch| cut(stretch, frames)) {
            features.data[stretch.start * dim..stretch.end * dim].fill(value);
        }
    }
}
