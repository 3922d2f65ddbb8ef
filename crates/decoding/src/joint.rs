//! Joint networks of transducers for decoding: scores of all classes at many sites.
//!
//! A site is a frame row of an utterance and a label row, the projected predictor output.
use kernels::{Activation, par_for, parts, parts_mut};

use crate::{AffineLayer, Error, NetworkScratch, Result, factor_blank};

/// Sites whose hidden rows one parallel task computes.
const ROWS_PER_TASK: usize = 8;

/// Sites to score.
#[derive(Debug, Clone, Copy)]
pub struct SiteBatch<'a> {
    /// Frame rows of each utterance, `[T_b, F]`: T_b frames of [`JointScorer::frame_width`].
    pub frames: &'a [&'a [f32]],
    /// Label rows, *n x* [`JointScorer::label_row_width`].
    pub label_rows: &'a [f32],
    /// The sites.
    pub sites: &'a [SiteIndex],
}

/// A site: a frame of an utterance and a label row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiteIndex {
    /// Index of the utterance.
    pub utterance: usize,
    /// Frame of the utterance.
    pub frame: usize,
    /// Index of the label row.
    pub label_row: usize,
}

impl<'a> SiteBatch<'a> {
    /// Returns the frame row and the label row of a site.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn rows_at(&self, site: SiteIndex, frame_width: usize, row_width: usize) -> (&'a [f32], &'a [f32]) {
        (
            &self.frames[site.utterance][site.frame * frame_width..][..frame_width],
            &self.label_rows[site.label_row * row_width..][..row_width],
        )
    }
}

/// A joint network that scores many sites at once.
///
/// Axes: `n` sites, `F` width of the frame rows, `P` of the predictor's output, `R` of the label
/// rows, `C` classes including blanks, `D` durations (0 except for token-and-duration transducers),
/// `H` width of the joint network. The scores of a site must depend on its two rows only.
pub trait JointScorer: Send + Sync {
    /// Width F of a frame row; H if frames are projected beforehand.
    fn frame_width(&self) -> usize;

    /// Width P of a row of the predictor's output.
    fn prediction_width(&self) -> usize;

    /// Width R of a label row; H if [`JointScorer::project`] projects.
    fn label_row_width(&self) -> usize;

    /// Number of classes C.
    fn classes(&self) -> usize;

    /// Number of durations D.
    fn durations(&self) -> usize {
        0
    }

    /// Computes label rows `[n, R]` from the predictor's output `[n, P]`, once per label.
    fn project(&self, predicted: &[f32], rows: &mut [f32], scratch: &mut NetworkScratch);

    /// Writes the scores (logits) `[n, C + D]` of n sites, classes first.
    ///
    /// A model with a factored blank writes the result of [`factor_blank`](crate::factor_blank).
    fn scores(&self, sites: &SiteBatch, out: &mut [f32], scratch: &mut NetworkScratch);

    /// Returns whether [`JointScorer::internal_lm`] is defined.
    fn has_internal_lm(&self) -> bool {
        false
    }

    /// Writes the internal language model: label log-probabilities `[n, C]`, 0 for blanks.
    ///
    /// `rows` are label rows `[n, R]`.
    fn internal_lm(&self, rows: &[f32], out: &mut [f32], scratch: &mut NetworkScratch) {
        let _ = (rows, scratch);
        out.fill(0.0);
    }
}

/// The joint network of RNN-T: `z = W act(W_e x + b_e + W_p g + b_p) + b`.
///
/// x: encoder row; g: predictor output; W_e, W_p: their projections to the joint width H; W, b: the
/// head; z: scores of classes and durations.
///
/// Each projection is computed once: of a frame by [`JointNetwork::project_frames`], of a label
/// when it is emitted.
#[derive(Debug)]
pub struct JointNetwork {
    activation: Activation,
    /// Projection of encoder rows; none if frames arrive projected.
    frame_projection: Option<AffineLayer>,
    /// Projection of the predictor's output.
    label_projection: AffineLayer,
    /// Classes, then durations.
    head: AffineLayer,
    durations: usize,
    /// Class id of a factored blank.
    factored_blank: Option<u32>,
}

impl JointNetwork {
    /// Creates a network from its layers.
    ///
    /// `frames` projects encoder rows (None if they arrive projected), `predicted` the predictor's
    /// output; the last `durations` outputs of `head` are durations.
    ///
    /// # Errors
    /// [`Error::Shape`] if the widths of the layers differ.
    pub fn new(
        activation: Activation,
        frames: Option<AffineLayer>,
        predicted: AffineLayer,
        head: AffineLayer,
        durations: usize,
    ) -> Result<Self> {
        let hidden_width = head.inputs();
        for (name, layer) in
            [("projection of frames", frames.as_ref()), ("projection of labels", Some(&predicted))]
        {
            if let Some(layer) = layer.filter(|layer| layer.outputs() != hidden_width) {
                return Err(Error::shape(
                    name,
                    format!("{hidden_width} outputs, as the head has inputs"),
                    layer.outputs(),
                ));
            }
        }
        if durations >= head.outputs() {
            let expected = format!("more than {durations} outputs, which are durations");
            return Err(Error::shape("head", expected, head.outputs()));
        }
        Ok(Self {
            activation,
            frame_projection: frames,
            label_projection: predicted,
            head,
            durations,
            factored_blank: None,
        })
    }

