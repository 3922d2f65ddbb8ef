//! Lattice losses and best paths over candle tensors compared with slices.
//!
//! Gradients are compared with central differences and with golden vectors of LAST; parameters must
//! be read from and written to files of LAST.
use std::{collections::HashMap, sync::Arc};

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use lattice::{
    AlignmentLattice, Context, Frames, FullNGram, JointWeightFn, Labels, LatticeSession, LocallyNormalized,
    NextStateTable, Normalize, Options, Real, RecognitionLattice, WeightFn,
    candle::{BatchTensors, EmbeddingConfig, Gnat, JointConfig, JointWeights, load},
};

use crate::common::{F32_GRADIENTS, F64, Golden, Tolerance, assert_within, f32_values, golden, random};

const CPU: &Device = &Device::Cpu;
/// Number of features of a frame.
const FRAME_SIZE: usize = 3;

fn config(context: &FullNGram, embeddings: EmbeddingConfig, normalize: Option<Normalize>) -> JointConfig {
    let (states, vocabulary) = (context.states(), context.vocabulary());
    JointConfig { states, vocabulary, frame: FRAME_SIZE, hidden: 4, embeddings, normalize }
}

/// Returns a lattice and its parameters, random variables by name.
fn gnat(
    config: JointConfig,
    context: FullNGram,
    alignment: AlignmentLattice,
) -> (Gnat, HashMap<String, Var>) {
    let map = VarMap::new();
    JointWeights::new(config, &VarBuilder::from_varmap(&map, DType::F64, CPU)).unwrap();
    for (index, (name, variable)) in map.data().lock().unwrap().iter().enumerate() {
        let values = random::<f64>(variable.elem_count(), index as u64 + name.len() as u64, 0.8);
        variable.set(&Tensor::from_vec(values, variable.shape(), CPU).unwrap()).unwrap();
    }
    let weights = JointWeights::new(config, &VarBuilder::from_varmap(&map, DType::F64, CPU)).unwrap();
    let variables = map.data().lock().unwrap().clone();
    (Gnat::new(Arc::new(context), alignment, weights, Options::new(56 << 20)).unwrap(), variables)
}

fn integers(values: &[i64], shape: &[usize]) -> Tensor {
    Tensor::from_vec(values.to_vec(), shape, CPU).unwrap()
}

/// Two utterances of 4 and 3 frames, with 2 and 1 labels, and invalid padding.
struct TestBatch {
    frames: Var,
    num_frames: Tensor,
    labels: Tensor,
    num_labels: Tensor,
}

impl TestBatch {
    fn new() -> Self {
        let frames =
            Tensor::from_vec(random::<f64>(2 * 4 * FRAME_SIZE, 5, 1.0), (2, 4, FRAME_SIZE), CPU).unwrap();
        Self {
            frames: Var::from_tensor(&frames).unwrap(),
            num_frames: integers(&[4, 3], &[2]),
            labels: integers(&[2, 1, 2, -7], &[2, 2]),
            num_labels: integers(&[2, 1], &[2]),
        }
    }

    fn tensors(&self) -> BatchTensors<'_> {
        let Self { frames, num_frames, labels, num_labels } = self;
        BatchTensors { frames, num_frames, labels, num_labels }
    }
}

