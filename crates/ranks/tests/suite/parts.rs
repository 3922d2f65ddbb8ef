//! A head in parts over a wire: what one process finds.
use panda_core::{Peers, classes_of};
use ranks::{Courier, Threads};
use rnnt_loss::{Head, Joint, Options, Output, Session, Targets};

const WIDTH: usize = 8;
const CLASSES: usize = 101;

fn rows(count: usize, salt: usize) -> Vec<f32> {
    (0..count * WIDTH).map(|at| ((at * 37 + salt) as f32 * 0.61).sin()).collect()
}

fn sum(session: &mut Session<f32>, weight: &[f32], rank: usize, count: usize) -> Output<f32> {
    let (encoded, predicted) = (rows(9, 1), rows(6, 2));
    let targets = Targets::new(0, vec![5, 4], vec![vec![100, 3, 50], vec![51]]).unwrap();
    let here = classes_of(rank, count, CLASSES);
    let weight = &weight[here.start * WIDTH..here.end * WIDTH];
    let head = Head::part(weight, None, WIDTH, here.start, CLASSES).unwrap();
    session.sum(Joint::new(&encoded, &predicted, head), &targets, &[1.0, 0.5]).unwrap()
}

#[test]
fn several_processes_find_what_one_does() {
    let weight = rows(CLASSES, 3);
    let alone = sum(&mut Session::new(&Options::default()).unwrap(), &weight, 0, 1);
    for count in [2, 3] {
        let all = Threads::run(count, |wire| {
            let peers = Peers::new(Courier::start(|| Some(wire)).unwrap());
            let rank = peers.rank();
            let mut session = Session::new(&Options::default()).unwrap().among(peers);
            [(); 2].map(|()| sum(&mut session, &weight, rank, count))
        });
        let mut of_head = Vec::new();
        for [first, second] in &all {
            assert_eq!(first, second);
            assert!(first.losses.iter().zip(&alone.losses).all(|(a, b)| (a - b).abs() < 1e-9 * b));
            assert_eq!(first.gradients.encoded, all[0][0].gradients.encoded);
            of_head.extend(&first.gradients.head.weight);
        }
        let near = |found: &[f32], alone: &[f32]| {
            found.len() == alone.len() && found.iter().zip(alone).all(|(a, b)| (a - b).abs() < 1e-6)
        };
        assert!(near(&of_head, &alone.gradients.head.weight));
        assert!(near(&all[0][0].gradients.encoded, &alone.gradients.encoded));
        assert!(near(&all[0][0].gradients.predicted, &alone.gradients.predicted));
    }
}
