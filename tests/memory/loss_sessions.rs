//! Tests memory of loss sessions: measured <= planned <= budget.
//!
//! The tests cover all losses, inputs and layouts.
use candle_core::{Device, Tensor, Var, WithDType, backprop::GradStore};
use panda::pruned::{Linear, Matrices};
use panda::rnnt_loss::{
    DEFAULT_BUDGET, Dropout, Element, Error, Head, HiddenInputs, Inputs, JointInputs, Layout, Loss, Options,
    PassScales, Precision, PrunedInputs, Pruning, ScoreInputs, Session, SimpleInputs, Targets,
    TokenNormalization, Topology,
    candle::{
        HeadTensors, HiddenTensors, JointTensors, LossSession, LossSum, PrunedTensors, ScoreTensors,
        SimpleTensors, TensorInputs,
    },
};

use crate::counting_allocator::{Measurement, exclusive, measure, resident_growth};

/// Size of a huge page, the granularity of resident memory, in bytes.
const HUGE_PAGE: usize = 2 << 20;

/// Input widths of the linear layers of the simple joiner.
const FRAME_WIDTH: usize = 9;
const LABEL_WIDTH: usize = 7;

/// A batch and a kind of loss.
#[derive(Clone, Debug)]
struct SessionCase {
    /// Frames and labels of each utterance.
    shapes: Vec<(usize, usize)>,
    hidden: usize,
    classes: usize,
    kind: InputKind,
    /// True for existing scores in place of rows and heads.
    has_scores: bool,
    is_padded: bool,
    /// Retained label positions per frame; none retains all.
    band: Option<usize>,
    options: Options,
    has_dropout: bool,
}

/// Memory of a session: limit, and whether scores are kept for backward.
#[derive(Clone, Copy, Debug)]
struct BudgetCase {
    bytes: usize,
    keep_scores: bool,
}

/// Kind of loss and of its inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum InputKind {
    /// Regular topology.
    Plain,
    /// Constrained topology.
    Constrained,
    /// Factored blank.
    Factored,
    BigBlanks,
    /// Token-and-duration transducer.
    Durations,
    Ctc,
    /// Given hidden rows instead of a joint network.
    Rows,
    /// Pruned loss with score matrices of the simple joiner.
    PrunedMatrices,
    /// Pruned loss with linear layers of the simple joiner.
    PrunedHeads,
}

const INPUT_KINDS: [InputKind; 9] = [
    InputKind::Plain,
    InputKind::Constrained,
    InputKind::Factored,
    InputKind::BigBlanks,
    InputKind::Durations,
    InputKind::Ctc,
    InputKind::Rows,
    InputKind::PrunedMatrices,
    InputKind::PrunedHeads,
];

/// Returns the loss of a kind with its options.
fn loss_of_kind(kind: InputKind) -> Loss {
    match kind {
        InputKind::Plain | InputKind::Rows => Loss::rnnt(),
        InputKind::Constrained => Loss::with_topology(Topology::constrained()),
        InputKind::Factored => Loss::Transducer {
            topology: Topology::modified(),
            tokens: TokenNormalization::FactoredBlank,
            sigma: 0.0,
        },
        InputKind::BigBlanks => Loss::multi_blank(&[2, 4]).unwrap(),
        InputKind::Durations => {
            Loss::Tdt { topology: Topology::tdt(&[0, 1, 2, 4]).unwrap(), sigma: 0.1, omega: 0.1 }
        }
        InputKind::Ctc => Loss::Ctc,
        InputKind::PrunedMatrices | InputKind::PrunedHeads => Loss::pruned(Pruning::default()),
    }
}

/// Returns deterministic pseudo-random numbers.
fn test_values<F: Element>(count: usize, scale: f64) -> Vec<F> {
    let hash = |i: usize| (i as u32 ^ 77).wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b);
    (0..count).map(|i| F::from_f64(scale * (f64::from(hash(i)) / f64::from(u32::MAX) - 0.5))).collect()
}