/// Returns all values of a tensor.
fn vector(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Gradients are those of `Σ_b g_b loss_b`.
const COTANGENTS: [f64; 2] = [0.7, -1.3];

/// Returns the sum of losses weighted by [`COTANGENTS`].
fn weighted(losses: &Tensor) -> Tensor {
    let cotangents = Tensor::new(&COTANGENTS, CPU).unwrap();
    (losses.flatten_all().unwrap() * cotangents).unwrap().sum_all().unwrap()
}

fn check_against_central_differences(
    embeddings: EmbeddingConfig,
    normalize: Option<Normalize>,
    alignment: AlignmentLattice,
) {
    let context = FullNGram::new(3, 1).unwrap();
    let (gnat, mut variables) = gnat(config(&context, embeddings, normalize), context, alignment);
    let batch = TestBatch::new();
    let gradients = weighted(&gnat.losses(batch.tensors()).unwrap()).backward().unwrap();
    let sum_gradients = gnat.loss_sum(batch.tensors(), &COTANGENTS).unwrap();
    let sum_gradients = sum_gradients.sum.affine(2.0, 0.0).unwrap().backward().unwrap();
    variables.insert("frames".into(), batch.frames.clone());
    let tolerance = Tolerance { relative: 1e-7, absolute: 1e-8 };
    for (name, variable) in &variables {
        let (computed, doubled) = (gradients.get(variable).unwrap(), sum_gradients.get(variable).unwrap());
        assert_eq!(computed.dims(), variable.dims(), "{name}");
        assert_within(name, &vector(doubled), &vector(&(computed * 2.0).unwrap()), F64);
        let (values, step) = (vector(variable), 1e-5);
        let mut expected = Vec::new();
        for index in 0..values.len() {
            let sum_after_step = |step: f64| {
                let mut shifted = values.clone();
                shifted[index] += step;
                variable.set(&Tensor::from_vec(shifted, variable.shape(), CPU).unwrap()).unwrap();
                weighted(&gnat.losses(batch.tensors()).unwrap()).to_scalar::<f64>().unwrap()
            };
            expected.push((sum_after_step(step) - sum_after_step(-step)) / (2.0 * step));
        }
        variable.set(&Tensor::from_vec(values, variable.shape(), CPU).unwrap()).unwrap();
        assert_within(name, &vector(computed), &expected, tolerance);
    }
}

#[test]
fn gradients_of_frames_and_all_parameters_equal_central_differences() {
    let table = EmbeddingConfig::Table { width: 2 };
    let rnn = EmbeddingConfig::Rnn { order: 1, width: 3, label: 2 };
    let two_labels = AlignmentLattice::frame_label_dependent(2).unwrap();
    check_against_central_differences(table, None, AlignmentLattice::FrameDependent);
    check_against_central_differences(table, Some(Normalize::Hat), two_labels);
    check_against_central_differences(rnn, None, two_labels);
    check_against_central_differences(rnn, Some(Normalize::LogSoftmax), AlignmentLattice::FrameDependent);
}

/// A joint network of slices, from tensors of parameters.
fn joint<'a, F: Real>(
    states: usize,
    vocabulary: usize,
    values: &'a HashMap<String, Vec<F>>,
) -> JointWeightFn<'a, F> {
    let parameter = |name: &str| &values[&format!("weight_fn.{name}")][..];
    JointWeightFn {
        embeddings: lattice::Embeddings::Table(&values["weight_fn_cacher.context_embeddings"]),
        states,
        vocabulary,
        project_context: parameter("project_context_embeddings.kernel"),
        project_frame: parameter("project_frame.kernel"),
        joint_bias: parameter("joint_bias"),
        blank_kernel: parameter("Dense_0.kernel"),
        blank_bias: parameter("Dense_0.bias"),
        label_kernel: parameter("Dense_1.kernel"),
        label_bias: parameter("Dense_1.bias"),
    }
}

#[test]
fn tensors_and_slices_give_equal_results() {
    let context = FullNGram::new(3, 1).unwrap();
    let sizes = config(&context, EmbeddingConfig::Table { width: 2 }, None);
    let (gnat, variables) = gnat(sizes, context, AlignmentLattice::FrameDependent);
    let batch = TestBatch::new();
    let losses = gnat.losses(batch.tensors()).unwrap();
    let gradients = weighted(&losses).backward().unwrap();

    let values: HashMap<String, Vec<f64>> =
        variables.iter().map(|(name, variable)| (name.clone(), vector(variable))).collect();
    let joint = joint(context.states(), 3, &values);
    let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &joint).unwrap();
    let rows = vector(&batch.frames);
    let frames = Frames::new(&rows, &[2, 4, FRAME_SIZE], &[4, 3]).unwrap();
    let labels = Labels::new(&[2, 1, 2, 0], &[2, 2], &[2, 1]).unwrap();
    let mut session = LatticeSession::default();
    let out = session.sum(&lattice, &frames, &labels, &COTANGENTS).unwrap();
    assert_eq!(vector(&losses), out.sums);
    assert_eq!(vector(gradients.get(&batch.frames).unwrap()), out.frames);
    for (name, computed) in &out.parameters {
        assert_eq!(vector(gradients.get(&variables[&name.replace('/', ".")]).unwrap()), *computed, "{name}");
    }
    let paths = session.best_paths(&lattice, &frames).unwrap();
    assert_eq!(gnat.best_paths(&batch.frames, &batch.num_frames).unwrap(), paths);

    // Padding is never read and has no gradient.
    assert!(out.frames[7 * FRAME_SIZE..].iter().all(|&gradient| gradient == 0.0));
    let mut padded = rows.clone();
    padded[7 * FRAME_SIZE..].fill(f64::NAN);
    batch.frames.set(&Tensor::from_vec(padded, (2, 4, FRAME_SIZE), CPU).unwrap()).unwrap();
    assert_eq!(vector(&gnat.losses(batch.tensors()).unwrap()), out.sums);
}

