//! Tests of runs with the cached rows of a frozen encoder (`training.cache_encoder`).
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use candle_core::Tensor;
use model::encoders::Encoder;
use model::{Checkpoint, Model, TrainingPass};
use training::data::Batch;
use training::optimizer::OptimizerConfig;
use training::recipe::RecipeOverrides;
use training::run_folder::read_bad_items;
use training::{
    Error, Learner, Observer, Recipe, Result, StartMode, StepPosition, StepReport, train, train_with,
};

use super::toy::{Toy, leftovers};

const FAST_CONFORMER: &str = "kind = \"fastconformer\"\nstack = 1\nstride = 1\nlayers = 2\nwidth = 8\nheads = 2\nfeed_forward = 16\n\
                              kernel = 5\nsubsampling = { channels = 4, factor = 4 }\ndropout = 0.0";
const LSTM: &str = "stack = 4\nstride = 4\nlayers = 1\nhidden = 16\nbidirectional = true\ndropout = 0.1";

/// Records the losses of all steps, and the notes.
#[derive(Default)]
struct Losses {
    losses: Vec<[f64; 2]>,
    notes: Vec<String>,
}

impl Observer for Losses {
    fn on_step(&mut self, report: &StepReport) {
        self.losses.push([report.loss, report.ctc_loss]);
    }

    fn on_note(&mut self, note: &str) {
        self.notes.push(note.to_owned());
    }
}

impl Losses {
    /// Returns the reason for which rows were computed.
    fn computed(&self) -> Option<&str> {
        let note = self.notes.iter().find(|note| note.starts_with("training.cache_encoder"))?;
        note.split_once("because the file ").map(|(_, reason)| reason)
    }
}

fn run(recipe: &Path, folder: &Path, epochs: u64, start: StartMode) -> Result<Losses> {
    let mut losses = Losses::default();
    train(recipe, Some(epochs), folder, start, &mut losses, &AtomicBool::new(false))?;
    Ok(losses)
}

fn read_last(folder: &Path) -> Checkpoint {
    Checkpoint::read(&folder.join("last.safetensors")).unwrap()
}

/// Trains a model of an encoder without dropout in `first`.
fn train_first(toy: &Toy, encoder: &str) {
    run(&toy.recipe(&[(LSTM, encoder)]), &toy.path("first"), 1, StartMode::Fresh).unwrap();
}

/// Returns a recipe with a frozen encoder, and these keys of `[training]`.
///
/// Predictor and joint network have dropout.
fn frozen(toy: &Toy, encoder: &str, training: &str, changes: &[(&str, &str)]) -> std::path::PathBuf {
    let epochs = format!("epochs = 3\n{training}");
    let all = [
        (LSTM, encoder),
        ("perturb = { speed = 0.1 }\nmask = { freq_masks = 1, freq_width = 2 }", ""),
        ("embedding = 8", "embedding = 8\ndropout = 0.2"),
        ("width = 16\n[optimizer]", "width = 16\ndropout = 0.3\n[optimizer]"),
        ("[optimizer]", "[init]\nweights = \"first/last.safetensors\"\nfrozen = [\"encoder\"]\n[optimizer]"),
        ("epochs = 3", &epochs),
    ];
    toy.recipe(&[&all[..], changes].concat())
}

fn lstm() -> String {
    LSTM.replace("dropout = 0.1", "dropout = 0.0")
}

fn largest_difference(found: &Losses, expected: &Losses) -> f64 {
    assert_eq!(found.losses.len(), expected.losses.len());
    let pairs = found.losses.iter().flatten().zip(expected.losses.iter().flatten());
    pairs.map(|(found, expected)| (found / expected - 1.0).abs()).fold(0.0, f64::max)
}

