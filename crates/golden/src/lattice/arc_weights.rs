//! Golden test of lattices: path sums and marginals from stored arc weights.
//!
//! The slow functions of `lattice::distance` follow the definition. The files call label arcs
//! *lexical*. C: context states, V: labels.
use lattice::distance::{FrameArc, arc_sums, distance, string_distance};
use lattice::{Context, Labels};
use rnnt_dp::semiring::{Log, Probability, Semiring, Tropical};
use rnnt_loss::Element;

use super::check::{LatticeCheck, Quantity};
use super::inputs::LatticeInputs;
use crate::error::RunError;

/// Arc weights of blanks `[B.., T, C]` and of labels `[B.., T, C, V]`.
pub(super) struct ArcWeights {
    pub blank: Vec<f64>,
    pub label_arcs: Vec<f64>,
}

impl ArcWeights {
    /// Compares distances, forward weights and marginals of alignment states.
    pub(super) fn compare<F: Element>(
        &self,
        check: &mut LatticeCheck,
        inputs: &LatticeInputs<F>,
    ) -> Result<(), RunError> {
        self.compare_path_sums::<F, Log>(check, inputs, "log")?;
        self.compare_path_sums::<F, Tropical>(check, inputs, "tropical")?;
        if check.file.find("out/denom_real").is_some() {
            self.compare_path_sums::<F, Probability>(check, inputs, "real")?;
        }
        self.compare_marginals(check, inputs)
    }

    /// Returns the weight of an arc; label 0 is the blank.
    ///
    /// `frame_index` counts the frames of the padded batch.
    fn weight<F: Element>(&self, inputs: &LatticeInputs<F>, frame_index: usize, arc: FrameArc) -> f64 {
        let state_index = frame_index * inputs.context.states() + arc.context;
        match arc.label {
            0 => self.blank[state_index],
            label => self.label_arcs[state_index * inputs.context.vocabulary() + label - 1],
        }
    }

    /// Compares denominators, numerators and forward weights α.
    ///
    /// A denominator sums over all paths, a numerator over the paths of the labels.
    fn compare_path_sums<F: Element, S: Semiring<Weight = f64>>(
        &self,
        check: &mut LatticeCheck,
        inputs: &LatticeInputs<F>,
        name: &str,
    ) -> Result<(), RunError> {
        let (context, alignment) = (&inputs.context, inputs.alignment);
        let (frames, labels): (_, Labels) = (inputs.frames()?, inputs.labels()?);
        let (mut denominators, mut numerators, mut alphas) = (Vec::new(), Vec::new(), Vec::new());
        for b in 0..frames.utterances() {
            let weight = |t: usize, arc: FrameArc| self.weight(inputs, b * inputs.padded_frames() + t, arc);
            // One more frame gives α after the last one, which padding repeats.
            let result = distance::<S>(context, alignment, frames.length(b), weight);
            let padded_result = distance::<S>(context, alignment, frames.length(b) + 1, |t, arc| {
                if t < frames.length(b) { weight(t, arc) } else { S::ONE }
            });
            let last_alphas = &padded_result.alphas[frames.length(b) * context.states()..];
            alphas.extend_from_slice(&result.alphas);
            (frames.length(b)..inputs.padded_frames()).for_each(|_| alphas.extend_from_slice(last_alphas));
            denominators.push(result.total);
            numerators.push(match labels.utterance(b) {
                Some(labels) => {
                    string_distance::<S>(context, alignment, labels, frames.length(b), weight)?.total
                }
                None => S::ZERO,
            });
        }
        check.compare(Quantity::Value, &format!("out/denom_{name}"), &denominators)?;
        check.compare(Quantity::Value, &format!("out/numer_{name}"), &numerators)?;
        let name = format!("out/alpha_{name}");
        if check.file.find(&name).is_some() {
            check.compare(Quantity::Value, &name, &alphas)?;
        }
        Ok(())
    }

    /// Compares the marginals of all arcs, with one value per alignment state.
    fn compare_marginals<F: Element>(
        &self,
        check: &mut LatticeCheck,
        inputs: &LatticeInputs<F>,
    ) -> Result<(), RunError> {
        let (context, alignment) = (&inputs.context, inputs.alignment);
        let (frames, padded_frames) = (inputs.frames()?, inputs.padded_frames());
        let frame_size = alignment.num_states() * context.states();
        let size = frames.utterances() * padded_frames * frame_size;
        let (mut blank, mut label_arcs) = (vec![0.0; size], vec![0.0; size * context.vocabulary()]);
        for b in 0..frames.utterances() {
            let weight = |t: usize, arc: FrameArc| self.weight(inputs, b * padded_frames + t, arc);
            let total = distance::<Log>(context, alignment, frames.length(b), weight).total;
            arc_sums::<Log>(context, alignment, frames.length(b), weight, |t, sums| {
                let (blank_marginals, label_marginals) = sums.marginals(total);
                let offset = (b * padded_frames + t) * frame_size;
                blank[offset..][..blank_marginals.len()].copy_from_slice(&blank_marginals);
                label_arcs[offset * context.vocabulary()..][..label_marginals.len()]
                    .copy_from_slice(&label_marginals);
            });
        }
        check.compare(Quantity::Gradient, "out/blank_marginals_by_state", &blank)?;
        Ok(check.compare(Quantity::Gradient, "out/lexical_marginals_by_state", &label_arcs)?)
    }
}