#[test]
fn a_plan_from_shapes_is_the_plan_of_a_session() {
    let device = CPU;
    for (order, normalize, hidden) in
        [(1, None, 4), (2, None, 40), (1, Some(Normalize::Hat), 24), (2, Some(Normalize::LogSoftmax), 24)]
    {
        let context = FullNGram::new(5, order).unwrap();
        let states = context.states();
        let embeddings = EmbeddingConfig::Table { width: 6 };
        let sizes = JointConfig { hidden, ..config(&context, embeddings, normalize) };
        let map = VarMap::new();
        let weights = JointWeights::new(sizes, &VarBuilder::from_varmap(&map, DType::F32, device)).unwrap();
        let singles = |variable: &Var| variable.flatten_all().unwrap().to_vec1().unwrap();
        let values: HashMap<String, Vec<f32>> = map
            .data()
            .lock()
            .unwrap()
            .iter()
            .map(|(name, variable)| (name.replace("weight_fn.weight_fn", "weight_fn"), singles(variable)))
            .collect();
        let joint = joint(states, 5, &values);
        let local = normalize.map(|normalize| LocallyNormalized::new(joint, normalize));
        let weight_fn: &dyn WeightFn<f32> = local.as_ref().map_or(&joint, |local| local);
        for (batch, length, labels) in [(1, 1, 0), (2, 7, 3), (9, 60, 20)] {
            for alignment in
                [AlignmentLattice::FrameDependent, AlignmentLattice::frame_label_dependent(2).unwrap()]
            {
                let lattice = RecognitionLattice::new(&context, alignment, weight_fn).unwrap();
                let rows = vec![0.0; batch * length * FRAME_SIZE];
                let frames = Frames::new(&rows, &[batch, length, FRAME_SIZE], &vec![length; batch]).unwrap();
                let ids = vec![1; batch * labels];
                let ids = Labels::new(&ids, &[batch, labels], &vec![labels; batch]).unwrap();
                for budget in
                    [Options::new(56 << 20), Options::new(100_000), Options::new(usize::MAX).recompute()]
                {
                    let expected = LatticeSession::<f32>::new(budget).plan(&lattice, &frames, &ids);
                    let gnat = Gnat::new(Arc::new(context), alignment, weights.clone(), budget).unwrap();
                    let computed = gnat.plan_for_shape([batch, length, labels]);
                    assert_eq!(format!("{computed:?}"), format!("{expected:?}"));
                }
            }
        }
    }
}

#[test]
fn leading_axes_and_strides_do_not_change_losses() {
    let context = FullNGram::new(3, 1).unwrap();
    let sizes = config(&context, EmbeddingConfig::Table { width: 2 }, None);
    let (gnat, _) = gnat(sizes, context, AlignmentLattice::FrameDependent);
    let batch = TestBatch::new();
    let expected = vector(&gnat.losses(batch.tensors()).unwrap());

    let losses_of_shape = |leading: &[usize], utterances: std::ops::Range<usize>| {
        let reshaped = |tensor: &Tensor, last_axes: &[usize]| {
            let rows = tensor.narrow(0, utterances.start, utterances.len()).unwrap();
            rows.reshape([leading, last_axes].concat()).unwrap()
        };
        let (frames, labels) = (reshaped(&batch.frames, &[4, FRAME_SIZE]), reshaped(&batch.labels, &[2]));
        let (num_frames, num_labels) = (reshaped(&batch.num_frames, &[]), reshaped(&batch.num_labels, &[]));
        let batch = BatchTensors {
            frames: &frames,
            num_frames: &num_frames,
            labels: &labels,
            num_labels: &num_labels,
        };
        let losses = gnat.losses(batch).unwrap();
        assert_eq!(losses.dims(), leading);
        vector(&losses)
    };
    assert_eq!(losses_of_shape(&[], 1..2), expected[1..]);
    assert_eq!(losses_of_shape(&[2, 1, 1], 0..2), expected);
    assert_eq!(losses_of_shape(&[1, 2], 0..2), expected);

    let strided_frames = batch.frames.transpose(1, 2).unwrap().contiguous().unwrap().transpose(1, 2).unwrap();
    assert!(!strided_frames.is_contiguous());
    assert_eq!(
        vector(&gnat.losses(BatchTensors { frames: &strided_frames, ..batch.tensors() }).unwrap()),
        expected
    );
}

