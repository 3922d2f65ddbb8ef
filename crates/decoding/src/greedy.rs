//! Greedy search: the best class at each site.
mod moves;

use moves::Moves;

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
    /// Natural log-probability of each label at its site, among all classes.
    pub log_probs: Vec<f64>,
}

/// Decodes one utterance by taking the best class at each site; ties go to the lower class id.
///
/// A class moves on as its token does in [`Transducer::topology`]:
///
/// | best class | moves on by |
/// |---|---|
/// | the blank | one frame; with durations, the best one above 0 |
/// | a big blank ([`Transducer::big_blanks`]) | its frames |
/// | any other: a label, which advances the predictor | no frame, one in the modified topology; with durations, the best of them |
///
/// A frame that has emitted `max_symbols` labels is left for the next.
///
/// # Shapes
/// `frames`: projected encoder rows `[T, H]`, row-major; `T = 0` gives an empty hypothesis.
///
/// # Errors
/// [`Error::Frames`] if the rows are not whole; [`Error::Blank`], [`Error::BigBlank`], [`Error::BigBlanks`] or
/// [`Error::Topology`] if the model's blanks are no classes or not those of its topology; [`Error::Option`] if `max_symbols` is 0; [`Error::Score`] if the joint
/// yields NaN or +inf, or -inf for every class or every duration.
///
/// Cost: at most `T + U` joint evaluations and `U` predictor steps; memory `O(C + H)`.
pub fn greedy<M: Transducer>(model: &M, frames: &[f32], options: &Greedy) -> Result<Hypothesis> {
    let (width, classes) = (model.width(), model.classes());
    if width == 0 || !frames.len().is_multiple_of(width) {
        return Err(Error::Frames { width, found: frames.len() });
    }
    if options.max_symbols == 0 {
        return Err(Error::Option { option: "max_symbols", expected: "at least 1", found: 0 });
    }
    let moves = Moves::new(model)?;
    let mut found = Hypothesis::default();
    let mut scores = vec![0.0; classes + model.topology().durations()];
    let (mut state, mut row) = model.start();
    let (mut t, mut symbols) = (0, 0);
    while let Some(frame) = frames.chunks_exact(width).nth(t) {
        model.joint(frame, &row, &mut scores);
        let (tokens, durations) = scores.split_at(classes);
        let best = best_class(tokens, t)?;
        let mut step = moves.step(best as u32, durations, t)?;
        if !moves.is_blank(best as u32) {
            found.labels.push(best as u32);
            found.frames.push(t);
            found.log_probs.push(log_prob(tokens, best));
            (state, row) = model.step(&state, best as u32);
            symbols += 1;
            step = step.max(usize::from(symbols == options.max_symbols));
        }
        if step > 0 {
            (t, symbols) = (t.saturating_add(step), 0);
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
mod tests;
