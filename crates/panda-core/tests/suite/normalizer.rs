//! The selected normalizer compared with a dense `f64` softmax, and its invariants.
//!
//! Emissions and gradients must match the formula, and must not depend on plan, threads or recycled
//! buffers; errors must name the invalid argument. N: sites, H: width, C: classes, S: selected
//! classes of a site.
use panda_core::{
    Adjoints, BackwardInputs, Clamp, DEFAULT_BUDGET, Error, Gradients, Head, Normalized, Plan, Precision,
    Real, Rows, Selection, Shape, Sites, Workspace, scores,
};
use proptest::prelude::*;

/// [`panda_core::forward()`] with a new workspace.
fn forward<F: Real, S: Sites<F>>(
    sites: &S,
    head: &Head<F>,
    selection: &Selection,
    plan: &Plan<F>,
) -> panda_core::Result<Normalized<F>> {
    panda_core::forward(sites, head, selection, &mut Workspace::with_plan(*plan)?)
}

/// [`panda_core::backward()`] from zero, with a new workspace.
fn backward<F: Real, S: Sites<F>>(
    sites: &S,
    head: &Head<F>,
    selection: &Selection,
    normalized: &Normalized<F>,
    adjoints: &Adjoints,
    plan: &Plan<F>,
) -> panda_core::Result<Gradients<F, S::Gradient>> {
    let mut into = Gradients::zero(sites.zero_gradient(), head);
    let workspace = &mut Workspace::with_plan(*plan)?;
    let arguments = BackwardInputs { sites, head, selection, normalized, adjoints };
    panda_core::backward(arguments, workspace, &mut into)?;
    Ok(into)
}

/// Returns the plan of the default budget.
fn default_plan(sites: usize, hidden: usize, classes: usize) -> Plan<f32> {
    let shape = Shape { sites, hidden, classes, selected: 2 };
    Plan::new(shape, Precision::Full, DEFAULT_BUDGET, true).unwrap()
}

/// A random problem: N hidden rows of width H, a head of C classes, and S selected classes.
#[derive(Debug, Clone)]
struct Case {
    n: usize,
    h: usize,
    c: usize,
    s: usize,
    hidden: Vec<f64>,
    weight: Vec<f64>,
    bias: Vec<f64>,
    /// Selected classes and their mask.
    ids: Vec<u32>,
    active: Vec<bool>,
    /// Adjoints of the emissions.
    adjoints: Vec<f64>,
    /// Adjoints of the normalizers.
    log_z: Vec<f64>,
    plan: Plan<f64>,
}

impl Case {
    fn selection(&self) -> Selection {
        Selection::new(self.ids.clone(), self.active.clone(), self.s).unwrap()
    }

    /// Returns `h Wᵀ + b`, *N x C*.
    fn scores(&self) -> Vec<f64> {
        let z = |i: usize, c: usize| -> f64 {
            (0..self.h).map(|k| self.hidden[i * self.h + k] * self.weight[c * self.h + k]).sum::<f64>()
                + self.bias[c]
        };
        (0..self.n * self.c).map(|entry| z(entry / self.c, entry % self.c)).collect()
    }

    /// Returns the gradient of the scores from the formula, *N x C*.
    fn score_gradient(&self) -> Vec<f64> {
        let mut g = self.scores();
        for (i, row) in g.chunks_exact_mut(self.c).enumerate() {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let log_z = max + row.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
            let slots = (0..self.s).filter(|s| self.active[i * self.s + s]);
            let total: f64 = slots.clone().map(|s| self.adjoints[i * self.s + s]).sum();
            row.iter_mut().for_each(|z| *z = -(total - self.log_z[i]) * (*z - log_z).exp());
            slots.for_each(|s| row[self.ids[i * self.s + s] as usize] += self.adjoints[i * self.s + s]);
        }
        g
    }
}