#[test]
fn shape_errors_name_the_argument() {
    let context = FullNGram::new(3, 1).unwrap();
    let sizes = config(&context, EmbeddingConfig::Table { width: 2 }, None);
    let (gnat, _) = gnat(sizes, context, AlignmentLattice::FrameDependent);
    let batch = TestBatch::new();
    let assert_rejected = |batch: BatchTensors, parts: &[&str]| {
        let error = gnat.losses(batch).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        let sum = gnat.loss_sum(batch, &COTANGENTS).unwrap_err().to_string();
        assert_eq!(sum, error);
    };
    let batch = batch.tensors();
    let three = integers(&[1, 1, 1], &[3]);
    assert_rejected(BatchTensors { num_frames: &three, ..batch }, &["num_frames", "[2]", "[3]"]);
    assert_rejected(BatchTensors { num_labels: &three, ..batch }, &["num_labels", "[2]", "[3]"]);
    let labels = integers(&[1; 6], &[3, 2]);
    assert_rejected(BatchTensors { labels: &labels, ..batch }, &["labels", "leading axes [2]", "[3, 2]"]);
    for (wrong, message) in [(0, "found 0"), (4, "found 4"), (-1, "found -1")] {
        let labels = integers(&[2, 1, wrong, 0], &[2, 2]);
        assert_rejected(BatchTensors { labels: &labels, ..batch }, &["position 0 of utterance 1", message]);
    }
    let negative = integers(&[4, -1], &[2]);
    assert_rejected(BatchTensors { num_frames: &negative, ..batch }, &["num_frames", "-1"]);
    let floats = batch.num_frames.to_dtype(DType::F32).unwrap();
    assert_rejected(BatchTensors { num_frames: &floats, ..batch }, &["num_frames", "integers", "f32"]);
    let single = batch.frames.to_dtype(DType::F32).unwrap();
    assert_rejected(BatchTensors { frames: &single, ..batch }, &["weight_fn", "f32", "f64"]);
    let half = batch.frames.to_dtype(DType::F16).unwrap();
    assert_rejected(BatchTensors { frames: &half, ..batch }, &["frames", "f32 or f64", "f16"]);
    let flat = Tensor::zeros(4, DType::F64, CPU).unwrap();
    assert_rejected(BatchTensors { frames: &flat, ..batch }, &["frames", "B.., T and F"]);
    let wide = Tensor::zeros((2, 4, FRAME_SIZE + 1), DType::F64, CPU).unwrap();
    assert_rejected(BatchTensors { frames: &wide, ..batch }, &["frames", "3 features", "4"]);
    let nan = Tensor::full(f64::NAN, (2, 4, FRAME_SIZE), CPU).unwrap();
    assert_rejected(BatchTensors { frames: &nan, ..batch }, &["frame 0 of utterance 0", "NaN"]);

    let table = NextStateTable::new(&[0; 6], 2, 3).unwrap();
    let error = Gnat::new(
        Arc::new(table),
        AlignmentLattice::FrameDependent,
        gnat.weights().clone(),
        Options::new(56 << 20),
    );
    let error = error.err().unwrap().to_string();
    assert!(error.contains("weights.states") && error.contains('2') && error.contains('4'), "{error}");
    let error = JointWeights::new(JointConfig { hidden: 0, ..sizes }, &VarBuilder::zeros(DType::F64, CPU));
    assert!(error.unwrap_err().to_string().starts_with("hidden"));
}