#[test]
fn steps_with_cached_rows_have_the_bits_of_steps_with_the_encoder() {
    let toy = Toy::new();
    train_first(&toy, &lstm());
    for (name, data) in [("memory", ""), ("stream", "stream = true\nworkers = 2\n"), ("joined", "")] {
        let data = format!("{data}train = [\"train.jsonl\"]");
        let join = if name == "joined" { "[augment]\njoin = 2" } else { "[augment]" };
        let changes = [("train = [\"train.jsonl\"]", data.as_str()), ("[augment]", join)];
        let folders = ["uncached", "f32", "bf16"].map(|format| toy.path(&format!("{name}-{format}")));
        let [uncached, exact, rounded] = &folders;
        let expected = run(&frozen(&toy, &lstm(), "", &changes), uncached, 2, StartMode::Fresh).unwrap();
        let with_f32 = frozen(&toy, &lstm(), "cache_encoder = \"f32\"", &changes);
        let exact_run = run(&with_f32, exact, 2, StartMode::Fresh).unwrap();
        assert_eq!(
            (exact_run.computed(), &exact_run.losses),
            (Some("does not exist"), &expected.losses),
            "{name}"
        );
        let [last, expected_last] = [exact, uncached].map(|folder| read_last(folder));
        assert!(last.weights == expected_last.weights && last.average == expected_last.average, "{name}");

        let with_bf16 = frozen(&toy, &lstm(), "cache_encoder = \"bf16\"", &changes);
        let bf16 = run(&with_bf16, rounded, 2, StartMode::Fresh).unwrap();
        let difference = largest_difference(&bf16, &expected);
        assert!(difference > 0.0 && difference < 2e-2, "{name}: {difference}");
        let bytes = [exact, rounded].map(|folder| folder.join("encoder.rows").metadata().unwrap().len());
        assert!(bytes[1] < bytes[0] && bytes[0] < 2 * bytes[1], "{bytes:?}");
        assert!(leftovers(exact).is_empty());
        // A resumed run reads the rows again.
        let with_f32 = frozen(&toy, &lstm(), "cache_encoder = \"f32\"", &changes);
        let resumed = run(&with_f32, exact, 3, StartMode::Resume).unwrap();
        let resumed_expected = run(&frozen(&toy, &lstm(), "", &changes), uncached, 3, StartMode::Resume);
        assert_eq!(
            (resumed.computed(), &resumed.losses),
            (None, &resumed_expected.unwrap().losses),
            "{name}"
        );
    }
}

#[test]
fn rows_of_the_packed_encoder_give_the_same_losses_to_rounding() {
    let toy = Toy::new();
    train_first(&toy, FAST_CONFORMER);
    let uncached = frozen(&toy, FAST_CONFORMER, "", &[]);
    let expected = run(&uncached, &toy.path("uncached"), 2, StartMode::Fresh).unwrap();
    let cached = frozen(&toy, FAST_CONFORMER, "cache_encoder = \"f32\"", &[]);
    let packed = run(&cached, &toy.path("cached"), 2, StartMode::Fresh).unwrap();
    let difference = largest_difference(&packed, &expected);
    assert!(difference < 1e-5, "{difference}");
}

#[test]
fn stale_and_damaged_files_are_not_used() {
    let toy = Toy::new();
    train_first(&toy, &lstm());
    let recipe = frozen(&toy, &lstm(), "cache_encoder = \"f32\"", &[]);
    let folder = toy.path("run");
    let file = folder.join("encoder.rows");
    let expected = run(&recipe, &folder, 1, StartMode::Fresh).unwrap().losses;
    let valid = std::fs::read(&file).unwrap();
    let rerun = || run(&recipe, &folder, 1, StartMode::Force);
    assert_eq!(rerun().unwrap().computed(), None);
    let expect_computed = |bytes: &[u8], reason: &str| {
        std::fs::write(&file, bytes).unwrap();
        let losses = rerun().unwrap();
        assert_eq!((losses.computed(), &losses.losses), (Some(reason), &expected));
        assert!(std::fs::read(&file).unwrap() == valid);
    };
    expect_computed(&valid[..valid.len() - 1], "is damaged");
    expect_computed(b"", "is damaged");
    expect_computed(&[valid.clone(), vec![0; 4]].concat(), "is damaged");
    // Rows are checked when a batch reads them.
    let mut damaged = valid.clone();
    damaged[100] ^= 1;
    std::fs::write(&file, &damaged).unwrap();
    let error = rerun().err().unwrap();
    assert!(matches!(error, Error::EncoderCache { .. }), "{error}");
    assert!(error.to_string().contains("remove the file"), "{error}");

    // Other weights, features and utterances.
    std::fs::write(&file, &valid).unwrap();
    let low_hz =
        frozen(&toy, &lstm(), "cache_encoder = \"f32\"", &[("mels = 12", "mels = 12\nlow_hz = 50.0")]);
    let settings = "has rows of another encoder, other [features] or another number format";
    assert_eq!(run(&low_hz, &folder, 1, StartMode::Force).unwrap().computed(), Some(settings));
    run(&toy.recipe(&[(LSTM, &lstm()), ("seed = 7", "seed = 8")]), &toy.path("first"), 1, StartMode::Force)
        .unwrap();
    std::fs::write(&file, &valid).unwrap();
    let recipe = frozen(&toy, &lstm(), "cache_encoder = \"f32\"", &[]);
    assert_eq!(run(&recipe, &folder, 1, StartMode::Force).unwrap().computed(), Some(settings));
    let lines = std::fs::read_to_string(toy.path("train.jsonl")).unwrap();
    toy.write("train.jsonl", &(lines.lines().skip(1).collect::<Vec<_>>().join("\n") + "\n"));
    let utterances = "has rows of other utterances";
    assert_eq!(run(&recipe, &folder, 1, StartMode::Force).unwrap().computed(), Some(utterances));
}

