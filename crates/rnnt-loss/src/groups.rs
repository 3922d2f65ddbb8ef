//! Utterances that go through a session together.
use std::ops::Range;

use crate::{Options, objective::Objective};

/// Sites of a group where no more scores can be kept: four full waves of most plans.
const SITES: usize = 6272;
const SHORTEST: usize = 64;

/// Neighbours, as many as fit. Short utterances share a group, so that its waves are full; a long one is alone.
pub(crate) fn groups(
    objective: &Objective,
    classes: usize,
    element: usize,
    options: &Options,
) -> Vec<Range<usize>> {
    let (budget, bytes) = (options.budget, 128 + 32 * objective.width().0);
    let each = classes.saturating_mul(element).saturating_add(bytes);
    let kept = if budget.keeps() { budget.limit() / 2 / each } else { 0 };
    let room = match options.plan {
        Some(plan) => plan.wave,
        None => kept.max((budget.limit() / 4 / bytes).clamp(SHORTEST, SITES)),
    };
    let lattices = objective.sites().lattices();
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut sites = 0;
    for utterance in 0..lattices.batch() {
        let more = lattices.range(utterance).len();
        match groups.last_mut() {
            Some(group) if sites + more <= room => {
                group.end = utterance + 1;
                sites += more;
            }
            _ => {
                groups.push(utterance..utterance + 1);
                sites = more;
            }
        }
    }
    groups
}