/// Random problems with random plans.
fn cases() -> impl Strategy<Value = Case> {
    let shape = (0usize..40, 1usize..9, 1usize..70, 0usize..6, any::<u64>());
    // Sizes of waves, blocks, tiles and groups; sites with saved scores, and with saved rows.
    let plan = (1usize..20, 1usize..20, 1usize..30, 1usize..4, 0usize..50, 0usize..50);
    (shape, plan).prop_map(
        |(
            (n, h, c, s, seed),
            (wave_sites, block_sites, tile_classes, group_tiles, saved_scores, saved_hidden),
        )| {
            let mut state = seed | 1;
            let mut uniform = move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 33) as f64) / f64::from(1u32 << 31)
            };
            let mut values =
                |len: usize, scale: f64| (0..len).map(|_| (uniform() - 0.5) * scale).collect::<Vec<f64>>();
            let (hidden, weight, bias) = (values(n * h, 4.0), values(c * h, 4.0), values(c, 2.0));
            let (adjoints, log_z) = (values(n * s, 2.0), values(n, 1.0));
            let draws = values(n * s * 2, 1.0);
            let (mut ids, mut active) = (vec![0u32; n * s], vec![false; n * s]);
            for i in 0..n {
                for slot in 0..s {
                    let entry = i * s + slot;
                    ids[entry] = ((draws[entry] + 0.5) * c as f64) as u32;
                    let is_repeated =
                        (0..slot).any(|other| active[i * s + other] && ids[i * s + other] == ids[entry]);
                    active[entry] = !is_repeated && draws[n * s + entry] > -0.3;
                    if !active[entry] {
                        ids[entry] = u32::MAX; // never read
                    }
                }
            }
            let plan = Plan::custom(wave_sites, block_sites, tile_classes, group_tiles, saved_scores);
            let plan = Plan { saved_hidden, ..plan };
            Case { n, h, c, s, hidden, weight, bias, ids, active, adjoints, log_z, plan }
        },
    )
}

fn assert_close(actual: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len());
    for (i, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let error = (actual - expected).abs();
        assert!(
            error <= tolerance * (1.0 + expected.abs()),
            "element {i}: found {actual}, expected {expected}"
        );
    }
}

fn to_f32(values: &[f64]) -> Vec<f32> {
    values.iter().map(|v| *v as f32).collect()
}

