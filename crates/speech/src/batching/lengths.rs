//! From samples to what a model sees of them.

/// Lengths of one signal on its way through a front end and an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// Frames of a centred transform: `⌊samples / hop⌋ + 1`.
    pub frames: usize,
    /// Groups of frames: `⌈frames / splice⌉`.
    pub spliced: usize,
    /// Encoder frames: `⌈spliced / stack⌉`.
    pub encoder: usize,
}

impl Lengths {
    /// Of so many samples; a hop, splice or stack of 0 is taken as 1.
    ///
    /// ```
    /// let lengths = speech::batching::Lengths::new(195_840, 160, 3, 2);
    /// assert_eq!((lengths.frames, lengths.spliced, lengths.encoder), (1225, 409, 205));
    /// ```
    pub fn new(samples: usize, hop: usize, splice: usize, stack: usize) -> Self {
        let frames = (samples / hop.max(1)).saturating_add(1);
        let spliced = frames.div_ceil(splice.max(1));
        Lengths { frames, spliced, encoder: spliced.div_ceil(stack.max(1)) }
    }
}
