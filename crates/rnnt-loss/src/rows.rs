//! Door for hidden rows that exist already, one a site.
use panda_core::{Head, Real, Rows};

use crate::{Layout, Options, Result, Targets, engine::Forward, error::expect_rows};

/// Loss and gradients of [`rows_loss`].
#[derive(Debug, Clone, PartialEq)]
pub struct RowsLoss<F> {
    /// `-log P` of each utterance, *B*.
    pub losses: Vec<f64>,
    /// Gradient of the hidden rows, shaped like them; 0 in padding.
    pub hidden: Vec<F>,
    /// Gradient of the head's weight, *C x H*.
    pub weight: Vec<F>,
    /// Gradient of the head's bias, *C*.
    pub bias: Vec<F>,
}

/// Transducer loss of hidden rows and a head, with all gradients of `Σ_b weights[b] loss[b]`.
///
/// # Shapes
/// `hidden` *rows x H* in `layout` ([`Layout::Padded`]: *B x T x (U+1) x H*), `weights` *B*.
///
/// # Errors
/// Shapes that do not fit, labels outside the classes, scores that are NaN or +inf.
///
/// # Cost
/// 8 N H C floating-point operations; transient memory as [`panda_core::Tiling`] says, plus a packed copy of the
/// rows if they are padded.
pub fn rows_loss<F: Real>(
    hidden: &[F],
    head: &Head<F>,
    layout: Layout,
    targets: &Targets,
    options: &Options,
    weights: &[f64],
) -> Result<RowsLoss<F>> {
    layout.check(targets)?;
    let width = head.hidden();
    expect_rows("hidden", layout.score_rows(targets), width, hidden.len())?;
    let site_of_row = layout.site_of_row(targets);
    let real = |(_, site): &(&[F], &u32)| **site != panda_core::scores::PADDING;
    let packed: Vec<F>;
    let rows = match layout {
        Layout::Packed => hidden,
        Layout::Padded { .. } => {
            let rows = hidden.chunks_exact(width).zip(&site_of_row).filter(real);
            packed = rows.flat_map(|(row, _)| row).copied().collect();
            &packed
        }
    };
    let sites = Rows::new(rows, width)?;
    let forward = Forward::new(&sites, head, targets, options)?;
    let gradients = forward.backward(&sites, head, targets, options, weights)?;
    let hidden = match layout {
        Layout::Packed => gradients.sites,
        Layout::Padded { .. } => {
            let mut padded = vec![F::ZERO; hidden.len()];
            for (row, &site) in padded.chunks_exact_mut(width).zip(&site_of_row) {
                if site != panda_core::scores::PADDING {
                    row.copy_from_slice(&gradients.sites[site as usize * width..][..width]);
                }
            }
            padded
        }
    };
    let losses = forward.losses().to_vec();
    Ok(RowsLoss { losses, hidden, weight: gradients.weight, bias: gradients.bias })
}
