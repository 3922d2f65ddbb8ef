//! Selected classes of lattice sites: those whose log-probabilities a loss needs.
//!
//! In a plain transducer they are the blank and the next label.
use kernels::{par_find, range_parts};

use crate::{Error, Result, blocking::SITES_PER_TASK, error::expect_len};

/// Selected class ids *N x S* with a mask; ids of inactive entries are never read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    ids: Vec<u32>,
    active: Vec<bool>,
    per_site: usize,
}

impl Selection {
    /// Takes ids and mask, site after site, with `per_site` = S entries each.
    ///
    /// # Errors
    /// Lengths that differ or are not a multiple of S; a class that a site selects twice.
    ///
    /// # Cost
    /// O(N S²), or O(N S) where neighboring sites have equal selections.
    pub fn new(ids: Vec<u32>, active: Vec<bool>, per_site: usize) -> Result<Self> {
        expect_len("selection.active", ids.len(), active.len())?;
        let sites = ids.len().checked_div(per_site).unwrap_or(0);
        expect_len("selection.ids", sites * per_site, ids.len())?;
        let selection = Self { ids, active, per_site };
        for site in 0..sites {
            if site > 0 && selection.is_equal(site, site - 1) {
                continue;
            }
            for (slot, class) in selection.active(site) {
                if selection.active(site).any(|(other, id)| other < slot && id == class) {
                    return Err(Error::DuplicateClass { site, class });
                }
            }
        }
        Ok(selection)
    }

    /// Returns whether two sites have equal selections.
    ///
    /// This is common for frames of an utterance.
    fn is_equal(&self, a: usize, b: usize) -> bool {
        let entries = |site: usize| site * self.per_site..(site + 1) * self.per_site;
        self.ids[entries(a)] == self.ids[entries(b)] && self.active[entries(a)] == self.active[entries(b)]
    }

    /// Returns ids and mask, to reuse their memory.
    pub fn into_parts(self) -> (Vec<u32>, Vec<bool>) {
        (self.ids, self.active)
    }

    /// Returns the entries that fit without an allocation.
    pub fn capacity(&self) -> usize {
        self.ids.capacity()
    }

    /// Returns S, the number of entries of a site.
    pub fn per_site(&self) -> usize {
        self.per_site
    }

    /// Iterates over the active entries of a site as `(slot, class)`.
    ///
    /// # Panics
    /// If there is no such site.
    pub fn active(&self, site: usize) -> impl Iterator<Item = (usize, u32)> + '_ {
        let start = site * self.per_site;
        let active_slots = (0..self.per_site).filter(move |slot| self.active[start + slot]);
        active_slots.map(move |slot| (slot, self.ids[start + slot]))
    }

    /// Fails unless each site has a row and all active classes exist.
    pub(crate) fn check(&self, sites: usize, classes: usize) -> Result<()> {
        expect_len("selection", sites.saturating_mul(self.per_site), self.ids.len())?;
        let out_of_range =
            |site| self.active(site).find(|&(_, id)| id as usize >= classes).map(|entry| (site, entry));
        match par_find(range_parts(sites, SITES_PER_TASK), |_, mut sites| sites.find_map(out_of_range)) {
            None => Ok(()),
            Some((site, (slot, class))) => Err(Error::ClassOutOfRange { site, slot, class, classes }),
        }
    }
}
