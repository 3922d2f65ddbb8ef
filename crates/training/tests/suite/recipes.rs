//! Tests of recipe files: keys, values, old names, and error messages.
use std::path::Path;

use model::Model;
use model::config::{ActivationKind, LossConfig, LossKind, LossOptions};
use training::{Error, Recipe};

use super::toy::Toy;

fn parse(text: &str) -> training::Result<Recipe> {
    Recipe::parse(text, Path::new("some.toml"))
}

/// The text of the toy recipe with these replacements.
fn toy_recipe(changes: &[(&str, &str)]) -> String {
    std::fs::read_to_string(Toy::new().recipe(changes)).unwrap()
}

#[test]
fn the_recipes_of_the_repository_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let (recipe, _) = Recipe::read(&path, None).unwrap();
        assert!(recipe.data.train[0].starts_with(&folder), "{}", path.display());
        names.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
    }
    names.sort();
    for name in ["an4-streaming", "an4-conformer", "digits-ctc"] {
        assert!(names.contains(&name.to_owned()), "{name}");
    }
    for corpus in ["an4", "digits"] {
        for kind in ["", "-multi-blank", "-pruned", "-tdt"] {
            assert!(names.contains(&format!("{corpus}{kind}")), "{corpus}{kind}");
        }
    }
}

#[test]
fn unknown_and_missing_keys_are_errors_with_the_key() {
    for (old, new, key) in [
        ("seed = 7", "sede = 7", "sede"),
        ("train = [", "trian = []\ntrain = [", "trian"),
        ("mels = 12", "mel = 12", "mel"),
        ("speed = 0.1", "sped = 0.1", "sped"),
        ("freq_masks", "freq_mask", "freq_mask"),
        ("perturb = {", "pertub = {", "pertub"),
        ("layers = 1\nhidden = 16\nbid", "lairs = 1\nhidden = 16\nbid", "lairs"),
        ("embedding = 8", "embeding = 8", "embeding"),
        ("width = 16", "widht = 16", "widht"),
        ("ema = 0.9", "emma = 0.9", "emma"),
        ("max_frames", "max_frame", "max_frame"),
        ("epochs = 3", "epoch = 3", "epoch"),
        ("epochs = 3", "", "epochs"),
        ("kind = \"words\"", "kind = \"phones\"", "phones"),
        ("kind = \"lstm\"", "kind = \"gru\"", "gru"),
        ("epochs = 3", "epochs = 3\ntopology = \"round\"", "round"),
        ("epochs = 3", "epochs = \"three\"", "three"),
        ("epochs = 3", "epochs = ", "epochs"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"aed\"", "aed"),
        ("ctc_weight = 0.3", "[loss]\nsigma = 0.1", "kind"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"tdt\"", "durations"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"rnnt\"\nsigma = 0.1", "sigma"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"tdt\"\ndurations = [-1, 1]", "-1"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"rnnt\"\nbuget = \"8MiB\"", "buget"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"rnnt\"\nbudget = \"8MB\"", "64MiB or 8GiB"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"rnnt\"\nbudget = 8", "string"),
        ("ctc_weight = 0.3", "[loss]\nbudget = \"8MiB\"", "kind"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"rnnt\"\nactivation = \"sine\"", "sine"),
        ("layers = 1\nhidden = 16\nbid", "kind = \"conv\"\nlayers = 1\nhidden = 16\nbid", "conv"),
        ("stack = 4", "stack = -4", "-4"),
        ("mels = 12", "normalize = \"never\"", "never"),
        ("mels = 12", "preset = \"nemo\"", "nemo"),
        ("perturb =", "speed = { rate = 0.9 }\nperturb =", "rate"),
        ("perturb =", "noise = { snr_db = [0.0, 9.0] }\nperturb =", "manifest"),
        ("ctc_weight = 0.3", "metric = \"ser\"", "ser"),
        ("ctc_weight = 0.3", "[init]\nkind = \"plain\"\nscale = 0.5", "scale"),
    ] {
        let error = parse(&toy_recipe(&[(old, new)])).unwrap_err();
        assert!(matches!(error, Error::Model(model::Error::RecipeSyntax { .. })), "{new}: {error}");
        let message = error.to_string();
        assert!(message.starts_with("recipe some.toml: ") && message.contains(key), "{new}: {message}");
    }
}

