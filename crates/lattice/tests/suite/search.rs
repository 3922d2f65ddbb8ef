//! The n best lattice paths and sampled paths, compared with enumeration.
use std::collections::BTreeMap;

use lattice::{LatticeSession, Options};

use crate::table_lattices::{ListedPath, TableLattice, log_sum};

/// Number of random lattices of a test.
const LATTICES: u64 = 300;

/// Sorts paths by weight, largest first.
fn by_weight<T>(mut listed: Vec<T>, weight: impl Fn(&T) -> f64) -> Vec<T> {
    listed.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    listed
}

/// Returns the weights of all paths by alignment.
fn weights(tiny: &TableLattice, utterance: usize) -> BTreeMap<Vec<u32>, f64> {
    tiny.paths(utterance).into_iter().map(|path| (path.alignment, path.weight)).collect()
}

#[test]
fn the_n_best_paths_are_the_first_of_all_paths_in_order() {
    let mut long_lists = 0;
    for seed in 0..LATTICES {
        let tiny = TableLattice::new(seed);
        for count in [0, 1, 2, 7, 1000] {
            let computed =
                tiny.with(|session, lattice, frames| session.n_best_paths(lattice, frames, count)).unwrap();
            assert_eq!(computed.len(), tiny.lengths.len());
            for (utterance, computed) in computed.iter().enumerate() {
                let all_paths = by_weight(tiny.paths(utterance), |path| path.weight);
                let weights = weights(&tiny, utterance);
                assert_eq!(
                    computed.len(),
                    count.min(all_paths.len()),
                    "seed {seed}, {count} of {}",
                    all_paths.len()
                );
                long_lists += usize::from(computed.len() > 5);
                for (path, ListedPath { weight, .. }) in computed.iter().zip(&all_paths) {
                    assert!((path.weight - weight).abs() < 1e-12, "seed {seed}: {path:?}, not {weight}");
                    let listed_weight = weights[&path.alignment];
                    assert!(
                        (path.weight - listed_weight).abs() < 1e-12,
                        "seed {seed}: {path:?}, not {listed_weight}"
                    );
                }
                let mut different: Vec<_> = computed.iter().map(|path| &path.alignment).collect();
                different.sort();
                different.dedup();
                assert_eq!(different.len(), computed.len(), "seed {seed}: a path occurs twice");
            }
        }
    }
    assert!(long_lists > 100);
}

#[test]
fn the_first_of_the_n_best_paths_has_the_weight_of_the_best_path() {
    for seed in 0..LATTICES {
        let tiny = TableLattice::new(seed);
        tiny.with(|session, lattice, frames| {
            let best = session.best_paths(lattice, frames)?;
            let computed = session.n_best_paths(lattice, frames, 1)?;
            for (best, computed) in best.iter().zip(computed) {
                match computed.first() {
                    Some(computed) => assert!((best.weight - computed.weight).abs() < 1e-12, "seed {seed}"),
                    None => assert_eq!(best.weight, f64::NEG_INFINITY, "seed {seed}"),
                }
            }
            Ok(())
        })
        .unwrap();
    }
}

/// A long lattice with ties everywhere.
#[test]
fn ties_do_not_multiply_the_work() {
    use lattice::{AlignmentLattice, Frames, FullNGram, RecognitionLattice, TableWeightFn};
    let context = FullNGram::new(3, 1).unwrap();
    let weights = [0.1; 16];
    let table = TableWeightFn::new(&weights, &[1, 4, 4]).unwrap();
    let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table).unwrap();
    let rows = [0.0; 2000];
    let frames = Frames::new(&rows, &[1, 2000, 1], &[2000]).unwrap();
    let computed = LatticeSession::default().n_best_paths(&lattice, &frames, 50).unwrap();
    assert_eq!(computed[0].len(), 50);
    assert!(computed[0].iter().all(|path| (path.weight - 200.0).abs() < 1e-9));
}

#[test]
fn frequencies_of_sampled_paths_match_their_posteriors() {
    const COUNT: usize = 4000;
    let mut comparisons = 0;
    for seed in 0..60 {
        let tiny = TableLattice::new(seed);
        let computed =
            tiny.with(|session, lattice, frames| session.sample_paths(lattice, frames, COUNT, seed)).unwrap();
        for (utterance, computed) in computed.iter().enumerate() {
            let all_paths = tiny.paths(utterance);
            let weights = weights(&tiny, utterance);
            assert_eq!(computed.len(), if all_paths.is_empty() { 0 } else { COUNT });
            let total = log_sum(all_paths.iter().map(|path| path.weight));
            let mut counts: BTreeMap<&[u32], usize> = BTreeMap::new();
            for path in computed {
                *counts.entry(&path.alignment).or_default() += 1;
                let listed = weights[&path.alignment];
                assert!((path.weight - listed).abs() < 1e-12);
            }
            for ListedPath { alignment, weight, .. } in &all_paths {
                let p = (weight - total).exp();
                let computed = counts.get(&alignment[..]).copied().unwrap_or(0) as f64;
                let deviation = (COUNT as f64 * p * (1.0 - p)).sqrt();
                let expected = COUNT as f64 * p;
                assert!(
                    (computed - expected).abs() < 5.0 * deviation + 3.0,
                    "seed {seed}: {computed} not {expected}"
                );
                comparisons += usize::from(p > 0.01 && p < 0.99);
            }
        }
    }
    assert!(comparisons > 200);
}

#[test]
fn samples_depend_on_seed_and_utterance_only() {
    let tiny =
        (0..).map(TableLattice::new).find(|tiny| tiny.lengths.len() > 1 && tiny.paths(1).len() > 50).unwrap();
    let sample = |count, seed| {
        tiny.with(|session, lattice, frames| session.sample_paths(lattice, frames, count, seed)).unwrap()
    };
    let (five, twenty, other_seed) = (sample(5, 1), sample(20, 1), sample(20, 2));
    assert_eq!(five[1], twenty[1][..5]);
    assert_ne!(twenty[1], other_seed[1]);
    let [one_thread, two_threads] = [1, 2].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| sample(20, 1))
    });
    assert_eq!(one_thread, two_threads);
}

#[test]
fn a_budget_that_is_too_small_is_reported() {
    let tiny = TableLattice::new(1);
    let error = tiny
        .with(|_, lattice, frames| {
            LatticeSession::new(Options::new(10)).n_best_paths(lattice, frames, 3).map(drop)
        })
        .unwrap_err();
    assert!(matches!(error, lattice::Error::Budget { found: 10, .. }), "{error}");
}