proptest! {
    #[test]
    fn equals_the_dense_formula(case in cases()) {
        let selection = case.selection();
        let head = Head::new(&case.weight, Some(&case.bias), case.h).unwrap();
        let rows = Rows::new(&case.hidden, case.h).unwrap();
        let out = forward(&rows, &head, &selection, &case.plan).unwrap();
        let z = case.scores();
        for i in 0..case.n {
            let row = &z[i * case.c..][..case.c];
            let log_z = row.iter().map(|z| z.exp()).sum::<f64>().ln();
            prop_assert!((out.log_z(i) - log_z).abs() < 1e-12 * (1.0 + log_z.abs()));
            for s in 0..case.s {
                let entry = i * case.s + s;
                let expected = if case.active[entry] { row[case.ids[entry] as usize] - log_z } else { 0.0 };
                prop_assert!((out.emissions[entry] - expected).abs() < 1e-11);
                prop_assert!(out.emissions[entry].exp() <= 1.0 + 1e-15);
            }
        }
        let mut adjoints = Adjoints::new(&case.adjoints);
        adjoints.log_z = Some(&case.log_z);
        let grads = backward(&rows, &head, &selection, &out, &adjoints, &case.plan).unwrap();
        let g = case.score_gradient();
        let sum = |f: &dyn Fn(usize, usize) -> f64, outer: usize, inner: usize| -> Vec<f64> {
            (0..outer).map(|o| (0..inner).map(|i| f(o, i)).sum()).collect()
        };
        let (n, h, c) = (case.n, case.h, case.c);
        assert_close(&grads.bias, &sum(&|k, i| g[i * c + k], c, n), 1e-11);
        assert_close(&grads.sites, &sum(&|x, k| g[x / h * c + k] * case.weight[k * h + x % h], n * h, c), 1e-11);
        assert_close(&grads.weight, &sum(&|x, i| g[i * c + x / h] * case.hidden[i * h + x % h], c * h, n), 1e-11);
    }

    #[test]
    fn single_precision_is_close_to_double_precision(case in cases()) {
        let selection = case.selection();
        let (hidden, weight, bias) = (to_f32(&case.hidden), to_f32(&case.weight), to_f32(&case.bias));
        let head = Head::new(&weight, Some(&bias), case.h).unwrap();
        let rows = Rows::new(&hidden, case.h).unwrap();
        let out = forward(&rows, &head, &selection, &case.plan.to()).unwrap();
        let mut adjoints = Adjoints::new(&case.adjoints);
        adjoints.log_z = Some(&case.log_z);
        let grads = backward(&rows, &head, &selection, &out, &adjoints, &case.plan.to()).unwrap();
        // The same values in double precision.
        let to_f64 = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>();
        let (hidden, weight, bias) = (to_f64(&hidden), to_f64(&weight), to_f64(&bias));
        let head = Head::new(&weight, Some(&bias), case.h).unwrap();
        let rows = Rows::new(&hidden, case.h).unwrap();
        let exact = forward(&rows, &head, &selection, &case.plan).unwrap();
        assert_close(&out.emissions, &exact.emissions, 2e-5);
        let expected = backward(&rows, &head, &selection, &exact, &adjoints, &case.plan).unwrap();
        let actual = [to_f64(&grads.weight), grads.bias, to_f64(&grads.sites)];
        for (actual, expected) in actual.iter().zip([&expected.weight, &expected.bias, &expected.sites]) {
            let error: f64 = actual.iter().zip(expected).map(|(actual, exact)| (actual - exact).powi(2)).sum();
            let norm: f64 = expected.iter().map(|exact| exact * exact).sum();
            prop_assert!(error.sqrt() <= 2e-5 * norm.sqrt() + 1e-6, "{} of {}", error.sqrt(), norm.sqrt());
        }
    }

    #[test]
    fn plans_change_only_rounding(case in cases()) {
        let (weight, hidden) = (to_f32(&case.weight), to_f32(&case.hidden));
        let head = Head::new(&weight, None, case.h).unwrap();
        let rows = Rows::new(&hidden, case.h).unwrap();
        let (selection, adjoints) = (case.selection(), Adjoints::new(&case.adjoints));
        let run = |plan: &Plan<f32>| {
            let out = forward(&rows, &head, &selection, plan).unwrap();
            let grads = backward(&rows, &head, &selection, &out, &adjoints, plan).unwrap();
            (out, grads)
        };
        let (out, grads) = run(&case.plan.to());
        let (expected_out, expected_grads) = run(&default_plan(case.n, case.h, case.c));
        assert_close(&out.emissions, &expected_out.emissions, 1e-5);
        for (actual, expected) in
            [(&grads.weight, &expected_grads.weight), (&grads.sites, &expected_grads.sites)]
        {
            let to_f64 = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>();
            assert_close(&to_f64(actual), &to_f64(expected), 2e-5);
        }
    }

    #[test]
    fn given_scores_agree_and_padding_has_no_effect(case in cases()) {
        let selection = case.selection();
        // Site i is in row 2 i; odd rows are padding full of NaN.
        let mut z = vec![f64::NAN; 2 * case.n * case.c];
        for (i, row) in case.scores().chunks_exact(case.c).enumerate() {
            z[2 * i * case.c..][..case.c].copy_from_slice(row);
        }
        let site = |row: usize| if row.is_multiple_of(2) { row as u32 / 2 } else { scores::PADDING };
        let site_of_row: Vec<u32> = (0..2 * case.n).map(site).collect();
        let out = scores::forward(&z, case.c, &site_of_row, case.n, &selection).unwrap();
        let mut adjoints = Adjoints::new(&case.adjoints);
        adjoints.log_z = Some(&case.log_z);
        scores::backward_in_place(&mut z, case.c, &site_of_row, &selection, &out, &adjoints).unwrap();
        let expected = case.score_gradient();
        for (row, g) in z.chunks_exact(case.c).enumerate() {
            match site_of_row[row] {
                scores::PADDING => prop_assert!(g.iter().all(|g| *g == 0.0)),
                site => assert_close(g, &expected[site as usize * case.c..][..case.c], 1e-11),
            }
        }
    }

    #[test]
    fn threads_change_no_bit(case in cases()) {
        let (hidden, weight) = (to_f32(&case.hidden), to_f32(&case.weight));
        let (selection, adjoints) = (case.selection(), Adjoints::new(&case.adjoints));
        let run = |threads: usize| {
            rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| {
                let head = Head::new(&weight, None, case.h).unwrap();
                let rows = Rows::new(&hidden, case.h).unwrap();
                let out = forward(&rows, &head, &selection, &case.plan.to()).unwrap();
                let grads = backward(&rows, &head, &selection, &out, &adjoints, &case.plan.to()).unwrap();
                (out, grads)
            })
        };
        let bits = |(out, grads): (Normalized<f32>, panda_core::Gradients<f32, Vec<f32>>)| -> Vec<u64> {
            let singles = [&out.max, &grads.sites, &grads.weight];
            let singles = singles.into_iter().flatten().map(|x| u64::from(x.to_bits()));
            let doubles = [&out.emissions, &out.log_sum, &grads.bias];
            singles.chain(doubles.into_iter().flatten().map(|x| x.to_bits())).collect()
        };
        let expected = bits(run(1));
        prop_assert_eq!(&expected, &bits(run(2)));
        prop_assert_eq!(&expected, &bits(run(5)));
    }
}

