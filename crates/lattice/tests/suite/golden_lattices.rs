//! Lattice contexts, single frames and sums compared with golden vectors of LAST.
//!
//! They test the readable recursions of `lattice::context` and `lattice::distance`; every tensor of
//! a file must be compared.
use std::path::Path;

use lattice::{
    AlignmentLattice, ArcEnd, Arcs, Context, FullNGram, NextStateTable,
    context::{backward_broadcast, forward_reduce, forward_reduce_backward, walk_states},
    distance::{
        Distance, FrameArc, arc_sums, arc_sums_step, distance, forward_step, string_distance,
        string_forward_step,
    },
};
use oracle::{
    compare::assert_near,
    golden::{self, GoldenTensors},
};
use rnnt_dp::semiring::{Differentiable, Log, Probability, Semiring, Tropical};

/// A golden file with tolerances of values and gradients.
struct Case {
    tensors: GoldenTensors,
    /// Relative and absolute tolerance of values.
    values: [f64; 2],
    /// Relative and absolute tolerance of gradients.
    gradients: [f64; 2],
}

impl Case {
    /// Reads a file in both precisions; none without the shared data.
    fn read_both(name: &str) -> Vec<Self> {
        let Some(folder) = golden::system_folder("last") else { return Vec::new() };
        let read =
            |precision: &str| GoldenTensors::read(&folder.join(format!("{name}.{precision}.safetensors")));
        vec![
            Self { tensors: read("f64"), values: [1e-10, 1e-12], gradients: [1e-10, 1e-12] },
            Self { tensors: read("f32"), values: [2e-5, 1e-5], gradients: [1e-4, 1e-5] },
        ]
    }

    /// Prefixes of the names, up to the first slash.
    fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> =
            self.tensors.names().filter_map(|name| Some(name.split_once('/')?.0.to_owned())).collect();
        keys.dedup();
        keys
    }

    /// Compares values.
    fn near(&self, name: &str, computed: &[f64]) {
        let [relative, absolute] = self.values;
        assert_near(name, computed, self.tensors.values(name), relative, absolute);
    }

    /// Compares gradients.
    fn near_gradient(&self, name: &str, computed: &[f64]) {
        let [relative, absolute] = self.gradients;
        assert_near(name, computed, self.tensors.values(name), relative, absolute);
    }
}

/// Returns the number after a letter in a name such as `v3_n1_fld2`.
fn number(key: &str, letters: &str) -> Option<usize> {
    key.split('_').find_map(|part| part.strip_prefix(letters)?.parse().ok())
}

/// Returns the context of a name such as `v3_n1`.
fn n_gram_of_key(key: &str) -> FullNGram {
    FullNGram::new(number(key, "v").unwrap(), number(key, "n").unwrap()).unwrap()
}

#[test]
fn full_n_gram_contexts_equal_golden_vectors() {
    for case in Case::read_both("contexts_fullngram") {
        for key in case.keys() {
            let context = n_gram_of_key(&key);
            check_context(&case, &key, &context);
            let next: Vec<i64> = (0..context.states())
                .flat_map(|p| (0..=context.vocabulary()).map(move |y| context.next_state(p, y) as i64))
                .collect();
            assert_eq!(next, case.tensors.integers(&format!("{key}/next_state")));
            check_gradient::<Probability>(&case, &format!("{key}/forward_reduce_real"), &key, &context);
            check_gradient::<Log>(&case, &format!("{key}/forward_reduce_log"), &key, &context);
            check_gradient::<Tropical>(&case, &format!("{key}/forward_reduce_tropical"), &key, &context);
        }
        assert_eq!(case.tensors.unread_names(), [""; 0]);
    }
}

#[test]
fn next_state_tables_equal_golden_vectors() {
    for case in Case::read_both("contexts_nextstatetable") {
        for key in case.keys() {
            let name = format!("{key}/next_state_table");
            let [states, labels] = case.tensors.shape(&name).try_into().unwrap();
            let context = NextStateTable::new(&case.tensors.integers(&name), states, labels).unwrap();
            check_context(&case, &key, &context);
        }
        assert_eq!(case.tensors.unread_names(), [""; 0]);
    }
}

