//! CTC losses and paths compared with every labeling of the frames.
//!
//! A labeling assigns a class to each frame; those that collapse to the labels are alignments.
use oracle::ctc::collapse;
use proptest::prelude::*;
use rnnt_dp::ctc::TieBreak;
use rnnt_dp::{Error, Regularizers, ctc, delay_shift};

/// Number of classes.
const CLASSES: usize = 4;

/// Compact emissions: the columns of the blank and of the labels at each frame.
fn compact_emissions(log_probs: &[f64], labels: &[u32]) -> Vec<f64> {
    let row = |row: &[f64]| {
        std::iter::once(0).chain(labels.iter().copied()).map(|c| row[c as usize]).collect::<Vec<f64>>()
    };
    log_probs.chunks(CLASSES).flat_map(row).collect()
}

/// An alignment of a label sequence.
struct Alignment {
    /// Class of each frame.
    classes: Vec<u32>,
    /// Frames where labels begin.
    begins: Vec<usize>,
    score: f64,
}

/// Every alignment of the labels, by definition.
fn alignments(log_probs: &[f64], labels: &[u32], regularizers: &Regularizers) -> Vec<Alignment> {
    let frames = log_probs.len() / CLASSES;
    let labelings = (0..CLASSES.pow(frames as u32)).map(|number| {
        (0..frames).map(|t| (number / CLASSES.pow(t as u32) % CLASSES) as u32).collect::<Vec<u32>>()
    });
    labelings
        .filter(|classes| collapse(classes, 0) == labels)
        .map(|classes| {
            let begins: Vec<usize> = (0..frames)
                .filter(|&t| classes[t] != 0 && (t == 0 || classes[t - 1] != classes[t]))
                .collect();
            let sum: f64 =
                classes.iter().enumerate().map(|(t, &c)| log_probs[t * CLASSES + c as usize]).sum();
            let early_shift: f64 =
                begins.iter().map(|&t| delay_shift(regularizers.delay_penalty, t, frames)).sum();
            let score = sum + early_shift - frames as f64 * regularizers.sigma;
            Alignment { classes, begins, score }
        })
        .collect()
}

fn inputs() -> impl Strategy<Value = (Vec<f64>, Vec<u32>)> {
    (1usize..6, prop::collection::vec(1u32..4, 0..4), 0u64..1000)
        .prop_map(|(t, labels, seed)| (oracle::noise::normal(seed, 1, t * CLASSES, 1.5), labels))
}

