//! Best lattice paths of streams, compared with complete utterances.
//!
//! For any chunk size a stream must end with the best path, and labels must be final early.
use lattice::{
    AlignmentLattice, BestPathStream, Context, Embeddings, Error, Frames, FullNGram, JointWeightFn,
    LatticeSession, Real, RecognitionLattice, TableWeightFn, WeightFn,
};

use crate::table_lattices::{Random, TableLattice};

/// Pushes chunks; returns the alignment, its weight, and its length before the end.
fn stream_path<F: Real>(
    lattice: &RecognitionLattice<F>,
    rows: &[F],
    values_per_chunk: usize,
    margin: f64,
) -> (Vec<u32>, f64, usize) {
    let mut stream = BestPathStream::new(lattice, margin).unwrap();
    let mut alignment: Vec<u32> = Vec::new();
    for rows in rows.chunks(values_per_chunk) {
        alignment.extend(stream.push(rows).unwrap());
    }
    let early_len = alignment.len();
    let end = stream.finish();
    alignment.extend(&end.alignment);
    (alignment, end.weight, early_len)
}

#[test]
fn streams_end_with_the_best_path() {
    for seed in 0..400 {
        let tiny = TableLattice::new(seed).only(0);
        tiny.with(|session, lattice, frames| {
            let best = session.best_paths(lattice, frames)?.remove(0);
            for size in [1, 2, 100] {
                let (alignment, weight, _) = stream_path(lattice, frames.utterance(0), size, f64::INFINITY);
                assert_eq!(weight, best.weight, "seed {seed}");
                if weight > f64::NEG_INFINITY {
                    assert_eq!(alignment, best.alignment, "seed {seed}, chunks of {size}");
                }
            }
            Ok(())
        })
        .unwrap();
    }
}

/// Returns random numbers in -2 to 2.
fn numbers<F: Real>(seed: u64, count: usize) -> Vec<F> {
    let mut numbers = Random::new(seed);
    (0..count).map(|_| F::from_f64(numbers.number())).collect()
}

/// Compares streams of several chunk sizes with a complete utterance.
fn assert_streams<F: Real>(
    weight_fn: &dyn WeightFn<F>,
    alignment: AlignmentLattice,
    rows: &[F],
    features: usize,
    margin: f64,
) {
    let context = FullNGram::new(4, 2).unwrap();
    let lattice = RecognitionLattice::new(&context, alignment, weight_fn).unwrap();
    let count = rows.len() / features;
    let frames = Frames::new(rows, &[1, count, features], &[count]).unwrap();
    let best = LatticeSession::default().best_paths(&lattice, &frames).unwrap().remove(0);
    for size in [1, 8, 64] {
        let (alignment, weight, early_len) = stream_path(&lattice, rows, size * features, margin);
        assert_eq!(alignment, best.alignment, "chunks of {size}");
        assert!((weight - best.weight).abs() < 1e-4 * best.weight.abs());
        if margin.is_finite() {
            assert!(
                early_len > alignment.len() / 2,
                "only {early_len} of {} were certain early",
                alignment.len()
            );
        }
    }
}

#[test]
fn long_streams_emit_labels_early() {
    const FRAMES: usize = 500;
    let states = FullNGram::new(4, 2).unwrap().states();
    for alignment in [
        AlignmentLattice::FrameDependent,
        AlignmentLattice::frame_label_dependent(1).unwrap(),
        AlignmentLattice::frame_label_dependent(3).unwrap(),
        AlignmentLattice::frame_label_dependent(0).unwrap(),
    ] {
        let weights = numbers::<f64>(1, FRAMES * states * 5);
        let table = TableWeightFn::new(&weights, &[FRAMES, states, 5]).unwrap();
        let rows: Vec<f64> = (0..FRAMES).map(|t| t as f64).collect();
        assert_streams(&table, alignment, &rows, 1, 30.0);
        assert_streams(&table, alignment, &rows, 1, f64::INFINITY);
        // Widths of embeddings, hidden layer and frames.
        let (e, h, features) = (6, 16, 3);
        let parameters: Vec<Vec<f32>> = [states * e, e * h, features * h, h, h, 1, h * 4, 4]
            .into_iter()
            .zip(2..)
            .map(|(count, seed)| numbers(seed, count))
            .collect();
        let joint = JointWeightFn {
            embeddings: Embeddings::Table(&parameters[0]),
            states,
            vocabulary: 4,
            project_context: &parameters[1],
            project_frame: &parameters[2],
            joint_bias: &parameters[3],
            blank_kernel: &parameters[4],
            blank_bias: &parameters[5],
            label_kernel: &parameters[6],
            label_bias: &parameters[7],
        };
        assert_streams(&joint, alignment, &numbers::<f32>(9, FRAMES * features), features, f64::INFINITY);
    }
}

/// Early labels are a prefix of the final path.
///
/// This holds even if a margin lost the best path.
#[test]
fn with_any_margin_the_path_has_the_reported_weight() {
    let mut worse_paths = 0;
    for seed in 0..300 {
        let tiny = TableLattice::new(seed).only(0);
        let all = tiny.paths(0);
        tiny.with(|_, lattice, frames| {
            for margin in [0.0, 0.5, 2.0] {
                let (alignment, weight, _) = stream_path(lattice, frames.utterance(0), 1, margin);
                if weight > f64::NEG_INFINITY {
                    let path = all.iter().find(|path| path.alignment == alignment).expect("it is a path");
                    assert!((path.weight - weight).abs() < 1e-12, "seed {seed}");
                    worse_paths += usize::from(all.iter().any(|path| path.weight > weight + 1e-9));
                }
            }
            Ok(())
        })
        .unwrap();
    }
    assert!(worse_paths > 10);
}

#[test]
fn a_rejected_chunk_leaves_the_stream_unchanged() {
    let (context, table) =
        (FullNGram::new(1, 1).unwrap(), TableWeightFn::new(&[0.0, 1.0, 2.0, 3.0], &[1, 2, 2]).unwrap());
    let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table).unwrap();
    for wrong in [-1.0, f64::NAN] {
        assert!(BestPathStream::new(&lattice, wrong).is_err());
    }
    let mut stream = BestPathStream::new(&lattice, f64::INFINITY).unwrap();
    let mut alignment = stream.push(&[0.0]).unwrap();
    assert!(matches!(stream.push(&[0.0, f64::NAN]), Err(Error::Frame { frame: 2, .. })));
    assert!(stream.push(&[7.0]).is_err());
    alignment.extend(stream.push(&[0.0]).unwrap());
    let end = stream.finish();
    alignment.extend(end.alignment);
    assert_eq!((alignment, end.weight), (vec![1, 1], 4.0));
}