/// Compares next states and reductions of a context.
fn check_context(case: &Case, key: &str, context: &dyn Context) {
    let tensors = &case.tensors;
    let (states, labels) = (context.states(), context.vocabulary());
    let next = (0..states).flat_map(|p| (1..=labels).map(move |y| context.next_state(p, y) as i64));
    assert_eq!(next.collect::<Vec<_>>(), tensors.integers(&format!("{key}/next_state_table")));
    let walk = |name: &str| {
        let name = format!("{key}/{name}");
        let width = tensors.shape(&name)[1];
        tensors.integers(&name).chunks(width).map(<[i64]>::to_vec).collect::<Vec<_>>()
    };
    for (labels, expected) in walk("walk_labels").into_iter().zip(walk("walk_states")) {
        let labels: Vec<u32> = labels.into_iter().map(|y| y as u32).collect();
        let computed: Vec<i64> =
            walk_states(context, &labels).unwrap().into_iter().map(|p| p as i64).collect();
        assert_eq!(computed, expected, "{key} after {labels:?}");
    }
    check_reduce::<Probability>(case, &format!("{key}/forward_reduce_real"), key, context);
    check_reduce::<Log>(case, &format!("{key}/forward_reduce_log"), key, context);
    check_reduce::<Tropical>(case, &format!("{key}/forward_reduce_tropical"), key, context);
    let rows = tensors.values(&format!("{key}/backward_broadcast_in")).chunks(states);
    let mut all = Vec::new();
    for row in rows {
        let mut out = vec![f64::NAN; states * labels];
        backward_broadcast(context, row, &mut out);
        all.extend(out);
    }
    assert_eq!(all, tensors.values(&format!("{key}/backward_broadcast_out")));
}

fn check_reduce<S: Semiring<Weight = f64>>(case: &Case, name: &str, key: &str, context: &dyn Context) {
    let (states, labels) = (context.states(), context.vocabulary());
    let mut all = Vec::new();
    for weights in case.tensors.values(&format!("{key}/weights")).chunks(states * labels) {
        let mut out = vec![f64::NAN; states];
        forward_reduce::<S>(context, weights, &mut out);
        all.extend(out);
    }
    case.near(name, &all);
}

fn check_gradient<S: Differentiable>(case: &Case, name: &str, key: &str, context: &dyn Context) {
    let (states, labels) = (context.states(), context.vocabulary());
    let weights = case.tensors.values(&format!("{key}/weights")).chunks(states * labels);
    let mut all = Vec::new();
    for (weights, g) in weights.zip(case.tensors.values(&format!("{name}_cotangent")).chunks(states)) {
        let mut gradient = vec![f64::NAN; states * labels];
        forward_reduce_backward::<S>(context, weights, g, &mut gradient);
        all.extend(gradient);
    }
    case.near_gradient(&format!("{name}_grad"), &all);
}

/// Returns one utterance of an array.
///
/// Its leading axes are alignment states and utterances.
fn utterance_rows(tensors: &GoldenTensors, name: &str, utterance: usize) -> Vec<f64> {
    let [alignments, batch, ..] = *tensors.shape(name) else { panic!("{name}: axes") };
    let values = tensors.values(name);
    let size = values.len() / alignments / batch;
    (0..alignments).flat_map(|a| values[(a * batch + utterance) * size..][..size].to_vec()).collect()
}

#[test]
fn alignment_steps_equal_golden_vectors() {
    for case in Case::read_both("alignment_steps") {
        for key in case.keys() {
            let context = n_gram_of_key(&key);
            let alignment = match number(&key, "fld") {
                None => AlignmentLattice::FrameDependent,
                Some(expansions) => AlignmentLattice::frame_label_dependent(expansions).unwrap(),
            };
            let next = |next: Option<ArcEnd>| match next {
                None => -1,
                Some(ArcEnd::Frame) => 0,
                Some(ArcEnd::State(state)) => state as i64,
            };
            let visit = || alignment.topological_visit();
            let blank: Vec<i64> = visit().map(|a| next(Some(alignment.blank_next(a)))).collect();
            let label_ends: Vec<i64> = visit().map(|a| next(alignment.label_next(a))).collect();
            assert_eq!(blank, case.tensors.integers(&format!("{key}/blank_next")), "{key}");
            assert_eq!(label_ends, case.tensors.integers(&format!("{key}/lexical_next")), "{key}");
            check_forward::<Probability>(&case, &key, "real", &context, alignment);
            check_forward::<Log>(&case, &key, "log", &context, alignment);
            check_forward::<Tropical>(&case, &key, "tropical", &context, alignment);
            check_backward(&case, &key, &context, alignment);
        }
        assert_eq!(case.tensors.unread_names(), [""; 0]);
    }
}

