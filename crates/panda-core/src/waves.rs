//! Which sites go together in a wave.
use std::ops::Range;

use crate::{Normalized, Plan, Real};

/// On the way forward: sites whose scores are kept, then the others.
pub(crate) fn forward<F: Real>(
    plan: &Plan<F>,
    sites: usize,
    strip: usize,
) -> impl Iterator<Item = Range<usize>> {
    [0..plan.kept, plan.kept..sites].into_iter().flat_map(move |part| {
        let step = plan.step(part.len(), strip);
        part.clone().step_by(step).map(move |from| from..(from + step).min(part.end))
    })
}

/// On the way back, among sites that count: waves whose rows are held as they are come first, then other sites whose scores
/// were kept, so many from the first, then the rest. Calls `each` with a wave and whether it is held.
pub(crate) fn backward<F: Real>(
    plan: &Plan<F>,
    strip: usize,
    normalized: &Normalized<F>,
    kept: usize,
    counts: &[bool],
    list: &mut Vec<usize>,
    mut each: impl FnMut(&[usize], bool),
) {
    // Held rows lie side by side, so that a few that do not count come along: their gradients are zero.
    let whole = |wave: &Range<usize>| 8 * count(&counts[wave.clone()]) >= 7 * wave.len();
    let counts = |site: &usize| counts[*site];
    let held = normalized.held.waves(plan, kept);
    for wave in held.clone().filter(whole) {
        list.clear();
        list.extend(wave);
        each(list, true);
    }
    let first = held.clone().last().map_or(0, |wave| wave.end);
    let partly = || held.clone().filter(|wave| !whole(wave)).flatten();
    let kept_sites = || partly().chain(first..kept).filter(counts);
    let rest = || (kept..normalized.max.len()).filter(counts);
    let streams: [(&mut dyn Iterator<Item = usize>, usize); 2] =
        [(&mut kept_sites(), kept_sites().count()), (&mut rest(), rest().count())];
    for (sites, count) in streams {
        let step = plan.step(count, strip);
        for _ in 0..count.div_ceil(step) {
            list.clear();
            list.extend((&mut *sites).take(step));
            each(list, false);
        }
    }
}

/// How many sites count.
pub(crate) fn count(counts: &[bool]) -> usize {
    counts.iter().filter(|counts| **counts).count()
}
