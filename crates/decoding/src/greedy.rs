//! Greedy transducer search: takes the best class at each site.
//!
//! A site is a frame of an utterance after the labels so far. `greedy` is the reference for one
//! utterance, `label_looping` the fast search over batches and streams, `frame_looping` a baseline.
mod frame_looping;
mod label_looping;
mod stream;

pub use frame_looping::frame_looping;
pub use label_looping::GreedySearch;
pub use stream::GreedyStream;
pub(crate) use stream::MAX_COUNT;

use crate::best_class::{BestClass, best_class, exact_log_prob, invalid_scores, log_prob};
use crate::scorer::check_fused;
use crate::{
    Confidence, DecodedToken, DecodingModel, Error, Fusion, Hypothesis, NetworkScratch, Result, SiteBatch,
    SiteIndex, TokenTable,
};

/// Most labels per frame, on average, if no limit is set.
const MAX_LABELS_PER_FRAME: usize = 100;

/// Options of greedy search.
#[derive(Debug, Clone)]
pub struct GreedyOptions {
    /// Most labels per frame, at least 1; none: unlimited.
    pub max_symbols: Option<usize>,
    /// Most labels per utterance, over all of its chunks.
    ///
    /// None: unlimited, or, without `max_symbols`, 100 per frame up to that of the next label, so
    /// that the search terminates. [`Hypothesis::is_capped`] reports that the limit was reached.
    pub max_labels: Option<usize>,
    /// Most frames that are scored ahead of the next label, at least 1.
    ///
    /// Until an utterance emits its next label, its label row does not change, so that several
    /// frames are scored in one product. Results do not depend on this number.
    pub look_ahead: usize,
    /// How [`DecodedToken::confidence`] is computed; none: 1.
    pub confidence: Option<Confidence>,
    /// Whether to record every decision, blanks included.
    pub record_steps: bool,
    /// Language models and phrase lists that all utterances share.
    ///
    /// The scores of the joint decide between the blank and a label; joint and fusion together
    /// choose the label. Fusion has no influence on durations.
    pub fusion: Vec<Fusion>,
    /// Weight of the internal language model, subtracted from the scores of labels.
    pub internal_lm: f32,
}

impl Default for GreedyOptions {
    fn default() -> Self {
        GreedyOptions {
            max_symbols: Some(8),
            max_labels: None,
            look_ahead: 32,
            confidence: None,
            record_steps: false,
            fusion: Vec::new(),
            internal_lm: 0.0,
        }
    }
}

impl GreedyOptions {
    fn check(&self, model: &DecodingModel) -> Result<()> {
        let at_least_one = |option, value: Option<usize>| match value {
            Some(0) => Err(Error::Option { option, expected: "at least 1", found: 0.0 }),
            _ => Ok(()),
        };
        at_least_one("max_symbols", self.max_symbols)?;
        at_least_one("max_labels", self.max_labels)?;
        at_least_one("look_ahead", Some(self.look_ahead))?;
        if let Some(Confidence { exponent, .. }) = self.confidence
            && !(exponent > 0.0 && exponent <= 10.0)
        {
            let (option, found) = ("confidence exponent", exponent);
            return Err(Error::Option { option, expected: "a number above 0, at most 10", found });
        }
        check_fusion(model, &self.fusion, self.internal_lm)
    }

    /// Limit on the labels of an utterance at a frame.
    fn label_limit(&self, frame: usize) -> usize {
        self.max_labels.unwrap_or_else(|| match self.max_symbols {
            Some(_) => usize::MAX,
            None => frame.saturating_add(1).saturating_mul(MAX_LABELS_PER_FRAME),
        })
    }
}

/// Fails for invalid weights or a missing internal language model.
pub(crate) fn check_fusion(model: &DecodingModel, fusion: &[Fusion], internal_lm: f32) -> Result<()> {
    check_weights(fusion)?;
    check_weight("internal_lm", internal_lm)?;
    if internal_lm != 0.0 && !model.joint().has_internal_lm() {
        let weight = f64::from(internal_lm);
        let expected = "0, as the joint network has no internal language model";
        return Err(Error::Option { option: "internal_lm", expected, found: weight });
    }
    Ok(())
}

