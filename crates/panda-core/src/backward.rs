//! Backward: gradients from compact adjoints, one wave of sites at a time, class tiles recomputed.
use rayon::prelude::*;

use crate::{
    Error, Head, Normalized, Real, Result, Selection, Sites, Tiling,
    error::expect_len,
    forward::{check, score_tile},
    kernel::{Accumulate, View, ViewMut, product},
    sites::pull_back_blocks,
};

/// What the lattice sends back.
#[derive(Debug, Clone, Copy)]
pub struct Adjoints<'a> {
    /// `dL/dr`, *N x S*; inactive entries are not read.
    pub emissions: &'a [f64],
    /// `dL/dlogZ`, *N*, beyond what the emissions imply (z-loss).
    pub log_z: Option<&'a [f64]>,
    /// Clamp on the gradient of the scores.
    pub clamp: Option<Clamp<'a>>,
}

/// Clamps each element of the gradient of the scores: `g = weight · clip(g, -limit, limit)`.
#[derive(Debug, Clone, Copy)]
pub struct Clamp<'a> {
    /// The largest magnitude before weighting, at least 0.
    pub limit: f64,
    /// Applied after clipping, *N*; adjoints must not contain it.
    pub weights: &'a [f64],
}

impl<'a> Adjoints<'a> {
    /// Adjoints of the emissions alone.
    pub fn new(emissions: &'a [f64]) -> Self {
        Self { emissions, log_z: None, clamp: None }
    }

    /// Fails unless everything that a gradient is made of is finite in the type of the rows.
    pub(crate) fn check<F: Real>(&self, sites: usize, selection: &Selection) -> Result<()> {
        let per_site = selection.per_site();
        expect_len("adjoints.emissions", sites.saturating_mul(per_site), self.emissions.len())?;
        let weights = self.clamp.map(|clamp| clamp.weights);
        for (argument, values) in [("adjoints.log_z", self.log_z), ("adjoints.clamp.weights", weights)] {
            let Some(values) = values else { continue };
            expect_len(argument, sites, values.len())?;
            values.iter().enumerate().try_for_each(|(site, &value)| finite::<F>(argument, site, value))?;
        }
        for site in 0..sites {
            for (slot, _) in selection.active(site) {
                finite::<F>("adjoints.emissions", site, self.emissions[site * per_site + slot])?;
            }
            finite::<F>("adjoints.emissions", site, self.total(site, selection))?;
        }
        match self.clamp {
            Some(Clamp { limit, .. }) if limit.is_nan() || limit < 0.0 => Err(Error::Clamp { limit }),
            _ => Ok(()),
        }
    }

    /// `A = Σ_s a_s - dL/dlogZ`
    fn total(&self, site: usize, selection: &Selection) -> f64 {
        let row = &self.emissions[site * selection.per_site()..];
        selection.active(site).map(|(slot, _)| row[slot]).sum::<f64>() - self.log_z.map_or(0.0, |a| a[site])
    }
}

fn finite<F: Real>(argument: &'static str, site: usize, value: f64) -> Result<()> {
    if F::from_f64(value).to_f64().is_finite() {
        Ok(())
    } else {
        Err(Error::Adjoint { argument, site, value })
    }
}

/// Gradients of everything that made the scores.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients<F, G> {
    /// Gradient of what the sites were made of.
    pub sites: G,
    /// Gradient of the head's weight, *C x H*.
    pub weight: Vec<F>,
    /// Gradient of the head's bias, *C*; also there for a head without one.
    pub bias: Vec<F>,
}

