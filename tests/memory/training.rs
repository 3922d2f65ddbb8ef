//! A training step takes what its plan says, whatever the shape.
use candle_core::{Device, Tensor};
use panda::model::Model;
use panda::training::data::Batch;
use panda::training::{BatchShape, Learner, Recipe, StepPosition, step_bytes};

use crate::counting::{alive, measure, turn};

/// A recipe of some parts.
fn recipe(encoder: &str, predictor: &str, more: &str) -> Recipe {
    let text = format!(
        r#"
        data = {{ train = ["none.jsonl"] }}
        features = {{ mels = 20 }}
        tokens = {{ kind = "words" }}
        encoder = {{ {encoder} }}
        predictor = {{ {predictor} }}
        joint = {{ width = 24, dropout = 0.1 }}
        optimizer = {{ learning_rate = 1e-3, ema = 0.9 }}
        batch = {{ max_frames = 100, max_utterances = 4 }}
        {more}
        "#
    );
    Recipe::parse(&text, std::path::Path::new("test.toml")).unwrap()
}

fn batch(width: usize, lengths: &[usize], labels: usize, classes: usize) -> Batch {
    let rows = *lengths.iter().max().unwrap();
    let values = (0..lengths.len() * rows * width).map(|i| (i as f32 * 0.37).sin());
    let rows =
        Tensor::from_iter(values, &Device::Cpu).unwrap().reshape((lengths.len(), rows, width)).unwrap();
    let of = |b: usize| (0..labels.saturating_sub(b)).map(|u| ((u * 7 + b) % classes) as u32).collect();
    Batch::new(rows, lengths.to_vec(), (0..lengths.len()).map(of).collect())
}

/// The case `info-lattice-memory`: 11,111,111 states of 64 values, 2.8 GB, and larger ones.
#[test]
fn the_plan_of_a_recognition_lattice_allocates_no_model() {
    let _alone = turn();
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
        let (largest, peak, plan) =
            measure(|| Model::lattice_plan_for(&recipe.model(), labels, [16, 100, 20]));
        assert!(peak < 1 << 20, "context {context} of {labels} labels: {peak} bytes, {largest} at once");
        if (context, labels) == (1, 10) {
            let model = Model::new(&recipe.model(), labels).unwrap();
            assert_eq!(plan.unwrap(), model.lattice_plan([16, 100, 20]).unwrap());
        }
    }
}

const TRAINING: &str = "training = { epochs = 1, ctc_weight = 0.3 }";