/// Errors about unknown keys list the keys of both types.
#[test]
fn errors_of_unknown_keys_list_all_keys() {
    for (old, new, known) in [
        ("epochs = 3", "epochs = 3\nevaluate_everi = 2", &["evaluate_every", "precision", "keep"][..]),
        (
            "layers = 1\nhidden = 16\nbid",
            "layers = 1\nhidden = 16\nwide = 3\nbid",
            &["kind", "stack", "layers"],
        ),
        (
            "ctc_weight = 0.3",
            "[loss]\nkind = \"rnnt\"\nbuget = \"8MiB\"",
            &["kind", "budget", "factored_blank"],
        ),
    ] {
        let message = parse(&toy_recipe(&[(old, new)])).unwrap_err().to_string();
        assert!(message.contains("expected one of `"), "{message}");
        assert!(known.iter().all(|key| message.contains(&format!("`{key}`"))), "{message}");
    }
}

/// The keys of MLPerf's schedule, with `gamma` and others in `keys`.
fn mlperf_schedule(keys: &str) -> String {
    format!("decay = \"mlperf\"\nwarmup_epochs = 2\nhold_epochs = 3\n{keys}")
}

#[test]
fn every_schedule_and_optimizer_has_its_keys() {
    for text in [
        mlperf_schedule("gamma = 0.9"),
        mlperf_schedule(
            "gamma = 1.0\nmin_rate = 0.0\nkind = \"lamb\"\nclip = \"distributed\"\nclip_norm = 1.0",
        ),
        "decay = \"noam\"\nwarmup_steps = 10\nmodel_width = 64\nema_warmup = false".to_owned(),
        "kind = \"adamw\"\nclip = \"single\"\nbias_correction = true\nfloor = 0.1".to_owned(),
        "kind = \"lamb\"\nbias_correction = false".to_owned(),
    ] {
        let recipe = parse(&toy_recipe(&[("ema = 0.9", &text)])).unwrap();
        // A recipe that is written again, as with another number of epochs, is the same.
        assert_eq!(parse(&toml::to_string(&recipe).unwrap()).unwrap(), recipe, "{text}");
    }
    let error = parse(&toy_recipe(&[("ema = 0.9", "kind = \"adam\"")])).unwrap_err().to_string();
    assert!(error.contains("adamw") && error.contains("lamb"), "{error}");
}

#[test]
fn old_names_are_errors_with_the_new_names() {
    let gnat = "[loss]\nkind = \"gnat\"\ncontext = 1\nembedding = 8\nnormalise = \"hat\"";
    for (old, new, name, names) in [
        ("[optimizer]", "[optimiser]", "optimiser", ["optimiser", "optimizer"]),
        ("ctc_weight = 0.3", gnat, "loss.normalise", ["normalise", "normalize"]),
        ("mels = 12", "normalise = \"none\"", "features.normalise", ["normalise", "normalize"]),
        ("mels = 12", "framing = \"centred\"", "features.framing", ["\"centred\"", "\"centered\""]),
        ("perturb =", "speed = { share = 0.5 }\nperturb =", "augment.speed.share", ["share", "probability"]),
        (
            "[tokens]",
            "[augment.reverb]\nshare = 1\n[tokens]",
            "augment.reverb.share",
            ["share", "probability"],
        ),
        ("[tokens]", "[augment.noise]\nshare = 1\n[tokens]", "augment.noise.share", ["share", "probability"]),
    ] {
        let error = parse(&toy_recipe(&[(old, new)])).unwrap_err().to_string();
        let [old_name, new_name] = names;
        let expected =
            format!("recipe key {name}: expected the new name {new_name}, found the old name {old_name}");
        assert_eq!(error, expected);
    }
}

