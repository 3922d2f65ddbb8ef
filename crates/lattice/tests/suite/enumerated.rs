//! Sums over paths of tiny recognition lattices, compared with enumeration.
//!
//! The sums are those of `lattice::distance`, in all semirings: over all paths, over the paths of a
//! string, and over the paths through each arc.
use std::collections::BTreeMap;

use lattice::{
    AlignmentLattice, Error, FullNGram,
    distance::{
        FrameArc, arc_sums, arc_sums_step, distance, forward_step, string_distance, string_forward_step,
    },
};
use oracle::compare::assert_near;
use proptest::prelude::*;

use crate::tiny::{PathArc, TinyLattice, path_arc, tiny};
use rnnt_dp::semiring::{
    Average, AverageWeight, Cartesian, Count, Expectation, Log, LogLogExpectation, LogToProbability,
    Probability, Semiring, Tropical,
};

/// Sums over some paths.
struct Sums {
    /// `Σ exp(weight)`
    exp_sum: f64,
    /// Largest weight.
    best: f64,
    /// Number of paths that are not blocked.
    count: u64,
    /// `Σ exp(weight) cost`
    cost_sum: f64,
    /// `Σ exp(weight) Σ |cost of an arc|`
    abs_cost_sum: f64,
}

/// Sums over given paths.
fn sums<'a>(tiny: &TinyLattice, paths: impl Iterator<Item = &'a Vec<PathArc>>) -> Sums {
    let mut sums = Sums { exp_sum: 0.0, best: f64::NEG_INFINITY, count: 0, cost_sum: 0.0, abs_cost_sum: 0.0 };
    for path in paths {
        let weight: f64 = path.iter().map(|&arc| tiny.weight(arc)).sum();
        if weight > f64::NEG_INFINITY {
            sums.exp_sum += weight.exp();
            sums.best = sums.best.max(weight);
            sums.count += 1;
            sums.cost_sum += weight.exp() * path.iter().map(|&arc| tiny.cost(arc)).sum::<f64>();
            sums.abs_cost_sum += weight.exp() * path.iter().map(|&arc| tiny.cost(arc).abs()).sum::<f64>();
        }
    }
    sums
}

#[track_caller]
fn assert_sums(computed: &[f64], expected: &[f64]) {
    assert_near("sums over paths", computed, expected, 1e-10, 1e-11);
}

/// A sum over all paths, or over those with some labels.
struct Total<'a> {
    tiny: &'a TinyLattice,
    /// None for all paths.
    labels: Option<&'a [u32]>,
}

impl Total<'_> {
    fn sum<S: Semiring>(&self, arc_weight: impl Fn(usize, FrameArc) -> S::Weight) -> S::Weight {
        let Self { tiny, labels } = self;
        let context = tiny.automaton.context();
        match labels {
            None => distance::<S>(&*context, tiny.alignment(), tiny.frames, arc_weight).total,
            Some(labels) => {
                string_distance::<S>(&*context, tiny.alignment(), labels, tiny.frames, arc_weight)
                    .unwrap()
                    .total
            }
        }
    }
}

/// Compares sums in all semirings.
fn assert_total(total: &Total, expected: &Sums) {
    let tiny = total.tiny;
    let weight = |t: usize, arc: FrameArc| tiny.weight(path_arc(t, arc));
    let cost = |t: usize, arc: FrameArc| tiny.cost(path_arc(t, arc));
    let log_sum = expected.exp_sum.ln();
    assert_sums(&[total.sum::<Log>(weight)], &[log_sum]);
    assert_sums(&[total.sum::<Probability>(|t, arc| weight(t, arc).exp())], &[expected.exp_sum]);
    assert_sums(&[total.sum::<Tropical>(weight)], &[expected.best]);
    let is_path = |t: usize, arc: FrameArc| u64::from(weight(t, arc) > f64::NEG_INFINITY);
    assert_eq!(total.sum::<Count>(is_path), expected.count);
    // Expectations in three forms: as logarithms, with signs, and as a mean.
    let magnitude =
        |t: usize, arc: FrameArc| LogLogExpectation::weighted(weight(t, arc), cost(t, arc).abs().ln());
    let computed = total.sum::<LogLogExpectation>(magnitude);
    assert_sums(&[computed.0, computed.1], &[log_sum, expected.abs_cost_sum.ln()]);
    type Signed = Expectation<Log, Probability, LogToProbability>;
    let computed = total.sum::<Signed>(|t, arc| Signed::weighted(weight(t, arc), cost(t, arc)));
    assert_sums(&[computed.0, computed.1], &[log_sum, expected.cost_sum]);
    let computed =
        total.sum::<Average>(|t, arc| AverageWeight { log_prob: weight(t, arc), value: cost(t, arc) });
    let mean = if expected.count == 0 { 0.0 } else { expected.cost_sum / expected.exp_sum };
    assert_sums(&[computed.log_prob, computed.value], &[log_sum, mean]);
    // Several semirings at once.
    type All = Cartesian<Cartesian<Log, Tropical>, Cartesian<LogLogExpectation, Count>>;
    let weights = |t, arc| ((weight(t, arc), weight(t, arc)), (magnitude(t, arc), is_path(t, arc)));
    let ((log, best), ((log_again, magnitude), count)) = total.sum::<All>(weights);
    assert_sums(
        &[log, best, log_again, magnitude],
        &[log_sum, expected.best, log_sum, expected.abs_cost_sum.ln()],
    );
    assert_eq!(count, expected.count);
}

