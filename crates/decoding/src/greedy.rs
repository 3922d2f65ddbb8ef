//! Greedy search: the best class at each site.
mod frame_looping;
mod label_looping;
mod stream;

pub use frame_looping::frame_looping;
pub use label_looping::GreedySearch;
pub use stream::GreedyStream;
pub(crate) use stream::LARGEST;

use crate::best_class::{BestClass, exact_log_prob, invalid_scores, log_prob, pick};
use crate::scorer::check_fused;
use crate::{
    Confidence, DecodedToken, DecodingModel, Error, Fusion, Hypothesis, NetworkScratch, Result, SiteBatch,
    SiteIndex, TokenTable,
};

/// Options of greedy search.
#[derive(Debug, Clone)]
pub struct GreedyOptions {
    /// Most labels that one frame may emit, at least 1; none: any number.
    pub max_symbols: Option<usize>,
    /// Most labels of an utterance, over all of its chunks; none: any number, or, without `max_symbols`, 100 for each frame up to that
    /// of the next label, so that a search ends. A hypothesis says when it got there.
    pub max_labels: Option<usize>,
    /// Most frames whose scores are computed before it is known whether they are needed: while an utterance waits for its next
    /// label, nothing on the label side changes. At least 1, which looks at one frame at a time. Results are the same.
    pub look_ahead: usize,
    /// What [`DecodedToken::confidence`] is; none: 1.
    pub confidence: Option<Confidence>,
    /// Whether every decision is recorded, blanks included.
    pub record_steps: bool,
    /// Language models and lists that all utterances share. The scores of the joint alone decide between the blank and a label; which
    /// label, they decide together. Durations are not theirs to decide.
    pub fusion: Vec<Fusion>,
    /// Weight of the internal language model that is taken away from the scores of labels, where the joint knows one.
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

    /// Labels that an utterance may have before one at a frame, counted from its start.
    fn cap(&self, frame: usize) -> usize {
        self.max_labels.unwrap_or_else(|| match self.max_symbols {
            Some(_) => usize::MAX,
            None => frame.saturating_add(1).saturating_mul(100),
        })
    }
}

/// Whether weights are numbers, and there is an internal language model where one is asked for.
pub(crate) fn check_fusion(model: &DecodingModel, fusion: &[Fusion], internal_lm: f32) -> Result<()> {
    check_weights(fusion)?;
    check_weight("internal_lm", internal_lm)?;
    if internal_lm != 0.0 && !model.joint().has_internal_lm() {
        let found = f64::from(internal_lm);
        let expected = "0, as the joint network knows no internal language model";
        return Err(Error::Option { option: "internal_lm", expected, found });
    }
    Ok(())
}

/// Fails for automata whose scores would be no numbers.
pub(crate) fn check_weights(fusion: &[Fusion]) -> Result<()> {
    fusion.iter().try_for_each(|fusion| check_weight("fusion weight", fusion.weight))
}

/// Fails for a weight that sums of scores drown in, or leave the numbers with.
pub(crate) fn check_weight(option: &'static str, weight: f32) -> Result<()> {
    if weight.abs() <= 1e6 {
        return Ok(());
    }
    Err(Error::Option { option, expected: "a number from -1e6 to 1e6", found: f64::from(weight) })
}