#[test]
fn values_out_of_range_are_errors_with_the_key() {
    for (old, new, name) in [
        ("train = [\"train.jsonl\"]", "train = []", "data.train"),
        ("sample_rate = 8000", "sample_rate = 8", "features.sample_rate"),
        ("mels = 12", "mels = 0", "features.mels"),
        ("mels = 12", "hop_ms = -1.0", "features.hop_ms"),
        ("mels = 12", "high_hz = 5000.0", "features.high_hz"),
        ("perturb =", "join = 1000\nperturb =", "augment.join"),
        ("speed = 0.1", "speed = 0.9", "augment.perturb.speed"),
        ("speed = 0.1", "noise = nan", "augment.perturb.noise"),
        ("freq_masks = 1", "time_width = 1.5", "augment.mask.time_width"),
        ("perturb =", "speed = { rates = [1.1, 0.9] }\nperturb =", "augment.speed.rates"),
        (
            "perturb =",
            "reverb = { manifest = \"a\", probability = 2.0 }\nperturb =",
            "augment.reverb.probability",
        ),
        ("mels = 12", "preset = \"mlperf\"\ntrim_db = 3.0", "features.trim_db"),
        ("stack = 4", "stack = 0", "encoder.stack"),
        ("stack = 4", "stack = 4\nchannels = 8193", "encoder.channels"),
        ("stride = 4", "stride = 101", "encoder.stride"),
        ("layers = 1\nhidden = 16\nbi", "layers = 0\nhidden = 16\nbi", "encoder.layers"),
        ("hidden = 16\nbi", "hidden = 1000000000\nbi", "encoder.hidden"),
        ("dropout = 0.1", "dropout = 1.0", "encoder.dropout"),
        (
            "dropout = 0.1",
            "time_reduction = { after_layer = 1, factor = 2 }",
            "encoder.time_reduction.after_layer",
        ),
        (
            "dropout = 0.1",
            "time_reduction = { after_layer = 0, factor = 0 }",
            "encoder.time_reduction.factor",
        ),
        ("embedding = 8", "embedding = 0", "predictor.embedding"),
        ("hidden = 16\nlayers = 1\n[j", "hidden = 0\nlayers = 1\n[j", "predictor.hidden"),
        ("layers = 1\n[j", "layers = 0\n[j", "predictor.layers"),
        ("embedding = 8", "embedding = 8\ndropout = -0.1", "predictor.dropout"),
        ("[joint]\nwidth = 16", "", "joint"),
        ("width = 16", "width = 0", "joint.width"),
        ("width = 16", "width = 16\ndropout = nan", "joint.dropout"),
        ("learning_rate = 1e-2", "learning_rate = 0.0", "optimizer.learning_rate"),
        ("learning_rate = 1e-2", "learning_rate = inf", "optimizer.learning_rate"),
        ("weight_decay = 0.01", "weight_decay = -1.0", "optimizer.weight_decay"),
        ("weight_decay = 0.01", "clip_norm = nan", "optimizer.clip_norm"),
        ("weight_decay = 0.01", "floor = 0.0", "optimizer.floor"),
        ("weight_decay = 0.01", "betas = [0.9, 1.0]", "optimizer.betas"),
        ("weight_decay = 0.01", "eps = 0.0", "optimizer.eps"),
        ("ema = 0.9", "ema = 1.0", "optimizer.ema"),
        ("ema = 0.9", "clip = \"distributed\"", "optimizer.clip"),
        ("ema = 0.9", "bias_correction = false", "optimizer.bias_correction"),
        ("ema = 0.9", "gamma = 0.9", "optimizer.gamma"),
        ("ema = 0.9", "warmup_epochs = 2", "optimizer.warmup_epochs"),
        ("ema = 0.9", "hold_epochs = 2", "optimizer.hold_epochs"),
        ("ema = 0.9", "min_rate = 1e-4", "optimizer.min_rate"),
        ("ema = 0.9", "model_width = 64", "optimizer.model_width"),
        ("ema = 0.9", "decay = \"mlperf\"\nhold_epochs = 2\ngamma = 0.9", "optimizer.warmup_epochs"),
        ("ema = 0.9", "decay = \"mlperf\"\nwarmup_epochs = 2\ngamma = 0.9", "optimizer.hold_epochs"),
        ("ema = 0.9", "decay = \"mlperf\"\nwarmup_epochs = 2\nhold_epochs = 0", "optimizer.gamma"),
        ("ema = 0.9", &mlperf_schedule("gamma = 0.0"), "optimizer.gamma"),
        ("ema = 0.9", &mlperf_schedule("gamma = nan"), "optimizer.gamma"),
        ("ema = 0.9", &mlperf_schedule("gamma = 0.9\nmin_rate = 0.1"), "optimizer.min_rate"),
        ("ema = 0.9", &mlperf_schedule("gamma = 0.9\nmin_rate = nan"), "optimizer.min_rate"),
        ("ema = 0.9", &mlperf_schedule("gamma = 0.9\nwarmup_steps = 7"), "optimizer.warmup_steps"),
        ("ema = 0.9", &mlperf_schedule("gamma = 0.9\nfloor = 0.5"), "optimizer.floor"),
        ("ema = 0.9", &mlperf_schedule("gamma = 0.9\nmodel_width = 64"), "optimizer.model_width"),
        (
            "learning_rate = 1e-2",
            &("learning_rate = 1e-6\n".to_owned() + &mlperf_schedule("gamma = 1.0")),
            "optimizer.learning_rate",
        ),
        ("ema = 0.9", "decay = \"noam\"\nwarmup_steps = 10", "optimizer.model_width"),
        ("ema = 0.9", "decay = \"noam\"\nmodel_width = 64", "optimizer.warmup_steps"),
        ("ema = 0.9", "decay = \"noam\"\nmodel_width = 0\nwarmup_steps = 10", "optimizer.model_width"),
        ("max_frames = 200", "max_frames = 200\nmax_seconds = 0.0", "batch.max_seconds"),
        ("max_frames = 200", "max_frames = 200\nmax_seconds = nan", "batch.max_seconds"),
        ("max_frames = 200", "max_frames = 0", "batch.max_frames"),
        ("max_utterances = 2", "max_utterances = 0", "batch.max_utterances"),
        ("epochs = 3", "epochs = 0", "training.epochs"),
        ("epochs = 3", "epochs = 3\nevaluate_every = 0", "training.evaluate_every"),
        ("ctc_weight = 0.3", "ctc_weight = -0.3", "training.ctc_weight"),
        ("ctc_weight = 0.3", "ctc_weight_end = inf", "training.ctc_weight_end"),
        ("ctc_weight = 0.3", "fastemit = nan", "training.fastemit"),
        ("ctc_weight = 0.3", "fastemit = 2e30", "training.fastemit"),
        ("ctc_weight = 0.3", "delay_penalty = -0.1", "training.delay_penalty"),
        ("ctc_weight = 0.3", "z_loss = inf", "training.z_loss"),
        ("ctc_weight = 0.3", "label_smoothing = 1.1", "training.label_smoothing"),
        (
            "ctc_weight = 0.3",
            "label_smoothing = 0.1\n[loss]\nkind = \"rnnt\"\nfactored_blank = true",
            "training.label_smoothing",
        ),
        ("ctc_weight = 0.3", "[loss]\nkind = \"tdt\"\ndurations = []", "loss.durations"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"tdt\"\ndurations = [0]", "loss.durations"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"tdt\"\ndurations = [1, 2, 1]", "loss.durations"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"tdt\"\ndurations = [1, 2000]", "loss.durations"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"tdt\"\ndurations = [1]\nomega = 1.1", "loss.omega"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"tdt\"\ndurations = [1]\nsigma = -0.1", "loss.sigma"),
        (
            "ctc_weight = 0.3",
            "topology = \"modified\"\n[loss]\nkind = \"tdt\"\ndurations = [1]",
            "training.topology",
        ),
        ("ctc_weight = 0.3", "[loss]\nkind = \"multi-blank\"\ndurations = []", "loss.durations"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"multi-blank\"\ndurations = [1, 2]", "loss.durations"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"multi-blank\"\ndurations = [2, 2]", "loss.durations"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"multi-blank\"\ndurations = [2]\nsigma = nan", "loss.sigma"),
        (
            "ctc_weight = 0.3",
            "topology = \"constrained\"\n[loss]\nkind = \"multi-blank\"\ndurations = [2]",
            "training.topology",
        ),
        ("ctc_weight = 0.3", "[loss]\nkind = \"rnnt\"\nskip = 1.0", "loss.skip"),
        ("ctc_weight = 0.3", "z_loss = 0.1\n[loss]\nkind = \"rnnt\"\nskip = 1e-6", "loss.skip"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"pruned\"\nclamp = -1.0", "loss.clamp"),
        ("ctc_weight = 0.3", "label_smoothing = 0.1\n[loss]\nkind = \"rnnt\"\nclamp = 1.0", "loss.clamp"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"pruned\"\ns_range = 1", "loss.s_range"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"pruned\"\nsimple_scale = inf", "loss.simple_scale"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"pruned\"\nlm_only_scale = 2.0", "loss.lm_only_scale"),
        ("ctc_weight = 0.3", "[loss]\nkind = \"pruned\"\nam_only_scale = -0.1", "loss.am_only_scale"),
        (
            "ctc_weight = 0.3",
            "[loss]\nkind = \"pruned\"\nlm_only_scale = 0.6\nam_only_scale = 0.6",
            "loss.lm_only_scale + am_only_scale",
        ),
    ] {
        let error = parse(&toy_recipe(&[(old, new)])).unwrap_err();
        let Error::Model(model::Error::RecipeValue { key, expected, .. }) = &error else {
            panic!("{new}: {error}")
        };
        assert_eq!(key, name);
        assert!(!expected.is_empty() && error.to_string().contains("found"), "{error}");
    }
    let stateless = "kind = \"stateless\"\nembedding = 8\ncontext = 0";
    let lstm = "kind = \"lstm\"\nembedding = 8\nhidden = 16\nlayers = 1";
    let error = parse(&toy_recipe(&[(lstm, stateless)])).unwrap_err();
    assert!(
        error.to_string().starts_with("recipe key predictor.context: expected 1 to 100, found 0"),
        "{error}"
    );
}