/// Sites that compute `h[i] = tanh(frames[i / U] + labels[i % U])` on demand, for U labels.
struct JointSites<'a> {
    frames: &'a [f64],
    labels: &'a [f64],
    width: usize,
}

impl JointSites<'_> {
    /// Returns the starts of the two rows that a site adds.
    fn row_starts(&self, site: usize) -> [usize; 2] {
        let labels = self.labels.len() / self.width;
        [site / labels * self.width, site % labels * self.width]
    }
}

impl Sites<f64> for JointSites<'_> {
    type Gradient = [Vec<f64>; 2];
    fn len(&self) -> usize {
        self.frames.len() * self.labels.len() / self.width / self.width
    }
    fn width(&self) -> usize {
        self.width
    }
    fn max_abs(&self) -> f64 {
        1.0
    }
    fn fill(&self, sites: &[usize], hidden: &mut [f64]) {
        for (&site, out) in sites.iter().zip(hidden.chunks_exact_mut(self.width)) {
            let [frame, label] = self.row_starts(site);
            out.iter_mut()
                .enumerate()
                .for_each(|(k, h)| *h = (self.frames[frame + k] + self.labels[label + k]).tanh());
        }
    }
    fn pull_back(&self, _sites: &[usize], hidden: &[f64], gradient: &mut [f64]) {
        gradient.iter_mut().zip(hidden).for_each(|(g, h)| *g *= 1.0 - h * h);
    }
    fn zero_gradient(&self) -> [Vec<f64>; 2] {
        [vec![0.0; self.frames.len()], vec![0.0; self.labels.len()]]
    }
    fn scatter(&self, sites: &[usize], gradient: &[f64], into: &mut [Vec<f64>; 2]) {
        for (&site, gradient) in sites.iter().zip(gradient.chunks_exact(self.width)) {
            for (into, start) in into.iter_mut().zip(self.row_starts(site)) {
                into[start..][..self.width].iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
            }
        }
    }
}

/// Sites that compute their rows equal given rows, and propagate gradients.
#[test]
fn sites_equal_their_rows() {
    let (h, c, frames, labels) = (3, 11, 4, 3);
    let value = |i: usize| ((i * 37 % 23) as f64 - 11.0) / 9.0;
    // Frame rows and label rows.
    let f: Vec<f64> = (0..frames * h).map(value).collect();
    let g: Vec<f64> = (0..labels * h).map(|i| value(i + 50)).collect();
    let weight: Vec<f64> = (0..c * h).map(|i| value(i + 100)).collect();
    let n = frames * labels;
    let selection =
        Selection::new((0..2 * n).map(|i| (i % c) as u32).collect(), vec![true; 2 * n], 2).unwrap();
    let adjoints: Vec<f64> = (0..2 * n).map(|i| value(i + 7)).collect();
    let plan = Plan { saved_hidden: 5, ..Plan::custom(5, 3, 4, 2, 7) };
    let head = Head::new(&weight, None, h).unwrap();
    let joint_sites = JointSites { frames: &f, labels: &g, width: h };
    let mut hidden = vec![0.0; n * h];
    joint_sites.fill(&(0..n).collect::<Vec<_>>(), &mut hidden);
    assert!((hidden[5 * h + 1] - (f[h + 1] + g[2 * h + 1]).tanh()).abs() < 1e-15);
    let rows = Rows::new(&hidden, h).unwrap();
    let out = forward(&joint_sites, &head, &selection, &plan).unwrap();
    assert_eq!(out, forward(&rows, &head, &selection, &plan).unwrap());
    let adjoints = Adjoints::new(&adjoints);
    let rows_gradients = backward(&rows, &head, &selection, &out, &adjoints, &plan).unwrap();
    let joint_gradients = backward(&joint_sites, &head, &selection, &out, &adjoints, &plan).unwrap();
    let (mut df, mut dg) = (vec![0.0; f.len()], vec![0.0; g.len()]);
    for i in 0..n * h {
        let slope = 1.0 - hidden[i] * hidden[i];
        df[i / h / labels * h + i % h] += slope * rows_gradients.sites[i];
        dg[i / h % labels * h + i % h] += slope * rows_gradients.sites[i];
    }
    assert_close(&joint_gradients.sites[0], &df, 1e-13);
    assert_close(&joint_gradients.sites[1], &dg, 1e-13);
    assert_eq!(joint_gradients.weight, rows_gradients.weight);
}