#[test]
fn runs_share_the_rows_in_a_cache_folder_and_leave_out_bad_items() {
    let toy = Toy::new();
    train_first(&toy, &lstm());
    std::fs::remove_file(toy.path("1.wav")).unwrap();
    let data = |keys: &str| format!("{keys}max_bad = 0.5\ntrain = [\"train.jsonl\"]");
    for (name, keys) in [("stream", "stream = true\n"), ("memory", "")] {
        let recipe = |cache: &str, training: &str| {
            let data = data(&format!("{keys}{cache}"));
            frozen(&toy, &lstm(), training, &[("train = [\"train.jsonl\"]", &data)])
        };
        let uncached = toy.path(&format!("{name}-uncached"));
        let expected = run(&recipe("", ""), &uncached, 1, StartMode::Fresh).unwrap();
        for (folder, reason) in [("first", Some("does not exist")), ("second", None)] {
            let folder = toy.path(&format!("{name}-{folder}"));
            let cached = recipe(&format!("cache = \"cache-{name}\"\n"), "cache_encoder = \"f32\"");
            let cached_run = run(&cached, &folder, 1, StartMode::Fresh).unwrap();
            assert_eq!((cached_run.computed(), &cached_run.losses), (reason, &expected.losses), "{name}");
            assert!(!folder.join("encoder.rows").exists());
            assert_eq!(read_bad_items(&folder), read_bad_items(&uncached));
            assert_eq!(read_bad_items(&folder)["data.train"].excluded.len(), 1);
        }
        assert!(toy.path(&format!("cache-{name}/encoder")).is_dir());
    }
}

#[test]
fn keys_that_change_encoder_rows_are_errors() {
    let toy = Toy::new();
    train_first(&toy, &lstm());
    let stream = ("train = [\"train.jsonl\"]", "stream = true\ntrain = [\"train.jsonl\"]");
    let augment = |table: &'static str| ("[augment]", table);
    for (changes, expected) in [
        (vec![augment("[augment]\nperturb = { speed = 0.1 }")], "augment.perturb: expected none"),
        (
            vec![augment("[augment]\nmask = { time_masks = 1, time_width = 0.1 }")],
            "augment.mask: expected none",
        ),
        (vec![stream, augment("[augment]\nspeed = { rates = [0.9, 1.1] }")], "augment.speed: expected none"),
        (vec![("mels = 12", "mels = 12\ndither = 1e-5")], "features.dither: expected 0"),
        (
            vec![("bidirectional = true\ndropout = 0.0", "bidirectional = true\ndropout = 0.1")],
            "encoder.dropout",
        ),
        (vec![("frozen = [\"encoder\"]", "frozen = [\"encoder.layers.0.bias_ih_l0\"]")], "init.frozen"),
        (vec![("cache_encoder = \"f32\"", "cache_encoder = \"f16\"")], "`f32` or `bf16`"),
    ] {
        let recipe = frozen(&toy, &lstm(), "cache_encoder = \"f32\"", &changes);
        let error = run(&recipe, &toy.path("none"), 1, StartMode::Fresh).err().unwrap().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(!toy.path("none").exists());
    }
}

#[test]
fn a_recipe_from_a_checkpoint_takes_the_encoder_without_its_dropout() {
    let toy = Toy::new();
    run(&toy.recipe(&[]), &toy.path("first"), 1, StartMode::Fresh).unwrap();
    assert!(read_last(&toy.path("first")).recipe.contains("dropout = 0.1"));
    let recipe = toy.write(
        "short.toml",
        "[data]\ntrain = [\"train.jsonl\"]\n[init]\nfrozen = [\"encoder\"]\n[optimizer]\nlearning_rate = 1e-3\n\
         [batch]\nmax_frames = 200\nmax_utterances = 2\n[training]\nepochs = 1\ncache_encoder = \"bf16\"\n",
    );
    let overrides =
        RecipeOverrides { from: Some(toy.path("first/last.safetensors")), ..RecipeOverrides::default() };
    let (mut group, stop) = (distributed::ProcessGroup::single(), AtomicBool::new(false));
    train_with(&recipe, overrides, &toy.path("second"), StartMode::Fresh, &mut group, &mut (), &stop)
        .unwrap();
    let second = read_last(&toy.path("second"));
    let recipe = Recipe::parse(&second.recipe, Path::new("recipe.toml")).unwrap();
    assert_eq!(recipe.encoder.kind.dropout(), 0.0);
}

