//! Tiny lattices against lists of all their paths, one by one.
use std::collections::BTreeMap;

use lattice::{
    AlignmentLattice, Error, FullNGram,
    distance::{
        FrameArc, distance, forward_step, string_distance, string_forward_step, through, through_step,
    },
};
use oracle::compare::assert_near;
use proptest::prelude::*;

use crate::tiny::{Place, Tiny, place, tiny};
use rnnt_dp::semiring::{
    Average, Cartesian, Count, Expectation, Exponential, Log, LogLogExpectation, Mean, Probability, Semiring,
    Tropical,
};

/// Everything that is known of some paths.
struct Sums {
    real: f64,
    best: f64,
    count: u64,
    /// `Σ p(path) cost(path)`, with costs as they are and with their magnitudes.
    costs: [f64; 2],
}

fn sums<'a>(tiny: &Tiny, paths: impl Iterator<Item = &'a Vec<Place>>) -> Sums {
    let mut sums = Sums { real: 0.0, best: f64::NEG_INFINITY, count: 0, costs: [0.0; 2] };
    for path in paths {
        let weight: f64 = path.iter().map(|&arc| tiny.weight(arc)).sum();
        if weight > f64::NEG_INFINITY {
            sums.real += weight.exp();
            sums.best = sums.best.max(weight);
            sums.count += 1;
            sums.costs[0] += weight.exp() * path.iter().map(|&arc| tiny.cost(arc)).sum::<f64>();
            sums.costs[1] += weight.exp() * path.iter().map(|&arc| tiny.cost(arc).abs()).sum::<f64>();
        }
    }
    sums
}

#[track_caller]
fn near(found: &[f64], expected: &[f64]) {
    assert_near("sums over paths", found, expected, 1e-10, 1e-11);
}

/// A sum over all paths, or over those with some labels.
struct Total<'a>(&'a Tiny, Option<&'a [u32]>);

impl Total<'_> {
    fn of<S: Semiring>(&self, weigh: impl Fn(usize, FrameArc) -> S::Weight) -> S::Weight {
        let Self(tiny, labels) = self;
        let context = tiny.automaton.context();
        match labels {
            None => distance::<S>(&*context, tiny.alignment(), tiny.frames, weigh).total,
            Some(labels) => {
                string_distance::<S>(&*context, tiny.alignment(), labels, tiny.frames, weigh).unwrap().total
            }
        }
    }
}

fn check(total: &Total, want: &Sums) {
    let Total(tiny, _) = total;
    let weight = |t: usize, arc: FrameArc| tiny.weight(place(t, arc));
    let cost = |t: usize, arc: FrameArc| tiny.cost(place(t, arc));
    let log_sum = want.real.ln();
    near(&[total.of::<Log>(weight)], &[log_sum]);
    near(&[total.of::<Probability>(|t, arc| weight(t, arc).exp())], &[want.real]);
    near(&[total.of::<Tropical>(weight)], &[want.best]);
    let one = |t: usize, arc: FrameArc| u64::from(weight(t, arc) > f64::NEG_INFINITY);
    assert_eq!(total.of::<Count>(one), want.count);
    // Expectations three ways: as logarithms, with signs, and as a mean.
    let magnitude =
        |t: usize, arc: FrameArc| LogLogExpectation::weighted(weight(t, arc), cost(t, arc).abs().ln());
    let found = total.of::<LogLogExpectation>(magnitude);
    near(&[found.0, found.1], &[log_sum, want.costs[1].ln()]);
    type Signed = Expectation<Log, Probability, Exponential>;
    let found = total.of::<Signed>(|t, arc| Signed::weighted(weight(t, arc), cost(t, arc)));
    near(&[found.0, found.1], &[log_sum, want.costs[0]]);
    let found = total.of::<Average>(|t, arc| Mean { log_prob: weight(t, arc), value: cost(t, arc) });
    let mean = if want.count == 0 { 0.0 } else { want.costs[0] / want.real };
    near(&[found.log_prob, found.value], &[log_sum, mean]);
    // Several at once.
    type All = Cartesian<Cartesian<Log, Tropical>, Cartesian<LogLogExpectation, Count>>;
    let all = |t, arc| ((weight(t, arc), weight(t, arc)), (magnitude(t, arc), one(t, arc)));
    let ((log, best), ((again, magnitude), count)) = total.of::<All>(all);
    near(&[log, best, again, magnitude], &[log_sum, want.best, log_sum, want.costs[1].ln()]);
    assert_eq!(count, want.count);
}

