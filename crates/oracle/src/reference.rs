//! Reference transducer loss: forward-backward recursion in f64 from dense logits.
//!
//! It uses plain loops. A site is a lattice node: frame t, label position u.
//!
//! `p(c | t, u)` is the softmax of the logits of a site, `b(t, u)` the log-probability of the
//! blank, and `y(t, u)` that of label `u + 1`:
//!
//! ```text
//! alpha(0, 0)     = 0
//! alpha(t, u)     = log( exp(alpha(t-1, u) + b(t-1, u)) + exp(alpha(t, u-1) + y(t, u-1)) )
//! beta(T-1, U)    = b(T-1, U)
//! beta(t, u)      = log( exp(b(t, u) + beta(t+1, u)) + exp(y(t, u) + beta(t, u+1)) )
//! loss            = -beta(0, 0)
//! o_b(t, u)       = exp(alpha(t, u) + b(t, u) + beta(t+1, u) + loss)    occupancy of blanks
//! gradient        = (o_b + o_y) p - o_b e_blank - o_y e_label           by the logits
//! ```

use crate::batch::Batch;
use crate::error::Result;

/// Losses, gradients and log-sums, dense and padded; padding is zero.
#[derive(Clone, Debug)]
pub struct ReferenceLoss {
    /// `[B]`, negative log-likelihood; +inf without a path.
    pub loss: Vec<f64>,
    /// `[B, T, U + 1, C]`, gradient of the sum of the losses; zero for an utterance without a path.
    pub gradient: Vec<f64>,
    /// `[B, T, U + 1]`, log-probability of reaching a site.
    pub log_alpha: Vec<f64>,
    /// `[B, T, U + 1]`, log-probability of the rest of the path.
    ///
    /// It includes the arc that leaves the site.
    pub log_beta: Vec<f64>,
}

/// `log(exp(a) + exp(b))`; -inf is the log of zero.
pub fn log_add(a: f64, b: f64) -> f64 {
    let (high, low) = if a > b { (a, b) } else { (b, a) };
    if high == f64::NEG_INFINITY { high } else { high + (low - high).exp().ln_1p() }
}

/// Replaces a row by its log-softmax.
pub fn log_softmax(row: &mut [f64]) {
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_sum = row.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
    row.iter_mut().for_each(|z| *z = (*z - max) - log_sum);
}

/// Returns transducer losses and gradients of a padded batch in f64.
///
/// `fastemit` multiplies the occupancy of label arcs in the gradient by `1 + fastemit`; the loss is
/// unchanged.
///
/// # Shapes
/// `logits`: `[B, T, U + 1, C]` = `dims`, flat; `frames`, `labels`: one entry an utterance.
///
/// # Errors
/// Wrong lengths, ids outside the classes, NaN or +inf (or only -inf) at a real site. Padding is
/// never read.
///
/// Cost: O(B T U C) time and memory.
pub fn transducer_loss(
    logits: &[f64],
    dims: [usize; 4],
    frames: &[usize],
    labels: &[Vec<u32>],
    blank: u32,
    fastemit: f64,
) -> Result<ReferenceLoss> {
    let batch = Batch::new(dims, frames, labels, blank)?;
    batch.check_rows(logits)?;
    let [_, max_frames, positions, classes] = dims;
    let sites = max_frames * positions;
    let mut out = ReferenceLoss {
        loss: vec![0.0; frames.len()],
        gradient: vec![0.0; logits.len()],
        log_alpha: vec![0.0; frames.len() * sites],
        log_beta: vec![0.0; frames.len() * sites],
    };
    for b in 0..frames.len() {
        let scores = b * sites * classes..(b + 1) * sites * classes;
        let lattice = b * sites..(b + 1) * sites;
        out.loss[b] = utterance_loss(
            &logits[scores.clone()],
            &mut out.gradient[scores],
            &mut out.log_alpha[lattice.clone()],
            &mut out.log_beta[lattice],
            &UtteranceLattice {
                frames: frames[b],
                labels: &labels[b],
                positions,
                classes,
                blank: blank as usize,
            },
            fastemit,
        );
    }
    Ok(out)
}