#[test]
fn a_string_without_a_path_is_infinite_and_left_out_of_sums() {
    let context = FullNGram::new(3, 1).unwrap();
    let sizes = config(&context, EmbeddingConfig::Table { width: 2 }, None);
    let (gnat, variables) = gnat(sizes, context, AlignmentLattice::FrameDependent);
    let batch = TestBatch::new();
    let no_frames = integers(&[4, 0], &[2]);
    let batch = BatchTensors { num_frames: &no_frames, ..batch.tensors() };
    assert_eq!(vector(&gnat.losses(batch).unwrap())[1], f64::INFINITY);
    let with_infinite = gnat.loss_sum(batch, &[0.5, 0.5]).unwrap();
    assert_eq!(with_infinite.losses[1], f64::INFINITY);
    let without_infinite = gnat.loss_sum(batch, &[0.5, 0.0]).unwrap();
    assert_eq!(vector(&with_infinite.sum), vector(&without_infinite.sum));
    let (with_infinite, without_infinite) =
        (with_infinite.sum.backward().unwrap(), without_infinite.sum.backward().unwrap());
    for variable in variables.values() {
        assert_eq!(
            vector(with_infinite.get(variable).unwrap()),
            vector(without_infinite.get(variable).unwrap())
        );
    }
}

/// The parameters of a golden file as variables.
fn parameters(golden: &Golden, dtype: DType) -> HashMap<String, Var> {
    let start = "in/params/";
    let variable = |name: &str| {
        let full = format!("{start}{name}");
        let tensor = Tensor::from_vec(golden.values(&full).to_vec(), golden.shape(&full), CPU).unwrap();
        (name.replace('/', "."), Var::from_tensor(&tensor.to_dtype(dtype).unwrap()).unwrap())
    };
    golden.names_with_prefix(start).map(variable).collect()
}

/// Compares losses, gradients and best paths with a golden file of LAST.
///
/// `tolerances` are those of losses and of gradients.
fn check_golden(
    name: &str,
    dtype: DType,
    tolerances: [Tolerance; 2],
    order: usize,
    alignment: AlignmentLattice,
    normalize: Option<Normalize>,
) {
    let Some(golden) = golden(&format!("{name}.f64")) else { return };
    let variables = parameters(&golden, dtype);
    let inner = if normalize.is_some() { "weight_fn.weight_fn" } else { "weight_fn" };
    let dims = |name: &str| variables[name].dims().to_vec();
    let vocabulary = dims(&format!("{inner}.Dense_1.bias"))[0];
    let context = FullNGram::new(vocabulary, order).unwrap();
    let embeddings = match variables.get("weight_fn_cacher.context_embeddings") {
        Some(table) => EmbeddingConfig::Table { width: table.dims()[1] },
        None => EmbeddingConfig::Rnn {
            order,
            width: dims("weight_fn_cacher.rnn_cell.hi.bias")[0],
            label: dims("weight_fn_cacher.Embed_0.embedding")[1],
        },
    };
    let projection = dims(&format!("{inner}.project_frame.kernel"));
    let (frame, hidden) = (projection[0], projection[1]);
    let sizes = JointConfig { states: context.states(), vocabulary, frame, hidden, embeddings, normalize };
    let tensors = variables.iter().map(|(name, variable)| (name.clone(), variable.as_tensor().clone()));
    let vb = VarBuilder::from_tensors(tensors.collect(), dtype, CPU);
    let weights = JointWeights::new(sizes, &vb).unwrap();
    let gnat = Gnat::new(Arc::new(context), alignment, weights, Options::new(56 << 20)).unwrap();

    let tensor =
        |name: &str| Tensor::from_vec(golden.values(name).to_vec(), golden.shape(name), CPU).unwrap();
    let counts = |name: &str| tensor(name).to_dtype(DType::I64).unwrap();
    let frames = Var::from_tensor(&tensor("in/frames").to_dtype(dtype).unwrap()).unwrap();
    let (num_frames, labels, num_labels) =
        (counts("in/num_frames"), counts("in/labels"), counts("in/num_labels"));
    let batch =
        BatchTensors { frames: &frames, num_frames: &num_frames, labels: &labels, num_labels: &num_labels };
    let losses = gnat.losses(batch).unwrap();
    assert_within("loss", &vector(&losses), golden.values("out/loss"), tolerances[0]);
    let gradients = (&losses * tensor("in/loss_cotangent")).unwrap().sum_all().unwrap().backward().unwrap();
    let expected = golden.values("out/grad_loss/frames");
    assert_within("frames", &vector(gradients.get(&frames).unwrap()), expected, tolerances[1]);
    for (name, variable) in &variables {
        let expected = golden.values(&format!("out/grad_loss/params/{}", name.replace('.', "/")));
        assert_within(name, &vector(gradients.get(variable).unwrap()), expected, tolerances[1]);
    }
    let padded = golden.shape("out/shortest_path_alignment_labels").last().copied().unwrap();
    let expected = golden.values("out/shortest_path_alignment_labels").chunks_exact(padded);
    for (path, expected) in gnat.best_paths(&frames, &num_frames).unwrap().iter().zip(expected) {
        let computed: Vec<f64> = path.alignment.iter().map(|&label| f64::from(label)).collect();
        assert_eq!(computed, expected[..computed.len()]);
    }
}