#[test]
fn a_step_takes_what_was_planned() {
    let _alone = turn();
    let lstm = "stack = 2, stride = 2, kind = \"lstm\", layers = 3, hidden = 40, dropout = 0.2";
    let (stateless, remembers) = (
        "kind = \"stateless\", embedding = 16, context = 2, dropout = 0.1",
        "kind = \"lstm\", embedding = 16, hidden = 32, layers = 2, dropout = 0.2",
    );
    let reduced = format!("{lstm}, time_reduction = {{ after_layer = 1, factor = 2 }}");
    let both = format!("{lstm}, bidirectional = true");
    let wide = "stack = 2, stride = 2, kind = \"lstm\", layers = 1, hidden = 1024, two_biases = true";
    let plain = "training = { epochs = 1 }";
    let single = "stack = 1, stride = 1";
    let convolutions = format!(
        "{single}, kind = \"lstm\", layers = 1, hidden = 40, dropout = 0.2, subsampling = {{ channels = 8, factor = 4 }}"
    );
    let conformer = "kind = \"conformer\", layers = 2, width = 32, heads = 4, feed_forward = 64, kernel = 7, dropout = 0.1";
    let halved = format!("{single}, {conformer}, subsampling = {{ channels = 16, factor = 2 }}");
    let chunked = format!("stack = 2, stride = 2, {conformer}, attention = {{ chunk = 8, left = 2 }}");
    let broad = "stack = 2, stride = 2, kind = \"conformer\", layers = 1, width = 144, heads = 2, feed_forward = 576, kernel = 31";
    let mut worst = (f64::INFINITY, 0f64);
    for (encoder, predictor, more, classes) in [
        (lstm, stateless, TRAINING, 30),
        (&both, remembers, TRAINING, 30),
        (&reduced, remembers, plain, 500),
        (&both, stateless, "loss = { kind = \"pruned\" }\ntraining = { epochs = 1 }", 300),
        (
            &both,
            stateless,
            "loss = { kind = \"tdt\", durations = [1, 2], budget = \"8MiB\" }\ntraining = { epochs = 1 }",
            30,
        ),
        (wide, remembers, plain, 30),
        (&convolutions, stateless, TRAINING, 30),
        (&halved, stateless, TRAINING, 30),
        (&chunked, remembers, plain, 30),
        (broad, stateless, plain, 30),
        (
            "stack = 2, stride = 2, kind = \"lstm\", layers = 2, hidden = 200, bidirectional = true",
            stateless,
            "loss = { kind = \"rnnt\", budget = \"4MiB\" }\ntraining = { epochs = 1 }",
            1000,
        ),
    ] {
        let recipe = recipe(encoder, predictor, more);
        let model = Model::new(&recipe.model(), classes).unwrap();
        let mut learner = Learner::new(model.clone(), &recipe.optimizer).unwrap();
        let parameters = learner.model().parameters().count();
        // What lies on shelves from the steps before counts, as they have been planned for too.
        let (mut base, mut largest) = (None, 0);
        for (lengths, labels) in
            [(&[3][..], 2), (&[60, 41, 20], 9), (&[200; 8], 30), (&[400, 10, 10, 10], 60), (&[90; 24], 12)]
        {
            let held = base.map_or(0, |base| alive().saturating_sub(base));
            let made = || batch(recipe.model().input.width(), lengths, labels, classes);
            let shape = BatchShape::from_batch(&made());
            let moment = StepPosition { epoch: 0, step: 0, steps_per_epoch: 1, progress: 0.0 };
            let step = |learner: &mut Learner| {
                let mut batches = std::iter::once(Ok(made()));
                let (_, measured, ()) = measure(|| {
                    let (gradients, _) = learner.gradients(&mut batches, lengths.len(), &moment).unwrap();
                    learner.apply(&gradients, &moment).unwrap();
                });
                measured
            };
            // Behind others, where gradients of the weights are planned apart.
            largest = step_bytes(&model, shape).max(largest);
            let (measured, planned) = (held + step(&mut learner), largest + 4 * parameters);
            assert!(measured <= planned, "{encoder}, {more}, {lengths:?}: {measured} of {planned}");
            // The first has made the moments, which are planned apart, and next to nothing else.
            base.get_or_insert_with(alive);

            // By itself, with shelves that are empty.
            let other = Model::new(&recipe.model(), classes).unwrap();
            let mut fresh = Learner::new(other, &recipe.optimizer).unwrap();
            let (measured, planned) = (step(&mut fresh), step_bytes(&model, shape) + 4 * parameters);
            drop(fresh);
            assert!(measured <= planned, "{encoder}, {more}, {lengths:?}: {measured} of {planned} alone");
            let share = measured as f64 / planned as f64;
            worst = (worst.0.min(share), worst.1.max(share));

            // A step of several batches has the sum of those before beside the gradients of one.
            let held = base.map_or(0, |base| alive().saturating_sub(base));
            let first = batch(recipe.model().input.width(), &[3], 2, classes);
            let mut batches = [first, made()].into_iter().map(Ok);
            let (_, measured, ()) = measure(|| {
                learner.gradients(&mut batches, 1 + lengths.len(), &moment).map(drop).unwrap();
            });
            let (measured, planned) = (held + measured, planned + 4 * parameters);
            assert!(measured <= planned, "{encoder}, {more}, {lengths:?} in parts: {measured} of {planned}");
        }
    }
    println!("measured of planned: {:.2} to {:.2}", worst.0, worst.1);
}
