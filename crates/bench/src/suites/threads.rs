//! The same work by one thread, by two, by all.
use super::{Choice, SHORT, middle};
use crate::case::{Case, LossWork, Plan, System, Work};
use crate::machine::cores;

/// `ours` has all cores, or as many threads as the command line says; the rivals have fewer.
pub fn plan(choice: &Choice) -> Plan {
    let most = choice.threads.max(cores().min(2));
    let mut fewer: Vec<usize> =
        std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|&n| n < most).collect();
    // One thread is the measure of all: it comes last.
    fewer.reverse();
    let fewer: Vec<System> = fewer
        .into_iter()
        .map(|threads| System {
            name: if threads == 1 { "1-thread".to_owned() } else { format!("{threads}-threads") },
            threads,
            ..choice.ours()
        })
        .collect();
    let case = |(place, (name, work)): (usize, (&str, LossWork))| Case {
        name: name.to_owned(),
        // Three shapes that have no common measure stand at equal distances.
        mark: Some((2f64.powi(place as i32), name.to_owned())),
        work: Work::Loss(work),
        systems: std::iter::once(System { threads: most, ..choice.ours() }).chain(fewer.clone()).collect(),
    };
    let all = [("C=8192", middle(8192)), ("S5", SHORT), ("C=65536", middle(65_536))];
    let count = if choice.quick { 1 } else { all.len() };
    let cases = all.into_iter().take(count).enumerate().map(case).collect();
    Plan { suite: "threads", title: "Threads", axis: "shape", cases }
}