fn check_forward<S: Semiring<Weight = f64>>(
    case: &Case,
    key: &str,
    name: &str,
    context: &FullNGram,
    alignment: AlignmentLattice,
) {
    let tensors = &case.tensors;
    for prefix in ["", "string_"] {
        let tensor = |name: &str| format!("{key}/{prefix}{name}");
        let width = tensors.shape(&tensor("alpha"))[1];
        let mut all = Vec::new();
        for (utterance, alpha) in tensors.values(&tensor("alpha")).chunks(width).enumerate() {
            let utterance_values = |name: &str| utterance_rows(tensors, &tensor(name), utterance);
            let (blank, label_arcs) = (utterance_values("blank"), utterance_values("lexical"));
            let arcs = Arcs { blank: &blank, labels: &label_arcs };
            let computed = match prefix {
                "" => forward_step::<S>(context, alignment, arcs, alpha),
                _ => string_forward_step::<S>(alignment, arcs, alpha),
            };
            all.extend(computed.unwrap());
        }
        case.near(&tensor(&format!("forward_{name}")), &all);
    }
}

fn check_backward(case: &Case, key: &str, context: &FullNGram, alignment: AlignmentLattice) {
    let tensors = &case.tensors;
    let states = context.states();
    let tensor = |name: &str| format!("{key}/{name}");
    let rows =
        |name: &str, utterance: usize| tensors.values(&tensor(name))[utterance * states..][..states].to_vec();
    let near = |name: &str, utterance: usize, computed: &[f64]| {
        let [relative, absolute] = case.gradients;
        assert_near(name, computed, &utterance_rows(tensors, &tensor(name), utterance), relative, absolute);
    };
    let mut betas = Vec::new();
    for (utterance, &log_z) in tensors.values(&tensor("log_z")).iter().enumerate() {
        let utterance_values = |name: &str| utterance_rows(tensors, &tensor(name), utterance);
        let (blank, label_arcs) = (utterance_values("blank"), utterance_values("lexical"));
        let arcs = Arcs { blank: &blank, labels: &label_arcs };
        let (alpha, beta) = (rows("alpha", utterance), rows("beta", utterance));
        let computed = arc_sums_step::<Log>(context, alignment, arcs, &alpha, &beta).unwrap();
        let (blank, label_arcs) = computed.marginals(log_z);
        near("backward_blank_marginal", utterance, &blank);
        near("backward_lexical_marginal", utterance, &label_arcs);
        betas.extend(computed.beta);
    }
    case.near(&tensor("backward_next_beta"), &betas);
}

/// Number of golden lattices in the shared data.
const GOLDEN_LATTICES: usize = 27;

/// Distances, α and marginals of all lattices, from their arc weights.
#[test]
fn lattices_equal_golden_vectors() {
    let Some(folder) = golden::system_folder("last") else { return };
    let mut lattice_count = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if !path.to_str().unwrap().ends_with(".f64.json") {
            continue;
        }
        let sidecar: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        if sidecar["case"]["align"].is_string() {
            check_lattice(&path.with_extension("safetensors"), &sidecar["case"]);
            lattice_count += 1;
        }
    }
    assert_eq!(lattice_count, GOLDEN_LATTICES, "lattices in {}", folder.display());
}