/// Fails if a weight is out of range.
pub(crate) fn check_weights(fusion: &[Fusion]) -> Result<()> {
    fusion.iter().try_for_each(|fusion| check_weight("fusion weight", fusion.weight))
}

/// Largest magnitude of a weight: sums of scores with larger ones would be inexact.
const MAX_WEIGHT: f32 = 1e6;

/// Fails for a weight beyond [`MAX_WEIGHT`].
pub(crate) fn check_weight(option: &'static str, weight: f32) -> Result<()> {
    if weight.abs() <= MAX_WEIGHT {
        return Ok(());
    }
    Err(Error::Option { option, expected: "a number from -1e6 to 1e6", found: f64::from(weight) })
}

/// Decodes one utterance by taking the best class at each site.
///
/// Ties go to the lower class id. This is the reference for [`GreedySearch`]; here
/// log-probabilities are computed from f64 terms, there from f32 terms. A class advances as its
/// token does in the model's topology:
///
/// | best class | advances by |
/// |---|---|
/// | the blank | one frame; with durations, the best one, where 0 counts as 1 |
/// | a big blank | its frames |
/// | any other: a label, which advances the predictor | no frame, one in the modified topology; with durations, the best one |
///
/// After `max_symbols` labels on a frame the search continues with the next frame.
///
/// # Shapes
/// `frames`: T rows of the joint's frame width F, row-major; `T = 0` returns an empty hypothesis.
///
/// # Errors
/// [`Error::Frames`] if the rows are not whole; [`Error::Option`] for an option outside its range;
/// [`Error::Score`] if the joint returns NaN or +inf, or -inf for every class or every duration.
///
/// Cost: at most `T + U` joint evaluations and `U` predictor steps for U labels; memory `O(C + H)`,
/// C the number of classes and H the width of a label row.
pub fn greedy(model: &DecodingModel, frames: &[f32], options: &GreedyOptions) -> Result<Hypothesis> {
    options.check(model)?;
    let token_table = model.token_table();
    let end_frame = frame_count(frames, model)?;
    let (mut states, mut label_row) = (model.start().0.clone(), model.start().1.to_vec());
    let (mut scratch, mut predicted) = (NetworkScratch::default(), Vec::new());
    let mut scores = vec![0.0; model.outputs()];
    let mut scorer_states: Vec<u32> = options.fusion.iter().map(|fusion| fusion.scorer.start()).collect();
    let has_fusion = !scorer_states.is_empty() || options.internal_lm != 0.0;
    let mut fused = vec![0.0; token_table.classes()];
    let mut hypothesis = Hypothesis::default();
    // Current frame, and the number of labels on it.
    let (mut t, mut symbols) = (0, 0);
    while t < end_frame {
        // Best class at the site.
        let site = [SiteIndex { utterance: 0, frame: t, label_row: 0 }];
        let sites = SiteBatch { frames: &[frames], label_rows: &label_row, sites: &site };
        model.joint().scores(&sites, &mut scores, &mut scratch);
        let best = best_class(&scores, token_table).ok_or_else(|| invalid_scores(&scores, token_table, t))?;
        let mut advance = token_table.frame_advance(best.class, best.duration);
        if !token_table.is_blank(best.class) {
            if hypothesis.labels.len() == options.label_limit(t) {
                hypothesis.is_capped = true;
                break;
            }
            let mut label = decoded_token(&best, token_table, t);
            // With fusion, joint and fusion scores choose the label.
            if has_fusion {
                fused.fill(0.0);
                if options.internal_lm != 0.0 {
                    model.joint().internal_lm(&label_row, &mut fused, &mut scratch);
                    fused.iter_mut().for_each(|score| *score *= -options.internal_lm);
                }
                for (fusion, state) in options.fusion.iter().zip(&scorer_states) {
                    fusion.add_scores(*state, &mut fused);
                }
                label = choose_label(label, &scores[..token_table.classes()], &mut fused, token_table)?;
                for (Fusion { scorer, .. }, state) in options.fusion.iter().zip(&mut scorer_states) {
                    *state = scorer.step(*state, label.label).1;
                }
            }
            // Log-probabilities and confidence.
            let (tokens, durations) = scores.split_at(token_table.classes());
            label.log_prob = exact_log_prob(tokens, label.label as usize);
            if !durations.is_empty() {
                label.duration_log_prob = exact_log_prob(durations, best.duration);
            }
            if let Some(confidence) = options.confidence {
                label.confidence = confidence.score(tokens);
            }
            // Record the label and advance the predictor.
            hypothesis.labels.push(label);
            model.step(&[label.label], &mut states, &mut label_row, &mut predicted, &mut scratch);
            symbols += 1;
            advance = advance.max(usize::from(Some(symbols) == options.max_symbols));
        }
        if advance > 0 {
            (t, symbols) = (t.saturating_add(advance), 0);
        }
    }
    hypothesis.end_frame = t;
    Ok(hypothesis)
}

