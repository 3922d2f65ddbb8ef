use lattice::{
    Alignment, Frames, FullNGram, LabelString, Labels, MemoryBudget, RecognitionLattice, Session, Sum, Table,
};

use crate::common::{made_up, on_any_threads};

const LABELS: usize = 2;
const FRAMES: usize = 3;

/// All strings of at most so many labels.
fn all_strings(longest: usize) -> Vec<Vec<u32>> {
    let mut all = vec![Vec::new()];
    for from in 0.. {
        let Some(string) = all.get(from).cloned().filter(|string: &Vec<u32>| string.len() < longest) else {
            return all;
        };
        all.extend((1..=LABELS as u32).map(|label| [&string[..], &[label]].concat()));
    }
    all
}

fn lattice<'a>(
    context: &'a FullNGram,
    alignment: Alignment,
    table: &'a Table<f64>,
) -> RecognitionLattice<'a, f64> {
    RecognitionLattice::new(context, alignment, table).unwrap()
}

/// Beams of a width, and all strings with their sums.
fn check(alignment: Alignment, longest: usize) {
    let context = FullNGram::new(LABELS, 1).unwrap();
    let shape = [FRAMES, 1 + LABELS, 1 + LABELS];
    let weights = made_up::<f64>(shape.iter().product(), 3, 2.0);
    let table = Table::new(&weights, &shape).unwrap();
    let lattice = lattice(&context, alignment, &table);
    let rows: Vec<f64> = (0..FRAMES).map(|x| x as f64).collect();
    let one = Frames::new(&rows, &[1, FRAMES, 1], &[FRAMES]).unwrap();
    let mut session = Session::new(MemoryBudget::default());
    let mut sums = Vec::new();
    for string in all_strings(longest) {
        let labels = Labels::new(&string, &[1, string.len()], &[string.len()]).unwrap();
        let sum = session.distances(Sum::Numerator, &lattice, &one, Some(&labels)).unwrap()[0];
        sums.push((string, sum));
    }
    sums.sort_by(|(_, a), (_, b)| b.total_cmp(a));

    // A beam that holds everything finds everything, and all sums together are those of all paths.
    let found = session.best_strings(&lattice, &one, 1000).unwrap().pop().unwrap();
    assert_eq!(found.len(), sums.len());
    for (found, (string, sum)) in found.iter().zip(&sums) {
        assert_eq!(found.labels, *string);
        assert!((found.weight - sum).abs() < 1e-12, "{} against {sum}", found.weight);
        assert_eq!(found.frames.len(), string.len());
        assert!(found.frames.is_sorted() && found.frames.iter().all(|&frame| frame < FRAMES));
    }
    let all = session.distances(Sum::Denominator, &lattice, &one, None).unwrap()[0];
    assert!((found.iter().map(|found| found.weight.exp()).sum::<f64>().ln() - all).abs() < 1e-12);

    // A narrow one finds less, never more than there is.
    let of = |strings: &[LabelString]| strings.iter().map(|found| found.labels.clone()).collect::<Vec<_>>();
    for width in 1..5 {
        let narrow = session.best_strings(&lattice, &one, width).unwrap().pop().unwrap();
        assert_eq!(narrow.len(), width);
        for found in narrow {
            let sum = sums.iter().find(|(string, _)| *string == found.labels).unwrap().1;
            assert!(found.weight <= sum + 1e-12);
        }
    }

    // An utterance knows nothing of the others; of its frames only those that count.
    let twice = [&rows[..], &[2.0, 1.0, f64::NAN]].concat();
    let both = Frames::new(&twice, &[2, FRAMES, 1], &[FRAMES, 2]).unwrap();
    let short = Frames::new(&[2.0, 1.0], &[1, 2, 1], &[2]).unwrap();
    let together = session.best_strings(&lattice, &both, 4).unwrap();
    let alone = session.best_strings(&lattice, &one, 4).unwrap().pop().unwrap();
    let other = session.best_strings(&lattice, &short, 4).unwrap().pop().unwrap();
    assert_eq!(together, [alone, other]);
    assert_ne!(of(&together[0]), of(&together[1]));
    on_any_threads(|| Session::new(MemoryBudget::default()).best_strings(&lattice, &both, 4).unwrap());
    let error = session.best_strings(&lattice, &one, 0).unwrap_err();
    assert!(error.to_string().starts_with("width"), "{error}");
}

#[test]
fn a_wide_beam_finds_all_strings_with_their_sums() {
    check(Alignment::FrameDependent, FRAMES);
    check(Alignment::frame_label_dependent(1).unwrap(), FRAMES);
    check(Alignment::frame_label_dependent(2).unwrap(), 2 * FRAMES);
}

#[test]
fn the_best_string_need_not_have_the_best_path() {
    // Two ways of 0.3 for the label, one of 0.4 for none.
    let context = FullNGram::new(1, 0).unwrap();
    let path = [0.4f64, 0.3, 1.0, 0.75].map(f64::ln);
    let table = Table::new(&path, &[2, 1, 2]).unwrap();
    let lattice = RecognitionLattice::new(&context, Alignment::FrameDependent, &table).unwrap();
    let frames = Frames::new(&[0.0, 1.0], &[1, 2, 1], &[2]).unwrap();
    let mut session = Session::new(MemoryBudget::default());
    // 0.4 none; 0.3 + 0.4·0.75 one; 0.3·0.75 two.
    assert!(session.best_paths(&lattice, &frames).unwrap()[0].labels().is_empty());
    let found = session.best_strings(&lattice, &frames, 8).unwrap().pop().unwrap();
    assert_eq!(found[0].labels, [1]);
    assert!((found[0].weight.exp() - 0.6).abs() < 1e-12);
    // Both ways are as heavy: the first one counts.
    assert_eq!(found.len(), 3);
}