proptest! {
    #[test]
    fn all_paths(tiny in tiny()) {
        let want = sums(&tiny, tiny.paths().iter());
        check(&Total(&tiny, None), &want);
    }

    #[test]
    fn paths_with_some_labels(tiny in tiny(), labels in prop::collection::vec(any::<u32>(), 0..6)) {
        let vocabulary = tiny.automaton.rows()[0].len() as u32;
        let labels: Vec<u32> = labels.into_iter().map(|y| y % vocabulary + 1).collect();
        let has = |path: &&Vec<Place>| {
            path.iter().map(|arc| arc.3 as u32).filter(|&y| y > 0).eq(labels.iter().copied())
        };
        let want = sums(&tiny, tiny.paths().iter().filter(has));
        check(&Total(&tiny, Some(&labels)), &want);
        if !tiny.alignment().holds(tiny.frames, labels.len()) {
            prop_assert_eq!(want.count, 0);
        }
    }

    /// Probabilities of single arcs, and what paths through them cost.
    #[test]
    fn paths_through_arcs(tiny in tiny()) {
        let paths = tiny.paths();
        let all = sums(&tiny, paths.iter());
        let mut each: BTreeMap<Place, [f64; 2]> = BTreeMap::new();
        for path in &paths {
            let real = path.iter().map(|&arc| tiny.weight(arc)).sum::<f64>().exp();
            let cost: f64 = path.iter().map(|&arc| tiny.cost(arc)).sum();
            for &arc in path {
                let sums = each.entry(arc).or_default();
                *sums = [sums[0] + real, sums[1] + real * cost];
            }
        }
        let (context, alignment) = (tiny.automaton.context(), tiny.alignment());
        let (states, vocabulary) = (context.states(), context.vocabulary());
        let weigh = |t: usize, arc: FrameArc| tiny.weight(place(t, arc));
        let total = distance::<Log>(&*context, alignment, tiny.frames, weigh);
        let mut frames = 0;
        let mut first_beta = None;
        let again = through::<Log>(&*context, alignment, tiny.frames, weigh, |t, found| {
            let (blank, lexical) = found.marginals(total.total);
            let want = |alignment: usize, p: usize, y: usize| {
                let sum = each.get(&(t, alignment, p, y)).map_or(0.0, |sums| sums[0]);
                if all.real == 0.0 { 0.0 } else { sum / all.real }
            };
            for (at, &blank) in blank.iter().enumerate() {
                near(&[blank], &[want(at / states, at % states, 0)]);
            }
            for (at, &lexical) in lexical.iter().enumerate() {
                let (from, y) = (at / vocabulary, at % vocabulary + 1);
                near(&[lexical], &[want(from / states, from % states, y)]);
            }
            let (blanks, labels): (f64, f64) = (blank.iter().sum(), lexical.iter().sum());
            let share = if all.real > 0.0 { 1.0 } else { 0.0 };
            match tiny.expansions {
                None => near(&[blanks + labels], &[share]),
                Some(_) => near(&[blanks], &[share]),
            }
            first_beta = Some(found.beta[context.start()]);
            frames += 1;
        });
        prop_assert_eq!(&again, &total);
        prop_assert_eq!(frames, tiny.frames);
        near(&[first_beta.unwrap_or(0.0)], &[all.real.ln()]);

        let weigh = |t: usize, arc: FrameArc| Mean { log_prob: weigh(t, arc), value: tiny.cost(place(t, arc)) };
        through::<Average>(&*context, alignment, tiny.frames, weigh, |t, found| {
            for (at, through) in found.lexical.iter().enumerate() {
                let (from, y) = (at / vocabulary, at % vocabulary + 1);
                let [real, cost] = each.get(&(t, from / states, from % states, y)).copied().unwrap_or_default();
                near(&[through.log_prob], &[real.ln()]);
                near(&[through.value], &[if real == 0.0 { 0.0 } else { cost / real }]);
            }
        });
    }

    /// Expected numbers of labels, at each frame and altogether, are those of the paths.
    #[test]
    fn marginals_count_labels(tiny in tiny()) {
        let number = |path: &Vec<Place>| path.iter().filter(|arc| arc.3 > 0).count() as f64;
        let paths = tiny.paths();
        let (mut sum, mut labels) = (0.0, 0.0);
        for path in &paths {
            let real = path.iter().map(|&arc| tiny.weight(arc)).sum::<f64>().exp();
            sum += real;
            labels += real * number(path);
        }
        let context = tiny.automaton.context();
        let weigh = |t: usize, arc: FrameArc| tiny.weight(place(t, arc));
        let total = distance::<Log>(&*context, tiny.alignment(), tiny.frames, weigh).total;
        let mut found = 0.0;
        through::<Log>(&*context, tiny.alignment(), tiny.frames, weigh, |_, frame| {
            found += frame.marginals(total).1.iter().sum::<f64>();
        });
        near(&[found], &[if sum > 0.0 { labels / sum } else { 0.0 }]);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let context = FullNGram::new(2, 1).unwrap();
    let alignment = AlignmentLattice::frame_label_dependent(1).unwrap();
    let (blank, lexical) = ([0.0; 6], [0.0; 12]);
    let arcs = |b: usize, l: usize| lattice::Arcs { blank: &blank[..b], lexical: &lexical[..l] };
    for (b, l) in [(3, 6), (6, 12)] {
        forward_step::<Log>(&context, alignment, arcs(b, l), &[0.0; 3]).unwrap();
    }
    let message = |result: Result<Vec<f64>, Error>| result.unwrap_err().to_string();
    let found = message(forward_step::<Log>(&context, alignment, arcs(3, 12), &[0.0; 3]));
    assert!(found.contains("[3, 6]") && found.contains("[6, 12]") && found.contains("[3, 12]"), "{found}");
    let found = message(forward_step::<Log>(&context, alignment, arcs(3, 6), &[0.0; 2]));
    assert!(found.starts_with("alpha: expected 3"), "{found}");
    let found = through_step::<Log>(&context, alignment, arcs(3, 6), &[0.0; 3], &[0.0; 4]).unwrap_err();
    assert!(found.to_string().starts_with("beta: expected 3"), "{found}");
    let found = message(string_forward_step::<Log>(alignment, arcs(3, 4), &[0.0; 3]));
    assert!(found.contains("[3, 4]"), "{found}");
    assert!(string_forward_step::<Log>(alignment, arcs(0, 0), &[]).is_err());
    for (labels, at) in [([1, 0], 1), ([3, 1], 0)] {
        let found = string_distance::<Count>(&context, alignment, &labels, 2, |_, _| 1).unwrap_err();
        let label = labels[at].into();
        assert_eq!(found, Error::Label { utterance: 0, position: at, vocabulary: 2, found: label });
    }
}
