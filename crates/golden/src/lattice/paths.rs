//! Golden test of best paths (Viterbi) and alignments of recognition lattices.
//!
//! The gradient of a best path's weight is 1 for each of its arcs and 0 elsewhere; the tests
//! compute it from such indicators. The files call label arcs *lexical*. A: alignment states, C:
//! context states, V: labels.
use lattice::{Arcs, Context, LatticePath, LatticeSession, RecognitionLattice};
use rnnt_loss::Element;

use super::check::{LatticeCheck, Quantity, to_f64};
use super::inputs::LatticeInputs;
use crate::error::RunError;

/// Compares best paths and best alignments with all tensors about them.
pub(super) fn compare_paths<F: Element>(
    check: &mut LatticeCheck,
    inputs: &LatticeInputs<F>,
    lattice: &RecognitionLattice<F>,
) -> Result<(), RunError> {
    // Best paths over all label sequences.
    let mut session = LatticeSession::default();
    let paths = session.best_paths(lattice, &inputs.frames()?)?;
    let weights: Vec<f64> = paths.iter().map(|path| path.weight).collect();
    check.compare(Quantity::Value, "out/denom_tropical", &weights)?;
    check.compare(Quantity::Value, "out/shortest_path_weight", &weights)?;
    let padded_labels = inputs.padded_frames() * inputs.alignment.num_states();
    let pad_labels = |labels: Vec<u32>| {
        let zeros = padded_labels.saturating_sub(labels.len());
        labels.into_iter().map(|label| label as usize).chain(std::iter::repeat_n(0, zeros))
    };
    check.compare_integers(
        "out/shortest_path_alignment_labels",
        paths.iter().flat_map(|path| pad_labels(path.alignment.clone())),
    )?;
    let counts = paths.iter().map(|path| path.alignment.len());
    check.compare_integers("out/shortest_path_num_alignment_labels", counts)?;
    check.compare_integers(
        "out/shortest_path_labels",
        paths.iter().flat_map(|path| pad_labels(path.labels())),
    )?;
    check.compare_integers("out/shortest_path_num_labels", paths.iter().map(|path| path.labels().len()))?;
    let arcs = ArcIndicators::new(&paths, &inputs.context, inputs.padded_frames());
    check.compare(Quantity::Exact, "out/viterbi_blank_marginals_by_state", &arcs.blank)?;
    check.compare(Quantity::Exact, "out/viterbi_lexical_marginals_by_state", &arcs.label_arcs)?;
    let (name, gradient) = arcs.backward(inputs, lattice)?;
    check.compare(Quantity::Gradient, &format!("out/grad_denom_tropical/{name}"), &gradient)?;

    // Best alignments of the labels of each utterance.
    let paths = session.best_alignments(lattice, &inputs.frames()?, &inputs.labels()?)?;
    let weights: Vec<f64> = paths.iter().map(|path| path.weight).collect();
    check.compare(Quantity::Value, "out/numer_tropical", &weights)?;
    let arcs = ArcIndicators::new(&paths, &inputs.context, inputs.padded_frames());
    let (name, gradient) = arcs.backward(inputs, lattice)?;
    // Without a path all alignments tie at -inf, and LAST's choice is arbitrary.
    let utterance_size = gradient.len().checked_div(paths.len()).unwrap_or(0).max(1);
    let has_path = |b: usize| weights[b] > f64::NEG_INFINITY;
    let name = format!("out/grad_numer_tropical/{name}");
    check.compare_where(Quantity::Gradient, &name, &gradient, |index| has_path(index / utterance_size))?;
    let without_path = (0..paths.len()).filter(|&b| !has_path(b)).count();
    if without_path > 0 {
        check.notes.push(format!("grad_numer_tropical without {without_path} strings that have no path"));
    }
    Ok(())
}

/// Indicators of arcs: 1 for each arc of a path, else 0.
struct ArcIndicators {
    /// Blank arcs `[B.., T, A, C]`.
    blank: Vec<f64>,
    /// Lexical arcs `[B.., T, A, C, V]`.
    label_arcs: Vec<f64>,
    alignment_states: usize,
    context_states: usize,
    vocabulary: usize,
}

impl ArcIndicators {
    /// Sets the indicators of the arcs of all paths.
    fn new(paths: &[LatticePath], context: &dyn Context, padded_frames: usize) -> Self {
        let alignment_states = paths.first().map_or(1, |path| path.per_frame);
        let (context_states, vocabulary) = (context.states(), context.vocabulary());
        let size = paths.len() * padded_frames * alignment_states * context_states;
        let (mut blank, mut label_arcs) = (vec![0.0; size], vec![0.0; size * vocabulary]);
        for (b, path) in paths.iter().enumerate().filter(|(_, path)| path.weight > f64::NEG_INFINITY) {
            for (t, arcs) in path.arcs(context).iter().enumerate() {
                for arc in arcs {
                    let state_index = ((b * padded_frames + t) * alignment_states + arc.alignment)
                        * context_states
                        + arc.context;
                    match arc.label {
                        0 => blank[state_index] = 1.0,
                        label => label_arcs[state_index * vocabulary + label - 1] = 1.0,
                    }
                }
            }
        }
        Self { blank, label_arcs, alignment_states, context_states, vocabulary }
    }

    /// Returns the name and gradient of the path weights times the cotangents.
    ///
    /// The gradient is that of the table, or of the frames.
    fn backward<F: Element>(
        &self,
        inputs: &LatticeInputs<F>,
        lattice: &RecognitionLattice<F>,
    ) -> Result<(&'static str, Vec<f64>), RunError> {
        let frame_count = inputs.cotangents.len() * inputs.padded_frames();
        // Adds the indicators of the alignment states, times the cotangent of the utterance.
        let sum_alignment_states = |values: &[f64], size: usize| {
            let mut sums = vec![F::ZERO; frame_count * size];
            for (frame_index, values) in values.chunks_exact(self.alignment_states * size).enumerate() {
                let cotangent = inputs.cotangents[frame_index / inputs.padded_frames()];
                for (index, &value) in values.iter().enumerate() {
                    sums[frame_index * size + index % size] += F::from_f64(cotangent * value);
                }
            }
            sums
        };
        let blank = sum_alignment_states(&self.blank, self.context_states);
        let label_arcs = sum_alignment_states(&self.label_arcs, self.context_states * self.vocabulary);
        let mut weights = lattice.weight_fn().bind(&mut Vec::new())?;
        weights.set_frames(inputs.padded_frame_values(), &inputs.utterance_of_frames())?;
        let frames: Vec<usize> = (0..frame_count).collect();
        weights.backward(&frames, Arcs { blank: &blank, labels: &label_arcs });
        let frame_gradient = to_f64(&weights.frame_gradient(inputs.padded_frame_values()));
        let table = weights.finish().remove("table");
        Ok(table.map_or(("frames", frame_gradient), |table| ("table", to_f64(&table))))
    }
}