#[test]
fn losses_gradients_and_best_paths_equal_golden_vectors() {
    let one_label = AlignmentLattice::frame_label_dependent(1).unwrap();
    let two_labels = AlignmentLattice::frame_label_dependent(2).unwrap();
    let single_precision = (DType::F32, [f32_values(20.0), F32_GRADIENTS]);
    for (dtype, tolerances) in [(DType::F64, [F64, F64]), single_precision] {
        let check = |name: &str, order, alignment, normalize| {
            check_golden(name, dtype, tolerances, order, alignment, normalize);
        };
        check("joint_emb_fd_c1", 1, AlignmentLattice::FrameDependent, None);
        check("joint_emb_fd_c1_infeasible", 1, AlignmentLattice::FrameDependent, None);
        check("joint_emb_fld2_c2_hat", 2, two_labels, Some(Normalize::Hat));
        check("joint_rnn_fd_c2", 2, AlignmentLattice::FrameDependent, None);
        check("joint_rnn_fld1_c1_log_softmax", 1, one_label, Some(Normalize::LogSoftmax));
    }
}

#[test]
fn parameters_round_trip_through_files_of_last() {
    for (normalize, name) in
        [(None, "weight_fn/joint_bias"), (Some(Normalize::Hat), "weight_fn/weight_fn/joint_bias")]
    {
        let context = FullNGram::new(3, 1).unwrap();
        let sizes = config(&context, EmbeddingConfig::Rnn { order: 1, width: 3, label: 2 }, normalize);
        let (gnat, _) = gnat(sizes, context, AlignmentLattice::FrameDependent);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("last.safetensors");
        gnat.weights().save(&path).unwrap();
        let written = candle_core::safetensors::load(&path, CPU).unwrap();
        assert!(written.contains_key(name) && written.len() == 20, "{:?}", written.keys());
        assert_eq!(written["weight_fn_cacher/rnn_cell/if/kernel"].dims(), [2, 3]);

        // The names of LAST's parameter tree.
        let tree = written.into_iter().map(|(name, tensor)| (format!("params/{name}"), tensor));
        candle_core::safetensors::save(&tree.collect::<HashMap<_, _>>(), &path).unwrap();
        let vb = VarBuilder::from_tensors(load(&path).unwrap(), DType::F64, CPU);
        let read = JointWeights::new(sizes, &vb).unwrap();
        for ((name, before), (same, after)) in gnat.weights().iter().zip(read.iter()) {
            assert_eq!(name, same);
            assert_eq!(vector(before), vector(after));
        }
        let missing = VarBuilder::from_tensors(HashMap::new(), DType::F64, CPU);
        let error = JointWeights::new(sizes, &missing).unwrap_err().to_string();
        assert!(error.contains("weight_fn_cacher.Embed_0.embedding"), "{error}");
    }
}

#[test]
fn initial_values_have_the_documented_variance() {
    let context = FullNGram::new(10, 2).unwrap();
    let embeddings = EmbeddingConfig::Table { width: 50 };
    let sizes = JointConfig { hidden: 200, ..config(&context, embeddings, None) };
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, CPU);
    let weights = JointWeights::new(sizes, &vb).unwrap();
    for (name, tensor) in weights.iter() {
        let values = vector(tensor);
        let variance = values.iter().map(|value| value * value).sum::<f64>() / values.len() as f64;
        let expected = match name {
            "weight_fn_cacher/context_embeddings" | "weight_fn/project_context_embeddings/kernel" => 0.02,
            "weight_fn/project_frame/kernel" => 1.0 / FRAME_SIZE as f64,
            "weight_fn/Dense_0/kernel" | "weight_fn/Dense_1/kernel" => 0.005,
            _ => 0.0,
        };
        assert!((variance - expected).abs() <= 0.5 * expected, "{name}: {variance} against {expected}");
    }
}