const LOSS_BUDGET: (&str, &str) =
    ("[training]\nepochs = 3", "[loss]\nkind = \"rnnt\"\nbudget = \"1MiB\"\n[training]\nepochs = 3");

#[test]
fn a_smaller_budget_is_enough_with_cached_rows() {
    let toy = Toy::new();
    train_first(&toy, FAST_CONFORMER);
    let smallest = |training: &str| {
        let changes = [LOSS_BUDGET, ("max_utterances = 2", "max_utterances = 2\nmemory = \"1MiB\"")];
        let recipe = frozen(&toy, FAST_CONFORMER, training, &changes);
        match run(&recipe, &toy.path("none"), 1, StartMode::Fresh) {
            Err(Error::Budget { smallest, .. }) => smallest,
            other => panic!("{:?}", other.map(|losses| losses.losses)),
        }
    };
    let (uncached, cached) = (smallest(""), smallest("cache_encoder = \"f32\""));
    assert!(cached < uncached, "{cached} {uncached}");
    let training = "cache_encoder = \"f32\"";
    let memory = format!("max_utterances = 2\nmemory = \"{}\"", cached + (64 << 10));
    let changes = [LOSS_BUDGET, ("max_utterances = 2", memory.as_str())];
    run(&frozen(&toy, FAST_CONFORMER, training, &changes), &toy.path("run"), 1, StartMode::Fresh).unwrap();
}

/// An encoder that counts its calls.
struct CountingEncoder {
    inner: Arc<dyn Encoder>,
    calls: Arc<AtomicUsize>,
}

impl Encoder for CountingEncoder {
    fn width(&self) -> usize {
        self.inner.width()
    }

    fn forward(
        &self,
        x: &Tensor,
        lengths: &[usize],
        pass: Option<&mut TrainingPass>,
    ) -> model::Result<(Tensor, Vec<usize>)> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.inner.forward(x, lengths, pass)
    }
}

#[test]
fn a_step_with_encoder_rows_does_not_run_the_encoder() {
    let toy = Toy::new();
    train_first(&toy, &lstm());
    let (recipe, _) = Recipe::read(&frozen(&toy, &lstm(), "", &[]), None).unwrap();
    let (config, calls) = (recipe.model_config(), Arc::new(AtomicUsize::new(0)));
    let model = Model::with_encoder(&config, 3, |vb| {
        let inner = config.encoder.build(config.input.width(), &vb)?;
        Ok(Arc::new(CountingEncoder { inner, calls: calls.clone() }))
    })
    .unwrap();
    let values = (0..2 * 9 * config.input.width()).map(|i| (i as f32 * 0.3).sin());
    let input = Tensor::from_iter(values, &candle_core::Device::Cpu).unwrap();
    let input = input.reshape((2, 9, config.input.width())).unwrap();
    let (encoded, lengths) = model.encoder().forward(&input, &[9, 6], None).unwrap();
    let labels = vec![vec![0, 1], vec![2]];
    let optimizer: OptimizerConfig = toml::from_str("learning_rate = 1e-2").unwrap();
    let learner = Learner::new(model, &optimizer).unwrap();
    let position = StepPosition { epoch: 0, step: 0, steps_per_epoch: 1, progress: 0.0 };
    let gradients = |batch: Batch| learner.gradients(&mut std::iter::once(Ok(batch)), 2, &position).unwrap();
    let (expected, expected_sums) = gradients(Batch::new(input, vec![9, 6], labels.clone()));
    let calls_before = calls.load(Ordering::Relaxed);
    let batch = || Batch { is_encoded: true, ..Batch::new(encoded.clone(), lengths.clone(), labels.clone()) };
    let (found, sums) = gradients(batch());
    assert_eq!(calls.load(Ordering::Relaxed), calls_before);
    assert!(sums.loss == expected_sums.loss && sums.ctc_loss == expected_sums.ctc_loss);
    let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    assert!(found.iter().all(|(name, gradient)| values(gradient) == values(&expected[name])));
    // Parts of a batch are encoder rows as well.
    assert!(batch().split(1).unwrap().iter().all(|part| part.is_encoded));
    // Input rows are not encoder rows.
    let wide = Batch { rows: encoded.narrow(2, 0, 5).unwrap().contiguous().unwrap(), ..batch() };
    let error = learner.gradients(&mut std::iter::once(Ok(wide)), 2, &position).unwrap_err().to_string();
    assert!(error.contains("rows: expected encoder rows of width 32, found 5"), "{error}");
}