/// Arguments of a call, allocated before the measurement.
struct Arguments<F> {
    targets: Targets,
    layout: Layout,
    encoded: Vec<F>,
    predicted: Vec<F>,
    weight: Vec<F>,
    bias: Vec<F>,
    durations: Vec<F>,
    /// Simple joiner: two score matrices, or two inputs and two weights.
    simple: [Vec<F>; 4],
}

impl SessionCase {
    /// Returns synthetic arguments of the sizes of this case.
    fn arguments<F: Element>(&self) -> Arguments<F> {
        let Self { shapes, hidden: h, classes: c, kind, .. } = self;
        // Targets, with bands and big blanks.
        let ids = (*c as u32 - 1).clamp(1, 30);
        let first_label = if *kind == InputKind::BigBlanks { 3 } else { 1 };
        let label = |u: usize| first_label + (u as u32 * 7 + 3) % (ids.saturating_sub(first_label).max(1));
        let labels = shapes.iter().map(|&(_, u)| (0..u).map(label).collect()).collect();
        let mut targets = Targets::new(0, shapes.iter().map(|shape| shape.0).collect(), labels).unwrap();
        if *kind == InputKind::BigBlanks {
            targets = targets.with_big_blanks(vec![1, 2]).unwrap();
        }
        if let Some(width) = self.band {
            let band = |t: usize, frames: usize, u: usize| {
                let start =
                    (t * (u + 1).saturating_sub(width) / frames.max(2)).min((u + 1).saturating_sub(width));
                start..(start + width).min(u + 1)
            };
            let bands = shapes.iter().map(|&(frames, u)| (0..frames).map(|t| band(t, frames, u)).collect());
            targets = targets.with_bands(bands.collect()).unwrap();
        }
        // Rows and layout.
        let (max_frames, max_positions) =
            (shapes.iter().map(|s| s.0).max().unwrap(), shapes.iter().map(|s| s.1 + 1).max().unwrap());
        let batch = shapes.len();
        let (frame_rows, label_rows, layout) = match self.is_padded {
            true => (
                batch * max_frames,
                batch * max_positions,
                Layout::Padded { frames: max_frames, positions: max_positions },
            ),
            false => {
                let (t, u) = shapes.iter().fold((0, 0), |(t, u), shape| (t + shape.0, u + shape.1 + 1));
                (t, u, Layout::Packed)
            }
        };
        let sites = if *kind == InputKind::Rows || self.has_scores && *kind != InputKind::Ctc {
            if self.is_padded { batch * max_frames * max_positions } else { targets.lattices().num_sites() }
        } else {
            frame_rows
        };
        // Values.
        let scale = 2.0 / (*h as f64).sqrt();
        let simple = match kind {
            InputKind::PrunedMatrices => [frame_rows * c, label_rows * c, 0, 0],
            InputKind::PrunedHeads => {
                [frame_rows * FRAME_WIDTH, label_rows * LABEL_WIDTH, c * FRAME_WIDTH, c * LABEL_WIDTH]
            }
            _ => [0; 4],
        };
        Arguments {
            layout,
            encoded: match self.has_scores {
                true => test_values(sites * (c + self.durations()), 2.0),
                false => test_values(sites.max(frame_rows) * h, 2.0),
            },
            predicted: test_values(label_rows * h, 2.0),
            weight: test_values(c * h, scale),
            bias: test_values(*c, 1.0),
            durations: test_values(4 * h, scale),
            simple: simple.map(|count| test_values(count, 1.0)),
            targets,
        }
    }

    /// Returns the options of the loss within a budget.
    fn options_within(&self, budget: BudgetCase) -> Options {
        let BudgetCase { bytes: budget, keep_scores } = budget;
        Options { loss: loss_of_kind(self.kind), budget, keep_scores, ..self.options.clone() }
    }

    /// Returns the number of durations.
    fn durations(&self) -> usize {
        if self.kind == InputKind::Durations { 4 } else { 0 }
    }

