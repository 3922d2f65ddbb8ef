//! Viterbi and sampled alignments compared with a list of all paths.
//!
//! The tests cover every topology, full lattices and bands, emission times and confidences, and the
//! same functions of CTC.
use std::{collections::HashMap, ops::Range};

use oracle::ctc::collapse;
use proptest::prelude::*;
use rnnt_dp::ctc::TieBreak;
use rnnt_dp::{
    AlignmentPath, Error, Lattices, Regularizers, Site, Topology, TopologyArc, best_path, confidences, ctc,
    expected_emission_frames, forward_backward, sample_paths,
};

/// Log-probability of an utterance without a path.
const NO_PATH: f64 = f64::NEG_INFINITY;
const DURATIONS: [usize; 3] = [0, 1, 3];

/// How arc emissions are composed, independent of the topology's own description.
#[derive(Debug, Clone, Copy, PartialEq)]
enum EmissionKind {
    Plain,
    Constrained,
    Tdt,
}

fn topologies() -> Vec<(Topology, EmissionKind)> {
    let arc = |frames, labels, may_end| TopologyArc { frames, labels, may_end };
    let custom = |arcs| (Topology::new(arcs).unwrap(), EmissionKind::Plain);
    vec![
        (Topology::rnnt(), EmissionKind::Plain),
        (Topology::modified(), EmissionKind::Plain),
        (Topology::constrained(), EmissionKind::Constrained),
        (Topology::multi_blank(&[2, 4]).unwrap(), EmissionKind::Plain),
        (Topology::tdt(&DURATIONS).unwrap(), EmissionKind::Tdt),
        custom(vec![arc(2, 0, true), arc(1, 1, false), arc(0, 2, false), arc(1, 0, true)]),
        custom(vec![arc(1, 1, true)]),
    ]
}

/// Every path of a lattice, by its definition: sites, arcs and scores.
fn every_path(
    lattices: &Lattices,
    topology: &Topology,
    kind: EmissionKind,
    emissions: &[f64],
) -> Vec<AlignmentPath> {
    let (frames, labels, width) = (lattices.num_frames(0), lattices.num_labels(0), topology.num_columns());
    let sites: Vec<Site> = lattices.utterance_sites(0).collect();
    let value = |frame: usize, label: usize, column: usize| {
        let index = sites.iter().position(|site| *site == Site { frame, label });
        index.map_or(NO_PATH, |index| emissions[index * width + column])
    };
    let emission = |site: Site, arc: usize| {
        let Site { frame: t, label: u } = site;
        match kind {
            EmissionKind::Plain => value(t, u, arc),
            EmissionKind::Constrained if arc == 1 => value(t, u, 1) + value(t, u + 1, 0),
            EmissionKind::Constrained => value(t, u, 0),
            // Blanks have all durations except the first, which is 0.
            EmissionKind::Tdt if arc < 2 => value(t, u, 0) + value(t, u, 3 + arc),
            EmissionKind::Tdt => value(t, u, 1) + value(t, u, arc),
        }
    };
    let mut complete = Vec::new();
    let mut partial = vec![(Site { frame: 0, label: 0 }, Vec::new())];
    while let Some((site, steps)) = partial.pop() {
        if !sites.contains(&site) {
            continue;
        }
        for (arc, topology_arc) in topology.arcs().iter().enumerate() {
            let mut steps: Vec<rnnt_dp::PathStep> = steps.clone();
            steps.push(rnnt_dp::PathStep { site, arc, log_prob: emission(site, arc) });
            let target =
                Site { frame: site.frame + topology_arc.frames, label: site.label + topology_arc.labels };
            if (target.frame, target.label) == (frames, labels) && topology_arc.may_end {
                let log_prob = steps.iter().map(|step| step.log_prob).sum();
                complete.push(AlignmentPath { log_prob, steps });
            } else {
                partial.push((target, steps));
            }
        }
    }
    complete.retain(|path| path.log_prob > NO_PATH);
    complete
}

fn arcs(path: &AlignmentPath) -> Vec<usize> {
    path.steps.iter().map(|step| step.arc).collect()
}

/// Paths with their posterior probabilities.
fn posterior(paths: &[AlignmentPath]) -> Vec<(&AlignmentPath, f64)> {
    let best_log_prob = paths.iter().map(|path| path.log_prob).fold(NO_PATH, f64::max);
    let total: f64 = paths.iter().map(|path| (path.log_prob - best_log_prob).exp()).sum();
    paths.iter().map(|path| (path, (path.log_prob - best_log_prob).exp() / total)).collect()
}