/// Gradients of the sites and the head from adjoints of the emissions.
///
/// ```text
/// for each wave of row_lanes blocks of sites:
///     in parallel over (block, class lane), for each class tile of the lane:
///         Z = h Wᵀ + b                            the same product as forward
///         G = -A exp((Z - m) - log s), then += a at the selected classes
///         db += Σ G;  dW += Gᵀ h;  dh_lane += G W
///     dh = Σ_lane dh_lane;  dx = φ'(h) dh;  scatter in site order
/// ```
///
/// With `A[i] = Σ_s a[i,s] - dL/dlogZ[i]`. At a selected class the softmax is taken from the emission in `f64`,
/// because there `a - A p` cancels when the model is sure.
///
/// # Shapes
/// As [`forward`](crate::forward()), whose result for the same arguments is `normalized`.
///
/// # Errors
/// Shapes that do not fit; an infinite weight; adjoints that are not finite in the type of the rows.
///
/// # Cost
/// 6 N H C floating-point operations (a third of them recomputes Z); memory as [`Tiling`] says.
pub fn backward<F: Real, S: Sites<F>>(
    sites: &S,
    head: &Head<F>,
    selection: &Selection,
    normalized: &Normalized<F>,
    adjoints: &Adjoints,
    tiling: &Tiling,
) -> Result<Gradients<F, S::Gradient>> {
    let tiling = check(sites, head, selection, tiling)?;
    normalized.check(sites.len(), selection.per_site())?;
    adjoints.check::<F>(sites.len(), selection)?;
    let step = ScoreGradient { selection, normalized, adjoints };
    let (n, h) = (sites.len(), head.hidden);
    let mut into = sites.zero_gradient();
    // Classes of a lane: whole tiles, as even as they go.
    let lane_classes = head.classes.div_ceil(tiling.classes).div_ceil(tiling.class_lanes) * tiling.classes;
    let mut lanes: Vec<Lane<F>> = (0..tiling.row_lanes)
        .flat_map(|row_lane| (0..head.classes).step_by(lane_classes).map(move |from| (row_lane, from)))
        .map(|(row_lane, from)| {
            Lane::new(head, &tiling, row_lane, from, lane_classes.min(head.classes - from))
        })
        .collect();
    let class_lanes = lanes.len() / tiling.row_lanes;
    let wave_rows = tiling.row_lanes * tiling.rows;
    let mut hidden = vec![F::ZERO; wave_rows.min(n) * h];

    for first in (0..n).step_by(wave_rows) {
        let wave = wave_rows.min(n - first);
        let hidden = &mut hidden[..wave * h];
        hidden.par_chunks_mut(tiling.rows * h).enumerate().for_each(|(block, out)| {
            let from = first + block * tiling.rows;
            sites.fill(from..from + out.len() / h, out);
        });
        lanes.par_iter_mut().for_each(|lane| {
            let from = (lane.row_lane * tiling.rows).min(wave);
            let to = (from + tiling.rows).min(wave);
            lane.run(head, &step, first + from, &hidden[from * h..to * h], tiling.classes);
        });
        for (block, group) in lanes.chunks_mut(class_lanes).enumerate().take(wave.div_ceil(tiling.rows)) {
            let (total, others) = group.split_first_mut().expect("a row lane has at least one class lane");
            others.iter().for_each(|lane| F::add_slice(&mut total.hidden, &lane.hidden));
            let from = block * tiling.rows;
            let rows = total.hidden.len() / h;
            pull_back_blocks(sites, &hidden[from * h..(from + rows) * h], &mut total.hidden, 64 * h);
            sites.scatter(first + from..first + from + rows, &total.hidden, &mut into);
        }
    }
    let (weight, bias) = reduce_lanes(lanes, class_lanes);
    Ok(Gradients { sites: into, weight, bias })
}

/// One task of a wave: a block of sites against a run of class tiles, with the gradients it owns.
struct Lane<F> {
    row_lane: usize,
    from: usize,
    weight: Vec<F>,
    bias: Vec<f64>,
    hidden: Vec<F>,
    tile: Vec<F>,
}

impl<F: Real> Lane<F> {
    fn new(head: &Head<F>, tiling: &Tiling, row_lane: usize, from: usize, classes: usize) -> Self {
        Self {
            row_lane,
            from,
            weight: vec![F::ZERO; classes * head.hidden],
            bias: vec![0.0; classes],
            hidden: Vec::with_capacity(tiling.rows * head.hidden),
            tile: vec![F::ZERO; tiling.rows * tiling.classes.min(classes)],
        }
    }