/// Compares distances, α, best paths and marginals of a golden lattice.
fn check_lattice(file: &Path, case: &serde_json::Value) {
    let tensors = GoldenTensors::read(file);
    let option = |name: &str| case[name].as_u64().unwrap() as usize;
    let context = FullNGram::new(option("V"), option("n")).unwrap();
    let alignment = match case["align"].as_str().unwrap() {
        "FD" => AlignmentLattice::FrameDependent,
        _ => AlignmentLattice::frame_label_dependent(option("K")).unwrap(),
    };
    let (states, vocabulary) = (context.states(), context.vocabulary());
    let (blank, label_arcs) = (tensors.values("out/blank_weights"), tensors.values("out/lexical_weights"));
    let (num_frames, num_labels) = (tensors.integers("in/num_frames"), tensors.integers("in/num_labels"));
    let labels = tensors.integers("in/labels");
    let (padded, width) = (blank.len() / states / num_frames.len(), labels.len() / num_frames.len());
    let near = |name: &str, utterance: usize, computed: &[f64]| {
        let size = tensors.values(name).len() / num_frames.len();
        let expected = &tensors.values(name)[utterance * size..][..computed.len()];
        assert_near(&format!("{} {name}", file.display()), computed, expected, 1e-10, 1e-12);
    };
    for (utterance, (&frames, &count)) in num_frames.iter().zip(&num_labels).enumerate() {
        let frames = (frames as usize).min(padded);
        let arc_weight = |t: usize, arc: FrameArc| {
            let state = (utterance * padded + t) * states + arc.context;
            if arc.label == 0 { blank[state] } else { label_arcs[state * vocabulary + arc.label - 1] }
        };
        let string = labels[utterance * width..][..width].get(..count as usize);
        let string: Option<Vec<u32>> = string.map(|labels| labels.iter().map(|&y| y as u32).collect());
        let string = string.as_deref();
        let distances = [
            ("log", distances::<Log>(&context, alignment, string, frames, &arc_weight)),
            ("tropical", distances::<Tropical>(&context, alignment, string, frames, &arc_weight)),
            ("real", distances::<Probability>(&context, alignment, string, frames, &arc_weight)),
        ];
        for (semiring, (all, string_total)) in distances {
            let tensor = |name: &str| format!("out/{name}_{semiring}");
            if !tensors.has(&tensor("denom")) {
                continue;
            }
            near(&tensor("denom"), utterance, &[all.total]);
            near(&tensor("numer"), utterance, &[string_total]);
            if tensors.has(&tensor("alpha")) {
                near(&tensor("alpha"), utterance, &all.alphas);
            }
        }
        let path = distance::<BestLabels>(&context, alignment, frames, |t, arc| {
            let entries = if arc.label == 0 { alignment.num_states() - arc.alignment } else { 1 };
            LabelPath { score: arc_weight(t, arc), labels: arc.label as u128, entries }
        });
        let name = "out/shortest_path_alignment_labels";
        let expected = &tensors.values(name)[utterance * padded * alignment.num_states()..];
        assert_eq!(path.total.labels(), expected[..path.total.entries], "{} {name}", file.display());
        if tensors.has("out/blank_marginals_by_state") {
            let mut marginals = vec![(Vec::new(), Vec::new()); frames];
            let total = distance::<Log>(&context, alignment, frames, arc_weight).total;
            arc_sums::<Log>(&context, alignment, frames, arc_weight, |t, computed| {
                marginals[t] = computed.marginals(total)
            });
            let (blank, label_arcs): (Vec<_>, Vec<_>) = marginals.into_iter().unzip();
            near("out/blank_marginals_by_state", utterance, &blank.concat());
            near("out/lexical_marginals_by_state", utterance, &label_arcs.concat());
        }
    }
}

/// Returns the distance over all paths and along a string.
///
/// A string that is longer than its array has no path.
fn distances<S: Semiring<Weight = f64>>(
    context: &dyn Context,
    alignment: AlignmentLattice,
    string: Option<&[u32]>,
    frames: usize,
    arc_weight: &impl Fn(usize, FrameArc) -> f64,
) -> (Distance<f64>, f64) {
    let all = distance::<S>(context, alignment, frames, arc_weight);
    let string_total =
        |string| string_distance::<S>(context, alignment, string, frames, arc_weight).unwrap().total;
    (all, string.map_or(S::ZERO, string_total))
}

/// A semiring of best paths, which shows the order of sums.
struct BestLabels;

/// Bits of a label in a [`LabelPath`].
const BITS_PER_LABEL: usize = 5;

/// Score and labels of a partial path.
#[derive(Clone, Copy, PartialEq)]
struct LabelPath {
    score: f64,
    /// [`BITS_PER_LABEL`] bits per entry, the last label lowest; 0 without a label.
    labels: u128,
    /// Number of alignment states that the path passes.
    entries: usize,
}

impl LabelPath {
    fn labels(&self) -> Vec<f64> {
        (0..self.entries)
            .rev()
            .map(|entry| (self.labels >> (BITS_PER_LABEL * entry) & ((1 << BITS_PER_LABEL) - 1)) as f64)
            .collect()
    }
}

impl Semiring for BestLabels {
    type Weight = LabelPath;
    const ZERO: LabelPath = LabelPath { score: f64::NEG_INFINITY, labels: 0, entries: 0 };
    const ONE: LabelPath = LabelPath { score: 0.0, labels: 0, entries: 0 };

    fn plus(a: LabelPath, b: LabelPath) -> LabelPath {
        if a.score >= b.score { a } else { b }
    }

    fn times(a: LabelPath, b: LabelPath) -> LabelPath {
        let entries = a.entries + b.entries;
        assert!(entries * BITS_PER_LABEL < 128, "more labels than bits");
        LabelPath {
            score: a.score + b.score,
            labels: a.labels << (BITS_PER_LABEL * b.entries) | b.labels,
            entries,
        }
    }
}
