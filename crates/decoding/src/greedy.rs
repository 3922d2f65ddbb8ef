//! Greedy search: the best class at each site.

use crate::{Error, Result, Transducer};

/// Options of [`greedy`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greedy {
    /// Most labels that one frame may emit; at least 1.
    pub max_symbols: usize,
}

impl Default for Greedy {
    fn default() -> Self {
        Greedy { max_symbols: 8 }
    }
}

/// One decoded label sequence with its times.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Hypothesis {
    /// Emitted labels, blanks left out.
    pub labels: Vec<u32>,
    /// Frame at which each label was emitted.
    pub frames: Vec<usize>,
    /// Natural log-probability of each label at its site.
    pub log_probs: Vec<f64>,
}

/// Decodes one utterance by taking the best class at each site; ties go to the lower class id.
///
/// The blank moves on to the next frame; any other class is emitted and advances the predictor on the same frame, until
/// `max_symbols` labels have come from it. A model of the modified topology, in which a label moves on too, needs
/// `max_symbols: 1`.
///
/// # Shapes
/// `frames`: projected encoder rows `[T, H]`, row-major; `T = 0` gives an empty hypothesis.
///
/// # Errors
/// [`Error::Frames`] if the rows are not whole, [`Error::Blank`] if the blank is no class, [`Error::Option`] if `max_symbols` is 0,
/// [`Error::Score`] if the joint yields NaN or +inf, or -inf for every class.
///
/// Cost: at most `T + U` joint evaluations and `U` predictor steps; memory `O(C + H)`.
pub fn greedy<M: Transducer>(model: &M, frames: &[f32], options: &Greedy) -> Result<Hypothesis> {
    let (width, classes, blank) = (model.width(), model.classes(), model.blank());
    if width == 0 || !frames.len().is_multiple_of(width) {
        return Err(Error::Frames { width, found: frames.len() });
    }
    if blank as usize >= classes {
        return Err(Error::Blank { blank, classes });
    }
    if options.max_symbols == 0 {
        return Err(Error::Option { option: "max_symbols", expected: "at least 1", found: 0 });
    }
    let mut found = Hypothesis::default();
    let mut scores = vec![0.0; classes];
    let (mut state, mut row) = model.start();
    for (t, frame) in frames.chunks_exact(width).enumerate() {
        for _ in 0..options.max_symbols {
            model.joint(frame, &row, &mut scores);
            let best = best_class(&scores, t)?;
            if best == blank as usize {
                break;
            }
            found.labels.push(best as u32);
            found.frames.push(t);
            found.log_probs.push(log_prob(&scores, best));
            (state, row) = model.step(&state, best as u32);
        }
    }
    Ok(found)
}

/// The lowest class id with the largest score.
fn best_class(scores: &[f32], frame: usize) -> Result<usize> {
    let mut best = 0;
    for (class, &score) in scores.iter().enumerate() {
        if score.is_nan() || score == f32::INFINITY {
            return Err(Error::Score { frame, class, found: score });
        }
        if score > scores[best] {
            best = class;
        }
    }
    if scores[best] == f32::NEG_INFINITY {
        return Err(Error::Score { frame, class: best, found: f32::NEG_INFINITY });
    }
    Ok(best)
}

