//! One level of tiles more: classes of a head that several processes hold.
//!
//! ```text
//! forward    each process, of its classes:    m_r = max z;  s_r = Σ exp(z - m_r);  z at the selected classes that are its own
//! exchange   N (S + 2) numbers
//! everywhere, in the order of the ranks:      m = max m_r;  s = Σ_r s_r exp(m_r - m);  r = (z_selected - m) - log s
//! backward   each process, of its classes:    dW, db;  its part of dh, to be summed over all
//! ```
//! What they tell each other does not depend on the number of classes.
use std::sync::{Mutex, PoisonError};
use std::{error, fmt, result};

use crate::{Error, Head, Normalized, Real, Result};

/// What connects processes that hold the classes of a head together.
///
/// All of them make the same calls in the same order, and wait for each other in each.
pub trait Exchange: Send {
    /// Number of this process, from 0.
    fn rank(&self) -> usize;

    /// Processes in all.
    fn count(&self) -> usize;

    /// The numbers of all processes, in the order of their ranks.
    ///
    /// # Shapes
    /// `mine` has the same length in all processes, and `all` is `count` times as long.
    ///
    /// # Errors
    /// Those of the connection.
    fn gather(
        &mut self,
        mine: &[f64],
        all: &mut [f64],
    ) -> result::Result<(), Box<dyn error::Error + Send + Sync>>;
}

/// Numbers that a process hears at once. With what it says itself and what a connection copies, a MiB at most, beside any budget.
const PIECE: usize = 1 << 15;

/// The processes that hold the classes of a head, this one among them.
///
/// A process that cannot go on tells the others where they meet next, so that none waits for it.
pub struct Peers {
    /// The mutex makes the value [`Sync`]; it is used through `&mut` and never locked.
    exchange: Mutex<Box<dyn Exchange>>,
    rank: usize,
    count: usize,
    /// Whether one has said that it does not go on.
    parted: bool,
    mine: Vec<f64>,
    all: Vec<f64>,
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Peers").field("rank", &self.rank()).field("count", &self.count()).finish()
    }
}

impl Peers {
    /// Those at the other ends of a connection.
    pub fn new(exchange: impl Exchange + 'static) -> Self {
        let (rank, count) = (exchange.rank(), exchange.count());
        let exchange: Mutex<Box<dyn Exchange>> = Mutex::new(Box::new(exchange));
        Self { exchange, rank, count, parted: false, mine: Vec::new(), all: Vec::new() }
    }

    /// Number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Processes in all.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Begins calls of which the first error, in any process, ends all.
    pub fn begin(&mut self) {
        self.parted = false;
    }

    /// Tells the others whether this process goes on, unless since [`begin`](Self::begin) one has said already that it does not.
    ///
    /// # Errors
    /// Its own; [`Error::Peer`] if another does not go on.
    pub fn meet<T, E: From<Error>>(&mut self, mine: result::Result<T, E>) -> result::Result<T, E> {
        if self.parted {
            return mine;
        }
        let failed = self.hear(1, |_| f64::from(u8::from(mine.is_err())))?.iter().position(|&f| f != 0.0);
        self.parted = failed.is_some();
        match (mine, failed) {
            (Ok(_), Some(rank)) => {
                Err(Error::Peer { rank, message: "could not go on; it says why".into() }.into())
            }
            (mine, _) => mine,
        }
    }

    /// Fails unless all processes say the same numbers.
    ///
    /// # Errors
    /// [`Error::Peer`] for the first that does not say what rank 0 says.
    pub fn expect_same(&mut self, what: &str, mine: &[f64]) -> Result<()> {
        let all = self.hear(mine.len(), |at| mine[at])?;
        let other = all.chunks_exact(mine.len()).position(|other| other != &all[..mine.len()]);
        self.part_from(other.map(|rank| (rank, format!("has other {what} than rank 0"))))
    }

