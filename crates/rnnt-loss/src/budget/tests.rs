//! Tests of grouping the utterances of a loss call.
use super::*;

/// Smallest possible maximum over a number of groups of neighbors.
fn min_largest_group(sizes: &[usize], count: usize) -> usize {
    if count == 1 || sizes.len() <= 1 {
        return sizes.iter().sum();
    }
    let split_at = |index: usize| {
        sizes[..index].iter().sum::<usize>().max(min_largest_group(&sizes[index..], count - 1))
    };
    (1..=sizes.len()).map(split_at).min().unwrap_or(0)
}

#[test]
fn groups_are_minimal_and_balanced() {
    let mut state = 1u32;
    for case in 0..400 {
        let mut draw = |limit: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % limit
        };
        let sizes: Vec<usize> = (0..draw(9)).map(|_| draw(50) as usize).collect();
        let limit = draw(120) as usize;
        let groups = balance_groups(&sizes, limit);
        let group_size = |group: &Range<usize>| sizes[group.clone()].iter().sum::<usize>();
        assert!(groups.iter().flat_map(Range::clone).eq(0..sizes.len()), "{case}");
        assert!(
            groups.iter().all(|group| group_size(group) <= limit || group.len() == 1),
            "{case}: {groups:?}"
        );
        assert_eq!(groups.len(), fill_groups(&sizes, limit).len(), "{case}");
        let largest = groups.iter().map(group_size).max().unwrap_or(0);
        if sizes.iter().all(|&size| size <= limit) && !sizes.is_empty() {
            assert_eq!(
                largest,
                min_largest_group(&sizes, groups.len()),
                "{case}: {sizes:?} {limit} {groups:?}"
            );
        }
    }
    assert_eq!(balance_groups(&[1000; 8], 7058), [0..4, 4..8]);
}
