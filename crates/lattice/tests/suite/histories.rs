//! Pruned n-gram contexts of lattices, compared with their definition.
use std::collections::BTreeSet;

use lattice::{Context, Error, FullNGram, NextStateTable, context};

use crate::table_lattices::Random;

#[test]
fn all_histories_of_a_length_are_a_full_n_gram() {
    for (vocabulary, order) in [(1, 0), (3, 0), (1, 3), (2, 1), (2, 3), (4, 2)] {
        let full = FullNGram::new(vocabulary, order).unwrap();
        let histories: Vec<Vec<u32>> = (0..full.states())
            .map(|state| full.history(state).into_iter().map(|label| label as u32).collect())
            .filter(|history: &Vec<u32>| history.len() == order)
            .collect();
        let pruned = NextStateTable::from_histories(vocabulary, &histories).unwrap();
        assert_eq!(pruned.states(), full.states());
        for state in 0..full.states() {
            for label in 0..=vocabulary {
                assert_eq!(
                    pruned.next_state(state, label),
                    full.next_state(state, label),
                    "{state}, {label}"
                );
            }
        }
    }
}

#[test]
fn states_are_the_longest_suffixes_among_the_histories() {
    for seed in 0..200 {
        let mut numbers = Random::new(seed);
        let vocabulary = 1 + numbers.index(3);
        let mut string =
            |length| (0..length).map(|_| 1 + numbers.index(vocabulary) as u32).collect::<Vec<_>>();
        let histories: Vec<Vec<u32>> = [0, 1, 2, 3, 3, 4, 4].into_iter().map(&mut string).collect();
        let histories = &histories[seed as usize % 8..];
        let labels = string(200);
        let pruned = NextStateTable::from_histories(vocabulary, histories).unwrap();
        let states = context::histories(vocabulary, histories).unwrap();
        let prefixes: BTreeSet<&[u32]> = histories
            .iter()
            .flat_map(|string| (0..=string.len()).map(|length| &string[..length]))
            .chain([&[][..]])
            .collect();
        assert_eq!(states.iter().map(Vec::as_slice).collect::<BTreeSet<_>>(), prefixes);
        assert_eq!(states.len(), pruned.states());
        let path_states = context::walk_states(&pruned, &labels).unwrap();
        for (length, &state) in path_states.iter().enumerate() {
            let expected =
                (0..=length).map(|start| &labels[start..length]).find(|suffix| prefixes.contains(suffix));
            assert_eq!(Some(&states[state][..]), expected, "seed {seed}");
        }
    }
}

#[test]
fn invalid_labels_are_reported() {
    let error = NextStateTable::from_histories(2, &[vec![1], vec![2, 3]]).unwrap_err();
    assert_eq!(error, Error::Label { utterance: 1, position: 1, vocabulary: 2, found: 3 });
    assert!(NextStateTable::from_histories(2, &[vec![0]]).is_err());
    assert!(NextStateTable::from_histories(0, &[]).is_err());
}
