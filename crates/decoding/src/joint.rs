//! Joint networks: scores of every class where a frame meets a label row, for many sites at once.
use kernels::{Activation, par_for, parts, parts_mut};

use crate::{AffineLayer, Error, NetworkScratch, Result, factor_blank};

/// Rows of a task that makes hidden rows.
const ROWS: usize = 8;

/// Sites at which scores are wanted.
#[derive(Debug, Clone, Copy)]
pub struct SiteBatch<'a> {
    /// Frame rows of each utterance, `[T_b, width]`.
    pub frames: &'a [&'a [f32]],
    /// Label rows, *n x* [`JointScorer::row_width`].
    pub rows: &'a [f32],
    /// The sites.
    pub at: &'a [SiteIndex],
}

/// Where a frame of an utterance meets a label row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiteIndex {
    /// The utterance.
    pub utterance: usize,
    /// Its frame.
    pub frame: usize,
    /// The label row.
    pub row: usize,
}

impl<'a> SiteBatch<'a> {
    /// Frame row and label row of a site, of these widths.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn pair(&self, site: SiteIndex, frame_width: usize, row_width: usize) -> (&'a [f32], &'a [f32]) {
        (
            &self.frames[site.utterance][site.frame * frame_width..][..frame_width],
            &self.rows[site.row * row_width..][..row_width],
        )
    }
}

/// A joint network.
///
/// Axes: `F` width of the frame rows, `P` of the predictor's output, `R` of the label rows that are kept of it, `C` classes with the
/// blanks among them, `D` durations (0 but for token-and-duration transducers). Scores of a site must depend on its own two rows
/// alone.
pub trait JointScorer: Send + Sync {
    /// F, for networks that project frames once the joint width H.
    fn frame_width(&self) -> usize;

    /// P
    fn prediction_width(&self) -> usize;

    /// R, for networks that project a predictor's output once the joint width H.
    fn row_width(&self) -> usize;

    /// C
    fn classes(&self) -> usize;

    /// D
    fn durations(&self) -> usize {
        0
    }

    /// Makes label rows `[n, R]` of the predictor's output `[n, P]`: what can be computed once for each label.
    fn project(&self, predicted: &[f32], rows: &mut [f32], scratch: &mut NetworkScratch);

    /// Writes the scores (logits) `[n, C + D]` of n sites, classes first. A model with a factored blank writes what
    /// [`factor_blank`](crate::factor_blank) makes of them.
    fn scores(&self, sites: &SiteBatch, out: &mut [f32], scratch: &mut NetworkScratch);

    /// Whether [`JointScorer::internal_lm`] means something.
    fn has_internal_lm(&self) -> bool {
        false
    }

    /// Writes the log-probabilities `[n, C]` of labels by the label side alone, 0 for blanks, for label rows `[n, R]`.
    fn internal_lm(&self, rows: &[f32], out: &mut [f32], scratch: &mut NetworkScratch) {
        let _ = (rows, scratch);
        out.fill(0.0);
    }
}

/// `z = W act(W_e x + b_e + W_p g + b_p) + b`, the network of RNN-T: both projections are computed once, a frame's when it comes
/// ([`JointNetwork::project_frames`]) and a label's when it is emitted.
#[derive(Debug)]
pub struct JointNetwork {
    activation: Activation,
    frames: Option<AffineLayer>,
    predicted: AffineLayer,
    /// Classes, then durations.
    head: AffineLayer,
    durations: usize,
    /// The blank, if it is factored.
    factored: Option<u32>,
}

impl JointNetwork {
    /// A network from its layers: of the frames (none if they come projected already), of the predictor's output, and the head,
    /// whose last `durations` outputs are those of durations.
    ///
    /// # Errors
    /// [`Error::Shape`] if the layers do not fit together.
    pub fn new(
        activation: Activation,
        frames: Option<AffineLayer>,
        predicted: AffineLayer,
        head: AffineLayer,
        durations: usize,
    ) -> Result<Self> {
        let width = head.inputs();
        for (name, layer) in
            [("projection of frames", frames.as_ref()), ("projection of labels", Some(&predicted))]
        {
            if let Some(layer) = layer.filter(|layer| layer.outputs() != width) {
                return Err(Error::shape(
                    name,
                    format!("{width} outputs, as the head has inputs"),
                    layer.outputs(),
                ));
            }
        }
        if durations >= head.outputs() {
            let expected = format!("more than {durations} outputs, which are durations");
            return Err(Error::shape("head", expected, head.outputs()));
        }
        Ok(Self { activation, frames, predicted, head, durations, factored: None })
    }