/// Decodes one utterance by taking the best class at each site; ties go to the lower class id. The definition of what
/// [`GreedySearch`] does for many at once; log-probabilities are summed in f64 here, and of terms in f32 there.
///
/// A class moves on as its token does in the model's topology:
///
/// | best class | moves on by |
/// |---|---|
/// | the blank | one frame; with durations, the best one, a 0 taken as 1 |
/// | a big blank | its frames |
/// | any other: a label, which advances the predictor | no frame, one in the modified topology; with durations, the best one |
///
/// A frame that has emitted `max_symbols` labels is left for the next, unless the last of them has left it already.
///
/// # Shapes
/// `frames`: rows `[T, F]` as the joint wants them, row-major; `T = 0` gives an empty hypothesis.
///
/// # Errors
/// [`Error::Frames`] if the rows are not whole; [`Error::Option`] for an option outside its range; [`Error::Score`] if the joint
/// yields NaN or +inf, or -inf for every class or every duration.
///
/// Cost: at most `T + U` joint evaluations and `U` predictor steps; memory `O(C + H)`.
pub fn greedy(model: &DecodingModel, frames: &[f32], options: &GreedyOptions) -> Result<Hypothesis> {
    options.check(model)?;
    let token_table = model.token_table();
    let total = whole_rows(frames, model)?;
    let (mut states, mut row) = (model.start().0.clone(), model.start().1.to_vec());
    let (mut scratch, mut predicted) = (NetworkScratch::default(), Vec::new());
    let mut scores = vec![0.0; model.outputs()];
    let mut automata: Vec<u32> = options.fusion.iter().map(|fusion| fusion.scorer.start()).collect();
    let fuses = !automata.is_empty() || options.internal_lm != 0.0;
    let mut fused = vec![0.0; token_table.classes()];
    let mut found = Hypothesis::default();
    let (mut t, mut symbols) = (0, 0);
    while t < total {
        let at = [SiteIndex { utterance: 0, frame: t, row: 0 }];
        let sites = SiteBatch { frames: &[frames], rows: &row, at: &at };
        model.joint().scores(&sites, &mut scores, &mut scratch);
        let picked = pick(&scores, token_table).ok_or_else(|| invalid_scores(&scores, token_table, t))?;
        let mut step = token_table.frames(picked.class, picked.duration);
        if !token_table.is_blank(picked.class) {
            if found.labels.len() == options.cap(t) {
                found.is_capped = true;
                break;
            }
            let mut label = emitted(&picked, token_table, t);
            if fuses {
                fused.fill(0.0);
                if options.internal_lm != 0.0 {
                    model.joint().internal_lm(&row, &mut fused, &mut scratch);
                    fused.iter_mut().for_each(|score| *score *= -options.internal_lm);
                }
                for (fusion, state) in options.fusion.iter().zip(&automata) {
                    fusion.add_scores(*state, &mut fused);
                }
                label = with_fused(label, &scores[..token_table.classes()], &mut fused, token_table)?;
                for (Fusion { scorer, .. }, state) in options.fusion.iter().zip(&mut automata) {
                    *state = scorer.step(*state, label.label).1;
                }
            }
            let (tokens, durations) = scores.split_at(token_table.classes());
            label.log_prob = exact_log_prob(tokens, label.label as usize);
            if !durations.is_empty() {
                label.duration_log_prob = exact_log_prob(durations, picked.duration);
            }
            if let Some(confidence) = options.confidence {
                label.confidence = confidence.score(tokens);
            }
            found.labels.push(label);
            model.step(&[label.label], &mut states, &mut row, (&mut predicted, &mut scratch));
            symbols += 1;
            step = step.max(usize::from(Some(symbols) == options.max_symbols));
        }
        if step > 0 {
            (t, symbols) = (t.saturating_add(step), 0);
        }
    }
    found.end = t;
    Ok(found)
}

/// A label as it is recorded, without what others add.
fn emitted(picked: &BestClass, token_table: &TokenTable, frame: usize) -> DecodedToken {
    let BestClass { class, logit, log_prob, duration, duration_log_prob } = *picked;
    DecodedToken {
        label: class,
        frame,
        duration: token_table.frames(class, duration),
        log_prob,
        duration_log_prob,
        logit,
        fused: 0.0,
        confidence: 1.0,
    }
}

/// The label that scores of the joint and of what is fused decide on together, in place of the best one of the joint alone.
///
/// # Errors
/// [`Error::Fused`] if something was added that is no score, or every label is forbidden.
fn with_fused(
    best: DecodedToken,
    scores: &[f32],
    fused: &mut [f32],
    token_table: &TokenTable,
) -> Result<DecodedToken> {
    check_fused(fused)?;
    token_table.blanks().for_each(|blank| fused[blank as usize] = f32::NEG_INFINITY);
    let mut class = 0;
    let mut sum = f32::NEG_INFINITY;
    for (at, (score, own)) in scores.iter().zip(&*fused).enumerate() {
        if score + own > sum {
            (class, sum) = (at, score + own);
        }
    }
    if sum == f32::NEG_INFINITY {
        return Err(Error::Fused { class: best.label as usize, found: sum });
    }
    let (label, logit, log_prob) = (class as u32, scores[class], log_prob(scores, class));
    Ok(DecodedToken { label, logit, log_prob, fused: fused[class], ..best })
}

/// How many rows of the joint's width there are.
pub(crate) fn whole_rows(frames: &[f32], model: &DecodingModel) -> Result<usize> {
    let width = model.width();
    if width == 0 || !frames.len().is_multiple_of(width) {
        return Err(Error::Frames { width, found: frames.len() });
    }
    Ok(frames.len() / width)
}

/// The utterances of a padded batch `[B, T, F]`, for decoders, which know no padding.
///
/// # Errors
/// [`Error::Frames`] if the rows are not whole; [`Error::Length`] if an utterance is longer than the padding.
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
    let padded = rows.len() / (width * batch).max(1);
    if width == 0 || rows.len() != padded * width * batch {
        return Err(Error::Frames { width, found: rows.len() });
    }
    let utterance = |(b, &length): (usize, &usize)| match length <= padded {
        true => Ok(&rows[b * padded * width..][..length * width]),
        false => Err(Error::Length { utterance: b, frames: padded, found: length }),
    };
    lengths.iter().enumerate().map(utterance).collect()
}