    fn run(
        &mut self,
        head: &Head<F>,
        step: &ScoreGradient<F>,
        first: usize,
        hidden: &[F],
        tile_classes: usize,
    ) {
        let h = head.hidden;
        let rows = hidden.len() / h;
        self.hidden.clear();
        self.hidden.resize(rows * h, F::ZERO);
        if rows == 0 {
            return;
        }
        let mut column_sums = vec![F::ZERO; tile_classes.min(self.bias.len())];
        for offset in (0..self.bias.len()).step_by(tile_classes) {
            let width = tile_classes.min(self.bias.len() - offset);
            let from = self.from + offset;
            let tile = &mut self.tile[..rows * width];
            score_tile(head, hidden, from, width, tile);
            let sums = &mut column_sums[..width];
            sums.fill(F::ZERO);
            for (row, z) in tile.chunks_exact_mut(width).enumerate() {
                step.apply(first + row, from, z);
                F::add_slice(sums, z);
            }
            let bias = &mut self.bias[offset..offset + width];
            bias.iter_mut().zip(sums).for_each(|(b, g)| *b += g.to_f64());
            let g = View::new(tile, rows, width);
            let hidden = View::new(hidden, rows, h);
            let weight_tile = View::new(&head.weight[from * h..(from + width) * h], width, h);
            let weight = &mut self.weight[offset * h..(offset + width) * h];
            product(ViewMut::new(weight, width, h), g.transposed(), hidden, F::ONE, Accumulate::Add);
            product(ViewMut::new(&mut self.hidden, rows, h), g, weight_tile, F::ONE, Accumulate::Add);
        }
    }
}

/// Sums the row lanes in order and joins the class lanes.
fn reduce_lanes<F: Real>(mut lanes: Vec<Lane<F>>, class_lanes: usize) -> (Vec<F>, Vec<F>) {
    let (totals, others) = lanes.split_at_mut(class_lanes);
    totals.par_iter_mut().enumerate().for_each(|(class_lane, total)| {
        for row_lane in others.chunks(class_lanes) {
            F::add_slice(&mut total.weight, &row_lane[class_lane].weight);
            f64::add_slice(&mut total.bias, &row_lane[class_lane].bias);
        }
    });
    lanes.truncate(class_lanes);
    let bias = lanes.iter().flat_map(|lane| lane.bias.iter().map(|&b| F::from_f64(b))).collect();
    if lanes.len() == 1 {
        return (lanes.swap_remove(0).weight, bias);
    }
    let mut weight = Vec::with_capacity(lanes.iter().map(|lane| lane.weight.len()).sum());
    for lane in lanes {
        weight.extend_from_slice(&lane.weight);
    }
    (weight, bias)
}

/// The gradient of a row of scores, written over the scores.
pub(crate) struct ScoreGradient<'a, F> {
    pub selection: &'a Selection,
    pub normalized: &'a Normalized<F>,
    pub adjoints: &'a Adjoints<'a>,
}

impl<F: Real> ScoreGradient<'_, F> {
    /// `z` holds classes `from .. from + z.len()` of a site; `g = a - A p` replaces it.
    pub(crate) fn apply(&self, site: usize, from: usize, z: &mut [F]) {
        let per_site = self.selection.per_site();
        let adjoint = |slot: usize| self.adjoints.emissions[site * per_site + slot];
        let total = self.adjoints.total(site, self.selection);
        if total == 0.0 {
            // Also when p would be 0 · anything.
            z.fill(F::ZERO);
        } else {
            let factor = -total * (-self.normalized.log_sum[site]).exp();
            F::row_exp_scale(z, self.normalized.max[site], F::from_f64(factor));
        }
        for (slot, class) in self.selection.active(site) {
            if (from..from + z.len()).contains(&(class as usize)) {
                let p = self.normalized.emissions[site * per_site + slot].exp();
                z[class as usize - from] = F::from_f64(adjoint(slot) - total * p);
            }
        }
        if let Some(Clamp { limit, weights }) = self.adjoints.clamp {
            for g in z {
                *g = F::from_f64(weights[site] * g.to_f64().clamp(-limit, limit));
            }
        }
    }
}