#[test]
fn the_default_loss_is_rnnt_and_all_kinds_are_written_and_read() {
    assert_eq!(parse(&toy_recipe(&[])).unwrap().loss.kind, LossKind::Rnnt { factored_blank: false });
    for loss in [
        "kind = \"rnnt\"\nfactored_blank = true",
        "kind = \"tdt\"\ndurations = [0, 1, 2]\nsigma = 0.05\nomega = 0.1",
        "kind = \"multi-blank\"\ndurations = [2, 4]",
        "kind = \"pruned\"\ns_range = 3\nwarm_steps = 100",
        "kind = \"rnnt\"\nbudget = \"3MiB\"\nskip = 1e-6\nclamp = 0.5\nactivation = \"relu\"",
        "kind = \"tdt\"\ndurations = [0, 1]\nbudget = \"unlimited\"",
        "kind = \"multi-blank\"\ndurations = [2]\nbudget = \"recompute\"",
    ] {
        let corpus = Toy::new();
        let loss = format!("ctc_weight = 0.3\n[loss]\n{loss}");
        let path = corpus.recipe(&[("ctc_weight = 0.3", &loss)]);
        let (recipe, text) = Recipe::read(&path, Some(9)).unwrap();
        assert_eq!(parse(&text).unwrap().loss, recipe.loss);
        assert_ne!(recipe.loss, LossConfig::default());
    }
}

