//! A token head that several processes hold: the sums of one process, whatever the loss and its options.
use panda_core::{Peers, classes_of};
use rnnt_loss::{
    Error, Head, Joint, Layout, Loss, MemoryBudget, Options, Output, Plan, Result, Rows, Session, Targets,
    Topology,
};

use super::together::together;

const H: usize = 5;
const C: usize = 7;
const FRAMES: [usize; 3] = [4, 1, 3];
const WEIGHTS: [f64; 3] = [0.5, 1.0, -2.0];

fn values(len: usize, salt: u64) -> Vec<f64> {
    oracle::noise::normal(salt, 0, len, 1.2)
}

struct Case {
    options: Options,
    targets: Targets,
    rows: bool,
    frames: Vec<f64>,
    labels: Vec<f64>,
    heads: [(Vec<f64>, Vec<f64>); 2],
}

impl Case {
    fn new(options: Options) -> Self {
        let labels = vec![vec![1, 5], vec![], vec![0, 0, 3]];
        let mut targets = Targets::new(2, FRAMES.to_vec(), labels).unwrap();
        if options.loss.topology().is_some_and(|topology| topology.tokens() == 3) {
            targets = targets.with_big_blanks(vec![4]).unwrap();
        }
        let heads = [(values(C * H, 3), values(C, 4)), (values(3 * H, 5), values(3, 6))];
        let rows = options.loss == Loss::Ctc;
        Self { options, targets, rows, frames: values(8 * H, 1), labels: values(8 * H, 2), heads }
    }

    fn session(&self, peers: Option<Peers>) -> Session<f64> {
        let session = Session::new(&self.options).unwrap();
        match peers {
            Some(peers) => session.among(peers),
            None => session,
        }
    }

    fn sum(&self, session: &mut Session<f64>, rank: usize, count: usize) -> Result<Output<f64>> {
        let [(weight, bias), (of_durations, duration_bias)] = &self.heads;
        let here = classes_of(rank, count, C);
        let weight = &weight[H * here.start..H * here.end];
        let head = Head::part(weight, Some(&bias[here.clone()]), H, here.start, C)?;
        let durations = Head::new(of_durations, Some(duration_bias), H)?;
        if self.rows {
            let rows = Rows { hidden: &self.frames, head, durations: None, layout: Layout::Packed };
            return session.sum(rows, &self.targets, &WEIGHTS);
        }
        let mut joint = Joint::new(&self.frames, &self.labels, head);
        if matches!(self.options.loss, Loss::Tdt { .. }) {
            joint = joint.with_durations(durations);
        }
        session.sum(joint, &self.targets, &WEIGHTS)
    }

    fn alone(&self) -> Output<f64> {
        self.sum(&mut self.session(None), 0, 1).unwrap()
    }
}

fn close(bar: f64, found: &[f64], expected: &[f64]) -> bool {
    let near = |(a, b): (&f64, &f64)| a == b || (a - b).abs() <= bar * (1.0 + b.abs());
    found.len() == expected.len() && found.iter().zip(expected).all(near)
}

/// Twice by the same sessions, for what stays between calls.
fn is_that_of_one(case: &Case, count: usize) {
    let alone = case.alone();
    let all = together(count, |peers| {
        let rank = peers.rank();
        let mut session = case.session(Some(peers));
        let first = case.sum(&mut session, rank, count).unwrap();
        assert_eq!(case.sum(&mut session, rank, count).unwrap(), first);
        first
    });
    let what = format!("{:?} {count}", case.options);
    let [mut weight, mut bias] = [const { Vec::new() }; 2];
    for (rank, found) in all.iter().enumerate() {
        assert!(close(1e-12, &found.losses, &alone.losses), "{what}");
        let (own, one) = (&found.gradients, &alone.gradients);
        for (own, one) in [
            (&own.encoded, &one.encoded),
            (&own.predicted, &one.predicted),
            (&own.hidden, &one.hidden),
            (&own.durations.weight, &one.durations.weight),
            (&own.durations.bias, &one.durations.bias),
        ] {
            assert!(close(1e-11, own, one), "{what}: rank {rank}: {own:?} {one:?}");
        }
        // The same everywhere to the bit.
        assert_eq!((&found.losses, found.skipped), (&all[0].losses, all[0].skipped), "{what}");
        assert!(own.encoded == all[0].gradients.encoded && own.hidden == all[0].gradients.hidden, "{what}");
        weight.extend(&own.head.weight);
        bias.extend(&own.head.bias);
    }
    let head = &alone.gradients.head;
    assert!(close(1e-11, &weight, &head.weight) && close(1e-11, &bias, &head.bias), "{what}");
    let (found, alone) = (all[0].skipped, alone.skipped);
    assert!(close(1e-12, &[found.mass, found.inputs], &[alone.mass, alone.inputs]), "{what}");
    assert_eq!((found.sites, found.zeros), (alone.sites, alone.zeros), "{what}");
}