/// `scores[class] - log Σ exp(scores)`, in f64.
fn log_prob(scores: &[f32], class: usize) -> f64 {
    let best = f64::from(scores[class]);
    -scores.iter().map(|&score| (f64::from(score) - best).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The state counts labels; a frame [wanted, emit] asks for class `wanted` while fewer than `emit` labels are out.
    struct Script;

    impl Transducer for Script {
        type State = u32;
        fn blank(&self) -> u32 {
            2
        }
        fn classes(&self) -> usize {
            3
        }
        fn width(&self) -> usize {
            2
        }
        fn start(&self) -> (u32, Vec<f32>) {
            (0, vec![0.0, 0.0])
        }
        fn step(&self, state: &u32, _label: u32) -> (u32, Vec<f32>) {
            (state + 1, vec![0.0, (state + 1) as f32])
        }
        fn joint(&self, frame: &[f32], row: &[f32], scores: &mut [f32]) {
            scores.fill(0.0);
            let class = if row[1] < frame[1] { frame[0] as usize } else { 2 };
            scores[class] = if frame[0].is_nan() { f32::NAN } else { 2.0 };
            if frame[1] == f32::NEG_INFINITY {
                scores.fill(f32::NEG_INFINITY);
            }
        }
    }

    #[test]
    fn emits_labels_with_their_frames_and_probabilities() {
        let frames = [0.0, 0.0, 1.0, 1.0, 0.0, 3.0, 0.0, 3.0];
        let found = greedy(&Script, &frames, &Greedy::default()).unwrap();
        assert_eq!(found.labels, [1, 0, 0]);
        assert_eq!(found.frames, [1, 2, 2]);
        let expected = 2.0 - (2.0f64.exp() + 2.0).ln();
        for log_prob in found.log_probs {
            approx::assert_relative_eq!(log_prob, expected, max_relative = 1e-12);
        }
    }

    /// Scores of any kind: one row for each frame and number of labels so far, which are the state.
    struct Table {
        classes: usize,
        scores: Vec<f32>,
    }

    impl Table {
        fn row(&self, t: usize, u: usize) -> &[f32] {
            // Many more rows than anyone asks for differ; beyond them the table starts again.
            let rows = self.scores.len() / self.classes;
            &self.scores[(13 * t + u) % rows * self.classes..][..self.classes]
        }
    }

    impl Transducer for Table {
        type State = usize;
        fn blank(&self) -> u32 {
            0
        }
        fn classes(&self) -> usize {
            self.classes
        }
        fn width(&self) -> usize {
            1
        }
        fn start(&self) -> (usize, Vec<f32>) {
            (0, vec![0.0])
        }
        fn step(&self, state: &usize, _: u32) -> (usize, Vec<f32>) {
            (state + 1, vec![(state + 1) as f32])
        }
        fn joint(&self, frame: &[f32], row: &[f32], scores: &mut [f32]) {
            scores.copy_from_slice(self.row(frame[0] as usize, row[0] as usize));
        }
    }

    proptest! {
        /// Walks along the path again: every label is the best class of its site, and every frame ends with the blank or with
        /// its last permitted label. One symbol a frame is the modified topology.
        #[test]
        fn every_decision_on_the_path_is_the_best_one(
            scores in proptest::collection::vec(-4.0f32..4.0, 300),
            classes in 2usize..6,
            frames in 0usize..9,
            max_symbols in 1usize..4,
        ) {
            let table = Table { classes, scores };
            let input: Vec<f32> = (0..frames).map(|t| t as f32).collect();
            let found = greedy(&table, &input, &Greedy { max_symbols }).unwrap();
            let best = |t, u| {
                let row = table.row(t, u);
                (0..classes).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap()
            };
            let mut u = 0;
            for t in 0..frames {
                let here = found.frames.iter().filter(|&&frame| frame == t).count();
                prop_assert!(here <= max_symbols);
                for _ in 0..here {
                    prop_assert_eq!((found.labels[u] as usize, found.frames[u]), (best(t, u), t));
                    let row = table.row(t, u);
                    let sum: f64 = row.iter().map(|&score| f64::from(score).exp()).sum();
                    let expected = f64::from(row[best(t, u)]) - sum.ln();
                    prop_assert!((found.log_probs[u] - expected).abs() < 1e-6);
                    u += 1;
                }
                prop_assert!(here == max_symbols || best(t, u) == 0);
            }
            prop_assert_eq!(u, found.labels.len());
        }
    }

    #[test]
    fn a_frame_emits_no_more_than_allowed() {
        let found = greedy(&Script, &[1.0, 100.0, 1.0, 100.0], &Greedy { max_symbols: 3 }).unwrap();
        assert_eq!(found.frames, [0, 0, 0, 1, 1, 1]);
    }

    #[test]
    fn no_frames_give_an_empty_hypothesis() {
        assert_eq!(greedy(&Script, &[], &Greedy::default()).unwrap(), Hypothesis::default());
    }

    #[test]
    fn bad_input_is_named() {
        let options = Greedy::default();
        assert_eq!(greedy(&Script, &[0.0; 3], &options), Err(Error::Frames { width: 2, found: 3 }));
        let none = Greedy { max_symbols: 0 };
        assert!(matches!(
            greedy(&Script, &[0.0; 2], &none),
            Err(Error::Option { option: "max_symbols", .. })
        ));
        let found = greedy(&Script, &[0.0, 0.0, f32::NAN, 1.0], &options);
        assert!(matches!(found, Err(Error::Score { frame: 1, class: 0, .. })), "{found:?}");
        let found = greedy(&Script, &[0.0, f32::NEG_INFINITY], &options);
        assert!(matches!(found, Err(Error::Score { frame: 0, .. })), "{found:?}");
    }

    #[test]
    fn a_blank_outside_the_classes_is_named() {
        struct Foreign;
        impl Transducer for Foreign {
            type State = ();
            fn blank(&self) -> u32 {
                7
            }
            fn classes(&self) -> usize {
                3
            }
            fn width(&self) -> usize {
                1
            }
            fn start(&self) -> ((), Vec<f32>) {
                ((), vec![0.0])
            }
            fn step(&self, _: &(), _: u32) -> ((), Vec<f32>) {
                ((), vec![0.0])
            }
            fn joint(&self, _: &[f32], _: &[f32], _: &mut [f32]) {}
        }
        assert_eq!(greedy(&Foreign, &[0.0], &Greedy::default()), Err(Error::Blank { blank: 7, classes: 3 }));
    }
}
