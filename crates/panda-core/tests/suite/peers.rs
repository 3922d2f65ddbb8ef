//! A head that several processes hold: what one process finds.
use panda_core::{
    Adjoints, Backward, Clamp, Error, Gradients, Head, MemoryBudget, Peers, Plan, Real, Result, Rows,
    Selection, Sites, Workspace, classes_of,
};
use proptest::prelude::*;

use super::together::together;

#[derive(Debug, Clone)]
struct Case {
    hidden: Vec<f64>,
    weight: Vec<f64>,
    bias: Vec<f64>,
    selection: Selection,
    emissions: Vec<f64>,
    log_z: Vec<f64>,
    plan: Plan<f64>,
}

const H: usize = 3;
const S: usize = 2;

/// Emissions, the two halves of logZ, and gradients of sites, weight and bias.
type Found<F> = (Vec<f64>, Vec<F>, Vec<f64>, Vec<F>, Vec<F>, Vec<f64>);

impl Case {
    fn drawn(sites: usize, classes: usize, seed: u64) -> Self {
        let mut state = seed | 1;
        let mut uniform = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut values = |count: usize| -> Vec<f64> { (0..count).map(|_| 4.0 * uniform() - 2.0).collect() };
        let [hidden, weight, mut bias] = [sites * H, classes * H, classes].map(&mut values);
        let (emissions, log_z) = (values(sites * S), values(sites));
        let mut numbers = values(3 * sites * S).into_iter().map(|x| ((x + 2.0) * 1e6) as usize);
        let mut number = move || numbers.next().unwrap();
        let (mut ids, mut active) = (Vec::new(), Vec::new());
        for _ in 0..sites {
            let first = number() % classes;
            ids.extend([first as u32, ((first + 1 + number() % (classes - 1)) % classes) as u32]);
            active.extend([true, number() % 3 > 0]);
        }
        // One is masked, with those beside it in a part of their own where there are many.
        bias[0] = f64::NEG_INFINITY;
        let selection = Selection::new(ids, active, S).unwrap();
        let plan = Plan::custom(5, 4, 3, 2, 3);
        Self { hidden, weight, bias, selection, emissions, log_z, plan }
    }

    /// By one process, or by one of several.
    fn run<F: Real>(&self, mut peers: Option<&mut Peers>, limit: Option<f64>) -> Result<Found<F>> {
        let narrow = |values: &[f64]| values.iter().map(|&x| F::from_f64(x)).collect::<Vec<F>>();
        let [hidden, weight, bias] = [&self.hidden, &self.weight, &self.bias].map(|values| narrow(values));
        let (classes, rows) = (bias.len(), Rows::new(&hidden, H)?);
        let here =
            peers.as_ref().map_or(0..classes, |peers| classes_of(peers.rank(), peers.count(), classes));
        let weight = &weight[H * here.start..H * here.end];
        let head = Head::part(weight, Some(&bias[here.clone()]), H, here.start, classes)?;
        let mut workspace = Workspace::with_plan(self.plan.to::<F>())?;
        let out = match &mut peers {
            Some(peers) => panda_core::forward_among(peers, &rows, &head, &self.selection, &mut workspace),
            None => panda_core::forward(&rows, &head, &self.selection, &mut workspace),
        }?;
        let mut into = Gradients::zero(rows.zero_gradient(), &head);
        let weights = vec![0.7; self.log_z.len()];
        let clamp = limit.map(|limit| Clamp { limit, weights: &weights });
        let adjoints = Adjoints { emissions: &self.emissions, log_z: Some(&self.log_z), clamp };
        let arguments = Backward {
            sites: &rows,
            head: &head,
            selection: &self.selection,
            normalized: &out,
            adjoints: &adjoints,
        };
        panda_core::backward(arguments, &mut workspace, &mut into)?;
        if let Some(peers) = peers {
            peers.sum(&mut into.sites)?;
        }
        Ok((out.emissions, out.max, out.log_sum, into.sites, into.weight, into.bias))
    }
}