proptest! {
    #[test]
    fn sums_over_all_paths_equal_enumeration(tiny in tiny()) {
        let expected = sums(&tiny, tiny.paths().iter());
        assert_total(&Total { tiny: &tiny, labels: None }, &expected);
    }

    #[test]
    fn sums_over_paths_of_labels_equal_enumeration(
        tiny in tiny(),
        labels in prop::collection::vec(any::<u32>(), 0..6),
    ) {
        let vocabulary = tiny.automaton.rows()[0].len() as u32;
        let labels: Vec<u32> = labels.into_iter().map(|y| y % vocabulary + 1).collect();
        let has_labels = |path: &&Vec<PathArc>| {
            path.iter().map(|arc| arc.label as u32).filter(|&y| y > 0).eq(labels.iter().copied())
        };
        let expected = sums(&tiny, tiny.paths().iter().filter(has_labels));
        assert_total(&Total { tiny: &tiny, labels: Some(&labels) }, &expected);
        if !tiny.alignment().has_path(tiny.frames, labels.len()) {
            prop_assert_eq!(expected.count, 0);
        }
    }

    /// Probabilities of single arcs, and mean costs of the paths through them.
    #[test]
    fn sums_through_arcs_equal_enumeration(tiny in tiny()) {
        let paths = tiny.paths();
        let all = sums(&tiny, paths.iter());
        let mut arc_totals: BTreeMap<PathArc, [f64; 2]> = BTreeMap::new();
        for path in &paths {
            let exp_weight = path.iter().map(|&arc| tiny.weight(arc)).sum::<f64>().exp();
            let cost: f64 = path.iter().map(|&arc| tiny.cost(arc)).sum();
            for &arc in path {
                let sums = arc_totals.entry(arc).or_default();
                *sums = [sums[0] + exp_weight, sums[1] + exp_weight * cost];
            }
        }
        let (context, alignment) = (tiny.automaton.context(), tiny.alignment());
        let (states, vocabulary) = (context.states(), context.vocabulary());
        let arc_weight = |t: usize, arc: FrameArc| tiny.weight(path_arc(t, arc));
        let total = distance::<Log>(&*context, alignment, tiny.frames, arc_weight);
        let mut frames = 0;
        let mut first_beta = None;
        let repeated = arc_sums::<Log>(&*context, alignment, tiny.frames, arc_weight, |t, computed| {
            let (blank, label_arcs) = computed.marginals(total.total);
            let expected = |alignment: usize, p: usize, y: usize| {
                let arc = PathArc { frame: t, alignment, context: p, label: y };
                let sum = arc_totals.get(&arc).map_or(0.0, |sums| sums[0]);
                if all.exp_sum == 0.0 { 0.0 } else { sum / all.exp_sum }
            };
            for (index, &blank) in blank.iter().enumerate() {
                assert_sums(&[blank], &[expected(index / states, index % states, 0)]);
            }
            for (index, &label_arc) in label_arcs.iter().enumerate() {
                let (source, y) = (index / vocabulary, index % vocabulary + 1);
                assert_sums(&[label_arc], &[expected(source / states, source % states, y)]);
            }
            let (blanks, labels): (f64, f64) = (blank.iter().sum(), label_arcs.iter().sum());
            let total_posterior = if all.exp_sum > 0.0 { 1.0 } else { 0.0 };
            match tiny.expansions {
                None => assert_sums(&[blanks + labels], &[total_posterior]),
                Some(_) => assert_sums(&[blanks], &[total_posterior]),
            }
            first_beta = Some(computed.beta[context.start()]);
            frames += 1;
        });
        prop_assert_eq!(&repeated, &total);
        prop_assert_eq!(frames, tiny.frames);
        assert_sums(&[first_beta.unwrap_or(0.0)], &[all.exp_sum.ln()]);

        let arc_weight = |t: usize, arc: FrameArc| AverageWeight {
            log_prob: arc_weight(t, arc),
            value: tiny.cost(path_arc(t, arc)),
        };
        arc_sums::<Average>(&*context, alignment, tiny.frames, arc_weight, |t, computed| {
            for (index, sums) in computed.labels.iter().enumerate() {
                let (source, label) = (index / vocabulary, index % vocabulary + 1);
                let (alignment, context) = (source / states, source % states);
                let arc = PathArc { frame: t, alignment, context, label };
                let [exp_weight, cost] = arc_totals.get(&arc).copied().unwrap_or_default();
                assert_sums(&[sums.log_prob], &[exp_weight.ln()]);
                assert_sums(&[sums.value], &[if exp_weight == 0.0 { 0.0 } else { cost / exp_weight }]);
            }
        });
    }

    /// Expected numbers of labels equal those of the paths.
    #[test]
    fn marginals_give_the_expected_number_of_labels(tiny in tiny()) {
        let label_count = |path: &Vec<PathArc>| path.iter().filter(|arc| arc.label > 0).count() as f64;
        let paths = tiny.paths();
        let (mut sum, mut labels) = (0.0, 0.0);
        for path in &paths {
            let exp_weight = path.iter().map(|&arc| tiny.weight(arc)).sum::<f64>().exp();
            sum += exp_weight;
            labels += exp_weight * label_count(path);
        }
        let context = tiny.automaton.context();
        let arc_weight = |t: usize, arc: FrameArc| tiny.weight(path_arc(t, arc));
        let total = distance::<Log>(&*context, tiny.alignment(), tiny.frames, arc_weight).total;
        let mut computed = 0.0;
        arc_sums::<Log>(&*context, tiny.alignment(), tiny.frames, arc_weight, |_, frame| {
            computed += frame.marginals(total).1.iter().sum::<f64>();
        });
        assert_sums(&[computed], &[if sum > 0.0 { labels / sum } else { 0.0 }]);
    }
}

