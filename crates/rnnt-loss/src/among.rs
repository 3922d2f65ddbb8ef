//! Sums under a head that several processes hold in parts.
//!
//! ```text
//! all come with the same options, targets, rows and weights       compared, and the duration head with them
//! groups of utterances, as everywhere                             each head class by one process (panda_core::peers)
//! gradients of the rows: the sum over the processes               once, at the end
//! ```
//! A duration head is everybody's, and its gradient rank 0's.
use std::hash::{DefaultHasher, Hash, Hasher};

use panda_core::{Peers, Real};

use crate::{Error, Gradients, Output, Result, Session, Targets, call::Call};

impl<F: Real> Session<F> {
    /// The same for a token head that several processes hold in parts ([`Head::part`](crate::Head::part)), which make the same calls
    /// with the same arguments but for the part.
    ///
    /// [`sum`](Self::sum) of [`Joint`](crate::Joint) and [`Rows`](crate::Rows) under one softmax then gives losses, and gradients of all
    /// inputs but the head, that are the same everywhere, and the gradient of the head's part. Memory and work for the head are those of
    /// the part; beside the budget an exchange holds up to a MiB.
    ///
    /// ```
    /// use std::error::Error;
    ///
    /// use panda_core::{Exchange, Peers, classes_of};
    /// use rnnt_loss::{Head, Joint, Options, Session, Targets};
    ///
    /// /// One process, which holds all.
    /// struct Alone;
    ///
    /// impl Exchange for Alone {
    ///     fn rank(&self) -> usize {
    ///         0
    ///     }
    ///     fn count(&self) -> usize {
    ///         1
    ///     }
    ///     fn gather(&mut self, mine: &[f64], all: &mut [f64]) -> Result<(), Box<dyn Error + Send + Sync>> {
    ///         all.copy_from_slice(mine);
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let peers = Peers::new(Alone);
    /// let (rows, weight, classes) = ([0.5f32; 2 * 4], [0.1; 6 * 4], 6); // T = 2, U = 1, H = 4
    /// let here = classes_of(peers.rank(), peers.count(), classes);
    /// let head = Head::part(&weight[4 * here.start..4 * here.end], None, 4, here.start, classes)?;
    /// let mut session = Session::new(&Options::default())?.among(peers);
    /// let out = session.sum(Joint::new(&rows, &rows, head), &Targets::new(0, vec![2], vec![vec![1]])?, &[1.0])?;
    /// assert_eq!(out.gradients.head.weight.len(), 4 * here.len());
    /// # Ok::<(), rnnt_loss::Error>(())
    /// ```
    pub fn among(self, peers: Peers) -> Self {
        Self { peers: Some(peers), ..self }
    }

    /// Fails where processes share the head, and says so to those that may have been asked for something else.
    pub(crate) fn expect_alone(&mut self, found: &'static str) -> Result<()> {
        let Some(peers) = &mut self.peers else { return Ok(()) };
        peers.begin();
        peers.meet(Err(Error::Among { found }))
    }
}

/// The sum of a call, alone or among others.
pub(crate) fn sum<F: Real>(
    session: &mut Session<F>,
    call: Result<Call<F>>,
    targets: &Targets,
    weights: &[f64],
) -> Result<Output<F>> {
    let Some(peers) = &mut session.peers else { return call?.sum(session, weights, 0) };
    peers.begin();
    let one_softmax = session.options.expect_one_softmax();
    let call = peers.meet(one_softmax.and(call))?.among(peers.count());
    let mut hasher = DefaultHasher::new();
    format!("{:?} {targets:?} {weights:?}", session.options).hash(&mut hasher);
    call.hash(targets, &mut hasher);
    let hash = hasher.finish();
    peers.expect_same(
        "options, targets, weights, rows or duration head",
        &[(hash >> 32) as f64, (hash as u32).into()],
    )?;
    let out = call.sum(session, weights, 0);
    let peers = session.peers.as_mut().expect("nobody has taken them");
    let mut out = peers.meet(out)?;
    let Gradients { encoded, predicted, hidden, durations, .. } = &mut out.gradients;
    for rows in [encoded, predicted, hidden, &mut durations.weight, &mut durations.bias] {
        peers.sum(rows)?;
    }
    // Each has counted the largest weight of its own part.
    out.skipped.inputs = peers.largest(out.skipped.inputs)?;
    Ok(out)
}
