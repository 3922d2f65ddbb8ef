//! Tests that a training step uses at most the planned memory.
use candle_core::{Device, Tensor};
use panda::model::Model;
use panda::training::data::Batch;
use panda::training::{BatchShape, Learner, Recipe, StepPosition, recomputed_step_bytes, step_bytes};

use crate::counting_allocator::{Measurement, exclusive, live_bytes, measure};

/// A recipe with the given encoder, predictor and training options.
///
/// Without a predictor, it has no joint network.
fn parse_recipe(encoder: &str, predictor: &str, training_options: &str) -> Recipe {
    let output = match predictor {
        "" => String::new(),
        _ => format!("predictor = {{ {predictor} }}\njoint = {{ width = 24, dropout = 0.1 }}"),
    };
    let text = format!(
        r#"
        data = {{ train = ["none.jsonl"] }}
        features = {{ mels = 20 }}
        tokens = {{ kind = "words" }}
        encoder = {{ {encoder} }}
        {output}
        optimizer = {{ learning_rate = 1e-3, ema = 0.9 }}
        batch = {{ max_frames = 100, max_utterances = 4 }}
        {training_options}
        "#
    );
    Recipe::parse(&text, std::path::Path::new("test.toml")).unwrap()
}

/// Returns a synthetic batch; utterance b has `labels - b` labels.
fn batch(width: usize, lengths: &[usize], labels: usize, classes: usize) -> Batch {
    let rows = *lengths.iter().max().unwrap();
    let values = (0..lengths.len() * rows * width).map(|i| (i as f32 * 0.37).sin());
    let rows =
        Tensor::from_iter(values, &Device::Cpu).unwrap().reshape((lengths.len(), rows, width)).unwrap();
    let labels_of =
        |b: usize| (0..labels.saturating_sub(b)).map(|u| ((u * 7 + b) % classes) as u32).collect();
    Batch::new(rows, lengths.to_vec(), (0..lengths.len()).map(labels_of).collect())
}

/// Contexts of 11,111,111 states of 64 values, 2.8 GB, and larger ones.
#[test]
fn the_plan_of_a_recognition_lattice_allocates_no_model() {
    let _guard = exclusive();
    for (context, labels) in [(1, 10), (7, 10), (8, 10), (4, 99), (1, 1_000_000)] {
        let text = format!(
            r#"
            data = {{ train = ["none.jsonl"] }}
            tokens = {{ kind = "words" }}
            encoder = {{ kind = "lstm", layers = 1, hidden = 16 }}
            joint = {{ width = 96 }}
            loss = {{ kind = "gnat", context = {context}, embedding = 64 }}
            optimizer = {{ learning_rate = 1e-3 }}
            batch = {{ max_frames = 100, max_utterances = 4 }}
            training = {{ epochs = 1 }}
            "#
        );
        let recipe = Recipe::parse(&text, std::path::Path::new("test.toml")).unwrap();
        let Measurement { largest_allocation: largest, peak_growth: peak, result: plan } =
            measure(|| Model::lattice_plan_for(&recipe.model_config(), labels, [16, 100, 20]));
        assert!(peak < 1 << 20, "context {context} of {labels} labels: {peak} bytes, {largest} at once");
        if (context, labels) == (1, 10) {
            let model = Model::new(&recipe.model_config(), labels).unwrap();
            assert_eq!(plan.unwrap(), model.lattice_plan([16, 100, 20]).unwrap());
        }
    }
}

/// Training options with an auxiliary CTC loss.
const TRAINING_WITH_CTC: &str = "training = { epochs = 1, ctc_weight = 0.3 }";
/// Training options with layers that save only their input.
const RECOMPUTED: &str = "training = { epochs = 1, recompute = true }";
/// Training options with a frozen encoder.
const FROZEN_ENCODER: &str =
    "init = { weights = \"base.safetensors\", frozen = [\"encoder\"] }\ntraining = { epochs = 1 }";