#[test]
fn every_kind_of_loss_takes_the_shared_keys() {
    let all = "budget = \"8MiB\"\nskip = 1e-6\nclamp = 0.5\nactivation = \"relu\"";
    for kind in ["kind = \"rnnt\"", "kind = \"tdt\"\ndurations = [1]", "kind = \"pruned\""] {
        let text = toy_recipe(&[("ctc_weight = 0.3", &format!("[loss]\n{kind}\n{all}"))]);
        let loss = parse(&text).unwrap().loss.options;
        assert_eq!(loss.budget.bytes, 8 << 20);
        assert_eq!((loss.skip, loss.clamp, loss.activation), (1e-6, Some(0.5), ActivationKind::Relu));
    }
    assert_eq!(parse(&toy_recipe(&[])).unwrap().loss.options, LossOptions::default());
}

#[test]
fn an_encoder_without_a_kind_is_the_lstm() {
    let plain = parse(&toy_recipe(&[])).unwrap();
    let named = parse(&toy_recipe(&[("stack = 4", "kind = \"lstm\"\nstack = 4")])).unwrap();
    assert_eq!(plain.encoder, named.encoder);
    assert_eq!((plain.encoder.rows.stack, plain.encoder.kind.reduction()), (4, 1));
}

#[test]
fn a_missing_recipe_is_an_error_with_its_path() {
    let error = Recipe::read(Path::new("no/such.toml"), None).unwrap_err();
    assert!(
        matches!(error, Error::Model(model::Error::Io { .. }))
            && error.to_string().starts_with("no/such.toml: could not read")
    );
}