    /// Replaces values by their sums over all processes, which have as many: terms are added in the order of the ranks, in `f64`.
    ///
    /// Cost: every process hears all values of all.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn sum<F: Real>(&mut self, values: &mut [F]) -> Result<()> {
        let piece = (PIECE / self.count()).max(1);
        for values in values.chunks_mut(piece) {
            let all = self.hear(values.len(), |at| values[at].to_f64())?;
            let count = values.len();
            for (at, value) in values.iter_mut().enumerate() {
                *value = F::from_f64(all.iter().skip(at).step_by(count).sum());
            }
        }
        Ok(())
    }

    /// The largest of all processes' numbers.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn largest(&mut self, mine: f64) -> Result<f64> {
        Ok(self.hear(1, |_| mine)?.iter().copied().fold(mine, f64::max))
    }

    /// Sums of exponentials, and selected scores, of all classes from those of the classes of each process.
    pub(crate) fn combine<F: Real>(
        &mut self,
        head: &Head<F>,
        per_site: usize,
        out: &mut Normalized<F>,
    ) -> Result<()> {
        let Normalized { max, log_sum, emissions, .. } = out;
        let (count, width) = (max.len(), 2 + per_site);
        self.check(head, count, per_site)?;
        let piece = (PIECE / self.count() / width).max(1);
        for from in (0..count).step_by(piece) {
            let sites = from..count.min(from + piece);
            let length = sites.len() * width;
            let all = self.hear(length, |at| match (from + at / width, at % width) {
                (site, 0) => max[site].to_f64(),
                (site, 1) => log_sum[site],
                (site, slot) => emissions[site * per_site + slot - 2],
            })?;
            for (at, site) in sites.enumerate() {
                let rows = || all.chunks_exact(length).map(|rank| &rank[at * width..][..width]);
                let largest = rows().map(|row| row[0]).fold(f64::NEG_INFINITY, f64::max);
                // exp(-inf + inf) would be NaN.
                let factor = |own: f64| if own == largest { 1.0 } else { (own - largest).exp() };
                max[site] = F::from_f64(largest);
                log_sum[site] = rows().map(|row| row[1] * factor(row[0])).sum();
                for (slot, emission) in emissions[site * per_site..][..per_site].iter_mut().enumerate() {
                    *emission = rows().map(|row| row[2 + slot]).sum();
                }
            }
        }
        Ok(())
    }

    /// Fails unless the classes of all processes are, in the order of their ranks, those of the head, as many each as can be, and all
    /// have the same sites.
    fn check<F: Real>(&mut self, head: &Head<F>, sites: usize, per_site: usize) -> Result<()> {
        let (of, ranks) = (head.all_classes(), self.count());
        let mine = [head.first(), head.classes(), of, sites, per_site].map(|number| number as f64);
        let all = self.hear(mine.len(), |at| mine[at])?;
        let mut next = 0;
        let wrong = all.chunks_exact(mine.len()).enumerate().find_map(|(rank, theirs)| {
            let (first, own) = (theirs[0] as usize, theirs[1] as usize);
            let end = if rank + 1 == ranks { of } else { first + own };
            let fits =
                first == next && end == first + own && own <= of.div_ceil(ranks) && theirs[2..] == mine[2..];
            next = first + own;
            (!fits).then(|| {
                (rank, format!("has {own} classes from {first} on of {} at {} sites", theirs[2], theirs[3]))
            })
        });
        self.part_from(wrong)
    }

    /// Fails if there is a rank that something is wrong with.
    fn part_from(&mut self, wrong: Option<(usize, String)>) -> Result<()> {
        self.parted |= wrong.is_some();
        wrong.map_or(Ok(()), |(rank, message)| Err(Error::Peer { rank, message }))
    }

    /// Says so many numbers; hears those of all.
    fn hear(&mut self, count: usize, say: impl FnMut(usize) -> f64) -> Result<&[f64]> {
        self.mine.clear();
        self.mine.extend((0..count).map(say));
        self.all.resize(count * self.count, 0.0);
        let exchange = self.exchange.get_mut().unwrap_or_else(PoisonError::into_inner);
        match exchange.gather(&self.mine, &mut self.all) {
            Ok(()) => Ok(&self.all),
            Err(error) => {
                self.parted = true;
                Err(Error::Exchange { message: error.to_string() })
            }
        }
    }
}

/// The classes that process `rank` of `count` holds, of so many: as even as can be, and none in some where there are fewer than processes,
/// which no [`Head`] has.
pub fn classes_of(rank: usize, count: usize, classes: usize) -> std::ops::Range<usize> {
    let first = |rank: usize| (classes as u128 * rank as u128 / count as u128) as usize;
    first(rank)..first(rank + 1)
}