proptest! {
    #[test]
    fn sums_over_alignments_match_brute_force(
        (log_probs, labels) in inputs(),
        delay_penalty in prop::sample::select(vec![0.0, 0.4]),
        sigma in prop::sample::select(vec![0.0, 0.1]),
        fastemit in prop::sample::select(vec![0.0, 0.5]),
    ) {
        let regularizers = Regularizers { fastemit, delay_penalty, sigma };
        let emissions = compact_emissions(&log_probs, &labels);
        let computed = ctc::forward_backward(&labels, &emissions, &regularizers).unwrap();
        let all = alignments(&log_probs, &labels, &regularizers);
        if all.is_empty() {
            prop_assert_eq!(computed.loss, f64::INFINITY);
            prop_assert_eq!(ctc::log_prob(&labels, &emissions), Ok(f64::NEG_INFINITY));
            prop_assert!(computed.adjoints.iter().all(|a| *a == 0.0));
            return Ok(());
        }
        let total: f64 = all.iter().map(|alignment| alignment.score.exp()).sum();
        prop_assert!((computed.loss + total.ln()).abs() < 1e-11, "{} {}", computed.loss, -total.ln());
        let plain = alignments(&log_probs, &labels, &Regularizers::default());
        let plain: f64 = plain.iter().map(|alignment| alignment.score.exp()).sum();
        let sum = ctc::log_prob(&labels, &emissions).unwrap();
        prop_assert!((sum - plain.ln()).abs() < 1e-11, "{sum} {}", plain.ln());
        // Equal labels have separate columns in the adjoints, and one class in the alignments.
        let frames = log_probs.len() / CLASSES;
        for t in 0..frames {
            for class in 0..CLASSES as u32 {
                let with_class = all.iter().filter(|alignment| alignment.classes[t] == class);
                let posterior: f64 = with_class.map(|alignment| alignment.score.exp() / total).sum();
                let columns = std::iter::once(0).chain(labels.iter().copied()).enumerate();
                let columns = columns.filter(|(_, c)| *c == class);
                let sum: f64 = columns.map(|(j, _)| -computed.adjoints[t * (labels.len() + 1) + j]).sum();
                let factor = if class == 0 { 1.0 } else { 1.0 + fastemit };
                prop_assert!((sum - factor * posterior).abs() < 1e-11, "{sum} {posterior}");
            }
        }
    }

    #[test]
    fn emission_times_match_the_alignments((log_probs, labels) in inputs()) {
        let (plain, emissions) = (Regularizers::default(), compact_emissions(&log_probs, &labels));
        let all = alignments(&log_probs, &labels, &plain);
        let total: f64 = all.iter().map(|alignment| alignment.score.exp()).sum();
        let computed = ctc::emission_posteriors(&labels, &emissions).unwrap();
        let means = ctc::expected_emission_frames(&labels, &emissions).unwrap();
        let best = ctc::best_path(&labels, &emissions, TieBreak::Late).unwrap();
        let confidences = ctc::confidences(&labels, &emissions, &best).unwrap();
        if all.is_empty() {
            prop_assert!(computed.iter().all(|f| *f == 0.0) && confidences.is_empty());
            prop_assert!(means.is_empty());
            return Ok(());
        }
        for label in 0..labels.len() {
            let mut mean = 0.0;
            for t in 0..log_probs.len() / CLASSES {
                let beginning = all.iter().filter(|alignment| alignment.begins[label] == t);
                let expected: f64 = beginning.map(|alignment| alignment.score.exp() / total).sum();
                mean += expected * t as f64;
                let computed = computed[t * labels.len() + label];
                prop_assert!((computed - expected).abs() < 1e-11, "{computed} {expected}");
                if *best.spans()[label].start() == t {
                    prop_assert!((confidences[label] - expected).abs() < 1e-11);
                }
            }
            prop_assert!((means[label] - mean).abs() < 1e-10);
        }
    }
}

#[test]
fn errors_name_the_invalid_argument() {
    let plain = Regularizers::default();
    let run = |labels: &[u32], emissions: &[f64]| ctc::forward_backward(labels, emissions, &plain);
    assert!(matches!(run(&[1], &[0.0; 3]), Err(Error::Length { argument: "emissions", .. })));
    assert!(matches!(run(&[1], &[]), Err(Error::NoFrames { .. })));
    assert!(matches!(run(&[1], &[0.0, f64::NAN]), Err(Error::Emission { label: 1, .. })));
    assert!(matches!(run(&[1], &[1e308; 4]), Err(Error::Overflow { .. })));
    let bad = Regularizers { delay_penalty: f64::NAN, ..plain };
    let error = ctc::forward_backward(&[1], &[0.0; 4], &bad).unwrap_err();
    assert!(matches!(error, Error::Regularizer { argument: "delay_penalty", .. }));
    let path = ctc::best_path(&[1], &[-1.0; 4], TieBreak::Late).unwrap();
    let error = ctc::confidences(&[1], &[-1.0; 6], &path).unwrap_err();
    assert!(matches!(error, Error::Length { argument: "path", expected: 3, found: 2 }));
    let error = ctc::confidences(&[1, 2], &[-1.0; 6], &path).unwrap_err();
    assert!(matches!(error, Error::Length { argument: "path", expected: 2, found: 1 }));
}