    /// Returns the inputs of a call on slices.
    fn inputs<'a, F: Element>(&self, arguments: &'a Arguments<F>) -> Inputs<'a, F> {
        if self.has_scores {
            return ScoreInputs {
                scores: &arguments.encoded,
                classes: self.classes,
                layout: arguments.layout,
            }
            .into();
        }
        let h = self.hidden;
        let head = Head::new(&arguments.weight, Some(&arguments.bias), h).unwrap();
        let mut joint =
            JointInputs::new(&arguments.encoded, &arguments.predicted, head).with_layout(arguments.layout);
        if self.has_dropout {
            joint = joint.with_dropout(Dropout { rate: 0.3, seed: 7 });
        }
        match self.kind {
            InputKind::Ctc | InputKind::Rows => {
                HiddenInputs::new(&arguments.encoded, head).with_layout(arguments.layout).into()
            }
            InputKind::Durations => {
                joint.with_durations(Head::new(&arguments.durations, None, h).unwrap()).into()
            }
            InputKind::PrunedMatrices => {
                let simple = Matrices::new(&arguments.simple[0], &arguments.simple[1], self.classes).unwrap();
                PrunedInputs { simple: SimpleInputs::Matrices(simple), joint, scales: PassScales::default() }
                    .into()
            }
            InputKind::PrunedHeads => {
                let am = Linear::new(&arguments.simple[0], &arguments.simple[2], None, FRAME_WIDTH).unwrap();
                let lm = Linear::new(&arguments.simple[1], &arguments.simple[3], None, LABEL_WIDTH).unwrap();
                let simple = SimpleInputs::Heads(panda::pruned::Heads::new(am, lm).unwrap());
                PrunedInputs { simple, joint, scales: PassScales::default() }.into()
            }
            _ => joint.into(),
        }
    }

    /// Runs the call of [`Self::run`] on padded tensors.
    fn run_tensors<F: Element + WithDType>(
        &self,
        budget: BudgetCase,
        is_separate: bool,
    ) -> Result<(usize, usize), Error> {
        let (arguments, h, c, batch) = (self.arguments::<F>(), self.hidden, self.classes, self.shapes.len());
        let Layout::Padded { frames, positions } = arguments.layout else { panic!("tensors are padded") };
        let var = |values: &[F], shape: &[usize]| {
            Var::from_slice(&values[..shape.iter().product()], shape, &Device::Cpu).unwrap()
        };
        let width = c + self.durations();
        let encoded = match (self.has_scores, self.kind) {
            (true, InputKind::Ctc) => var(&arguments.encoded, &[batch, frames, width]),
            (true, _) => var(&arguments.encoded, &[batch, frames, positions, width]),
            (false, _) => var(&arguments.encoded, &[batch, frames, h]),
        };
        let predicted = var(&arguments.predicted, &[batch, positions, h]);
        let (weight, bias) = (var(&arguments.weight, &[c, h]), var(&arguments.bias, &[c]));
        let durations = var(&arguments.durations, &[4, h]);
        let simple = [[batch, frames, FRAME_WIDTH], [batch, positions, LABEL_WIDTH]];
        let [am, lm] = [(0, FRAME_WIDTH), (1, LABEL_WIDTH)].map(|(side, width)| {
            (self.kind == InputKind::PrunedHeads).then(|| {
                (var(&arguments.simple[side], &simple[side]), var(&arguments.simple[side + 2], &[c, width]))
            })
        });
        let head = HeadTensors { weight: &weight, bias: Some(&bias) };
        let joint = JointTensors {
            encoded: &encoded,
            predicted: &predicted,
            head,
            durations: (self.kind == InputKind::Durations)
                .then_some(HeadTensors { weight: &durations, bias: None }),
            dropout: self.has_dropout.then_some(Dropout { rate: 0.3, seed: 7 }),
        };
        let inputs: TensorInputs = match (&am, &lm) {
            (Some((frames, am)), Some((labels, lm))) => {
                let [am, lm] = [am, lm].map(|weight| HeadTensors { weight, bias: None });
                let simple = SimpleTensors { frames, labels, am, lm };
                PrunedTensors { simple, joint, scales: PassScales::default() }.into()
            }
            _ if self.has_scores => ScoreTensors { scores: &encoded }.into(),
            _ if self.kind == InputKind::Ctc => HiddenTensors { hidden: &encoded, head }.into(),
            _ => joint.into(),
        };
        let options = self.options_within(budget);
        let slices = Session::<F>::new(&options)?;
        let planned = match is_separate {
            true => slices.plan_forward(self.inputs(&arguments), &arguments.targets)?,
            false => slices.plan_sum(self.inputs(&arguments), &arguments.targets)?,
        };
        // Run twice; the larger growth without the results counts.
        let (session, mut max_growth) = (LossSession::new(&options)?, 0);
        let weights = vec![1.0; batch];
        for _ in 0..2 {
            let bytes = |gradients: &GradStore, extra: usize| {
                let tensor_bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
                let sizes = || gradients.get_ids().filter_map(|id| gradients.get_id(*id)).map(tensor_bytes);
                sizes().sum::<usize>() + extra * sizes().max().unwrap_or(0)
            };
            let (resident, growth, results) = match is_separate {
                true => {
                    let run = || {
                        Ok::<_, Error>(session.forward(inputs, &arguments.targets)?.sum_all()?.backward()?)
                    };
                    let (resident, Measurement { peak_growth: growth, result: gradients, .. }) =
                        resident_growth(|| measure(run));
                    // Candle adds each gradient to zeros.
                    (resident, growth, bytes(&gradients?, 2))
                }
                false => {
                    let run = || session.sum(inputs, &arguments.targets, &weights);
                    let (resident, Measurement { peak_growth: growth, result: out, .. }) =
                        resident_growth(|| measure(run));
                    (resident, growth, bytes(&out?.sum.backward()?, 0))
                }
            };
            max_growth = max_growth.max(growth.saturating_sub(results));
            self.expect_resident(resident, planned, results);
        }
        Ok((planned, max_growth))
    }

    /// Planned and measured bytes of a call, without arguments and results.
    ///
    /// The call runs twice in one session; the larger measurement counts. With `is_separate`,
    /// backward is a call after forward.
    fn run<F: Element>(&self, budget: BudgetCase, is_separate: bool) -> Result<(usize, usize), Error> {
        let arguments = self.arguments::<F>();
        let options = self.options_within(budget);
        let weights = vec![1.0; self.shapes.len()];
        let session = Session::new(&options)?;
        let planned = match is_separate {
            true => session.plan_forward(self.inputs(&arguments), &arguments.targets)?,
            false => session.plan_sum(self.inputs(&arguments), &arguments.targets)?,
        };
        let (mut session, mut max_growth) = (session, 0);
        for _ in 0..2 {
            let (resident, Measurement { peak_growth: growth, result: results, .. }) =
                resident_growth(|| {
                    measure(|| {
                        let out = match is_separate {
                            true => session
                                .forward(self.inputs(&arguments), &arguments.targets)?
                                .backward(&weights)?,
                            false => session.sum(self.inputs(&arguments), &arguments.targets, &weights)?,
                        };
                        Ok::<_, Error>(out)
                    })
                });
            let out = results?;
            max_growth = max_growth.max(growth.saturating_sub(out.bytes()));
            self.expect_resident(resident, planned, out.bytes());
            if self.has_scores && is_separate {
                let mut scores = arguments.encoded.clone();
                let shape = (self.classes, arguments.layout);
                let (resident, Measurement { peak_growth: growth, result: losses, .. }) =
                    resident_growth(|| {
                        measure(|| session.sum_in_place(&mut scores, shape, &arguments.targets, &weights))
                    });
                let losses = 8 * losses?.len();
                max_growth = max_growth.max(growth.saturating_sub(losses));
                self.expect_resident(resident, planned, losses);
            }
        }
        Ok((planned, max_growth))
    }

    /// Checks resident memory: at most a huge page above the buffers.
    fn expect_resident(&self, resident: Option<usize>, planned: usize, results: usize) {
        let limit = planned.saturating_add(results).saturating_add(HUGE_PAGE);
        assert!(
            resident.is_none_or(|resident| resident <= limit),
            "{self:?}: {resident:?}, {planned} + {results}"
        );
    }

    /// Checks budgets from the smallest to unlimited; returns the number of calls.
    fn check<F: Element + WithDType>(&self, is_separate: bool) -> usize {
        let keeping = |bytes: usize| BudgetCase { bytes, keep_scores: true };
        let smallest = match self.run::<F>(keeping(1), is_separate) {
            Err(Error::Budget { smallest, found: 1 }) => smallest,
            other => panic!("{self:?}: one byte gave {other:?}"),
        };
        assert!(matches!(
            self.run::<F>(keeping(smallest - 1), is_separate),
            Err(Error::Budget { smallest: repeated, .. }) if repeated == smallest
        ));
        let budgets = [1.0, 1.3, 3.0, 20.0].map(|factor| keeping((smallest as f64 * factor) as usize));
        let has_tensors = self.is_padded && !matches!(self.kind, InputKind::Rows | InputKind::PrunedMatrices);
        let unlimited = keeping(usize::MAX);
        let recomputing = BudgetCase { keep_scores: false, ..unlimited };
        for budget in budgets.into_iter().chain([recomputing, unlimited]) {
            let by_tensors = has_tensors.then(|| self.run_tensors::<F>(budget, is_separate));
            for outcome in std::iter::once(self.run::<F>(budget, is_separate)).chain(by_tensors) {
                let ((planned, measured), name) = (outcome.unwrap(), std::any::type_name::<F>());
                assert!(
                    measured <= planned,
                    "{name} separate {is_separate} {budget:?} {self:?}: {measured} above {planned}"
                );
                assert!(planned <= budget.bytes, "{budget:?} {self:?}: planned {planned}");
            }
        }
        // Six budgets, on slices and on tensors.
        if has_tensors { 12 } else { 6 }
    }
}

