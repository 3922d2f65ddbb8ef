//! Tests of properties that losses and gradients have for random inputs.
use candle_core::DType;
use oracle::compare::assert_close;
use panda::panda_core::{self, Head, Rows, Selection};
use panda::rnnt_dp::{Regularizers, Topology, forward_backward};
use panda::rnnt_loss::{Activation, Layout, Options, ScoreInputs, Session};
use proptest::prelude::*;

use crate::loss_problem::{Problem, plans, problems, tensor_values};

/// Emissions of the packed joint sites, by the selected normalizer.
fn emissions(problem: &Problem) -> Vec<f64> {
    let targets = problem.targets();
    let (mut hidden, mut ids, mut active) = (vec![], vec![], vec![]);
    let width = problem.width;
    for b in 0..problem.batch() {
        for site in targets.lattices().utterance_sites(b) {
            let f = &problem.encoded[(b * problem.max_frames + site.frame) * width..][..width];
            let g = &problem.predicted[(b * problem.positions + site.label) * width..][..width];
            hidden.extend(f.iter().zip(g).map(|(f, g)| match problem.activation {
                Activation::Tanh => (f + g).tanh(),
                Activation::Relu => (f + g).max(0.0),
            }));
            let next = problem.labels[b].get(site.label);
            ids.extend([problem.blank, next.copied().unwrap_or(u32::MAX)]);
            active.extend([true, next.is_some()]);
        }
    }
    let sites = Rows::new(&hidden, width).unwrap();
    let head = Head::new(&problem.head_weight, Some(&problem.head_bias), width).unwrap();
    let selection = Selection::new(ids, active, 2).unwrap();
    let mut workspace = panda_core::Workspace::new(panda_core::DEFAULT_BUDGET, true);
    panda_core::forward(&sites, &head, &selection, &mut workspace).unwrap().emissions
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn occupancies_add_up(problem in problems()) {
        let (targets, emissions) = (problem.targets(), emissions(&problem));
        prop_assert!(emissions.iter().all(|&e| e <= 1e-12), "an emission is a log-probability");
        let lattices = targets.lattices();
        let out =
            forward_backward(lattices, &Topology::rnnt(), &emissions, &Regularizers::default()).unwrap();
        let gamma = out.occupancies(lattices).unwrap();
        for b in 0..problem.batch() {
            let (t, u, range) = (problem.frames[b], problem.labels[b].len(), lattices.site_range(b));
            let sum = |arc: usize| range.clone().map(|site| -out.adjoints[site * 2 + arc]).sum::<f64>();
            assert_close("blanks taken", &[sum(0)], &[t as f64], 1e-10);
            assert_close("labels taken", &[sum(1)], &[u as f64], 1e-10);
            assert_close("sites visited", &[gamma[range.clone()].iter().sum()], &[(t + u) as f64], 1e-10);
            for d in 0..t + u {
                let sites = lattices.utterance_sites(b).zip(&gamma[range.clone()]);
                let occupancy: f64 = sites.filter(|(site, _)| site.frame + site.label == d).map(|(_, g)| g).sum();
                assert_close("one site of each anti-diagonal", &[occupancy], &[1.0], 1e-10);
            }
            for (site, g) in range.clone().zip(&gamma[range]) {
                let leaving = -out.adjoints[site * 2] - out.adjoints[site * 2 + 1];
                assert_close("incoming equals outgoing", &[leaving], &[*g], 1e-10);
            }
        }
    }

    #[test]
    fn gradients_of_a_site_sum_to_zero_over_classes(problem in problems(), fastemit in 0.0..1.0_f64) {
        let scores = tensor_values(&problem.logits(&problem.vars(DType::F64)));
        let layout = Layout::Padded { frames: problem.max_frames, positions: problem.positions };
        let options = Options { fastemit, ..Options::default() };
        let inputs = ScoreInputs { scores: &scores, classes: problem.classes, layout };
        let mut session = Session::new(&options).unwrap();
        let out = session.sum(inputs, &problem.targets(), &problem.weights).unwrap();
        // A sum of path probabilities that rounds above 1 gives a loss slightly below 0.
        prop_assert!(out.losses.iter().all(|&loss| loss >= -1e-12));
        for row in out.gradients.scores.chunks(problem.classes) {
            assert_close("sum over classes", &[row.iter().sum()], &[0.0], 1e-12);
        }
        // The gradient of the head's bias and each column of its weight's gradient sum to zero,
        // too.
        let computed = problem.composed_loss(DType::F64, &Options { fastemit, ..problem.options() });
        assert_close("bias", &[computed.gradients[3].iter().sum()], &[0.0], 1e-10);
        for k in 0..problem.width {
            let column: f64 = computed.gradients[2].iter().skip(k).step_by(problem.width).sum();
            assert_close("weight", &[column], &[0.0], 1e-10);
        }
    }

    #[test]
    fn a_common_offset_of_the_scores_does_not_change_the_result(problem in problems(), offset in -8.0..8.0_f64) {
        let mut shifted = problem.clone();
        shifted.head_bias.iter_mut().for_each(|b| *b += offset);
        let (computed, expected) = (shifted.composed_loss(DType::F64, &problem.options()), problem.composed_loss(DType::F64, &problem.options()));
        assert_close("losses", &computed.losses, &expected.losses, 1e-10);
        (0..4).for_each(|i| assert_close("gradient", &computed.gradients[i], &expected.gradients[i], 1e-10));
    }

    #[test]
    fn tile_size_does_not_change_the_result(problem in problems(), plan in plans()) {
        let expected = problem.composed_loss(DType::F64, &problem.options());
        let computed = problem.composed_loss(DType::F64, &Options { plan: Some(plan), ..problem.options() });
        assert_close("losses", &computed.losses, &expected.losses, 1e-11);
        (0..4).for_each(|i| assert_close("gradient", &computed.gradients[i], &expected.gradients[i], 1e-11));
    }

    #[test]
    fn gradients_of_unselected_classes_are_positive(problem in problems()) {
        prop_assume!(problem.classes > 2 && problem.weights[0].abs() > 1e-3);
        let mut first_only = problem.clone();
        first_only.weights.iter_mut().skip(1).for_each(|w| *w = 0.0);
        let computed = first_only.composed_loss(DType::F64, &problem.options());
        let all_positive = (0..problem.classes as u32)
            .filter(|c| *c != problem.blank && !problem.labels[0].contains(c))
            .all(|c| computed.gradients[3][c as usize] * problem.weights[0] > 0.0);
        prop_assert!(all_positive, "the gradient of an unselected class must be positive");
    }
}

#[test]
fn a_masked_class_equals_an_absent_one() {
    let mut problem = Problem::draw(2, 3, 6, 4, 11, 5, 1.0);
    problem.labels.iter_mut().flatten().for_each(|id| *id %= 9);
    problem.blank = 9;
    problem.head_bias[10] = f64::NEG_INFINITY;
    let computed = problem.composed_loss(DType::F64, &problem.options());
    let mut absent = problem.clone();
    absent.classes = 10;
    absent.head_bias.truncate(10);
    absent.head_weight.truncate(10 * problem.width);
    let expected = absent.composed_loss(DType::F64, &problem.options());
    assert_close("losses", &computed.losses, &expected.losses, 1e-12);
    assert_close("frames", &computed.gradients[0], &expected.gradients[0], 1e-12);
    assert_eq!(computed.gradients[3][10], 0.0);
    assert!(computed.gradients[2][10 * problem.width..].iter().all(|&g| g == 0.0));
}