    /// The same with a blank that is a sigmoid of its own; see [`factor_blank`](crate::factor_blank).
    ///
    /// # Errors
    /// [`Error::Blank`] if it is no class.
    pub fn with_factored_blank(mut self, blank: u32) -> Result<Self> {
        let classes = self.classes();
        if blank as usize >= classes {
            return Err(Error::Blank { blank, classes });
        }
        self.factored = Some(blank);
        Ok(self)
    }

    /// The nonlinearity.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// Projected frames `[T, H]` of encoder rows `[T, E]`.
    ///
    /// # Errors
    /// [`Error::Frames`] if the rows are not whole, or the network has no projection.
    pub fn project_frames(&self, encoded: &[f32]) -> Result<Vec<f32>> {
        let width = self.frames.as_ref().map_or(0, AffineLayer::inputs);
        match &self.frames {
            Some(layer) if encoded.len().is_multiple_of(width) => Ok(layer.rows(encoded)),
            _ => Err(Error::Frames { width, found: encoded.len() }),
        }
    }
}

impl JointScorer for JointNetwork {
    fn frame_width(&self) -> usize {
        self.head.inputs()
    }

    fn prediction_width(&self) -> usize {
        self.predicted.inputs()
    }

    fn row_width(&self) -> usize {
        self.head.inputs()
    }

    fn classes(&self) -> usize {
        self.head.outputs() - self.durations
    }

    fn durations(&self) -> usize {
        self.durations
    }

    fn project(&self, predicted: &[f32], rows: &mut [f32], scratch: &mut NetworkScratch) {
        self.predicted.forward(predicted, rows, scratch);
    }

    fn scores(&self, sites: &SiteBatch, out: &mut [f32], scratch: &mut NetworkScratch) {
        let (count, width) = (sites.at.len(), self.head.inputs());
        let [hidden, room, _] = scratch.buffers([count * width, self.head.room(count), 0]);
        let hidden = &mut hidden[..count * width];
        par_for((parts_mut(hidden, ROWS * width), parts(sites.at, ROWS)), |_, (hidden, at)| {
            for (hidden, &site) in hidden.chunks_exact_mut(width).zip(at) {
                let (frame, row) = sites.pair(site, width, width);
                self.activation.forward(hidden, frame, row);
            }
        });
        self.head.forward_in(hidden, out, room);
        if let Some(blank) = self.factored {
            let (classes, outputs) = (self.classes(), self.head.outputs());
            par_for(parts_mut(out, ROWS * outputs), |_, rows| {
                rows.chunks_exact_mut(outputs).for_each(|row| factor_blank(&mut row[..classes], blank));
            });
        }
    }

    /// With a factored blank.
    fn has_internal_lm(&self) -> bool {
        self.factored.is_some()
    }

    /// `log softmax` over the labels of `W act(W_p g + b_p) + b`: what the network says of labels when no frame is there (Variani et
    /// al., arXiv 2003.07705, section 3.2).
    fn internal_lm(&self, rows: &[f32], out: &mut [f32], scratch: &mut NetworkScratch) {
        let (width, outputs, classes) = (self.head.inputs(), self.head.outputs(), self.classes());
        let count = rows.len() / width;
        let [hidden, room, scores] =
            scratch.buffers([(count + 1) * width, self.head.room(count), count * outputs]);
        let (nothing, hidden) = hidden.split_at_mut(width);
        nothing.fill(0.0);
        let hidden = &mut hidden[..count * width];
        for (hidden, row) in hidden.chunks_exact_mut(width).zip(rows.chunks_exact(width)) {
            self.activation.forward(hidden, nothing, row);
        }
        self.head.forward_in(hidden, &mut scores[..count * outputs], room);
        let blank = self.factored.map_or(classes, |blank| blank as usize);
        for (out, scores) in out.chunks_exact_mut(classes).zip(scores.chunks_exact(outputs)) {
            out.copy_from_slice(&scores[..classes]);
            out.iter_mut().skip(blank).take(1).for_each(|z| *z = f32::NEG_INFINITY);
            let (max, sum) = <f32 as kernels::Real>::row_statistics(out);
            let log_sum = (f64::from(max) + sum.ln()) as f32;
            out.iter_mut().for_each(|z| *z -= log_sum);
            out.iter_mut().skip(blank).take(1).for_each(|z| *z = 0.0);
        }
    }
}
