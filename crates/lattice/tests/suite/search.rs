//! n best and sampled paths against lists of all.
use std::collections::BTreeMap;

use lattice::{LatticeSession, Options};

use crate::listing::{Tiny, log_sum};

const LATTICES: u64 = 300;

fn by_weight<T>(mut listed: Vec<T>, weight: impl Fn(&T) -> f64) -> Vec<T> {
    listed.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    listed
}

/// Weights of all alignments that are paths.
fn weights(tiny: &Tiny, utterance: usize) -> BTreeMap<Vec<u32>, f64> {
    tiny.paths(utterance).into_iter().map(|(alignment, _, weight)| (alignment, weight)).collect()
}

#[test]
fn the_n_best_paths_are_the_first_of_all_paths_in_order() {
    let mut several = 0;
    for seed in 0..LATTICES {
        let tiny = Tiny::new(seed);
        for count in [0, 1, 2, 7, 1000] {
            let found =
                tiny.with(|session, lattice, frames| session.n_best_paths(lattice, frames, count)).unwrap();
            assert_eq!(found.len(), tiny.lengths.len());
            for (utterance, found) in found.iter().enumerate() {
                let all = by_weight(tiny.paths(utterance), |path| path.2);
                let weights = weights(&tiny, utterance);
                assert_eq!(found.len(), count.min(all.len()), "seed {seed}, {count} of {}", all.len());
                several += usize::from(found.len() > 5);
                for (path, (.., weight)) in found.iter().zip(&all) {
                    assert!((path.weight - weight).abs() < 1e-12, "seed {seed}: {path:?}, not {weight}");
                    let own = weights[&path.alignment];
                    assert!((path.weight - own).abs() < 1e-12, "seed {seed}: {path:?}, not {own}");
                }
                let mut different: Vec<_> = found.iter().map(|path| &path.alignment).collect();
                different.sort();
                different.dedup();
                assert_eq!(different.len(), found.len(), "seed {seed}: a path came twice");
            }
        }
    }
    assert!(several > 100);
}

#[test]
fn the_first_of_the_best_paths_weighs_as_the_best_path() {
    for seed in 0..LATTICES {
        let tiny = Tiny::new(seed);
        tiny.with(|session, lattice, frames| {
            let best = session.best_paths(lattice, frames)?;
            let found = session.n_best_paths(lattice, frames, 1)?;
            for (best, found) in best.iter().zip(found) {
                match found.first() {
                    Some(found) => assert!((best.weight - found.weight).abs() < 1e-12, "seed {seed}"),
                    None => assert_eq!(best.weight, f64::NEG_INFINITY, "seed {seed}"),
                }
            }
            Ok(())
        })
        .unwrap();
    }
}

/// Ties everywhere in a long lattice: what a search by plain sums would drown in.
#[test]
fn ties_do_not_multiply_the_work() {
    use lattice::{AlignmentLattice, Frames, FullNGram, RecognitionLattice, TableWeightFn};
    let context = FullNGram::new(3, 1).unwrap();
    let weights = [0.1; 16];
    let table = TableWeightFn::new(&weights, &[1, 4, 4]).unwrap();
    let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table).unwrap();
    let rows = [0.0; 2000];
    let frames = Frames::new(&rows, &[1, 2000, 1], &[2000]).unwrap();
    let found = LatticeSession::default().n_best_paths(&lattice, &frames, 50).unwrap();
    assert_eq!(found[0].len(), 50);
    assert!(found[0].iter().all(|path| (path.weight - 200.0).abs() < 1e-9));
}

#[test]
fn sampled_paths_come_as_often_as_their_posterior_says() {
    const COUNT: usize = 4000;
    let mut looked_at = 0;
    for seed in 0..60 {
        let tiny = Tiny::new(seed);
        let found =
            tiny.with(|session, lattice, frames| session.sample_paths(lattice, frames, COUNT, seed)).unwrap();
        for (utterance, found) in found.iter().enumerate() {
            let all = tiny.paths(utterance);
            let weights = weights(&tiny, utterance);
            assert_eq!(found.len(), if all.is_empty() { 0 } else { COUNT });
            let total = log_sum(all.iter().map(|path| path.2));
            let mut counts: BTreeMap<&[u32], usize> = BTreeMap::new();
            for path in found {
                *counts.entry(&path.alignment).or_default() += 1;
                let own = weights[&path.alignment];
                assert!((path.weight - own).abs() < 1e-12);
            }
            for (alignment, _, weight) in &all {
                let p = (weight - total).exp();
                let found = counts.get(&alignment[..]).copied().unwrap_or(0) as f64;
                let deviation = (COUNT as f64 * p * (1.0 - p)).sqrt();
                let expected = COUNT as f64 * p;
                assert!(
                    (found - expected).abs() < 5.0 * deviation + 3.0,
                    "seed {seed}: {found} not {expected}"
                );
                looked_at += usize::from(p > 0.01 && p < 0.99);
            }
        }
    }
    assert!(looked_at > 200);
}

#[test]
fn draws_depend_on_seed_and_utterance_alone() {
    let tiny = (0..).map(Tiny::new).find(|tiny| tiny.lengths.len() > 1 && tiny.paths(1).len() > 50).unwrap();
    let draw = |count, seed| {
        tiny.with(|session, lattice, frames| session.sample_paths(lattice, frames, count, seed)).unwrap()
    };
    let (few, many, other) = (draw(5, 1), draw(20, 1), draw(20, 2));
    assert_eq!(few[1], many[1][..5]);
    assert_ne!(many[1], other[1]);
    let [one, two] = [1, 2].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| draw(20, 1))
    });
    assert_eq!(one, two);
}

#[test]
fn a_budget_that_holds_nothing_is_said() {
    let tiny = Tiny::new(1);
    let error = tiny
        .with(|_, lattice, frames| {
            LatticeSession::new(Options::new(10)).n_best_paths(lattice, frames, 3).map(drop)
        })
        .unwrap_err();
    assert!(matches!(error, lattice::Error::Budget { found: 10, .. }), "{error}");
}