    /// Sets a factored blank (HAT); see [`factor_blank`](crate::factor_blank).
    ///
    /// # Errors
    /// [`Error::Blank`] if it is not a class.
    pub fn with_factored_blank(mut self, blank: u32) -> Result<Self> {
        let classes = self.classes();
        if blank as usize >= classes {
            return Err(Error::Blank { blank, classes });
        }
        self.factored_blank = Some(blank);
        Ok(self)
    }

    /// The nonlinearity of the hidden rows.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// Projects encoder rows `[T, E]` to the joint width, `[T, H]`.
    ///
    /// # Errors
    /// [`Error::Frames`] if the rows are not whole, or the network has no projection.
    pub fn project_frames(&self, encoded: &[f32]) -> Result<Vec<f32>> {
        let width = self.frame_projection.as_ref().map_or(0, AffineLayer::inputs);
        match &self.frame_projection {
            Some(layer) if encoded.len().is_multiple_of(width) => Ok(layer.forward_rows(encoded)),
            _ => Err(Error::Frames { width, found: encoded.len() }),
        }
    }
}

impl JointScorer for JointNetwork {
    fn frame_width(&self) -> usize {
        self.head.inputs()
    }

    fn prediction_width(&self) -> usize {
        self.label_projection.inputs()
    }

    fn label_row_width(&self) -> usize {
        self.head.inputs()
    }

    fn classes(&self) -> usize {
        self.head.outputs() - self.durations
    }

    fn durations(&self) -> usize {
        self.durations
    }

    fn project(&self, predicted: &[f32], rows: &mut [f32], scratch: &mut NetworkScratch) {
        self.label_projection.forward(predicted, rows, scratch);
    }

    fn scores(&self, sites: &SiteBatch, out: &mut [f32], scratch: &mut NetworkScratch) {
        let (count, width) = (sites.sites.len(), self.head.inputs());
        let ([hidden, head_scratch, _], [quantized, _]) =
            scratch.buffers([count * width, self.head.scratch_len(count), 0]);
        let hidden = &mut hidden[..count * width];
        par_for(
            (parts_mut(hidden, ROWS_PER_TASK * width), parts(sites.sites, ROWS_PER_TASK)),
            |_, (hidden, sites_of_task)| {
                for (hidden, &site) in hidden.chunks_exact_mut(width).zip(sites_of_task) {
                    let (frame_row, label_row) = sites.rows_at(site, width, width);
                    self.activation.forward(hidden, frame_row, label_row);
                }
            },
        );
        self.head.forward_in(hidden, out, head_scratch, quantized);
        if let Some(blank) = self.factored_blank {
            let (classes, outputs) = (self.classes(), self.head.outputs());
            par_for(parts_mut(out, ROWS_PER_TASK * outputs), |_, rows| {
                rows.chunks_exact_mut(outputs).for_each(|row| factor_blank(&mut row[..classes], blank));
            });
        }
    }

    /// True with a factored blank.
    fn has_internal_lm(&self) -> bool {
        self.factored_blank.is_some()
    }

    /// Writes `log softmax` over the labels of `W act(W_p g + b_p) + b`.
    ///
    /// The frame's share of the joint is 0 (Variani et al., arXiv 2003.07705, section 3.2).
    fn internal_lm(&self, rows: &[f32], out: &mut [f32], scratch: &mut NetworkScratch) {
        let (width, outputs, classes) = (self.head.inputs(), self.head.outputs(), self.classes());
        let count = rows.len() / width;
        let ([hidden, head_scratch, scores], [quantized, _]) =
            scratch.buffers([(count + 1) * width, self.head.scratch_len(count), count * outputs]);
        // Hidden rows, with a frame row of zeros.
        let (zero_frame, hidden) = hidden.split_at_mut(width);
        zero_frame.fill(0.0);
        let hidden = &mut hidden[..count * width];
        for (hidden, label_row) in hidden.chunks_exact_mut(width).zip(rows.chunks_exact(width)) {
            self.activation.forward(hidden, zero_frame, label_row);
        }
        self.head.forward_in(hidden, &mut scores[..count * outputs], head_scratch, quantized);
        // Softmax over the labels; without a factored blank, `blank` is beyond the classes.
        let blank = self.factored_blank.map_or(classes, |blank| blank as usize);
        for (out, scores) in out.chunks_exact_mut(classes).zip(scores.chunks_exact(outputs)) {
            out.copy_from_slice(&scores[..classes]);
            out.iter_mut().skip(blank).take(1).for_each(|score| *score = f32::NEG_INFINITY);
            let (max, sum) = <f32 as kernels::Real>::row_statistics(out);
            let log_sum = (f64::from(max) + sum.ln()) as f32;
            out.iter_mut().for_each(|score| *score -= log_sum);
            out.iter_mut().skip(blank).take(1).for_each(|score| *score = 0.0);
        }
    }
}