/// What several find, the parts of the head one after the other.
fn joined<F: Real>(case: &Case, count: usize, limit: Option<f64>) -> Found<F> {
    let mut all = together(count, |mut peers| case.run::<F>(Some(&mut peers), limit).unwrap()).into_iter();
    let mut first = all.next().unwrap();
    for (emissions, max, log_sum, sites, weight, bias) in all {
        assert!(
            (&first.0, &first.1, &first.2, &first.3) == (&emissions, &max, &log_sum, &sites),
            "the same everywhere"
        );
        first.4.extend(weight);
        first.5.extend(bias);
    }
    first
}

fn close<F: Real>(bar: f64, found: &[F], expected: &[F]) -> bool {
    let near = |(a, b): (&F, &F)| a == b || (a.to_f64() - b.to_f64()).abs() <= bar * (1.0 + b.to_f64().abs());
    found.len() == expected.len() && found.iter().zip(expected).all(near)
}

fn are_one<F: Real>(case: &Case, count: usize, limit: Option<f64>, bar: f64) {
    let (alone, found) = (case.run::<F>(None, limit).unwrap(), joined::<F>(case, count, limit));
    assert!(close(bar, &found.0, &alone.0), "emissions: {:?} {:?}", found.0, alone.0);
    assert!(found.1 == alone.1, "max: {:?} {:?}", found.1, alone.1);
    assert!(close(bar, &found.2, &alone.2), "log_sum: {:?} {:?}", found.2, alone.2);
    assert!(close(bar, &found.3, &alone.3), "sites: {:?} {:?}", found.3, alone.3);
    assert!(close(bar, &found.4, &alone.4), "weight: {:?} {:?}", found.4, alone.4);
    assert!(close(bar, &found.5, &alone.5), "bias: {:?} {:?}", found.5, alone.5);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn several_find_what_one_does(
        sites in 0usize..30,
        classes in 2usize..40,
        count in 1usize..5,
        seed in any::<u64>(),
        limit in proptest::option::of(0.01..2.0),
    ) {
        let case = Case::drawn(sites, classes.max(count), seed);
        are_one::<f64>(&case, count, limit, 1e-12);
        are_one::<f32>(&case, count, limit, 1e-5);
    }
}

#[test]
fn one_of_one_has_the_same_bits() {
    let case = Case::drawn(20, 30, 5);
    assert!(case.run::<f32>(None, None).unwrap() == joined::<f32>(&case, 1, None));
}

#[test]
fn many_sites_go_in_pieces() {
    are_one::<f64>(&Case::drawn(9000, 3, 8), 2, None, 1e-12);
}

#[test]
fn a_part_may_be_masked_and_not_all() {
    let mut case = Case::drawn(10, 6, 3);
    for masked in [0..3, 3..6] {
        let mut case = case.clone();
        case.bias.fill(0.5);
        case.bias[masked].fill(f64::NEG_INFINITY);
        are_one::<f64>(&case, 2, None, 1e-12);
        are_one::<f64>(&case, 3, None, 1e-12);
    }
    case.bias.fill(f64::NEG_INFINITY);
    for found in together(2, |mut peers| case.run::<f64>(Some(&mut peers), None)) {
        assert_eq!(found.unwrap_err(), Error::AllMasked { site: 0 });
    }
}

#[test]
fn what_is_wrong_with_one_is_heard_by_all() {
    let mut case = Case::drawn(10, 6, 3);
    case.weight[H * 3 + 1] = f64::INFINITY;
    let found = together(3, |mut peers| case.run::<f64>(Some(&mut peers), None).unwrap_err());
    let message = "could not go on; it says why".to_owned();
    let heard = Error::Peer { rank: 1, message };
    assert_eq!(found, [heard.clone(), Error::InfiniteWeight { class: 3, value: f64::INFINITY }, heard]);
    // So are all that follow.
    let found =
        together(2, |mut peers| [(); 2].map(|()| case.run::<f64>(Some(&mut peers), None).unwrap_err()));
    assert!(found.iter().all(|[first, second]| first == second), "{found:?}");
    // A site that only one sees to be odd.
    case.weight[H * 3 + 1] = f64::NAN;
    for found in together(3, |mut peers| case.run::<f64>(Some(&mut peers), None)) {
        assert_eq!(found.unwrap_err(), Error::NotFinite { site: 0 });
    }
}