#[test]
fn every_loss_is_that_of_one_process() {
    let losses = [
        Loss::rnnt(),
        Loss::multi_blank(&[2]).unwrap(),
        Loss::over(Topology::modified()),
        Loss::tdt(&[0, 1, 2]).unwrap(),
        Loss::Tdt { topology: Topology::tdt(&[0, 1, 2]).unwrap(), sigma: 0.1, omega: 0.3 },
        Loss::Ctc,
    ];
    for loss in losses {
        for count in [1, 2, 3] {
            is_that_of_one(&Case::new(Options::of(loss.clone())), count);
        }
    }
}

#[test]
fn options_are_those_of_one_process() {
    let plan = Some(Plan::custom(3, 2, 2, 2, 1));
    for options in [
        Options { fastemit: 0.4, delay_penalty: 0.2, ..Options::default() },
        Options { clamp: Some(0.1), ..Options::default() },
        Options { z_loss: 0.3, ..Options::default() },
        Options { skip: 0.1, ..Options::default() },
        Options { plan, ..Options::default() },
        Options { plan, skip: 0.2, ..Options::of(Loss::tdt(&[0, 1, 2]).unwrap()) },
        Options { budget: MemoryBudget::recompute(), ..Options::default() },
    ] {
        for count in [2, 3] {
            is_that_of_one(&Case::new(options.clone()), count);
        }
    }
}

#[test]
fn what_is_planned_is_planned_for_a_part() {
    let case = Case::new(Options::default());
    let (weight, bias) = (values(5000 * H, 1), values(5000, 2));
    let planned = |session: &Session<f64>, rank: usize, count: usize| {
        let here = classes_of(rank, count, 5000);
        let weight = &weight[H * here.start..H * here.end];
        let head = Head::part(weight, Some(&bias[here.clone()]), H, here.start, 5000).unwrap();
        session.plan(Joint::new(&case.frames, &case.labels, head), &case.targets).unwrap()
    };
    let whole = planned(&case.session(None), 0, 1);
    for part in together(2, |peers| planned(&case.session(None).among(peers), 1, 2)) {
        assert!(part < whole, "{part} {whole}");
    }
}

#[test]
fn what_wants_all_classes_is_refused() {
    for (options, what) in [
        (Options { label_smoothing: 0.1, ..Options::default() }, "label smoothing"),
        (Options::of(Loss::hat()), "a factored blank"),
    ] {
        let case = Case::new(options);
        for found in together(2, |peers| case.sum(&mut case.session(Some(peers)), 0, 2)) {
            assert!(matches!(found, Err(Error::Among { found }) if found == what), "{found:?}");
        }
    }
    // In one of them alone: the others hear of it.
    let (plain, odd) =
        (Case::new(Options::default()), Case::new(Options { label_smoothing: 0.1, ..Options::default() }));
    let found = together(2, |peers| {
        let rank = peers.rank();
        let case = if rank == 1 { &odd } else { &plain };
        case.sum(&mut case.session(Some(peers)), rank, 2).unwrap_err()
    });
    assert!(matches!(found[0], Error::Normaliser(panda_core::Error::Peer { rank: 1, .. })), "{found:?}");
    assert!(matches!(found[1], Error::Among { found: "label smoothing" }), "{found:?}");
    let case = Case::new(Options::default());
    let (weight, bias) = &case.heads[0];
    for found in together(2, |peers| {
        let joint = Joint::new(&case.frames, &case.labels, Head::new(weight, Some(bias), H).unwrap());
        case.session(Some(peers)).forward(joint, &case.targets).map(|pending| pending.losses().to_vec())
    }) {
        assert!(matches!(found, Err(Error::Among { .. })), "{found:?}");
    }
    // A part where there is nobody to hold the rest.
    let found = case.sum(&mut case.session(None), 0, 2);
    assert!(matches!(found, Err(Error::Normaliser(panda_core::Error::Part { .. }))), "{found:?}");
}