/// Returns a case of packed rows without other options.
fn new_case(shapes: &[(usize, usize)], hidden: usize, classes: usize, kind: InputKind) -> SessionCase {
    SessionCase {
        shapes: shapes.to_vec(),
        hidden,
        classes,
        kind,
        has_scores: false,
        is_padded: false,
        band: None,
        options: Options::default(),
        has_dropout: false,
    }
}

#[test]
fn every_call_stays_within_its_budget() {
    let _guard = exclusive();
    let mut calls = 0;
    let shapes: [&[(usize, usize)]; 4] =
        [&[(1, 0)], &[(30, 7), (1, 1), (12, 0)], &[(90, 30), (60, 12), (7, 20)], &[(40, 9); 12]];
    let sizes = [(1, 4), (7, 300), (64, 33), (130, 1000)];
    for (i, kind) in INPUT_KINDS.into_iter().enumerate() {
        for (j, shapes) in shapes.iter().enumerate() {
            let (hidden, classes) = sizes[(i + j) % sizes.len()];
            let mut case = new_case(shapes, hidden, classes, kind);
            case.is_padded = (i + j) % 2 == 1;
            let bands = !matches!(kind, InputKind::Ctc | InputKind::PrunedMatrices | InputKind::PrunedHeads);
            case.band = (bands && j % 3 == 2).then_some(5);
            case.has_dropout = (i + j) % 3 == 0;
            calls += case.check::<f32>(j % 2 == 0);
            let smooths = kind != InputKind::Factored;
            case.options = Options {
                fastemit: 0.1,
                delay_penalty: 0.1,
                label_smoothing: if smooths && j % 2 == 0 { 0.1 } else { 0.0 },
                clamp: (j % 2 == 1).then_some(0.5),
                z_loss: if j % 4 < 2 { 1e-3 } else { 0.0 },
                skip: if j % 4 >= 2 && kind != InputKind::Ctc { 1e-3 } else { 0.0 },
                ..Options::default()
            };
            calls += case.check::<f64>(j % 2 == 1);
            case.options.precision = Precision::Bf16;
            calls += case.check::<f32>(j % 2 == 1);
        }
    }
    println!("{calls} calls");
    assert!(calls >= 300);
}