/// A full lattice, or one with bands of at least two positions.
fn shapes() -> impl Strategy<Value = Lattices> {
    let band = |u: usize| (0..=u, 2..=u + 2).prop_map(move |(low, len)| low..(low + len).min(u + 1));
    (1usize..6, 0usize..4).prop_flat_map(move |(t, u)| {
        let bands = prop::collection::vec(band(u), t);
        (Just((t, u)), prop::option::of(bands)).prop_map(|((t, u), bands)| match bands {
            None => Lattices::new(vec![t], vec![u]).unwrap(),
            Some(bands) => Lattices::banded(vec![u], vec![bands]).unwrap(),
        })
    })
}

/// Small integers, whose sums are exact and often equal, and -inf.
fn emissions(count: usize, seed: u64) -> Vec<f64> {
    let value = |draw| if draw == 12 { NO_PATH } else { -f64::from(draw % 4) };
    oracle::noise::integers(seed, 0, count, 13).into_iter().map(value).collect()
}

proptest! {
    #[test]
    fn best_path_is_the_first_of_equal_paths(lattices in shapes(), seed: u64) {
        for (topology, kind) in topologies() {
            let emissions = emissions(lattices.num_sites() * topology.num_columns(), seed);
            let all = every_path(&lattices, &topology, kind, &emissions);
            let computed = &best_path(&lattices, &topology, &emissions).unwrap()[0];
            let best_log_prob = all.iter().map(|path| path.log_prob).fold(NO_PATH, f64::max);
            let best = all.iter().filter(|path| path.log_prob == best_log_prob);
            match best.min_by_key(|path| arcs(path)) {
                Some(best) => prop_assert_eq!(computed, best),
                None => prop_assert_eq!((computed.log_prob, computed.steps.len()), (NO_PATH, 0)),
            }
        }
    }

    #[test]
    fn emission_times_match_the_paths(lattices in shapes(), seed: u64, fastemit in 0.0..1.0f64) {
        for (topology, kind) in topologies() {
            let emissions = emissions(lattices.num_sites() * topology.num_columns(), seed);
            let all = every_path(&lattices, &topology, kind, &emissions);
            let adjoints = |fastemit| {
                let regularizers = Regularizers { fastemit, ..Regularizers::default() };
                forward_backward(&lattices, &topology, &emissions, &regularizers).unwrap().adjoints
            };
            let best = best_path(&lattices, &topology, &emissions).unwrap();
            let frames = &expected_emission_frames(&lattices, &topology, &adjoints(fastemit)).unwrap()[0];
            let label_confidences = &confidences(&lattices, &topology, &adjoints(0.0), &best).unwrap()[0];
            let labels = if all.is_empty() { 0 } else { lattices.num_labels(0) };
            prop_assert_eq!((frames.len(), label_confidences.len()), (labels, labels));
            for label in 0..labels {
                let frame_of =
                    |path: &AlignmentPath| path.label_steps(&topology).nth(label).unwrap().site.frame;
                let posterior = posterior(&all);
                let frame: f64 = posterior.iter().map(|(path, p)| p * frame_of(path) as f64).sum();
                let same = posterior.iter().filter(|(path, _)| frame_of(path) == frame_of(&best[0]));
                let confidence: f64 = same.map(|(_, p)| p).sum();
                prop_assert!((frames[label] - frame).abs() < 1e-12, "{} {frame}", frames[label]);
                prop_assert!(
                    (label_confidences[label] - confidence).abs() < 1e-12,
                    "{} {confidence}",
                    label_confidences[label]
                );
            }
        }
    }

    #[test]
    fn best_ctc_alignment_is_the_best_labeling(
        t in 1usize..7, labels in prop::collection::vec(1u32..4, 0..4), seed: u64, is_early: bool,
    ) {
        let ties = if is_early { TieBreak::Early } else { TieBreak::Late };
        let classes = 4;
        let values = emissions(t * classes, seed);
        let score = |t: usize, class: u32| values[t * classes + class as usize];
        let columns = |t| std::iter::once(0).chain(labels.iter().copied()).map(move |c| score(t, c));
        let emissions: Vec<f64> = (0..t).flat_map(columns).collect();
        let computed = ctc::best_path(&labels, &emissions, ties).unwrap();
        let mut best_log_prob = NO_PATH;
        for number in 0..classes.pow(t as u32) {
            let labeling: Vec<u32> =
                (0..t).map(|t| (number / classes.pow(t as u32) % classes) as u32).collect();
            if collapse(&labeling, 0) == labels {
                let log_prob = labeling.iter().enumerate().map(|(t, &c)| score(t, c)).sum();
                best_log_prob = best_log_prob.max(log_prob);
            }
        }
        prop_assert_eq!(computed.log_prob, best_log_prob);
        prop_assert_eq!(computed.columns.len(), if best_log_prob > NO_PATH { t } else { 0 });
        if best_log_prob > NO_PATH {
            let labeling: Vec<u32> =
                computed.columns.iter().map(|&c| if c == 0 { 0 } else { labels[c - 1] }).collect();
            prop_assert_eq!(&collapse(&labeling, 0), &labels);
            let log_prob = labeling.iter().enumerate().map(|(t, &c)| score(t, c)).sum::<f64>();
            prop_assert_eq!(log_prob, best_log_prob);
            let spans = computed.spans();
            prop_assert_eq!(spans.len(), labels.len());
            for (span, label) in spans.into_iter().zip(1..) {
                let inside: Vec<usize> = (0..t).filter(|&t| computed.columns[t] == label).collect();
                prop_assert_eq!(span.collect::<Vec<_>>(), inside);
            }
        }
    }
}