/// Creates the record of the best class, a label, without fusion scores.
fn decoded_token(best: &BestClass, token_table: &TokenTable, frame: usize) -> DecodedToken {
    let BestClass { class, logit, log_prob, duration, duration_log_prob } = *best;
    DecodedToken {
        label: class,
        frame,
        duration: token_table.frame_advance(class, duration),
        log_prob,
        duration_log_prob,
        logit,
        fused: 0.0,
        confidence: 1.0,
    }
}

/// Chooses the best label by joint and fusion scores.
///
/// `fused` has the fusion score of each class; those of blanks become -inf.
///
/// # Errors
/// [`Error::Fused`] if a fusion score is NaN or +inf, or every label is forbidden.
fn choose_label(
    best: DecodedToken,
    scores: &[f32],
    fused: &mut [f32],
    token_table: &TokenTable,
) -> Result<DecodedToken> {
    check_fused(fused)?;
    token_table.blanks().for_each(|blank| fused[blank as usize] = f32::NEG_INFINITY);
    let (mut chosen_class, mut best_sum) = (0, f32::NEG_INFINITY);
    for (class, (score, fusion_score)) in scores.iter().zip(&*fused).enumerate() {
        if score + fusion_score > best_sum {
            (chosen_class, best_sum) = (class, score + fusion_score);
        }
    }
    if best_sum == f32::NEG_INFINITY {
        return Err(Error::Fused { class: best.label as usize, found: best_sum });
    }
    let (label, logit) = (chosen_class as u32, scores[chosen_class]);
    let log_prob = log_prob(scores, chosen_class);
    Ok(DecodedToken { label, logit, log_prob, fused: fused[chosen_class], ..best })
}

/// Returns the number of frame rows; fails if they are not whole.
pub(crate) fn frame_count(frames: &[f32], model: &DecodingModel) -> Result<usize> {
    let width = model.frame_width();
    if width == 0 || !frames.len().is_multiple_of(width) {
        return Err(Error::Frames { width, found: frames.len() });
    }
    Ok(frames.len() / width)
}

/// Splits a padded batch `[B, T, F]` into utterances without padding.
///
/// B: utterances; T: frames of the longest one; F: width of a frame row, `width`.
///
/// # Errors
/// [`Error::Frames`] if the rows are not whole; [`Error::Length`] if an utterance is longer than
/// the padding.
///
/// ```
/// let rows: Vec<f32> = (0..12).map(|i| i as f32).collect();
/// let utterances = decoding::unpad(&rows, 2, &[3, 1])?;
/// assert_eq!(utterances[0].len(), 6);
/// assert_eq!(utterances[1], [6.0, 7.0]);
/// # Ok::<(), decoding::Error>(())
/// ```
pub fn unpad<'a>(rows: &'a [f32], width: usize, lengths: &[usize]) -> Result<Vec<&'a [f32]>> {
    let batch = lengths.len();
    let padded_frames = rows.len() / (width * batch).max(1);
    if width == 0 || rows.len() != padded_frames * width * batch {
        return Err(Error::Frames { width, found: rows.len() });
    }
    let utterance = |(b, &length): (usize, &usize)| match length <= padded_frames {
        true => Ok(&rows[b * padded_frames * width..][..length * width]),
        false => Err(Error::Length { utterance: b, frames: padded_frames, found: length }),
    };
    lengths.iter().enumerate().map(utterance).collect()
}
