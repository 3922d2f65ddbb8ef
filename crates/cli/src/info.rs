//! `panda info CHECKPOINT|RECIPE`: parameter shapes and the memory plan of the loss.
use std::{path::PathBuf, process::ExitCode};

use lattice::{Context, Plan};
use model::config::GnatConfig;
use model::config::LossBudget;
use model::{CheckpointFile, Model, ModelConfig, StoredPart};
use recognizer::unusable_texts;
use rnnt_loss::{MemoryPlan, Options, Precision};
use speech::Tokenizer;
use training::{Observer, Recipe, train_tokenizer};

use crate::{
    architecture, bad_items,
    error::{Error, Result},
    numbers,
    printing::{outln, warn_each, warnln},
    quantize,
};

/// Arguments of `panda info`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Checkpoint or recipe (*.toml); optional if --hidden and --classes are given
    path: Option<PathBuf>,
    /// Plan memory for a batch of this many utterances
    #[arg(long, default_value_t = 16, value_parser = numbers::nonnegative_integer)]
    batch: usize,
    /// Plan for this many encoder frames per utterance
    #[arg(long, default_value_t = 100, value_parser = numbers::nonnegative_integer)]
    frames: usize,
    /// Plan for this many labels per utterance
    #[arg(long, default_value_t = 20, value_parser = numbers::nonnegative_integer)]
    labels: usize,
    /// Plan for this width of the joint network [default: the model's]
    #[arg(long, value_parser = numbers::within("expected a number from 1 to 268435456", 1..=MAX_WIDTH))]
    hidden: Option<usize>,
    /// Plan for this many classes, blank included [default: the model's]
    #[arg(long, value_parser = numbers::within("expected a number from 2 to 268435456", 2..=MAX_WIDTH))]
    classes: Option<usize>,
    /// Limit the memory of the loss besides inputs and gradients: a size such as 64MiB,
    /// `recompute` or `unlimited` [default: the model's]
    #[arg(long, value_parser = str::parse::<LossBudget>)]
    budget: Option<LossBudget>,
    /// Plan for matrix products of the head in bf16, overriding the recipe
    #[arg(long)]
    bf16: bool,
}

/// Maximum number of rows of a plan.
const MAX_ROWS: usize = 1 << 24;
/// Maximum of `--hidden` and `--classes`.
const MAX_WIDTH: usize = 1 << 28;

impl Args {
    /// Returns joint width and classes of a plan without a model.
    fn sizes(&self) -> Result<(usize, usize)> {
        let missing = |argument, found| Error::Unsupported { argument, expected: "a value", found };
        match (self.hidden, self.classes) {
            (Some(hidden), Some(classes)) => Ok((hidden, classes)),
            (Some(_), None) => Err(missing("--classes", "--hidden without it")),
            (None, Some(_)) => Err(missing("--hidden", "--classes without it")),
            (None, None) => Err(missing("PATH", "neither PATH nor --hidden and --classes")),
        }
    }

    /// Fails if the batch has more rows than a plan supports.
    fn check(&self) -> Result<()> {
        let Args { batch, frames, labels, .. } = *self;
        let utterance_rows = frames.saturating_add(labels).saturating_add(1);
        let rows = batch.saturating_mul(utterance_rows);
        if rows > MAX_ROWS {
            let (argument, expected) = ("--batch x (--frames + --labels + 1)", "of rows, at most 16777216");
            return Err(Error::Argument { argument, expected, found: rows as f64 });
        }
        Ok(())
    }
}

/// Prints the parameters and the memory plan without training or decoding.
pub(crate) fn run(arguments: &Args) -> Result<ExitCode> {
    let Some(path) = &arguments.path else {
        let (hidden, classes) = arguments.sizes()?;
        return print_plan(hidden, classes, Options::default(), arguments);
    };
    if path.extension().is_some_and(|extension| extension == "toml") {
        let (recipe, _) = Recipe::read(path, None)?;
        let listed = training::data::read_manifests("data.train", &recipe.data.train)?;
        warn_each(&listed.warnings);
        let (utterances, mut bad) = (listed.utterances, listed.bad);
        let texts: Vec<String> = utterances.iter().map(|utterance| utterance.text.clone()).collect();
        let tokenizer = train_tokenizer(&recipe, &texts, &mut MessagePrinter)?;
        bad.extend(unusable_texts(&utterances, &tokenizer)?);
        bad_items::warn("data.train", &bad);
        let seconds: f64 = utterances.iter().map(|utterance| utterance.seconds).sum();
        outln!("training data: {} utterances, {:.1} minutes", utterances.len(), seconds / 60.0)?;
        let config = recipe.model_config();
        quantize::print_parts(&StoredPart::of_shapes(&Model::shapes(&config, tokenizer.size())?))?;
        print_model(&config, &tokenizer, arguments)
    } else {
        let file = CheckpointFile::open(path)?;
        let (config, tokenizer) = (file.model_config()?, file.tokenizer()?);
        file.check(&Model::shapes(&config, tokenizer.size())?)?;
        file.check_values()?;
        if let Some(source) = file.imported() {
            outln!("imported from: {}", source.layout.name())?;
        }
        quantize::print_parts(&file.stored_parts())?;
        print_model(&config, &tokenizer, arguments)
    }
}