/// Returns the states of each CTC alignment of the labels.
fn ctc_alignments(labels: &[u32], frames: usize) -> Vec<Vec<usize>> {
    let states = 2 * labels.len() + 1;
    let may_follow = |s: usize, next: usize| {
        next == s || next == s + 1 || (next == s + 2 && next % 2 == 1 && labels[s / 2] != labels[next / 2])
    };
    let mut paths: Vec<Vec<usize>> = (0..states.min(2)).map(|s| vec![s]).collect();
    for _ in 1..frames {
        let extend = |path: Vec<usize>| {
            let last = path[path.len() - 1];
            let next = (0..states).filter(move |&next| may_follow(last, next));
            next.map(move |next| [&path[..], &[next]].concat()).collect::<Vec<_>>()
        };
        paths = paths.into_iter().flat_map(extend).collect();
    }
    paths.retain(|path| path[frames - 1] + 2 >= states);
    paths
}

proptest! {
    #[test]
    fn ties_of_ctc_alignments_are_resolved_as_documented(
        t in 1usize..6, labels in prop::collection::vec(1u32..3, 0..4), seed in prop::collection::vec(0u8..2, 24),
    ) {
        let width = labels.len() + 1;
        let emissions: Vec<f64> = seed.iter().cycle().take(t * width).map(|&x| -f64::from(x)).collect();
        let column = |state: usize| if state.is_multiple_of(2) { 0 } else { state.div_ceil(2) };
        let score = |path: &[usize]| -> f64 {
            path.iter().enumerate().map(|(t, &s)| emissions[t * width + column(s)]).sum()
        };
        let paths = ctc_alignments(&labels, t);
        let best = paths.iter().map(|path| score(path)).fold(NO_PATH, f64::max);
        let ties: Vec<&Vec<usize>> = paths.iter().filter(|path| score(path) == best).collect();
        let columns = |path: &&Vec<usize>| path.iter().map(|&s| column(s)).collect::<Vec<_>>();
        let late = ties.iter().min().map(columns).unwrap_or_default();
        // The later state at the last frame that differs; labels have priority in the last frame.
        let key = |path: &&&Vec<usize>| {
            let mut key: Vec<usize> = path.iter().rev().copied().collect();
            key[0] = key[0] % 2 * 1000 + key[0];
            key
        };
        let early = ties.iter().max_by_key(key).map(columns).unwrap_or_default();
        let best_columns = |ties| ctc::best_path(&labels, &emissions, ties).unwrap().columns;
        prop_assert_eq!(best_columns(TieBreak::Late), late);
        prop_assert_eq!(best_columns(TieBreak::Early), early);
    }
}