/// Runs forward for one site with the hidden row [1].
fn forward_one_site(
    weight: &[f32],
    bias: &[f32],
    ids: Vec<u32>,
    classes: usize,
) -> panda_core::Result<Normalized<f32>> {
    let active = vec![true; ids.len()];
    let per_site = ids.len();
    let selection = Selection::new(ids, active, per_site)?;
    let plan = Plan::custom(1, 1, classes, 1, 0);
    forward(&Rows::new(&[1.0], 1)?, &Head::new(weight, Some(bias), 1)?, &selection, &plan)
}

#[test]
fn masked_classes_are_valid_and_bad_rows_are_named() {
    let masked = f32::NEG_INFINITY;
    // Masked classes fill whole tiles before and after the unmasked one.
    let out = forward_one_site(&[0.0; 5], &[masked, masked, 0.5, masked, masked], vec![2, 0], 2).unwrap();
    assert_eq!((out.emissions[0], out.emissions[1]), (0.0, f64::NEG_INFINITY));
    let all = forward_one_site(&[0.0; 3], &[masked; 3], vec![0], 2);
    assert_eq!(all, Err(Error::AllMasked { site: 0 }));
    for bad in [f32::NAN, f32::INFINITY] {
        for class in 0..3 {
            let mut bias = [masked; 3];
            bias[class] = bad;
            assert_eq!(
                forward_one_site(&[0.0; 3], &bias, vec![0], 1),
                Err(Error::NotFinite { site: 0 }),
                "{bad} at {class}"
            );
            bias = [0.0; 3];
            bias[class] = bad;
            assert_eq!(
                forward_one_site(&[0.0; 3], &bias, vec![0], 2),
                Err(Error::NotFinite { site: 0 }),
                "{bad} at {class}"
            );
        }
    }
}

#[test]
fn one_class_has_no_gradient_and_large_offsets_keep_their_digits() {
    let out = forward_one_site(&[0.3], &[1e4], vec![0], 1).unwrap();
    assert_eq!(out.emissions, [0.0]);
    let out = forward_one_site(&[0.0; 3], &[1e6, 1e6 + 1.0, 1e6 - 2.0], vec![0, 1, 2], 2).unwrap();
    let log_sum = (1.0 + (-1f64).exp() + (-3f64).exp()).ln();
    assert_close(&out.emissions, &[-1.0 - log_sum, -log_sum, -3.0 - log_sum], 1e-7);
}

#[test]
fn a_clamp_clips_before_weighting() {
    let selection = Selection::new(vec![0], vec![true], 1).unwrap();
    let (mut z, site_of_row) = ([0.0f64, 0.0, 0.0, 0.0], [0]);
    let out = scores::forward(&z, 4, &site_of_row, 1, &selection).unwrap();
    let clamp = Clamp { limit: 0.2, weights: &[10.0] };
    let adjoints = Adjoints { clamp: Some(clamp), ..Adjoints::new(&[-0.4]) };
    scores::backward_in_place(&mut z, 4, &site_of_row, &selection, &out, &adjoints).unwrap();
    assert_close(&z, &[-2.0, 1.0, 1.0, 1.0], 1e-12); // -0.3 is clipped, 0.1 is not
}