#[test]
fn another_number_of_epochs_changes_only_that_number() {
    let corpus = Toy::new();
    let path = corpus.recipe(&[]);
    let (plain, text) = Recipe::read(&path, None).unwrap();
    assert_eq!(text, std::fs::read_to_string(&path).unwrap());
    let (mut longer, text) = Recipe::read(&path, Some(9)).unwrap();
    // The text in a checkpoint has the values in effect; its manifests stay relative to the recipe.
    let written = parse(&text).unwrap();
    assert_eq!((written.training.run.epochs, written.data.train[0].to_str()), (9, Some("train.jsonl")));
    assert_eq!(longer.training.run.epochs, 9);
    longer.training.run.epochs = 3;
    assert_eq!(longer, plain);
    assert!(matches!(Recipe::read(&path, Some(0)), Err(Error::Model(model::Error::RecipeValue { .. }))));
}

#[test]
fn a_row_of_the_encoder_lasts_hop_times_stride_times_reduction() {
    let recipe = parse(&toy_recipe(&[])).unwrap();
    assert_eq!(recipe.model_config().frame_ms(), 40.0);
    let reduced = toy_recipe(&[("dropout = 0.1", "time_reduction = { after_layer = 0, factor = 2 }")]);
    assert_eq!(parse(&reduced).unwrap().model_config().frame_ms(), 80.0);
}

/// Adds the dotted keys of all numbers in a table.
fn add_number_keys(table: &toml::Table, path: &str, keys: &mut Vec<String>) {
    for (key, value) in table {
        let name = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match value {
            toml::Value::Table(inner) => add_number_keys(inner, &name, keys),
            toml::Value::Integer(_) | toml::Value::Float(_) => keys.push(name),
            _ => {}
        }
    }
}

/// Sets the value of a dotted key.
fn set_value(table: &mut toml::Table, name: &str, value: toml::Value) {
    match name.split_once('.') {
        Some((first, rest)) => set_value(table[first].as_table_mut().unwrap(), rest, value),
        None => drop(table.insert(name.to_owned(), value)),
    }
}

#[test]
fn absurd_numbers_are_short_errors_or_harmless() {
    for loss in [
        "kind = \"rnnt\"",
        "kind = \"tdt\"\ndurations = [0, 1, 2]",
        "kind = \"pruned\"",
        "kind = \"multi-blank\"\ndurations = [2]",
    ] {
        let text = toy_recipe(&[("ctc_weight = 0.3", &format!("ctc_weight = 0.3\n[loss]\n{loss}"))]);
        // All keys, also those with a default.
        let complete = toml::Table::try_from(parse(&text).unwrap()).unwrap();
        let mut names = Vec::new();
        add_number_keys(&complete, "", &mut names);
        assert!(names.len() > 40, "{names:?}");
        for name in &names {
            let integers = [1_000_000_000_000, i64::MAX, i64::MIN, -1, 0].map(toml::Value::Integer);
            let floats = [1e300, -1e300, 1e39, f64::NAN, f64::INFINITY, -0.5].map(toml::Value::Float);
            for value in integers.into_iter().chain(floats) {
                let mut table = complete.clone();
                set_value(&mut table, name, value.clone());
                let text = toml::to_string(&table).unwrap();
                match parse(&text).and_then(|recipe| Ok((Model::shapes(&recipe.model_config(), 30)?, recipe)))
                {
                    Err(error @ Error::Model(model::Error::RecipeValue { .. })) => {
                        let text = error.to_string();
                        let digits = text.rsplit(|c: char| c.is_whitespace() || c == ',').next().unwrap();
                        assert!(digits.len() <= 12, "{name} = {value}: {text}");
                    }
                    // For another type the parser shows the line.
                    Err(Error::Model(model::Error::RecipeSyntax { .. })) => {}
                    Err(error) => panic!("{name} = {value}: {error}"),
                    Ok((shapes, recipe)) => {
                        assert!(
                            !value.as_float().is_some_and(|x| !x.is_finite() || x.abs() > 1e38),
                            "{name} = {value}"
                        );
                        // The shapes are planned without any tensor.
                        assert!(
                            shapes.values().flatten().all(|&size| size <= 1 << 24),
                            "{name} = {value}: {shapes:?}"
                        );
                        let options = recipe.model_config().loss_options().unwrap();
                        assert!(options.skip.is_finite());
                    }
                }
            }
        }
    }
}

/// Adds the positions of all numbers, as keys and indices.
fn add_number_positions(value: &toml::Value, position: &[String], positions: &mut Vec<Vec<String>>) {
    let inner = |key: String| [position, &[key]].concat();
    match value {
        toml::Value::Table(table) => {
            table.iter().for_each(|(key, value)| add_number_positions(value, &inner(key.clone()), positions))
        }
        toml::Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                add_number_positions(value, &inner(index.to_string()), positions);
            }
        }
        toml::Value::Integer(_) | toml::Value::Float(_) => positions.push(position.to_vec()),
        _ => {}
    }
}