#[test]
fn size_mismatches_are_reported() {
    let context = FullNGram::new(2, 1).unwrap();
    let alignment = AlignmentLattice::frame_label_dependent(1).unwrap();
    let (blank, label_arcs) = ([0.0; 6], [0.0; 12]);
    let arcs = |b: usize, l: usize| lattice::Arcs { blank: &blank[..b], labels: &label_arcs[..l] };
    for (b, l) in [(3, 6), (6, 12)] {
        forward_step::<Log>(&context, alignment, arcs(b, l), &[0.0; 3]).unwrap();
    }
    let message = |result: Result<Vec<f64>, Error>| result.unwrap_err().to_string();
    let computed = message(forward_step::<Log>(&context, alignment, arcs(3, 12), &[0.0; 3]));
    assert!(
        computed.contains("[3, 6]") && computed.contains("[6, 12]") && computed.contains("[3, 12]"),
        "{computed}"
    );
    let computed = message(forward_step::<Log>(&context, alignment, arcs(3, 6), &[0.0; 2]));
    assert!(computed.starts_with("alpha: expected 3"), "{computed}");
    let computed = arc_sums_step::<Log>(&context, alignment, arcs(3, 6), &[0.0; 3], &[0.0; 4]).unwrap_err();
    assert!(computed.to_string().starts_with("beta: expected 3"), "{computed}");
    let computed = message(string_forward_step::<Log>(alignment, arcs(3, 4), &[0.0; 3]));
    assert!(computed.contains("[3, 4]"), "{computed}");
    assert!(string_forward_step::<Log>(alignment, arcs(0, 0), &[]).is_err());
    for (labels, position) in [([1, 0], 1), ([3, 1], 0)] {
        let computed = string_distance::<Count>(&context, alignment, &labels, 2, |_, _| 1).unwrap_err();
        let label = labels[position].into();
        assert_eq!(computed, Error::Label { utterance: 0, position, vocabulary: 2, found: label });
    }
}