#[test]
fn errors_name_the_invalid_argument() {
    let select_two = |ids: Vec<u32>| forward_one_site(&[0.0; 3], &[0.0; 3], ids, 2);
    assert_eq!(select_two(vec![1, 1]), Err(Error::DuplicateClass { site: 0, class: 1 }));
    assert_eq!(
        select_two(vec![0, 3]),
        Err(Error::ClassOutOfRange { site: 0, slot: 1, class: 3, classes: 3 })
    );
    assert!(matches!(Head::new(&[0.0f32; 5], None, 2), Err(Error::Length { argument: "head.weight", .. })));
    assert!(matches!(
        Head::new(&[0.0f32; 4], Some(&[0.0]), 2),
        Err(Error::Length { argument: "head.bias", .. })
    ));
    assert!(matches!(Head::<f32>::new(&[], None, 2), Err(Error::Zero { argument: "classes" })));
    assert!(matches!(Head::new(&[1.0f32], None, 0), Err(Error::Zero { argument: "hidden" })));
    assert!(matches!(Rows::new(&[0.0f32; 5], 2), Err(Error::Length { argument: "hidden", .. })));
    assert!(matches!(Selection::new(vec![1], vec![], 1), Err(Error::Length { .. })));

    let selection = Selection::new(vec![0], vec![true], 1).unwrap();
    let (rows, head) = (Rows::new(&[1.0f32], 1).unwrap(), Head::new(&[1.0f32, 2.0], None, 1).unwrap());
    let mut plan = default_plan(1, 1, 2);
    let out = forward(&rows, &head, &selection, &plan).unwrap();
    let backward_error = |adjoints: &Adjoints, plan: &Plan<f32>| {
        backward(&rows, &head, &selection, &out, adjoints, plan).err()
    };
    assert!(matches!(
        backward_error(&Adjoints::new(&[f64::NAN]), &plan),
        Some(Error::Adjoint { site: 0, .. })
    ));
    assert!(matches!(backward_error(&Adjoints::new(&[]), &plan), Some(Error::Length { .. })));
    let clamp = Some(Clamp { limit: -1.0, weights: &[1.0] });
    assert_eq!(
        backward_error(&Adjoints { clamp, ..Adjoints::new(&[1.0]) }, &plan),
        Some(Error::Clamp { limit: -1.0 })
    );
    plan.tile_classes = 0;
    assert_eq!(
        backward_error(&Adjoints::new(&[1.0]), &plan),
        Some(Error::Zero { argument: "plan.tile_classes" })
    );

    let forward = |site_of_row: &[u32], sites: usize| {
        let selection = Selection::new(vec![0; sites], vec![true; sites], 1).unwrap();
        scores::forward(&vec![0.0f32; 2 * site_of_row.len()], 2, site_of_row, sites, &selection).err()
    };
    assert_eq!(forward(&[0, 0], 2), Some(Error::SiteOfRow { row: 1, site: 0, sites: 2 }));
    assert_eq!(forward(&[0, scores::PADDING, 7], 2), Some(Error::SiteOfRow { row: 2, site: 7, sites: 2 }));
    assert!(matches!(
        forward(&[0, 0], 1),
        Some(Error::Length { argument: "site_of_row", expected: 1, found: 2 })
    ));
    let none = Selection::new(vec![], vec![], 0).unwrap();
    assert!(scores::forward(&[0.0f32], 1, &[0], usize::MAX, &none).is_err());
    assert!(scores::forward(&[0.0f32], usize::MAX, &[0, 0], 2, &none).is_err());
}

/// Forward would accept these, and backward would compute NaN.
#[test]
fn infinite_weights_and_adjoints_are_refused() {
    let out = forward_one_site(&[0.3, f32::NEG_INFINITY], &[0.0; 2], vec![0], 2);
    assert_eq!(out, Err(Error::InfiniteWeight { class: 1, value: f64::NEG_INFINITY }));

    let (rows, head) = (Rows::new(&[1.0f32], 1).unwrap(), Head::new(&[1.0f32, 2.0], None, 1).unwrap());
    let selection = Selection::new(vec![0, 1], vec![true, true], 2).unwrap();
    let plan = default_plan(1, 1, 2);
    let out = forward(&rows, &head, &selection, &plan).unwrap();
    // 1e39 is no f32; 1e308 + 1e308 is no f64 either.
    for adjoints in [[1e39, 0.0], [3e38, 3e38], [1e308, 1e308]] {
        let error = backward(&rows, &head, &selection, &out, &Adjoints::new(&adjoints), &plan).unwrap_err();
        assert!(matches!(error, Error::Adjoint { argument: "adjoints.emissions", site: 0, .. }), "{error}");
    }
}