#[test]
fn parts_are_the_head() {
    let case = Case::drawn(4, 6, 3);
    let run = |peers: &mut Peers, first: usize, own: usize, all: usize, sites: usize| {
        let rows = Rows::new(&case.hidden[..H * sites], H).unwrap();
        let head = Head::part(&case.weight[..H * own], None, H, first, all)?;
        let selection = Selection::new(vec![0; sites], vec![true; sites], 1).unwrap();
        let mut workspace = Workspace::new(MemoryBudget::default());
        panda_core::forward_among(peers, &rows, &head, &selection, &mut workspace).map(|_| ())
    };
    let peer = |rank: usize, message: &str| Err(Error::Peer { rank, message: message.into() });
    for (parts, sites, expected) in [
        ([(0, 3, 6), (3, 3, 6)], [4, 4], Ok(())),
        ([(0, 2, 6), (3, 3, 6)], [4, 4], peer(1, "has 3 classes from 3 on of 6 at 4 sites")),
        ([(0, 3, 6), (3, 2, 6)], [4, 4], peer(1, "has 2 classes from 3 on of 6 at 4 sites")),
        ([(0, 3, 6), (2, 3, 6)], [4, 4], peer(1, "has 3 classes from 2 on of 6 at 4 sites")),
        ([(0, 4, 6), (4, 2, 6)], [4, 4], peer(0, "has 4 classes from 0 on of 6 at 4 sites")),
        ([(3, 3, 6), (0, 3, 6)], [4, 4], peer(0, "has 3 classes from 3 on of 6 at 4 sites")),
    ] {
        let found = together(2, |mut peers| {
            let ((first, own, all), sites) = (parts[peers.rank()], sites[peers.rank()]);
            run(&mut peers, first, own, all, sites)
        });
        assert_eq!(found, [expected.clone(), expected], "{parts:?}");
    }
    for (parts, sites) in [([(0, 3, 6), (3, 3, 7)], [4, 4]), ([(0, 3, 6), (3, 3, 6)], [4, 3])] {
        let found = together(2, |mut peers| {
            let ((first, own, all), sites) = (parts[peers.rank()], sites[peers.rank()]);
            run(&mut peers, first, own, all, sites)
        });
        assert!(found.iter().all(|found| matches!(found, Err(Error::Peer { .. }))), "{found:?}");
    }
    assert_eq!(
        Head::part(&case.weight[..H * 3], None, H, 4, 6).unwrap_err(),
        Error::Part { first: 4, classes: 3, all: 6 }
    );
    let rows = Rows::new(&case.hidden, H).unwrap();
    let head = Head::part(&case.weight[..H * 3], None, H, 0, 6).unwrap();
    let mut workspace = Workspace::new(MemoryBudget::default());
    let found = panda_core::forward(&rows, &head, &case.selection, &mut workspace);
    assert_eq!(found.unwrap_err(), Error::Part { first: 0, classes: 3, all: 6 });
}

#[test]
fn classes_are_dealt_out_evenly() {
    for (count, classes) in [(1, 5), (2, 5), (3, 7), (4, 4), (7, 262_144)] {
        let parts: Vec<_> = (0..count).map(|rank| classes_of(rank, count, classes)).collect();
        assert_eq!((parts[0].start, parts[count - 1].end), (0, classes));
        assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert!(parts.iter().all(|part| [classes / count, classes.div_ceil(count)].contains(&part.len())));
    }
}
