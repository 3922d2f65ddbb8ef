//! A second look at what a beam search has found.
use crate::ctc::{check, each};
use crate::{Error, NBest, Ranked, Result};

/// Orders what a beam search has found by what a CTC head over the same frames says of it as well: the joint and the head of a
/// transducer that was trained with an auxiliary CTC loss make different mistakes.
///
/// ```text
/// log p(y) ← log p(y) + weight · log p_CTC(y)        p_CTC(y): the sum over all CTC paths of y
/// ```
/// Scores are [`Ranked::log_prob`] over [`Ranked::divisor`], as before. Sequences that CTC calls impossible (more labels than frames,
/// say) come last, with -inf, in the order in which they were; none is lost. The search must have kept more than one
/// ([`Beam::nbest`](crate::Beam::nbest)), or there is nothing to order.
///
/// Source: the rescoring of Watanabe et al., "Hybrid CTC/Attention Architecture for End-to-End Speech Recognition" (IEEE JSTSP 2017),
/// with a transducer in the place of the attention decoder.
///
/// # Shapes
/// `found`: the results of each utterance; `log_probs`: for each of them `[T_b, C]`, row-major, natural logarithms.
///
/// # Errors
/// [`Error::Option`] for a weight that is not from 0 to a million; [`Error::Count`] unless every utterance has its rows; those of
/// [`ctc_greedy`](crate::ctc_greedy); [`Error::Utterance`] around [`Error::Shape`] for a label that is no class of the head, or its
/// blank.
///
/// Cost: `O(T U)` for a sequence of U labels; utterances in parallel.
///
/// ```
/// use decoding::{Emitted, NBest, Ranked, ctc_rescore};
///
/// // Two frames; class 0 is the blank.
/// let rows = [0.1f32, 0.8, 0.1, 0.8, 0.1, 0.1].map(f32::ln);
/// let ranked = |label, score| {
///     let labels = vec![Emitted { label, ..Emitted::default() }];
///     Ranked { labels, log_prob: score, score, divisor: 1.0 }
/// };
/// let found = NBest { hypotheses: vec![ranked(2, -0.6), ranked(1, -0.8)] };
/// let again = ctc_rescore(&[found], &[&rows], 3, 0, 0.5)?;
/// assert_eq!(again[0].best().unwrap().ids(), [1]);
/// # Ok::<(), decoding::Error>(())
/// ```
pub fn ctc_rescore(
    found: &[NBest],
    log_probs: &[&[f32]],
    classes: usize,
    blank: u32,
    weight: f64,
) -> Result<Vec<NBest>> {
    if !(0.0..=1e6).contains(&weight) {
        return Err(Error::Option {
            option: "ctc weight",
            expected: "a number from 0 to 1e6",
            found: weight,
        });
    }
    if found.len() != log_probs.len() {
        let (expected, found) = (found.len(), log_probs.len());
        return Err(Error::Count { argument: "log_probs", expected, found });
    }
    each(log_probs, classes, blank, |b, rows| {
        rows.chunks_exact(classes).enumerate().try_for_each(|(frame, row)| check(row, frame))?;
        let mut hypotheses = found[b].hypotheses.clone();
        // Nothing times -inf is no number.
        if weight > 0.0 {
            for ranked in &mut hypotheses {
                ranked.log_prob += weight * log_prob(ranked, rows, classes, blank)?;
                ranked.score = ranked.log_prob / ranked.divisor;
            }
        }
        hypotheses.sort_by(|a, b| b.score.total_cmp(&a.score));
        Ok(NBest { hypotheses })
    })
}

/// `log p_CTC(y)`.
fn log_prob(ranked: &Ranked, rows: &[f32], classes: usize, blank: u32) -> Result<f64> {
    let labels = ranked.ids();
    if let Some(label) = labels.iter().find(|&&label| label as usize >= classes || label == blank) {
        let expected = format!("below {classes} that are not the blank, {blank}");
        return Err(Error::shape("labels", expected, label));
    }
    let columns = || std::iter::once(&blank).chain(&labels);
    let of_row = |row: &[f32]| columns().map(|&class| f64::from(row[class as usize])).collect::<Vec<_>>();
    let emissions: Vec<f64> = rows.chunks_exact(classes).flat_map(of_row).collect();
    if emissions.is_empty() {
        return Ok(if labels.is_empty() { 0.0 } else { f64::NEG_INFINITY });
    }
    let overflow = |_| Error::Option {
        option: "log_probs",
        expected: "sums of them that are numbers",
        found: f64::INFINITY,
    };
    rnnt_dp::ctc::log_prob(&labels, &emissions).map_err(overflow)
}
