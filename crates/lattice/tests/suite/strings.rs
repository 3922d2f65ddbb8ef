//! The n best strings against lists of all paths.
use std::collections::BTreeMap;

use lattice::{
    AlignmentLattice, Error, Frames, FullNGram, LatticeSession, Merge, NBestOptions, RecognitionLattice,
    TableWeightFn,
};

use crate::listing::{Tiny, strings};

#[test]
fn the_n_best_strings_are_the_first_of_all_strings_in_order() {
    let mut several = 0;
    for seed in 0..300 {
        let tiny = Tiny::new(seed);
        for (merge, count) in [(Merge::Max, 1000), (Merge::Sum, 1000), (Merge::Max, 3), (Merge::Sum, 3)] {
            let asked = NBestOptions { count, merge, limit: 10_000 };
            let found =
                tiny.with(|session, lattice, frames| session.n_best_strings(lattice, frames, asked)).unwrap();
            for (utterance, found) in found.iter().enumerate() {
                let all = strings(tiny.paths(utterance), merge);
                let mut weights: Vec<f64> = all.values().copied().collect();
                weights.sort_by(|a, b| b.total_cmp(a));
                assert_eq!(found.len(), count.min(all.len()), "seed {seed}");
                several += usize::from(found.len() > 3);
                for (found, weight) in found.iter().zip(weights) {
                    assert!((found.weight - weight).abs() < 1e-12, "seed {seed}: {found:?}, not {weight}");
                    assert!((found.weight - all[&found.labels]).abs() < 1e-12, "seed {seed}: {found:?}");
                }
                let different: BTreeMap<_, _> = found.iter().map(|found| (&found.labels, ())).collect();
                assert_eq!(different.len(), found.len(), "seed {seed}: a string came twice");
            }
        }
    }
    assert!(several > 100);
}

/// Of the best path no prefix is looked at twice, and no other one: a limit of its length and the empty string is enough.
#[test]
fn the_best_string_of_one_path_needs_no_more_prefixes_than_it_has() {
    for seed in 0..200 {
        let tiny = Tiny::new(seed);
        for utterance in 0..tiny.lengths.len() {
            let all = strings(tiny.paths(utterance), Merge::Max);
            let longest = all.keys().map(Vec::len).max().unwrap_or(0);
            let asked = NBestOptions { count: 1, merge: Merge::Max, limit: longest + 1 };
            tiny.only(utterance)
                .with(|session, lattice, frames| session.n_best_strings(lattice, frames, asked))
                .unwrap();
        }
    }
}

#[test]
fn work_beyond_the_limit_is_an_error() {
    let (context, table) =
        (FullNGram::new(2, 1).unwrap(), TableWeightFn::new(&[0.0; 9], &[1, 3, 3]).unwrap());
    let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table).unwrap();
    let rows = [0.0; 8];
    let frames = Frames::new(&rows, &[2, 4, 1], &[0, 4]).unwrap();
    let mut session = LatticeSession::default();
    let asked = NBestOptions { count: 81, merge: Merge::Sum, limit: 10 };
    let error = session.n_best_strings(&lattice, &frames, asked).unwrap_err();
    assert_eq!(error, Error::Limit { utterance: 1, limit: 10 });
    let found = session.n_best_strings(&lattice, &frames, NBestOptions { limit: 31, ..asked }).unwrap();
    assert_eq!((found[0].len(), found[1].len()), (1, 31));
}