#[test]
fn equally_good_paths_emit_late() {
    let lattices = Lattices::new(vec![3], vec![2]).unwrap();
    let path = &best_path(&lattices, &Topology::rnnt(), &[-1.0; 18]).unwrap()[0];
    assert_eq!(arcs(path), [0, 0, 1, 1, 0]);
    assert_eq!(path.label_steps(&Topology::rnnt()).map(|step| step.site.frame).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(ctc::best_path(&[1, 1], &[-1.0; 15], TieBreak::Late).unwrap().columns, [0, 0, 1, 0, 2]);
    assert_eq!(ctc::best_path(&[1, 1], &[-1.0; 15], TieBreak::Early).unwrap().columns, [1, 0, 2, 2, 2]);
}

/// Returns true if a sample count is near its expectation.
///
/// The limit is five standard deviations.
fn is_plausible(samples: usize, count: usize, probability: f64) -> bool {
    let expected = count as f64 * probability;
    (samples as f64 - expected).abs() <= 1.0 + 5.0 * (expected * (1.0 - probability)).sqrt()
}

#[test]
fn sample_frequencies_match_path_probabilities() {
    const COUNT: usize = 20_000;
    let band: Vec<Range<usize>> = vec![0..2, 0..3, 1..4, 2..4];
    let shapes = [Lattices::new(vec![4], vec![3]).unwrap(), Lattices::banded(vec![3], vec![band]).unwrap()];
    for (lattices, (topology, kind)) in
        shapes.iter().flat_map(|shape| topologies().into_iter().map(move |t| (shape, t)))
    {
        let emissions = oracle::noise::normal(3, 1, lattices.num_sites() * topology.num_columns(), 0.7);
        let all = every_path(lattices, &topology, kind, &emissions);
        let samples = &sample_paths(lattices, &topology, &emissions, COUNT, 11).unwrap()[0];
        assert_eq!(samples.len(), if all.is_empty() { 0 } else { COUNT });
        let mut counts: HashMap<Vec<usize>, usize> = HashMap::new();
        for path in samples {
            *counts.entry(arcs(path)).or_default() += 1;
        }
        for (path, probability) in posterior(&all) {
            let computed = counts.remove(&arcs(path)).unwrap_or(0);
            assert!(is_plausible(computed, COUNT, probability), "{topology:?}: {computed} {probability}");
            if let Some(same) = samples.iter().find(|sample| arcs(sample) == arcs(path)) {
                assert_eq!(same.steps, path.steps);
                assert!((same.log_prob - path.log_prob).abs() < 1e-12);
            }
        }
        assert!(counts.is_empty(), "{topology:?}: paths that do not exist");
    }
}

#[test]
fn sampled_arcs_match_the_adjoints() {
    const COUNT: usize = 4_000;
    let lattices = Lattices::new(vec![40, 25], vec![12, 9]).unwrap();
    for topology in [Topology::rnnt(), Topology::modified(), Topology::tdt(&DURATIONS).unwrap()] {
        let emissions = oracle::noise::normal(5, 2, lattices.num_sites() * topology.num_columns(), 1.0);
        let out = forward_backward(&lattices, &topology, &emissions, &Regularizers::default()).unwrap();
        let samples = sample_paths(&lattices, &topology, &emissions, COUNT, 6).unwrap();
        let mut counts = vec![0; out.adjoints.len()];
        for (b, paths) in samples.iter().enumerate() {
            for step in paths.iter().flat_map(|path| &path.steps) {
                let site = lattices.site_range(b).start + lattices.site_index(b, step.site).unwrap();
                counts[site * topology.num_columns() + topology.arc_token(step.arc)] += 1;
            }
        }
        let tokens = counts.chunks(topology.num_columns()).zip(out.adjoints.chunks(topology.num_columns()));
        for (counts, adjoints) in tokens {
            for (computed, adjoint) in counts.iter().zip(adjoints).take(topology.num_tokens()) {
                assert!(is_plausible(*computed, COUNT, -adjoint), "{computed} {adjoint}");
            }
        }
    }
}

#[test]
fn sampled_ctc_alignments_match_the_adjoints() {
    const COUNT: usize = 20_000;
    let labels = [2, 2, 1];
    let values = oracle::noise::normal(9, 0, 8 * 3, 1.0);
    let columns = |t: usize| [0, 2, 2, 1].map(|class| values[t * 3 + class]);
    let emissions: Vec<f64> = (0..8).flat_map(columns).collect();
    let out = ctc::forward_backward(&labels, &emissions, &Regularizers::default()).unwrap();
    let samples = ctc::sample_paths(&labels, &emissions, COUNT, 4).unwrap();
    let mut counts = vec![0; emissions.len()];
    for path in &samples {
        let score: f64 = path.columns.iter().enumerate().map(|(t, c)| emissions[t * 4 + c]).sum();
        assert!((score - path.log_prob).abs() < 1e-12 && path.spans().len() == 3);
        path.columns.iter().enumerate().for_each(|(t, c)| counts[t * 4 + c] += 1);
    }
    for (computed, adjoint) in counts.into_iter().zip(&out.adjoints) {
        assert!(is_plausible(computed, COUNT, -adjoint), "{computed} {adjoint}");
    }
    assert_eq!(samples[..7], ctc::sample_paths(&labels, &emissions, 7, 4).unwrap());
    assert_ne!(samples[..7], ctc::sample_paths(&labels, &emissions, 7, 5).unwrap());
    assert_eq!(ctc::sample_paths(&labels, &emissions[..12], 7, 4).unwrap(), []);
}

#[test]
fn results_do_not_depend_on_threads_batch_or_count() {
    let lattices = Lattices::new(vec![50, 3, 120], vec![20, 40, 9]).unwrap();
    for (topology, _) in topologies() {
        let emissions = oracle::noise::normal(1, 3, lattices.num_sites() * topology.num_columns(), 2.0);
        let outcomes = [1, 2, 5].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let best = best_path(&lattices, &topology, &emissions).unwrap();
                (best, sample_paths(&lattices, &topology, &emissions, 9, 8).unwrap())
            })
        });
        assert!(outcomes.iter().all(|outcome| outcome == &outcomes[0]));
        let (best, samples) = &outcomes[0];
        let first_emissions = &emissions[..lattices.site_range(0).end * topology.num_columns()];
        let single = Lattices::new(vec![50], vec![20]).unwrap();
        assert_eq!(best_path(&single, &topology, first_emissions).unwrap()[0], best[0]);
        let short = sample_paths(&single, &topology, first_emissions, 4, 8).unwrap();
        assert_eq!(short[0], samples[0][..short[0].len()]);
        if !samples[0].is_empty() && samples[0][0] != samples[0][1] {
            assert_ne!(sample_paths(&single, &topology, first_emissions, 9, 7).unwrap()[0], samples[0]);
        }
    }
}

