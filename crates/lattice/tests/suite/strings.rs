//! The n best label strings of a lattice, compared with enumeration.
use std::collections::BTreeMap;

use lattice::{
    AlignmentLattice, Error, Frames, FullNGram, LatticeSession, Merge, NBestOptions, RecognitionLattice,
    TableWeightFn,
};

use crate::table_lattices::{TableLattice, strings};

#[test]
fn the_n_best_strings_are_the_first_of_all_strings_in_order() {
    let mut long_lists = 0;
    for seed in 0..300 {
        let tiny = TableLattice::new(seed);
        for (merge, count) in [(Merge::Max, 1000), (Merge::Sum, 1000), (Merge::Max, 3), (Merge::Sum, 3)] {
            let options = NBestOptions { count, merge, max_prefixes: 10_000 };
            let computed = tiny
                .with(|session, lattice, frames| session.n_best_strings(lattice, frames, options))
                .unwrap();
            for (utterance, computed) in computed.iter().enumerate() {
                let all_strings = strings(tiny.paths(utterance), merge);
                let mut weights: Vec<f64> = all_strings.values().copied().collect();
                weights.sort_by(|a, b| b.total_cmp(a));
                assert_eq!(computed.len(), count.min(all_strings.len()), "seed {seed}");
                long_lists += usize::from(computed.len() > 3);
                for (computed, weight) in computed.iter().zip(weights) {
                    assert!(
                        (computed.weight - weight).abs() < 1e-12,
                        "seed {seed}: {computed:?}, not {weight}"
                    );
                    assert!(
                        (computed.weight - all_strings[&computed.labels]).abs() < 1e-12,
                        "seed {seed}: {computed:?}"
                    );
                }
                let different: BTreeMap<_, _> =
                    computed.iter().map(|computed| (&computed.labels, ())).collect();
                assert_eq!(different.len(), computed.len(), "seed {seed}: a string occurs twice");
            }
        }
    }
    assert!(long_lists > 100);
}

/// The search expands each prefix of the best string once.
///
/// It expands no other prefix: a limit of its length plus 1, for the empty string, is enough.
#[test]
fn the_best_string_needs_only_its_own_prefixes() {
    for seed in 0..200 {
        let tiny = TableLattice::new(seed);
        for utterance in 0..tiny.lengths.len() {
            let all_strings = strings(tiny.paths(utterance), Merge::Max);
            let longest = all_strings.keys().map(Vec::len).max().unwrap_or(0);
            let options = NBestOptions { count: 1, merge: Merge::Max, max_prefixes: longest + 1 };
            tiny.only(utterance)
                .with(|session, lattice, frames| session.n_best_strings(lattice, frames, options))
                .unwrap();
        }
    }
}

#[test]
fn exceeding_the_limit_is_an_error() {
    let (context, table) =
        (FullNGram::new(2, 1).unwrap(), TableWeightFn::new(&[0.0; 9], &[1, 3, 3]).unwrap());
    let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table).unwrap();
    let rows = [0.0; 8];
    let frames = Frames::new(&rows, &[2, 4, 1], &[0, 4]).unwrap();
    let mut session = LatticeSession::default();
    let options = NBestOptions { count: 81, merge: Merge::Sum, max_prefixes: 10 };
    let error = session.n_best_strings(&lattice, &frames, options).unwrap_err();
    assert_eq!(error, Error::Limit { utterance: 1, limit: 10 });
    let computed =
        session.n_best_strings(&lattice, &frames, NBestOptions { max_prefixes: 31, ..options }).unwrap();
    assert_eq!((computed[0].len(), computed[1].len()), (1, 31));
}