#[test]
fn a_step_uses_at_most_the_planned_memory() {
    let _guard = exclusive();
    let lstm = "stack = 2, stride = 2, kind = \"lstm\", layers = 3, hidden = 40, dropout = 0.2";
    let (stateless, recurrent) = (
        "kind = \"stateless\", embedding = 16, context = 2, dropout = 0.1",
        "kind = \"lstm\", embedding = 16, hidden = 32, layers = 2, dropout = 0.2",
    );
    let reduced = format!("{lstm}, time_reduction = {{ after_layer = 1, factor = 2 }}");
    let bidirectional = format!("{lstm}, bidirectional = true");
    let wide = "stack = 2, stride = 2, kind = \"lstm\", layers = 1, hidden = 1024, two_biases = true";
    let plain = "training = { epochs = 1 }";
    let single = "stack = 1, stride = 1";
    let convolutions = format!(
        "{single}, kind = \"lstm\", layers = 1, hidden = 40, dropout = 0.2, subsampling = {{ channels = 8, factor = 4 }}"
    );
    let conformer = "kind = \"conformer\", layers = 2, width = 32, heads = 4, feed_forward = 64, kernel = 7, dropout = 0.1";
    let halved = format!("{single}, {conformer}, subsampling = {{ channels = 16, factor = 2 }}");
    let chunked = format!("stack = 2, stride = 2, {conformer}, attention = {{ chunk = 8, left = 2 }}");
    let wide_conformer = "stack = 2, stride = 2, kind = \"conformer\", layers = 1, width = 144, heads = 2, feed_forward = 576, kernel = 31";
    let fast_conformer = format!(
        "{single}, kind = \"fastconformer\", layers = 2, width = 32, heads = 4, feed_forward = 64, kernel = 7, dropout = 0.1"
    );
    let eighth = format!(
        "{fast_conformer}, subsampling = {{ channels = 16 }}, convolution_norm = \"batch\", scale_input = true"
    );
    let causal = format!(
        "{fast_conformer}, subsampling = {{ channels = 8, factor = 4, causal = true }}, causal_convolution = true, bias = false, \
         attention = {{ left = 8, right = 2 }}"
    );
    let wide_fast_conformer = format!(
        "{single}, kind = \"fastconformer\", layers = 1, width = 144, heads = 2, feed_forward = 576, kernel = 9, \
         subsampling = {{ channels = 64, factor = 2 }}, attention = {{ chunk = 4, left = 8 }}"
    );
    let deep_conformer = halved.replace("layers = 2", "layers = 6");
    let deep_fast_conformer =
        format!("{}, batch_norm = \"trained\"", eighth.replace("layers = 2", "layers = 6"));
    let concatenated = "kind = \"concat\", width = 32, context = 2, normalize = true, dropout = 0.1";
    // Smallest and largest ratio of measured to planned bytes.
    let (mut min_ratio, mut max_ratio) = (f64::INFINITY, 0f64);
    for (encoder, predictor, training_options, classes) in [
        (lstm, stateless, TRAINING_WITH_CTC, 30),
        (&bidirectional, recurrent, TRAINING_WITH_CTC, 30),
        (&reduced, recurrent, plain, 500),
        (&bidirectional, stateless, "loss = { kind = \"pruned\" }\ntraining = { epochs = 1 }", 300),
        (
            &bidirectional,
            stateless,
            "loss = { kind = \"tdt\", durations = [1, 2], budget = \"8MiB\" }\ntraining = { epochs = 1 }",
            30,
        ),
        (wide, recurrent, plain, 30),
        (&bidirectional, "", "loss = { kind = \"ctc\" }\ntraining = { epochs = 1 }", 500),
        (&convolutions, stateless, TRAINING_WITH_CTC, 30),
        (&halved, stateless, TRAINING_WITH_CTC, 30),
        (&chunked, recurrent, plain, 30),
        (wide_conformer, stateless, plain, 30),
        (&eighth, stateless, TRAINING_WITH_CTC, 30),
        (&causal, concatenated, TRAINING_WITH_CTC, 30),
        (&wide_fast_conformer, concatenated, plain, 30),
        (&deep_conformer, stateless, RECOMPUTED, 30),
        (&deep_fast_conformer, concatenated, RECOMPUTED, 30),
        (&wide_fast_conformer, concatenated, RECOMPUTED, 30),
        (lstm, stateless, FROZEN_ENCODER, 30),
        (&deep_conformer, stateless, FROZEN_ENCODER, 30),
        (&deep_fast_conformer, concatenated, FROZEN_ENCODER, 30),
        (wide_conformer, stateless, FROZEN_ENCODER, 30),
        (&eighth, stateless, FROZEN_ENCODER, 30),
        (&wide_fast_conformer, concatenated, FROZEN_ENCODER, 30),
        (
            "stack = 2, stride = 2, kind = \"lstm\", layers = 2, hidden = 200, bidirectional = true",
            stateless,
            "loss = { kind = \"rnnt\", budget = \"4MiB\" }\ntraining = { epochs = 1 }",
            1000,
        ),
    ] {
        let recipe = parse_recipe(encoder, predictor, training_options);
        let model = Model::new(&recipe.model_config(), classes).unwrap();
        let recomputes = recipe.training.run.recompute;
        let new_learner =
            |model: Model| Learner::new(model, &recipe.optimizer).unwrap().with_recomputation(recomputes);
        let step_bytes = if recomputes { recomputed_step_bytes } else { step_bytes };
        let mut learner = new_learner(model.clone());
        let trained = learner.model().parameters().iter_trained();
        let trained: usize = trained.map(|(_, variable)| variable.elem_count()).sum();
        // Buffers reused from earlier steps count; the plan includes them.
        // Live bytes after the first step, and the largest plan so far.
        let (mut live_after_first_step, mut largest_plan) = (None, 0);
        for (lengths, labels) in
            [(&[3][..], 2), (&[60, 41, 20], 9), (&[200; 8], 30), (&[400, 10, 10, 10], 60), (&[90; 24], 12)]
        {
            let live = live_after_first_step.map_or(0, |first| live_bytes().saturating_sub(first));
            let make_batch = || batch(recipe.model_config().input.width(), lengths, labels, classes);
            let shape = BatchShape::from_batch(&make_batch());
            let position = StepPosition { epoch: 0, step: 0, steps_per_epoch: 1, progress: 0.0 };
            let step = |learner: &mut Learner| {
                let mut batches = std::iter::once(Ok(make_batch()));
                let Measurement { peak_growth: measured, .. } = measure(|| {
                    let (gradients, _) = learner.gradients(&mut batches, lengths.len(), &position).unwrap();
                    learner.apply(&gradients, &position).unwrap();
                });
                measured
            };
            // After other steps; gradients of the weights are planned separately.
            largest_plan = step_bytes(&model, shape).max(largest_plan);
            let (measured, planned) = (live + step(&mut learner), largest_plan + 4 * trained);
            assert!(
                measured <= planned,
                "{encoder}, {training_options}, {lengths:?}: {measured} of {planned}"
            );
            // The first step has allocated the optimizer state, which is planned separately.
            live_after_first_step.get_or_insert_with(live_bytes);

            // A first step, without reused buffers.
            let second_model = Model::new(&recipe.model_config(), classes).unwrap();
            let mut second_learner = new_learner(second_model);
            let (measured, planned) = (step(&mut second_learner), step_bytes(&model, shape) + 4 * trained);
            drop(second_learner);
            assert!(
                measured <= planned,
                "{encoder}, {training_options}, {lengths:?}: {measured} of {planned} in a first step"
            );
            let ratio = measured as f64 / planned as f64;
            (min_ratio, max_ratio) = (min_ratio.min(ratio), max_ratio.max(ratio));

            // Several batches: a step allocates the sum of gradients and those of one batch.
            let live = live_after_first_step.map_or(0, |first| live_bytes().saturating_sub(first));
            let first = batch(recipe.model_config().input.width(), &[3], 2, classes);
            let mut batches = [first, make_batch()].into_iter().map(Ok);
            let Measurement { peak_growth: measured, .. } = measure(|| {
                learner.gradients(&mut batches, 1 + lengths.len(), &position).map(drop).unwrap();
            });
            let (measured, planned) = (live + measured, planned + 4 * trained);
            assert!(
                measured <= planned,
                "{encoder}, {training_options}, {lengths:?} in two batches: {measured} of {planned}"
            );
        }
    }
    println!("measured of planned: {min_ratio:.2} to {max_ratio:.2}");
}