fn value_at<'a>(value: &'a mut toml::Value, position: &[String]) -> &'a mut toml::Value {
    position.iter().fold(value, |value, key| match value {
        toml::Value::Array(list) => &mut list[key.parse::<usize>().unwrap()],
        value => &mut value[key.as_str()],
    })
}

/// The variants of the recipe contain all keys, even those without defaults.
#[test]
fn numbers_that_are_not_finite_or_negative_are_errors_for_every_key() {
    /// Keys with valid negative numbers: decibels, and a frequency below the upper end.
    const MAY_BE_NEGATIVE: [&str; 3] =
        ["augment.noise.snr_db.0", "augment.noise.snr_db.1", "features.high_hz"];
    const PLACEHOLDER: &str = "@number@";
    let lstm = "layers = 1\nhidden = 16\nbidirectional = true\ndropout = 0.1";
    let conformer = "kind = \"conformer\"\nlayers = 1\nwidth = 16\nheads = 2\nfeed_forward = 8\nkernel = 3\ndropout = 0.1\n\
                     subsampling = { channels = 4, factor = 2 }\nattention = { chunk = 4, left = 2 }";
    let stream = ("train = [\"train.jsonl\"]", "stream = true\nmax_bad = 0.5\ntrain = [\"train.jsonl\"]");
    let wave = "speed = { rates = [0.9, 1.1] }\nnoise = { manifest = \"a\", snr_db = [0.0, 9.0], probability = 0.5 }\n\
                reverb = { manifest = \"a\", probability = 0.5 }\nperturb =";
    let schedule = mlperf_schedule("gamma = 0.9\nmin_rate = 0.001");
    let variants: [&[(&str, &str)]; 7] = [
        &[stream, ("perturb =", wave), ("max_frames = 200", "max_frames = 200\nmax_seconds = 9.5")],
        &[
            ("ema = 0.9", &schedule),
            ("ctc_weight = 0.3", "ctc_weight = 0.3\nctc_weight_end = 0.1\nz_loss = 0.1"),
        ],
        &[
            ("ema = 0.9", "decay = \"noam\"\nwarmup_steps = 10\nmodel_width = 64"),
            ("embedding = 8", "embedding = 8\nembedding_dropout = 0.1"),
        ],
        &[
            (lstm, conformer),
            ("stack = 4\nstride = 4", "stack = 1\nstride = 1"),
            ("mels = 12", "mels = 12\nnormalize = \"running\""),
        ],
        &[(lstm, &format!("{lstm}\ntime_reduction = {{ after_layer = 0, factor = 2 }}"))],
        &[(
            "ctc_weight = 0.3",
            "[loss]\nkind = \"tdt\"\ndurations = [0, 1, 2]\nsigma = 0.1\nomega = 0.1\nclamp = 0.5",
        )],
        &[
            ("mels = 12", "preset = \"mlperf\""),
            ("kind = \"words\"", "kind = { bpe = { size = 30 } }"),
            ("ctc_weight = 0.3", "[init]\nkind = \"mlperf\""),
        ],
    ];
    let mut count = 0;
    for changes in variants {
        let recipe = parse(&toy_recipe(changes)).unwrap_or_else(|error| panic!("{changes:?}: {error}"));
        let complete = toml::Value::try_from(recipe).unwrap();
        let mut positions = Vec::new();
        add_number_positions(&complete, &[], &mut positions);
        for position in positions {
            let name = position.join(".");
            let mut marked = complete.clone();
            *value_at(&mut marked, &position) = toml::Value::String(PLACEHOLDER.to_owned());
            let marked = toml::to_string(&marked).unwrap();
            for number in ["nan", "-nan", "inf", "-inf", "1e400", "-1e400", "-1", "-1.0", "-0.5", "\"\""] {
                count += 1;
                let parsed = parse(&marked.replace(&format!("\"{PLACEHOLDER}\""), number));
                // Not -inf and -nan, and not -1e400, which is parsed as -inf.
                let is_negative = number.starts_with("-0") || number.starts_with("-1") && number.len() < 5;
                match parsed {
                    Err(Error::Model(model::Error::RecipeValue { key, .. })) => {
                        let end = key.rsplit('.').next().unwrap();
                        assert!(name.contains(end), "{name} = {number}: {key}");
                    }
                    Err(Error::Model(model::Error::RecipeSyntax { .. })) => {}
                    Err(error) => panic!("{name} = {number}: {error}"),
                    Ok(_) => {
                        let is_permitted = is_negative && MAY_BE_NEGATIVE.contains(&name.as_str());
                        assert!(is_permitted, "{name} = {number} is accepted");
                    }
                }
            }
        }
    }
    assert!(count > 3000, "{count}");
}