/// The first bad site is named, for any number of tasks.
#[test]
fn the_first_bad_site_is_named() {
    let n = 20_000;
    let (hidden, weight) = (vec![0.5f32; n], [0.1f32, 0.2]);
    let (rows, head) = (Rows::new(&hidden, 1).unwrap(), Head::new(&weight, None, 1).unwrap());
    let ids = |wrong: &[usize]| (0..n).map(|site| if wrong.contains(&site) { 9 } else { 0 }).collect();
    let selection = |wrong: &[usize]| Selection::new(ids(wrong), vec![true; n], 1).unwrap();
    let plan = default_plan(n, 1, 2);
    let out = forward(&rows, &head, &selection(&[19_999, 7001, 12_000]), &plan);
    assert_eq!(out, Err(Error::ClassOutOfRange { site: 7001, slot: 0, class: 9, classes: 2 }));
    let selection = selection(&[]);
    let out = forward(&rows, &head, &selection, &plan).unwrap();
    let adjoints_with = |wrong: &[usize]| -> Vec<f64> {
        (0..n).map(|site| if wrong.contains(&site) { f64::from(site as u32) * 1e300 } else { -1.0 }).collect()
    };
    let backward_error =
        |adjoints: &Adjoints| backward(&rows, &head, &selection, &out, adjoints, &plan).unwrap_err();
    let (good, bad) = (adjoints_with(&[]), adjoints_with(&[15_000, 6500, 18_000]));
    let check = |argument, error| {
        assert_eq!(error, Error::Adjoint { argument, site: 6500, value: 6500.0 * 1e300 });
    };
    check("adjoints.emissions", backward_error(&Adjoints::new(&bad)));
    check("adjoints.log_z", backward_error(&Adjoints { log_z: Some(&bad), ..Adjoints::new(&good) }));
    let clamp = Some(Clamp { limit: 1.0, weights: &bad });
    check("adjoints.clamp.weights", backward_error(&Adjoints { clamp, ..Adjoints::new(&good) }));
}

/// Buffers of earlier calls do not affect results.
#[test]
fn recycled_buffers_do_not_affect_results() {
    let weight: Vec<f32> = (0..37).map(|i| (i * 5 % 17) as f32 / 9.0 - 1.0).collect();
    let head = Head::new(&weight, None, 1).unwrap();
    let mut workspace = Workspace::new(DEFAULT_BUDGET, true);
    for n in [300, 2000, 5, 0, 1999, 2500] {
        let hidden: Vec<f32> = (0..n).map(|i| (i * 7 % 23) as f32 / 11.0).collect();
        let rows = Rows::new(&hidden, 1).unwrap();
        let active = (0..3 * n).map(|i| i % 4 != 1).collect();
        let selection = Selection::new((0..3 * n).map(|i| (i % 37) as u32).collect(), active, 3).unwrap();
        let run = |workspace: &mut Workspace<f32>| {
            let out = panda_core::forward(&rows, &head, &selection, workspace).unwrap();
            let adjoints: Vec<_> = (0..3 * n).map(|i| if i % 5 < 3 { 0.0 } else { 0.3 }).collect();
            let adjoints = &Adjoints::new(&adjoints);
            let mut into = Gradients::zero(rows.zero_gradient(), &head);
            let arguments = BackwardInputs {
                sites: &rows,
                head: &head,
                selection: &selection,
                normalized: &out,
                adjoints,
            };
            let active = panda_core::backward(arguments, workspace, &mut into).unwrap();
            (out, into, active)
        };
        let actual = run(&mut workspace);
        assert_eq!(actual, run(&mut Workspace::new(DEFAULT_BUDGET, true)), "{n} sites");
        assert_eq!((actual.0.max.len(), actual.0.log_sum.len(), actual.0.emissions.len()), (n, n, 3 * n));
        workspace.recycle(actual.0);
    }
}

