//! Which classes each site asks for.
use kernels::{par_find, runs};

use crate::{Error, Result, blocking::SITES_PER_TASK, error::expect_len};

/// Selected class ids *N x S* with a mask; an inactive entry is never read, whatever its id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    ids: Vec<u32>,
    active: Vec<bool>,
    per_site: usize,
}

impl Selection {
    /// Takes ids and mask, site after site, `per_site` = S entries each.
    ///
    /// # Errors
    /// Lengths that differ or are no multiple of S; a class that a site selects twice. O(N S²), or O(N S) where neighbours ask for the same.
    pub fn new(ids: Vec<u32>, active: Vec<bool>, per_site: usize) -> Result<Self> {
        expect_len("selection.active", ids.len(), active.len())?;
        let sites = ids.len().checked_div(per_site).unwrap_or(0);
        expect_len("selection.ids", sites * per_site, ids.len())?;
        let selection = Self { ids, active, per_site };
        for site in 0..sites {
            if site > 0 && selection.same(site, site - 1) {
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

    /// Whether two sites ask for the same, which all frames of an utterance may.
    fn same(&self, a: usize, b: usize) -> bool {
        let entries = |site: usize| site * self.per_site..(site + 1) * self.per_site;
        self.ids[entries(a)] == self.ids[entries(b)] && self.active[entries(a)] == self.active[entries(b)]
    }

    /// Ids and mask, to be filled anew.
    pub fn into_parts(self) -> (Vec<u32>, Vec<bool>) {
        (self.ids, self.active)
    }

    /// Entries that there is room for.
    pub fn capacity(&self) -> usize {
        self.ids.capacity()
    }

    /// S, the number of entries a site.
    pub fn per_site(&self) -> usize {
        self.per_site
    }

    /// `(slot, class)` of a site's active entries.
    ///
    /// # Panics
    /// If there is no such site.
    pub fn active(&self, site: usize) -> impl Iterator<Item = (usize, u32)> + '_ {
        let from = site * self.per_site;
        (0..self.per_site).filter(move |s| self.active[from + s]).map(move |s| (s, self.ids[from + s]))
    }

    /// Fails unless there is one row a site and every active class exists.
    pub(crate) fn check(&self, sites: usize, classes: usize) -> Result<()> {
        expect_len("selection", sites.saturating_mul(self.per_site), self.ids.len())?;
        let wrong =
            |site| self.active(site).find(|&(_, id)| id as usize >= classes).map(|entry| (site, entry));
        match par_find(runs(sites, SITES_PER_TASK), |_, mut sites| sites.find_map(wrong)) {
            None => Ok(()),
            Some((site, (slot, class))) => Err(Error::ClassOutOfRange { site, slot, class, classes }),
        }
    }
}