/// Existing scores: sums, separate losses, and in place.
#[test]
fn calls_on_scores_stay_within_their_budgets() {
    let _guard = exclusive();
    // Each thread allocates its own state first, more than the smallest call needs.
    rayon::broadcast(|_| rayon::join(|| (), || ()));
    let mut calls = 0;
    let shapes: [&[(usize, usize)]; 4] =
        [&[(1, 0)], &[(30, 7), (1, 1), (12, 0)], &[(90, 30), (60, 12), (7, 20)], &[(40, 9); 12]];
    let kinds = [
        InputKind::Plain,
        InputKind::Constrained,
        InputKind::BigBlanks,
        InputKind::Durations,
        InputKind::Ctc,
    ];
    for (i, kind) in kinds.into_iter().enumerate() {
        for (j, shapes) in shapes.iter().enumerate() {
            let mut case = new_case(shapes, 1, [4, 30, 77][(i + j) % 3], kind);
            case.has_scores = true;
            case.band = (kind != InputKind::Ctc && j % 3 == 2).then_some(5);
            for is_padded in [false, true] {
                case.is_padded = is_padded;
                case.options = Options::default();
                calls += case.check::<f32>(is_padded == (j % 2 == 0));
                calls += case.check::<f64>(is_padded != (j % 2 == 0));
                case.options = Options {
                    fastemit: 0.1,
                    delay_penalty: 0.1,
                    clamp: (j % 2 == 1).then_some(0.5),
                    z_loss: if j % 4 < 2 { 1e-3 } else { 0.0 },
                    skip: if j % 4 >= 2 && kind != InputKind::Ctc { 1e-3 } else { 0.0 },
                    ..Options::default()
                };
                calls += case.check::<f32>(is_padded != (j % 2 == 0));
                calls += case.check::<f64>(is_padded == (j % 2 == 0));
            }
        }
    }
    println!("{calls} calls");
    assert!(calls >= 900);
    // Long lattices, many utterances, many classes.
    for (shapes, classes) in [(vec![(1, 0), (500, 99)], 9), (vec![(20, 4); 200], 20), (vec![(6, 2)], 65_536)]
    {
        for (kind, is_separate) in
            [(InputKind::Plain, true), (InputKind::Durations, false), (InputKind::Ctc, false)]
        {
            let mut case = new_case(&shapes, 1, classes, kind);
            (case.has_scores, case.is_padded) = (true, shapes[0].0 > 1);
            case.check::<f32>(is_separate);
        }
    }
}