/// Prints warnings and notes about training texts.
struct MessagePrinter;

impl Observer for MessagePrinter {
    fn on_warning(&mut self, warning: &str) {
        warnln!("warning: {warning}");
    }

    fn on_note(&mut self, note: &str) {
        warnln!("note: {note}");
    }
}

/// Prints the parameters of a model and the plan of its loss.
fn print_model(config: &ModelConfig, tokenizer: &Tokenizer, arguments: &Args) -> Result<ExitCode> {
    outln!("tokens: {} and the blank", tokenizer.size())?;
    outln!("texts: normalize = \"{}\"", tokenizer.unicode_form().name())?;
    if !tokenizer.special_words().is_empty() {
        outln!("special words, one token each: {}", tokenizer.special_words().join(" "))?;
    }
    outln!("one encoder frame: {} ms", config.frame_ms())?;
    architecture::lines(config).iter().try_for_each(|line| outln!("{line}"))?;
    outln!("{:<40} {:>16} {:>12}", "parameter", "shape", "count")?;
    let mut total = 0;
    let shapes = Model::shapes(config, tokenizer.size())?;
    for (name, shape) in &shapes {
        let count: usize = shape.iter().product();
        outln!("{name:<40} {:>16} {count:>12}", format!("{shape:?}"))?;
        total += count;
    }
    outln!("{:<40} {:>16} {total:>12}", "total", "")?;

    outln!("")?;
    if let Some(gnat) = config.loss.kind.gnat() {
        return print_lattice(gnat, config, tokenizer.size(), arguments);
    }
    // Hidden rows are those of the joint network; in a CTC model, encoder rows.
    let hidden = match &config.joint {
        Some(joint) => joint.width,
        None => shapes.get("ctc.weight").and_then(|shape| shape.last()).copied().unwrap_or(1),
    };
    print_plan(hidden, config.classes(tokenizer.size()), config.loss_options()?, arguments)
}

/// Prints the size of a recognition lattice and its memory plan.
fn print_lattice(
    gnat: &GnatConfig,
    config: &ModelConfig,
    vocabulary: usize,
    arguments: &Args,
) -> Result<ExitCode> {
    // Options that apply only to transducers are refused.
    let Args { hidden, classes, bf16, .. } = *arguments;
    let given = [("--hidden", hidden.is_some()), ("--classes", classes.is_some()), ("--bf16", bf16)];
    if let Some((argument, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
        let (expected, found) = ("a transducer", "a recognition lattice (loss.kind = \"gnat\")");
        return Err(Error::Unsupported { argument, expected, found });
    }
    arguments.check()?;
    // The lattice, with the budget of the command line or of the model.
    let mut config = config.clone();
    let options = &mut config.loss.options;
    options.budget = arguments.budget.unwrap_or(options.budget);
    let budget = options.budget;
    let (context, alignment) = (gnat.ngram(vocabulary)?, gnat.alignment()?);
    let (states, frame_states) = (context.states(), alignment.num_states());
    outln!("recognition lattice: the last {} of {vocabulary} labels, {states} context states", gnat.context)?;
    outln!("per frame: {frame_states} alignment states, {} arc weights", states * (1 + vocabulary))?;
    let over = if gnat.normalize.normalize().is_some() { "each state's arcs" } else { "all paths" };
    outln!("normalized over {over}")?;
    outln!("memory budget of the loss: {}", budget)?;
    // The memory plan of a batch.
    let Args { batch, frames, labels: positions, .. } = *arguments;
    let plan = Model::lattice_plan_for(&config, vocabulary, [batch, frames, positions])?;
    if let Some(Plan { utterances, frames_per_wave, keeps_arcs, bytes, .. }) = plan {
        let weights = if keeps_arcs { "are saved for backward" } else { "are recomputed in backward" };
        outln!("plan for {batch} utterances of {frames} frames and {positions} labels:")?;
        outln!(
            "  {utterances} utterances and {frames_per_wave} frames of each at a time; arc weights {weights}"
        )?;
        outln!("  at most {:.1} MB in addition to parameters, frames and gradients", bytes as f64 / 1e6)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the memory plan of the loss; arguments override the model's sizes.
fn print_plan(hidden: usize, classes: usize, options: Options, arguments: &Args) -> Result<ExitCode> {
    arguments.check()?;
    let Args { batch, frames, labels, .. } = *arguments;
    let LossBudget { bytes, keep_scores } =
        arguments.budget.unwrap_or(LossBudget { bytes: options.budget, keep_scores: options.keep_scores });
    let precision = if arguments.bf16 { Precision::Bf16 } else { options.precision };
    let options = Options { budget: bytes, keep_scores, precision, ..options };
    let (hidden, classes) = (arguments.hidden.unwrap_or(hidden), arguments.classes.unwrap_or(classes));
    let plan = MemoryPlan::for_shape::<f32>([batch, frames, labels], hidden, classes, &options, true)?;
    plan.to_string().lines().try_for_each(|line| outln!("{line}"))?;
    Ok(ExitCode::SUCCESS)
}