#[test]
fn a_plan_larger_than_the_problem_equals_one_that_fits() {
    let (hidden, weight) = ([0.1f32, 0.2, 0.3, 0.4], [0.5f32, 0.6, 0.7]);
    let (rows, head) = (Rows::new(&hidden, 1).unwrap(), Head::new(&weight, None, 1).unwrap());
    let selection = Selection::new(vec![0; 4], vec![true; 4], 1).unwrap();
    let run = |size: usize| {
        let plan = Plan { saved_hidden: size, ..Plan::custom(size, size, size, size, size) };
        let out = forward(&rows, &head, &selection, &plan).unwrap();
        backward(&rows, &head, &selection, &out, &Adjoints::new(&[1.0; 4]), &plan).unwrap()
    };
    assert_eq!(run(4), run(usize::MAX));
}

/// For a confident model, `a - A p` is a difference of nearly equal numbers.
#[test]
fn a_confident_model_keeps_its_gradient_in_single_precision() {
    let (mut z_f32, mut z_f64) = ([20.0f32, 0.0, -3.0], [20.0f64, 0.0, -3.0]);
    let selection = Selection::new(vec![0], vec![true], 1).unwrap();
    let out = scores::forward(&z_f32, 3, &[0], 1, &selection).unwrap();
    scores::backward_in_place(&mut z_f32, 3, &[0], &selection, &out, &Adjoints::new(&[-1.0])).unwrap();
    let out = scores::forward(&z_f64, 3, &[0], 1, &selection).unwrap();
    scores::backward_in_place(&mut z_f64, 3, &[0], &selection, &out, &Adjoints::new(&[-1.0])).unwrap();
    for (actual, expected) in z_f32.iter().zip(z_f64) {
        assert!((f64::from(*actual) - expected).abs() <= 3e-7 * expected.abs(), "{actual} {expected}");
    }
}

/// Tensor gradients equal central differences; wrong shapes are refused.
#[test]
fn tensors_have_gradients_and_checked_shapes() {
    use candle_core::{Device, Tensor, Var};
    use panda_core::candle::normalize_rows;
    let tensor = |shape: &[usize], salt: usize| -> Tensor {
        let values: Vec<f64> =
            (0..shape.iter().product()).map(|i: usize| ((i * 7 + salt) % 13) as f64 / 9.0 - 0.6).collect();
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    };
    let selection =
        || Selection::new(vec![0, 4, 2, 1, 3, 0], vec![true, true, true, true, false, true], 2).unwrap();
    let arguments = [tensor(&[3, 2], 1), tensor(&[5, 2], 2), tensor(&[5], 3)];
    let factors = tensor(&[3, 2], 4);
    let loss = |a: &[Tensor]| {
        let emissions = normalize_rows(&a[0], &a[1], &a[2], selection()).unwrap();
        (emissions * &factors).unwrap().sum_all().unwrap()
    };
    let vars: Vec<Var> = arguments.iter().map(|t| Var::from_tensor(t).unwrap()).collect();
    let tracked: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
    let gradients = loss(&tracked).backward().unwrap();
    for (index, var) in vars.iter().enumerate() {
        let actual = gradients.get(var).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
        for (i, actual) in actual.iter().enumerate() {
            let shifted_loss = |shift: f64| {
                let mut shifted = arguments.to_vec();
                let mut values = shifted[index].flatten_all().unwrap().to_vec1::<f64>().unwrap();
                values[i] += shift;
                shifted[index] = Tensor::from_vec(values, shifted[index].shape(), &Device::Cpu).unwrap();
                loss(&shifted).to_scalar::<f64>().unwrap()
            };
            let expected = (shifted_loss(1e-5) - shifted_loss(-1e-5)) / 2e-5;
            assert!((actual - expected).abs() < 1e-9, "argument {index}, element {i}: {actual} {expected}");
        }
    }

    let [hidden, weight, bias] = &arguments;
    let check = |result: candle_core::Result<Tensor>, name: &str| {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(name) && message.contains("expected shape"), "{message}");
    };
    check(normalize_rows(&tensor(&[3, 4], 1), weight, bias, selection()), "hidden");
    check(normalize_rows(hidden, weight, &tensor(&[1, 5], 1), selection()), "bias");
    assert!(normalize_rows(hidden, weight, bias, selection()).is_ok());
}