/// Lattice of one utterance in the padded batch.
struct UtteranceLattice<'a> {
    frames: usize,
    labels: &'a [u32],
    /// Label positions of a frame in the padded batch.
    positions: usize,
    classes: usize,
    blank: usize,
}

/// Returns the loss of one utterance, with gradient, α and β.
///
/// Every slice has `positions` rows per frame.
fn utterance_loss(
    logits: &[f64],
    gradient: &mut [f64],
    log_alpha: &mut [f64],
    log_beta: &mut [f64],
    lattice: &UtteranceLattice,
    fastemit: f64,
) -> f64 {
    let &UtteranceLattice { frames, labels, positions, classes, blank } = lattice;
    let label_count = labels.len();
    // Log-probabilities of all classes at the sites.
    let site = |t: usize, u: usize| t * positions + u;
    let mut log_probs = logits.to_vec();
    for t in 0..frames {
        for u in 0..=label_count {
            log_softmax(&mut log_probs[site(t, u) * classes..][..classes]);
        }
    }
    let blank_log_prob = |t: usize, u: usize| log_probs[site(t, u) * classes + blank];
    let label_log_prob = |t: usize, u: usize| log_probs[site(t, u) * classes + labels[u] as usize];

    // Forward recursion: α.
    for t in 0..frames {
        for u in 0..=label_count {
            let mut sum = if (t, u) == (0, 0) { 0.0 } else { f64::NEG_INFINITY };
            if t > 0 {
                sum = log_add(sum, log_alpha[site(t - 1, u)] + blank_log_prob(t - 1, u));
            }
            if u > 0 {
                sum = log_add(sum, log_alpha[site(t, u - 1)] + label_log_prob(t, u - 1));
            }
            log_alpha[site(t, u)] = sum;
        }
    }
    // Backward recursion: β. After a blank arc it is that of the next frame, or 0 at the end.
    let beta_after_blank = |log_beta: &[f64], t: usize, u: usize| match (t + 1 < frames, u == label_count) {
        (true, _) => log_beta[site(t + 1, u)],
        (false, true) => 0.0,
        (false, false) => f64::NEG_INFINITY,
    };
    for t in (0..frames).rev() {
        for u in (0..=label_count).rev() {
            let mut sum = blank_log_prob(t, u) + beta_after_blank(log_beta, t, u);
            if u < label_count {
                sum = log_add(sum, label_log_prob(t, u) + log_beta[site(t, u + 1)]);
            }
            log_beta[site(t, u)] = sum;
        }
    }
    let loss = -log_beta[0];
    if loss == f64::INFINITY {
        return loss;
    }
    // Gradient by the logits, from the occupancies of both arcs of a site.
    for t in 0..frames {
        for u in 0..=label_count {
            let site_index = site(t, u);
            let blank_occupancy =
                (log_alpha[site_index] + blank_log_prob(t, u) + beta_after_blank(log_beta, t, u) + loss)
                    .exp();
            let mut label_occupancy = 0.0;
            if u < label_count {
                let beta_after_label = log_beta[site(t, u + 1)];
                label_occupancy = (1.0 + fastemit)
                    * (log_alpha[site_index] + label_log_prob(t, u) + beta_after_label + loss).exp();
            }
            let row = &mut gradient[site_index * classes..][..classes];
            for (derivative, log_prob) in row.iter_mut().zip(&log_probs[site_index * classes..]) {
                *derivative = (blank_occupancy + label_occupancy) * log_prob.exp();
            }
            row[blank] -= blank_occupancy;
            if u < label_count {
                row[labels[u] as usize] -= label_occupancy;
            }
        }
    }
    loss
}