/// One utterance needs more emissions, the other more recursion rows.
#[test]
fn lanes_of_ctc_fit_all_buffers_of_each_utterance() {
    let _guard = exclusive();
    rayon::broadcast(|_| rayon::join(|| (), || ()));
    for shapes in [[(14_900, 0), (100, 99)], [(100, 99), (14_900, 0)]] {
        let mut case = new_case(&shapes, 1, 9, InputKind::Ctc);
        case.has_scores = true;
        for is_separate in [true, false] {
            case.check::<f32>(is_separate);
        }
    }
}

#[test]
fn large_calls_stay_within_their_budgets() {
    let _guard = exclusive();
    for (shapes, hidden, classes) in [
        (vec![(1, 0), (500, 99)], 16, 50),
        (vec![(40, 10)], 1024, 700),
        (vec![(6, 2), (3, 1)], 32, 65_536),
        (vec![(20, 4); 200], 24, 200),
    ] {
        for (kind, is_separate) in
            [(InputKind::Plain, true), (InputKind::Durations, false), (InputKind::Ctc, true)]
        {
            new_case(&shapes, hidden, classes, kind).check::<f32>(is_separate);
        }
    }
}

/// Tensors of a step with a transducer and an auxiliary CTC loss.
struct TwoLosses {
    targets: Targets,
    /// Encoded and predicted rows, hidden rows of CTC, weights of both heads.
    tensors: [Var; 5],
}

