//! Processes that train one model together, each with the same weights.
//!
//! ```text
//! plan of the epoch       the same everywhere: a function of the seed
//! share                   each process computes some utterances of every step
//! reduce                  sums of gradients and of losses, in the order of the ranks, everywhere
//! apply                   the same everywhere
//! checkpoints, logs       written by rank 0
//! evaluation              each process hears some batches; all learn what was heard
//! ```
//! What a step computes for an utterance depends on no other, so the sums are those of one process but for the order of their terms.
pub(crate) mod differences;

use std::sync::mpsc::{Receiver, Sender, channel};

use candle_core::{Tensor, Var};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::metrics::Tally;
use crate::{Error, Result};
use model::Arrivals;
use model::tensors::to_vec;
use model::{Gradients, Parameters, random};
use recognizer::bad_items::BadItems;

/// What connects the processes of a run; `()` is a process alone.
///
/// All of them call the same methods in the same order, and wait for each other in each.
pub trait Ranks {
    /// Number of this process, from 0, which writes what is written.
    fn rank(&self) -> usize;

    /// Processes in all.
    fn count(&self) -> usize;

    /// What every process says, in the order of their ranks.
    ///
    /// # Errors
    /// Those of the connection.
    fn gather(&mut self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>>;

    /// Begins the sums over all processes of tensors of so many values, the same numbers everywhere; each value becomes the same to the
    /// last bit in all of them.
    ///
    /// Each tensor comes in with its place in the list, in any order, contiguous and `f32`; where the first are there, their sums may
    /// begin. Nothing else is to be asked for until the sums are.
    ///
    /// # Errors
    /// Those of the connection.
    fn sum(&mut self, lengths: &[usize], terms: Receiver<(usize, Tensor)>) -> Result<Sums>;

    /// Returns settings of the connection, which must be equal in all processes, by the names of their arguments.
    fn settings(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Hears of every step before its gradients, so that a connection that breaks can say where.
    fn at_step(&mut self, _step: u64) {}
}

impl Ranks for () {
    fn rank(&self) -> usize {
        0
    }

    fn count(&self) -> usize {
        1
    }

    fn gather(&mut self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        Ok(vec![mine])
    }

    fn sum(&mut self, lengths: &[usize], terms: Receiver<(usize, Tensor)>) -> Result<Sums> {
        let mut all: Vec<Vec<f32>> = lengths.iter().map(|_| Vec::new()).collect();
        Ok(Box::new(move || {
            for (place, term) in terms {
                all[place] = to_vec(&term)?;
            }
            Ok(all)
        }))
    }
}

/// Waits for sums, which need all their terms.
pub type Sums = Box<dyn FnOnce() -> Result<Vec<Vec<f32>>>>;

/// The part of a step, utterances by batches, that a process computes: whole batches where each process has as many of them, and else
/// some utterances of each batch, dealt out forth and back, since neighbours are of similar length, beginning with another process in
/// each.
pub(crate) fn share(step: &[Vec<usize>], rank: usize, count: usize) -> Vec<Vec<usize>> {
    if step.len().is_multiple_of(count) {
        return step.iter().skip(rank).step_by(count).cloned().collect();
    }
    let owner = |batch: usize, place: usize| {
        let (round, turn) = (place / count, place % count);
        (batch + if round.is_multiple_of(2) { turn } else { count - 1 - turn }) % count
    };
    let part = |(at, batch): (usize, &Vec<usize>)| {
        let mine = batch.iter().enumerate().filter(|&(place, _)| owner(at, place) == rank);
        mine.map(|(_, &utterance)| utterance).collect()
    };
    step.iter().enumerate().map(part).filter(|part: &Vec<usize>| !part.is_empty()).collect()
}

/// What every process has to say, in the order of their ranks.
///
/// # Errors
/// Those of the connection; [`Error::Rank`] for what nobody of ours would say.
pub(crate) fn exchange<T: Serialize + DeserializeOwned>(ranks: &mut dyn Ranks, mine: &T) -> Result<Vec<T>> {
    let bytes = serde_json::to_vec(mine).expect("numbers and texts have a place in JSON");
    let read = |(rank, bytes): (usize, Vec<u8>)| {
        serde_json::from_slice(&bytes).map_err(|error| Error::Rank { rank, message: error.to_string() })
    };
    ranks.gather(bytes)?.into_iter().enumerate().map(read).collect()
}

/// Whether it is so in any process.
///
/// # Errors
/// Those of the connection.
pub(crate) fn any(ranks: &mut dyn Ranks, here: bool) -> Result<bool> {
    Ok(ranks.count() == 1 && here || ranks.count() > 1 && exchange(ranks, &here)?.contains(&true))
}

/// The result of this process, if no process has failed.
///
/// # Errors
/// The same problem everywhere: the worst, and of those the first. [`Error::Stopped`] and [`Error::Diverged`] are so in all processes;
/// any other is what it is in its own, and [`Error::Rank`] in the others.
pub(crate) fn agree<T>(ranks: &mut dyn Ranks, mine: Result<T>) -> Result<T> {
    if ranks.count() == 1 {
        return mine;
    }
    let problems = exchange(ranks, &mine.as_ref().err().map(Problem::new))?;
    settle(ranks.rank(), problems, mine)
}

/// The same, from what all processes have said.
fn settle<T>(me: usize, problems: Vec<Option<Problem>>, mine: Result<T>) -> Result<T> {
    let problems = problems.into_iter().enumerate().filter_map(|(rank, problem)| Some((rank, problem?)));
    match (problems.min_by_key(|(_, problem)| problem.order()), mine) {
        (None, mine) => mine,
        (Some((rank, _)), Err(error)) if rank == me => Err(error),
        (Some((rank, problem)), _) => Err(problem.into_error(rank)),
    }
}

/// What one process says that went wrong.
#[derive(Clone, Serialize, Deserialize)]
enum Problem {
    Stopped,
    Diverged {
        step: u64,
        what: String,
        utterances: Vec<String>,
    },
    /// A problem of a named rank, which all processes have found together.
    Rank {
        rank: usize,
        message: String,
    },
    Other(String),
}

impl Problem {
    fn new(error: &Error) -> Self {
        match error {
            Error::Stopped => Problem::Stopped,
            Error::Diverged { step, what, utterances, .. } => {
                Problem::Diverged { step: *step, what: what.to_string(), utterances: utterances.clone() }
            }
            Error::Rank { rank, message } => Problem::Rank { rank: *rank, message: message.clone() },
            other => Problem::Other(other.to_string()),
        }
    }

    /// The worst first.
    fn order(&self) -> usize {
        match self {
            Problem::Other(_) | Problem::Rank { .. } => 0,
            Problem::Stopped => 1,
            Problem::Diverged { .. } => 2,
        }
    }

    fn into_error(self, rank: usize) -> Error {
        match self {
            Problem::Stopped => Error::Stopped,
            Problem::Diverged { step, what, utterances } => {
                let what = format!("{what} in rank {rank}").into();
                Error::Diverged { step, what, found: None, utterances, source: None }
            }
            Problem::Rank { rank, message } => Error::Rank { rank, message },
            Problem::Other(message) => Error::Rank { rank, message },
        }
    }
}

/// What a process has of a step beside the gradients themselves.
#[derive(Serialize, Deserialize)]
struct Part {
    problem: Option<Problem>,
    /// Which parameters have a gradient, in the order of their names.
    reached: Vec<bool>,
    tally: Tally,
    /// Items of its share that cannot be used, and recordings that are not as long as their lines.
    bad: BadItems,
    seconds: f64,
    /// Parameters whose gradients came before the end, in this order, unless an order is known.
    early: Vec<usize>,
    /// Whether some of those were not all there is.
    torn: bool,
}

/// How the gradients of a run's steps become sums over its processes.
///
/// ```text
/// begin     sums wait for gradients
///           a backward pass hands in those that are complete: sums go on beside it
/// finish    the rest is handed in; what each process has to say is exchanged
/// ```
#[derive(Default)]
pub(crate) struct Reduction {
    /// Numbers of the parameters in the order of their sums: those that come early first, once a step has shown which they are.
    order: Vec<usize>,
    known: bool,
    /// Whether gradients come at the end, as some were handed in that were not all there is.
    late: bool,
}

/// A step of all processes.
pub(crate) struct Reduced {
    pub gradients: Gradients,
    pub tally: Tally,
    pub bad: BadItems,
    /// Seconds that each process took for its part.
    pub seconds: Vec<f64>,
}

/// Sums that have begun.
pub(crate) struct Begun {
    pub arrivals: Option<Arrivals>,
    to: Sender<(usize, Tensor)>,
    sums: Sums,
}

impl Reduction {
    /// Begins a step, unless this process is alone.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn begin(&mut self, ranks: &mut dyn Ranks, parameters: &Parameters) -> Result<Option<Begun>> {
        if ranks.count() == 1 {
            return Ok(None);
        }
        if self.order.is_empty() {
            self.order = (0..parameters.iter().count()).collect();
        }
        self.sums(ranks, parameters, !self.late).map(Some)
    }

    fn sums(&self, ranks: &mut dyn Ranks, parameters: &Parameters, early: bool) -> Result<Begun> {
        let all: Vec<&Tensor> = parameters.iter().map(|(_, parameter)| parameter.as_tensor()).collect();
        let ordered = || self.order.iter().map(|&number| all[number]);
        let lengths: Vec<usize> = ordered().map(Tensor::elem_count).collect();
        let (to, terms) = channel();
        let arrivals = early.then(|| Arrivals::new(ordered(), to.clone()));
        Ok(Begun { arrivals, sums: ranks.sum(&lengths, terms)?, to })
    }

    /// The whole step from the part of each process.
    ///
    /// # Errors
    /// As [`agree`].
    pub fn finish(
        &mut self,
        ranks: &mut dyn Ranks,
        parameters: &Parameters,
        begun: Option<Begun>,
        mine: Result<(Gradients, Tally)>,
        bad: BadItems,
        seconds: f64,
    ) -> Result<Reduced> {
        let Some(Begun { arrivals, to, sums }) = begun else {
            let (gradients, tally) = mine?;
            return Ok(Reduced { gradients, tally, bad, seconds: vec![seconds] });
        };
        let (handed, torn) =
            arrivals.map_or_else(Default::default, |arrivals| (arrivals.handed(), arrivals.torn()));
        let (gradients, tally, mut problem) = match mine {
            Ok((gradients, tally)) => (gradients, tally, None),
            // The others wait for sums, whatever they are to be.
            Err(error) => (Gradients::default(), Tally::default(), Some(error)),
        };
        self.hand_in(parameters, &gradients, &handed, to)?;
        let mut sums = sums().unwrap_or_else(|error| {
            problem.get_or_insert(error);
            Vec::new()
        });
        let early = if self.known { Vec::new() } else { handed.iter().map(|&at| self.order[at]).collect() };
        let reached = parameters.iter().map(|(name, _)| gradients.get(name).is_some()).collect();
        let said = problem.as_ref().map(Problem::new);
        let part = Part { problem: said, reached, tally, bad, seconds, early, torn };
        let parts = exchange(ranks, &part)?;
        let problems = parts.iter().map(|part| part.problem.clone()).collect();
        settle(ranks.rank(), problems, problem.map_or(Ok(()), Err))?;
        if parts.iter().any(|part| part.torn) {
            self.late = true;
            let Begun { to, sums: again, .. } = self.sums(ranks, parameters, false)?;
            self.hand_in(parameters, &gradients, &[], to)?;
            sums = agree(ranks, again())?;
        }
        let mut all = Gradients::default();
        let named: Vec<(&str, &Var)> = parameters.iter().collect();
        for (&number, sum) in self.order.iter().zip(sums) {
            // What no process has reached has no gradient, as in one process.
            if parts.iter().any(|part| part.reached[number]) {
                let (name, parameter) = named[number];
                all.insert(name, Tensor::from_vec(sum, parameter.shape(), parameter.device())?);
            }
        }
        let (mut tally, mut bad) = (Tally::default(), BadItems::default());
        parts.iter().for_each(|part| tally += part.tally);
        self.learn(&parts);
        let seconds = parts.iter().map(|part| part.seconds).collect();
        parts.into_iter().for_each(|part| bad.extend(part.bad));
        Ok(Reduced { gradients: all, tally, bad, seconds })
    }

    /// Gradients in the places that are not taken; 0 where there is none.
    fn hand_in(
        &self,
        parameters: &Parameters,
        gradients: &Gradients,
        handed: &[usize],
        to: Sender<(usize, Tensor)>,
    ) -> Result<()> {
        let named: Vec<(&str, &Var)> = parameters.iter().collect();
        for (place, &number) in self.order.iter().enumerate().filter(|(place, _)| !handed.contains(place)) {
            let (name, parameter) = named[number];
            let gradient = match gradients.get(name) {
                Some(gradient) => gradient.clone(),
                None => Tensor::zeros_like(parameter.as_tensor())?,
            };
            // Whoever does not listen any more says why when the sums are asked for.
            let _ = to.send((place, gradient));
        }
        Ok(())
    }

    /// Puts first what the first process that has anything to say about it has heard first.
    fn learn(&mut self, parts: &[Part]) {
        let Some(early) = parts.iter().map(|part| &part.early).find(|early| !early.is_empty()) else {
            return;
        };
        let rest = self.order.iter().filter(|number| !early.contains(number));
        self.order = early.iter().chain(rest).copied().collect();
        self.known = true;
    }
}

/// Fails unless every process says the same.
///
/// # Errors
/// [`Error::Rank`] for the first that differs from rank 0.
pub(crate) fn expect_same(ranks: &mut dyn Ranks, what: &str, mine: impl FnOnce() -> String) -> Result<()> {
    if ranks.count() == 1 {
        return Ok(());
    }
    let all = exchange(ranks, &random::hash(&mine()))?;
    match all.iter().position(|other| *other != all[0]) {
        None => Ok(()),
        Some(rank) => {
            Err(Error::Rank { rank, message: format!("expected the {what} of rank 0, found another") })
        }
    }
}

/// The rank that took half as long again as the others' mean, and a second more, if one did, and how many times as long.
pub(crate) fn slow(seconds: &[f64]) -> Option<(usize, f64)> {
    let (rank, most) = seconds.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let mean = (seconds.iter().sum::<f64>() - most) / (seconds.len() - 1) as f64;
    (most > 1.5 * mean && most > 1.0 + mean).then(|| (rank, most / mean))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_the_step() {
        let batches: Vec<Vec<usize>> = vec![vec![5, 1, 9], vec![2], vec![7, 3, 8, 4], vec![6]];
        for steps in 1..=4 {
            let step = &batches[..steps];
            let mut all = step.concat();
            all.sort_unstable();
            for count in 1..=5 {
                let shares: Vec<_> = (0..count).map(|rank| share(step, rank, count)).collect();
                let mut dealt = shares.concat().concat();
                dealt.sort_unstable();
                assert_eq!(dealt, all, "{steps} batches, {count} ranks");
                assert!(shares.concat().iter().all(|batch| !batch.is_empty()));
            }
        }
        assert_eq!(share(&batches, 1, 2), [vec![2], vec![6]]);
        assert_eq!(share(&batches[..1], 1, 2), [vec![1, 9]]);
        assert_eq!(share(&batches[1..2], 1, 2), [[0; 0]; 0]);
        assert_eq!([0, 1].map(|rank| share(&[vec![9, 8, 7, 6, 5, 4]], rank, 2)), [[[9, 6, 5]], [[8, 7, 4]]]);
        // Who begins takes turns.
        assert_eq!(share(&[vec![1], vec![2], vec![3]], 0, 2), [[1], [3]]);
    }

    /// Some processes, of which this one hears what the others are going to say.
    struct Known(Vec<Vec<u8>>, usize);

    impl Ranks for Known {
        fn rank(&self) -> usize {
            self.1
        }

        fn count(&self) -> usize {
            self.0.len()
        }

        fn gather(&mut self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>> {
            let mut all = self.0.clone();
            all[self.1] = mine;
            Ok(all)
        }

        fn sum(&mut self, lengths: &[usize], terms: Receiver<(usize, Tensor)>) -> Result<Sums> {
            ().sum(lengths, terms)
        }
    }

    #[test]
    fn all_find_the_same_problem() {
        let problem = |which: usize| match which {
            0 => None,
            1 => {
                let (what, utterances) = ("loss".into(), vec!["a".to_owned()]);
                Some(Error::Diverged { step: 3, what, found: None, utterances, source: None })
            }
            2 => Some(Error::Stopped),
            _ => Some(recognizer::Error::Empty { what: "here".to_owned() }.into()),
        };
        let said = |at: &usize| serde_json::to_vec(&problem(*at).as_ref().map(Problem::new)).unwrap();
        let heard = |which: [usize; 3]| {
            let all: Vec<Vec<u8>> = which.iter().map(said).collect();
            [0, 1, 2].map(|rank| {
                let mine = problem(which[rank]).map_or(Ok(rank), Err);
                agree(&mut Known(all.clone(), rank), mine)
            })
        };
        assert!(heard([0, 0, 0]).into_iter().enumerate().all(|(rank, found)| found.unwrap() == rank));
        for found in heard([0, 1, 0]) {
            let Err(Error::Diverged { step: 3, utterances, .. }) = found else { panic!("{found:?}") };
            assert_eq!(utterances, ["a"]);
        }
        assert!(heard([1, 0, 2]).iter().all(|found| matches!(found, Err(Error::Stopped))));
        let [first, second, third] = heard([1, 3, 3]);
        assert!(matches!(first, Err(Error::Rank { rank: 1, .. })), "{first:?}");
        assert!(matches!(second, Err(Error::Recognizer(recognizer::Error::Empty { .. }))), "{second:?}");
        assert!(matches!(third, Err(Error::Rank { rank: 1, .. })), "{third:?}");
    }

    #[test]
    fn a_slow_rank_is_named() {
        assert_eq!(slow(&[1.0]), None);
        assert_eq!(slow(&[10.0, 12.0, 11.0]), None);
        assert_eq!(slow(&[0.1, 0.1, 0.9]), None);
        assert_eq!(slow(&[10.0, 10.0, 20.0]), Some((2, 2.0)));
        assert_eq!(slow(&[30.0, 10.0]), Some((0, 3.0)));
    }
}
