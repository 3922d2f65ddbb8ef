//! Tests of `ProcessGroup::agree`: all ranks return the same error when one fails.
use distributed::{Error, ProcessGroup, SharedError, ThreadCommunicator, TransferFormat, first_error};
use proptest::prelude::*;

/// An error, of this rank or received from another.
#[derive(Debug, PartialEq)]
enum Failure {
    /// An error of this rank, with its priority.
    Own(usize),
    /// An error of another rank, with its priority.
    Received { rank: usize, priority: usize },
    /// An error of a collective call.
    Call(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Call(error.to_string())
    }
}

impl SharedError for Failure {
    type Report = usize;

    fn to_report(&self) -> usize {
        let (Failure::Own(priority) | Failure::Received { priority, .. }) = self else { panic!("{self:?}") };
        *priority
    }

    fn priority(report: &usize) -> usize {
        *report
    }

    fn from_report(rank: usize, report: usize) -> Self {
        Failure::Received { rank, priority: report }
    }
}

#[test]
fn all_ranks_return_the_error_of_lowest_priority() {
    // Rank r fails with the priority `priorities[r]`, if there is one.
    let agree = |priorities: [Option<usize>; 3]| {
        ThreadCommunicator::run(3, |communicator| {
            let mut group = ProcessGroup::new(communicator, TransferFormat::F32);
            let result =
                priorities[group.rank()].map_or(Ok(group.rank()), |priority| Err(Failure::Own(priority)));
            group.agree(result)
        })
    };
    assert_eq!(agree([None; 3]), [Ok(0), Ok(1), Ok(2)]);
    let received = |rank, priority| Failure::Received { rank, priority };
    let expected = [received(1, 2), Failure::Own(2), received(1, 2)];
    assert_eq!(agree([None, Some(2), None]), expected.map(Err));
    let expected = [Failure::Own(1), received(0, 1), received(0, 1)];
    assert_eq!(agree([Some(1), Some(2), Some(1)]), expected.map(Err));
}

#[test]
fn one_rank_keeps_its_result() {
    let mut group = ProcessGroup::single();
    assert_eq!((group.rank(), group.size()), (0, 1));
    assert_eq!(group.agree(Err::<(), _>(Failure::Own(3))), Err(Failure::Own(3)));
    assert_eq!(first_error(0, vec![None], Ok::<_, Failure>(5)), Ok(5));
    assert!(!group.any_rank(false).unwrap() && group.any_rank(true).unwrap());
    assert_eq!(group.all_gather(&7).unwrap(), [7]);
    group.barrier();
}

#[test]
fn a_flag_of_one_rank_is_true_on_all() {
    let any = |rank_with_flag: Option<usize>| {
        ThreadCommunicator::run(3, |communicator| {
            let mut group = ProcessGroup::new(communicator, TransferFormat::F32);
            group.barrier();
            group.any_rank(rank_with_flag == Some(group.rank())).unwrap()
        })
    };
    assert_eq!(any(None), [false; 3]);
    assert_eq!(any(Some(1)), [true; 3]);
}

#[test]
fn a_value_of_another_type_is_an_error_with_its_rank() {
    let errors = ThreadCommunicator::run(2, |communicator| {
        let mut group = ProcessGroup::new(communicator, TransferFormat::F32);
        match group.rank() {
            0 => group.all_gather(&1).map(drop),
            _ => group.all_gather(&"one".to_owned()).map(drop),
        }
    });
    assert!(matches!(errors[0], Err(Error::Rank { rank: 1, .. })), "{errors:?}");
    assert!(matches!(errors[1], Err(Error::Rank { rank: 0, .. })), "{errors:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn values_of_any_length_are_gathered_in_the_order_of_the_ranks(
        values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 1..6),
    ) {
        let gathered_by_rank = ThreadCommunicator::run(values.len(), |communicator| {
            let mut group = ProcessGroup::new(communicator, TransferFormat::F32);
            group.all_gather(&values[group.rank()]).unwrap()
        });
        prop_assert!(gathered_by_rank.iter().all(|gathered| *gathered == values));
    }
}