#[test]
fn what_one_cannot_do_none_does_and_the_next_call_is_another() {
    let case = Case::new(Options::default());
    for (wrong, rows) in [true, false, false, true].into_iter().enumerate() {
        let found = together(3, |peers| {
            let (rank, mut session) = (peers.rank(), case.session(Some(peers)));
            let mut mine = Case::new(Options::default());
            match (wrong, rank) {
                (0, 1) => mine.frames[0] = f64::INFINITY,
                (1, 1) => mine.heads[0].0[H * 3] = f64::INFINITY,
                (2, 1) => mine.frames.truncate(3),
                (3, 1) => mine.labels[3] += 1e-9,
                _ => {}
            }
            let found = mine.sum(&mut session, rank, 3).err();
            (found, case.sum(&mut session, rank, 3).map(|out| out.losses).unwrap())
        });
        for (rank, (error, losses)) in found.into_iter().enumerate() {
            assert!(close(1e-12, &losses, &case.alone().losses));
            let heard = matches!(error, Some(Error::Normaliser(panda_core::Error::Peer { rank: 1, .. })));
            assert!(error.is_some() && heard == (rank != 1 || rows), "{wrong} {rank}: {error:?}");
        }
    }
}

#[test]
fn rows_and_duration_heads_that_differ_are_found() {
    let tdt = Case::new(Options::of(Loss::tdt(&[0, 1, 2]).unwrap()));
    let ctc = Case::new(Options::of(Loss::Ctc));
    // Of twelve rows, three of the second utterance's and one of the third's are padding.
    let layout = Layout::Padded { frames: 4, positions: 1 };
    let padded = |session: &mut Session<f64>, rank: usize, changed: Option<usize>| {
        let (mut hidden, (weight, bias)) = (values(12 * H, 7), &ctc.heads[0]);
        if let Some(row) = changed {
            hidden[row * H] += 1e-9;
        }
        let here = classes_of(rank, 2, C);
        let part = &weight[H * here.start..H * here.end];
        let head = Head::part(part, Some(&bias[here.clone()]), H, here.start, C)?;
        session.sum(Rows { hidden: &hidden, head, durations: None, layout }, &ctc.targets, &WEIGHTS)
    };
    let found = together(2, |peers| {
        let rank = peers.rank();
        let mut session = ctc.session(Some(peers));
        [None, Some(2), Some(4), Some(5), Some(11)].map(|row| {
            let changed = row.filter(|_| rank == 1);
            padded(&mut session, rank, changed).map(drop).map_err(|error| error.to_string())
        })
    });
    for of in found {
        assert_eq!(of.each_ref().map(|found| found.is_ok()), [true, false, false, true, true], "{of:?}");
    }
    let found = together(2, |peers| {
        let (rank, mut session) = (peers.rank(), tdt.session(Some(peers)));
        let mut odd = Case::new(tdt.options.clone());
        odd.heads[1].1[0] += if rank == 1 { 1e-9 } else { 0.0 };
        let error = odd.sum(&mut session, rank, 2).unwrap_err().to_string();
        (error, tdt.sum(&mut session, rank, 2).is_ok())
    });
    for (error, next) in found {
        assert!(error.contains("duration head") && next, "{error}");
    }
}

#[test]
fn what_is_odd_in_a_later_group_is_named_by_all() {
    let plan = Some(Plan::custom(3, 2, 2, 2, 1));
    let case = Case::new(Options { plan, ..Options::default() });
    let found = together(2, |peers| {
        let (rank, mut session) = (peers.rank(), case.session(Some(peers)));
        let mut mine = Case::new(case.options.clone());
        // The last utterance's frames, of the last group.
        (mine.frames[7 * H], mine.frames[6 * H]) = (f64::NAN, f64::NAN);
        mine.sum(&mut session, rank, 2).unwrap_err()
    });
    for error in found {
        assert!(matches!(error, Error::Scores { utterance: 2, .. }), "{error:?}");
    }
}
