//! The same lattice by the definition: distances in any semiring over the arc weights that the weight function gave.
use lattice::distance::{FrameArc, arc_sums, distance, string_distance};
use lattice::{Context, Labels};
use rnnt_dp::semiring::{Log, Probability, Semiring, Tropical};
use rnnt_loss::Element;

use super::check::{Check, Quantity};
use super::inputs::LatticeInputs;
use crate::error::Stop;

/// Arc weights *B.. x T x C* and *B.. x T x C x V*.
pub struct Weighed {
    pub blank: Vec<f64>,
    pub lexical: Vec<f64>,
}

impl Weighed {
    /// Distances, forward weights and arcs of each state of the alignment.
    pub fn compare<F: Element>(&self, check: &mut Check, inputs: &LatticeInputs<F>) -> Result<(), Stop> {
        self.sums::<F, Log>(check, inputs, "log")?;
        self.sums::<F, Tropical>(check, inputs, "tropical")?;
        if check.file.find("out/denom_real").is_some() {
            self.sums::<F, Probability>(check, inputs, "real")?;
        }
        self.marginals(check, inputs)
    }

    fn weight<F: Element>(&self, inputs: &LatticeInputs<F>, row: usize, arc: FrameArc) -> f64 {
        let at = row * inputs.context.states() + arc.context;
        match arc.label {
            0 => self.blank[at],
            label => self.lexical[at * inputs.context.vocabulary() + label - 1],
        }
    }

    fn sums<F: Element, S: Semiring<Weight = f64>>(
        &self,
        check: &mut Check,
        inputs: &LatticeInputs<F>,
        name: &str,
    ) -> Result<(), Stop> {
        let (context, alignment) = (&inputs.context, inputs.alignment);
        let (frames, labels): (_, Labels) = (inputs.frames()?, inputs.labels()?);
        let (mut all, mut strings, mut alphas) = (Vec::new(), Vec::new(), Vec::new());
        for b in 0..frames.utterances() {
            let weigh = |t: usize, arc: FrameArc| self.weight(inputs, b * inputs.padded() + t, arc);
            // One frame more shows α behind the last one, where it stays.
            let found = distance::<S>(context, alignment, frames.length(b), weigh);
            let after = distance::<S>(context, alignment, frames.length(b) + 1, |t, arc| {
                if t < frames.length(b) { weigh(t, arc) } else { S::ONE }
            });
            let last = &after.alphas[frames.length(b) * context.states()..];
            alphas.extend_from_slice(&found.alphas);
            (frames.length(b)..inputs.padded()).for_each(|_| alphas.extend_from_slice(last));
            all.push(found.total);
            strings.push(match labels.utterance(b) {
                Some(labels) => {
                    string_distance::<S>(context, alignment, labels, frames.length(b), weigh)?.total
                }
                None => S::ZERO,
            });
        }
        check.compare(Quantity::Value, &format!("out/denom_{name}"), &all)?;
        check.compare(Quantity::Value, &format!("out/numer_{name}"), &strings)?;
        let name = format!("out/alpha_{name}");
        if check.file.find(&name).is_some() {
            check.compare(Quantity::Value, &name, &alphas)?;
        }
        Ok(())
    }

    fn marginals<F: Element>(&self, check: &mut Check, inputs: &LatticeInputs<F>) -> Result<(), Stop> {
        let (context, alignment) = (&inputs.context, inputs.alignment);
        let (frames, padded) = (inputs.frames()?, inputs.padded());
        let row = alignment.num_states() * context.states();
        let rows = frames.utterances() * padded * row;
        let (mut blank, mut lexical) = (vec![0.0; rows], vec![0.0; rows * context.vocabulary()]);
        for b in 0..frames.utterances() {
            let weigh = |t: usize, arc: FrameArc| self.weight(inputs, b * padded + t, arc);
            let total = distance::<Log>(context, alignment, frames.length(b), weigh).total;
            arc_sums::<Log>(context, alignment, frames.length(b), weigh, |t, sums| {
                let (of_blank, of_lexical) = sums.marginals(total);
                let at = (b * padded + t) * row;
                blank[at..][..of_blank.len()].copy_from_slice(&of_blank);
                lexical[at * context.vocabulary()..][..of_lexical.len()].copy_from_slice(&of_lexical);
            });
        }
        check.compare(Quantity::Gradient, "out/blank_marginals_by_state", &blank)?;
        Ok(check.compare(Quantity::Gradient, "out/lexical_marginals_by_state", &lexical)?)
    }
}