impl TwoLosses {
    fn new([batch, frames, labels, width, classes]: [usize; 5]) -> Self {
        let lens = (0..batch).map(|b| frames - 3 * b).collect();
        let labels_of =
            |b: usize| (0..labels - b).map(move |u| 1 + (5 * u + b) as u32 % (classes as u32 - 1));
        let targets = Targets::new(0, lens, (0..batch).map(|b| labels_of(b).collect()).collect()).unwrap();
        let var = |shape: &[usize]| {
            let values = (0..shape.iter().product()).map(|i: usize| (i * 37 % 101) as f32 / 101.0 - 0.5);
            Var::from_vec(values.collect(), shape, &Device::Cpu).unwrap()
        };
        let rows = [[batch, frames, width], [batch, labels + 1, width], [batch, frames, width / 2]];
        let [encoded, predicted, hidden] = rows.map(|shape| var(&shape));
        let tensors = [encoded, predicted, hidden, var(&[classes, width]), var(&[classes, width / 2])];
        Self { targets, tensors }
    }

    /// Sums of both losses, with their gradients.
    fn step(&self, sessions: &[LossSession; 2]) -> Result<[LossSum; 2], Error> {
        let [encoded, predicted, hidden, weight, ctc_weight] = &self.tensors;
        let head = |weight| HeadTensors { weight, bias: None };
        let joint = JointTensors { encoded, predicted, head: head(weight), durations: None, dropout: None };
        let weights = vec![1.0; self.targets.batch()];
        let rows = HiddenTensors { hidden, head: head(ctc_weight) };
        let ctc = sessions[1].sum(rows, &self.targets, &weights)?;
        Ok([sessions[0].sum(joint, &self.targets, &weights)?, ctc])
    }

    /// Bytes of the gradients.
    fn gradient_bytes(&self) -> usize {
        self.tensors.iter().map(|tensor| 4 * tensor.elem_count()).sum()
    }

    /// Planned bytes of a loss.
    fn planned_bytes(&self, options: &Options) -> Result<usize, Error> {
        let values = self.tensors.each_ref().map(|var| var.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        let [encoded, predicted, hidden, weight, ctc_weight] = &values;
        let [_, frames, width] = *self.tensors[0].dims() else { panic!("three axes") };
        let layout = Layout::Padded { frames, positions: self.tensors[1].dims()[1] };
        let session = Session::new(options)?;
        if options.loss == Loss::Ctc {
            let rows = HiddenInputs::new(hidden, Head::new(ctc_weight, None, width / 2)?);
            return session.plan_sum(rows.with_layout(layout), &self.targets);
        }
        let joint = JointInputs::new(encoded, predicted, Head::new(weight, None, width)?);
        session.plan_sum(joint.with_layout(layout), &self.targets)
    }
}

#[test]
fn a_transducer_and_a_ctc_loss_share_a_budget() {
    let _guard = exclusive();
    for shape in [[3, 60, 12, 48, 700], [6, 30, 9, 16, 40], [2, 200, 20, 64, 1500]] {
        let step = TwoLosses::new(shape);
        let options = |budget| [Loss::rnnt(), Loss::Ctc].map(|loss| Options { budget, ..Options::new(loss) });
        let smallest = options(1).map(|options| match step.planned_bytes(&options) {
            Err(Error::Budget { smallest, .. }) => smallest,
            other => panic!("{other:?}"),
        });
        let smallest = smallest.into_iter().max().unwrap();
        for budget in [smallest, smallest * 3 / 2, 4 * smallest, DEFAULT_BUDGET] {
            let options = options(budget);
            let planned = options.each_ref().map(|options| step.planned_bytes(options).unwrap());
            let planned = planned.into_iter().max().unwrap();
            let transducer = LossSession::new(&options[0]).unwrap();
            let ctc = transducer.with_shared_buffers(&options[1]).unwrap();
            let shared = [transducer, ctc];
            let Measurement { peak_growth: growth, result: losses, .. } = measure(|| {
                let run = |_| step.step(&shared).unwrap().map(|sum| sum.losses);
                (0..3).map(run).next_back().unwrap()
            });
            let measured = growth.saturating_sub(step.gradient_bytes());
            assert!(measured <= planned, "{shape:?}, {budget}: {measured} above {planned}");
            assert!(planned <= budget, "{shape:?}: {planned} above {budget}");
            let unshared = options.map(|options| LossSession::new(&options).unwrap());
            assert_eq!(losses, step.step(&unshared).unwrap().map(|sum| sum.losses), "{shape:?}, {budget}");
        }
    }
}
