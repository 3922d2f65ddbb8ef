//! `Monitor`: detects ranks (processes) that do not join a collective MPI call.
//!
//! ```text
//! rank 0 has waited for the limit   sends a query to all other ranks
//! ranks that wait in the same call  reply, as they poll for queries while they wait
//! rank 0, REPLY_TIME later          reports the ranks without a reply
//! ```
//! The lowest of the waiting ranks reports (here rank 0). Ranks that do not wait are computing,
//! stopped, or lost.
use std::time::{Duration, Instant};

use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator, Destination, Source};

/// Time between two checks for messages of other ranks.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time that a rank has to reply.
const REPLY_TIME: Duration = Duration::from_secs(2);
/// Time until a rank is reported for the first time; later times are doubled.
const FIRST_REPORT: Duration = Duration::from_secs(60);

/// MPI tags of queries and replies; collective calls have separate tags.
const QUERY_TAG: i32 = 1;
const REPLY_TAG: i32 = 2;

/// Ranks that do not take part in a call of this rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnresponsiveRanks {
    /// Their ranks.
    pub ranks: Vec<usize>,
    /// Time that this rank has waited.
    pub wait_time: Duration,
    /// True if the limit is reached, so that the job must end.
    pub is_final: bool,
}

/// Monitors the calls of one rank.
pub(crate) struct Monitor {
    limit: Duration,
    report: Box<dyn FnMut(UnresponsiveRanks) + Send>,
    /// Number of the latest query, which a reply repeats.
    query_number: u64,
}

/// The wait of this rank in one collective call.
pub(crate) struct Wait {
    started: Instant,
    next_poll: Instant,
    /// Time from the start of the wait to the next query.
    next_query: Duration,
    /// The query of this rank that waits for replies.
    query: Option<Query>,
}

/// A query that waits for its replies.
struct Query {
    sent_at: Instant,
    /// True for each rank that has replied, and for this rank.
    replied: Vec<bool>,
}

impl Monitor {
    pub(crate) fn new(limit: Duration, report: impl FnMut(UnresponsiveRanks) + Send + 'static) -> Self {
        Self { limit, report: Box::new(report), query_number: 0 }
    }

    /// Begins to wait.
    pub(crate) fn start(&self) -> Wait {
        let started = Instant::now();
        let next_query = FIRST_REPORT.min(self.limit);
        Wait { started, next_poll: started + POLL_INTERVAL, next_query, query: None }
    }

    /// Replies to queries, and sends or evaluates a query of this rank.
    ///
    /// Does so at most once in [`POLL_INTERVAL`].
    pub(crate) fn poll(&mut self, world: &SimpleCommunicator, wait: &mut Wait) {
        let now = Instant::now();
        if now < wait.next_poll {
            return;
        }
        wait.next_poll = now + POLL_INTERVAL;
        // Reply to queries, then record replies.
        while let Some((rank, number)) = receive(world, QUERY_TAG) {
            world.process_at_rank(rank).send_with_tag(&number, REPLY_TAG);
        }
        while let Some((rank, number)) = receive(world, REPLY_TAG) {
            if let Some(query) = wait.query.as_mut().filter(|_| number == self.query_number) {
                query.replied[rank as usize] = true;
            }
        }
        // Send a query if it is time, or evaluate the one that was sent.
        match wait.query.take() {
            None if now - wait.started >= wait.next_query => {
                let mut replied = vec![false; world.size() as usize];
                replied[world.rank() as usize] = true;
                self.query_number += 1;
                for rank in (0..world.size()).filter(|&rank| rank != world.rank()) {
                    world.process_at_rank(rank).send_with_tag(&self.query_number, QUERY_TAG);
                }
                wait.query = Some(Query { sent_at: now, replied });
            }
            Some(query) if now - query.sent_at >= REPLY_TIME => {
                self.evaluate_replies(world, wait, &query, now)
            }
            query => wait.query = query,
        }
    }

    /// Reports ranks without a reply, if this is the lowest waiting rank.
    fn evaluate_replies(&mut self, world: &SimpleCommunicator, wait: &mut Wait, query: &Query, now: Instant) {
        let is_final = wait.next_query >= self.limit;
        wait.next_query =
            if is_final { wait.next_query + FIRST_REPORT } else { (2 * wait.next_query).min(self.limit) };
        let is_reporter = query.replied.iter().position(|&replied| replied) == Some(world.rank() as usize);
        let without_reply = query.replied.iter().enumerate().filter(|(_, replied)| !**replied);
        let ranks: Vec<usize> = without_reply.map(|(rank, _)| rank).collect();
        if is_reporter && !ranks.is_empty() {
            (self.report)(UnresponsiveRanks { ranks, wait_time: now - wait.started, is_final });
        }
    }
}

/// Returns the sender and the number of a message that has arrived.
fn receive(world: &SimpleCommunicator, tag: i32) -> Option<(i32, u64)> {
    let (message, _) = world.any_process().immediate_matched_probe_with_tag(tag)?;
    let (number, status) = message.matched_receive::<u64>();
    Some((status.source_rank(), number))
}