#[test]
fn a_byte_order_mark_is_ignored() {
    let toy = Toy::new();
    let path = toy.recipe(&[]);
    let text = std::fs::read_to_string(&path).unwrap();
    let (plain, _) = Recipe::read(&path, None).unwrap();
    std::fs::write(&path, format!("\u{feff}{text}")).unwrap();
    assert_eq!(Recipe::read(&path, None).unwrap(), (plain, text));
}

#[test]
fn a_model_larger_than_the_memory_is_an_error_before_allocation() {
    let toy = Toy::new();
    let path = toy.recipe(&[
        ("stride = 4\nlayers = 1\nhidden = 16", "stride = 4\nlayers = 100\nhidden = 8192"),
        ("width = 16", "width = 8192"),
    ]);
    let (recipe, _) = Recipe::read(&path, None).unwrap();
    let shapes = Model::shapes(&recipe.model_config(), 30).unwrap();
    let count: usize = shapes.values().map(|shape| shape.iter().product::<usize>()).sum();
    assert!(count > 150_000_000_000, "{count}");
    if speech::memory::available_bytes().is_some() {
        let error = Model::new(&recipe.model_config(), 30).err().unwrap();
        let text = error.to_string();
        assert!(matches!(error, model::Error::Memory { .. }), "{text}");
        assert!(text.contains("[encoder]") && text.contains("_l99_reverse") | text.contains("_l"), "{text}");
    }
    let small = toy.recipe(&[]);
    let (recipe, _) = Recipe::read(&small, None).unwrap();
    let model = Model::new(&recipe.model_config(), 3).unwrap();
    assert_eq!(model.parameters().shapes(), Model::shapes(&recipe.model_config(), 3).unwrap());
}

#[test]
fn recipes_without_a_metric_are_written_without_it() {
    let plain = parse(&toy_recipe(&[])).unwrap();
    assert_eq!(plain.training.run.metric, recognizer::Metric::Wer);
    assert!(!toml::to_string(&plain).unwrap().contains("metric"));
    let characters = parse(&toy_recipe(&[("ctc_weight = 0.3", "metric = \"cer\"")])).unwrap();
    assert!(toml::to_string(&characters).unwrap().contains("metric = \"cer\""));
}

fn syntax_error(text: &str) -> String {
    Recipe::parse(text, Path::new("r.toml")).unwrap_err().to_string()
}

#[test]
fn a_syntax_error_is_one_line_with_its_position() {
    let text = syntax_error("seed = 1\n  sed = 2\n");
    assert!(text.starts_with("recipe r.toml: line 2, column 3: unknown field `sed`, expected"), "{text}");
    assert!(text.ends_with(", in the line `sed = 2`"), "{text}");
    let text = syntax_error("seed = 1\n\u{e9} =\n");
    assert!(text.starts_with("recipe r.toml: line 2, column 1: "), "{text}");
    assert!(syntax_error("").contains("missing field"));
    for text in
        ["[data]\n\"a\\nb\" = 1\n", "seed = \"\\u001b[2J\"\n", "x\u{1b}y = 1", "\u{feff}\u{0}", "a\r\nb"]
    {
        let text = syntax_error(text);
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
}

#[test]
fn long_keys_values_and_lines_are_abbreviated() {
    let long = "x".repeat(1_000_000);
    let keys = syntax_error("sed = 1").len();
    for text in [
        format!("{long} = 1"),
        format!("\"{long} y\" = 1"),
        format!("seed = \"{long}\""),
        format!("seed = {long}"),
        format!("# comment\n{long}"),
        format!("[{long}]\na = 1"),
        format!("[encoder]\nkind = \"{long}\""),
    ] {
        let text = syntax_error(&text);
        assert!(text.len() < keys + 1000, "{} {}", text.len(), &text[..500]);
    }
}