#[test]
fn utterances_without_a_path_are_empty_and_do_not_affect_others() {
    let lattices = Lattices::new(vec![1, 2], vec![2, 1]).unwrap();
    let (topology, emissions) = (Topology::modified(), vec![-1.0; lattices.num_sites() * 2]);
    let out = forward_backward(&lattices, &topology, &emissions, &Regularizers::default()).unwrap();
    let best = best_path(&lattices, &topology, &emissions).unwrap();
    assert_eq!(best[0], AlignmentPath { log_prob: NO_PATH, steps: Vec::new() });
    assert_eq!(arcs(&best[1]), [0, 1]);
    assert_eq!(expected_emission_frames(&lattices, &topology, &out.adjoints).unwrap(), [vec![], vec![0.5]]);
    assert_eq!(confidences(&lattices, &topology, &out.adjoints, &best).unwrap(), [vec![], vec![0.5]]);
    let samples = sample_paths(&lattices, &topology, &emissions, 3, 0).unwrap();
    assert_eq!(samples.iter().map(Vec::len).collect::<Vec<_>>(), [0, 3]);
    // The first site of a band is missing, so that no path starts.
    let lattices = Lattices::banded(vec![1], vec![vec![1..2, 0..2]]).unwrap();
    assert_eq!(best_path(&lattices, &topology, &[-1.0; 6]).unwrap()[0].steps, []);
    assert_eq!(sample_paths(&lattices, &topology, &[-1.0; 6], 3, 0).unwrap(), [vec![]]);
}

#[test]
fn errors_name_the_invalid_argument() {
    let (lattices, topology) = (Lattices::new(vec![2, 2], vec![1, 1]).unwrap(), Topology::rnnt());
    let mut emissions = vec![-1.0; 16];
    let short = best_path(&lattices, &topology, &emissions[1..]);
    assert!(matches!(short, Err(Error::Length { argument: "emissions", expected: 16, found: 15 })));
    let short = expected_emission_frames(&lattices, &topology, &emissions[1..]);
    assert!(matches!(short, Err(Error::Length { argument: "adjoints", .. })));
    let short = confidences(&lattices, &topology, &emissions, &[]);
    assert!(matches!(short, Err(Error::Length { argument: "paths", expected: 2, found: 0 })));
    emissions[13] = f64::NAN;
    for error in [
        best_path(&lattices, &topology, &emissions).unwrap_err(),
        sample_paths(&lattices, &topology, &emissions, 1, 0).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Emission { utterance: 1, frame: 1, label: 0, arc: 1, .. }), "{error}");
    }
    let huge = best_path(&lattices, &topology, &[1e308; 16]);
    assert!(matches!(huge, Err(Error::Overflow { utterance: 0, .. })));
    assert!(matches!(ctc::best_path(&[1], &[1e308; 6], TieBreak::Late), Err(Error::Overflow { .. })));
    assert!(matches!(ctc::sample_paths(&[1], &[1e308; 6], 1, 0), Err(Error::Overflow { .. })));
    assert!(matches!(
        ctc::best_path(&[1], &[0.0, f64::NAN], TieBreak::Late),
        Err(Error::Emission { label: 1, .. })
    ));
}
