//! One lattice of which pruning retained a band: both recursions of Graves 2012, frame by frame, over logarithms.
//!
//! Bands are a few sites wide, so that nothing is gained from anti-diagonals. Where a band lies is worked out once, as a list of
//! arcs, which either recursion and the adjoints go through.
use crate::{Arc, log_add, log_sums::Walk, topology::Landing};

/// Memory that is kept from one lattice to the next.
#[derive(Debug, Default)]
pub(crate) struct Banded {
    /// Where each arc that exists is among all, the site it leaves, and the one it lands on, [`END`] for the end.
    arcs: Vec<(usize, u32, u32)>,
    alpha: Vec<f64>,
    beta: Vec<f64>,
}

const END: u32 = u32::MAX;

impl Banded {
    /// Writes `-factor(arc)` times the posterior of each arc; returns the loss.
    pub fn run(
        &mut self,
        walk: &Walk,
        emissions: &[f64],
        factor: impl Fn(&Arc) -> f64,
        adjoints: &mut [f64],
    ) -> f64 {
        let Self { arcs, alpha, beta } = self;
        let kinds = walk.topology.arcs();
        let sites = emissions.len() / kinds.len();
        arcs.clear();
        for (site, at) in walk.sites() {
            arcs.extend((0..kinds.len()).filter_map(|arc| {
                let to = match walk.land(arc, at) {
                    Landing::Site(to) => to as u32,
                    Landing::End => END,
                    Landing::Nowhere => return None,
                };
                Some((site * kinds.len() + arc, site as u32, to))
            }));
        }
        for sums in [&mut *alpha, &mut *beta] {
            sums.clear();
            sums.resize(sites, f64::NEG_INFINITY);
        }
        adjoints.fill(0.0);
        let Some(start) = walk.start() else { return f64::INFINITY };
        for &(arc, site, to) in arcs.iter().rev() {
            let after = if to == END { 0.0 } else { beta[to as usize] };
            beta[site as usize] = log_add(beta[site as usize], emissions[arc] + after);
        }
        let log_p = beta[start];
        if !log_p.is_finite() {
            return -log_p;
        }
        alpha[start] = 0.0;
        for &(arc, site, to) in arcs.iter() {
            let (emission, before) = (emissions[arc], alpha[site as usize]);
            let after = if to == END { 0.0 } else { beta[to as usize] };
            let posterior = (before + emission + after - log_p).exp();
            adjoints[arc] = -factor(&kinds[arc % kinds.len()]) * posterior;
            if to != END {
                alpha[to as usize] = log_add(alpha[to as usize], before + emission);
            }
        }
        -log_p
    }
}
