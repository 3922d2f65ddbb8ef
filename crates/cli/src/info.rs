//! `panda info CHECKPOINT|RECIPE`, or sizes alone
use std::{path::PathBuf, process::ExitCode};

use lattice::{Context, Plan};
use model::config::GnatConfig;
use model::config::LossBudget;
use model::{Checkpoint, Model, ModelConfig};
use recognizer::unusable_texts;
use rnnt_loss::{MemoryPlan, Options, Precision};
use speech::Tokenizer;
use training::{Observer, Recipe, train_tokenizer};

use crate::{
    bad_items,
    error::{Error, Result},
    numbers,
    out::{outln, warn_each, warnln},
};

/// Arguments of `panda info`.
#[derive(clap::Args)]
pub struct Args {
    /// A checkpoint, or a recipe (*.toml); not needed where `--hidden` and `--classes` say what the plan is for
    #[arg(required_unless_present_all = ["hidden", "classes"])]
    path: Option<PathBuf>,
    /// Utterances of the batch that the memory plan is for
    #[arg(long, default_value_t = 16, value_parser = numbers::any)]
    batch: usize,
    /// Encoder frames of an utterance
    #[arg(long, default_value_t = 100, value_parser = numbers::any)]
    frames: usize,
    /// Labels of an utterance
    #[arg(long, default_value_t = 20, value_parser = numbers::any)]
    labels: usize,
    /// Width of the joint, instead of the model's
    #[arg(long, value_parser = numbers::within("expected a number from 1 to 268435456", 1..=MOST))]
    hidden: Option<usize>,
    /// Classes of the head, instead of the model's
    #[arg(long, value_parser = numbers::within("expected a number from 2 to 268435456", 2..=MOST))]
    classes: Option<usize>,
    /// Bytes that the loss may hold beside arguments and gradients, such as 64MiB, or `recompute` or `unlimited`
    #[arg(long, value_parser = str::parse::<LossBudget>)]
    budget: Option<LossBudget>,
    /// Plan for products of the head in bf16, whatever the recipe says
    #[arg(long)]
    bf16: bool,
}

/// Most rows of a plan; a mistake, beyond.
const MOST_ROWS: usize = 1 << 24;
/// Most units and classes of one.
const MOST: usize = 1 << 28;

impl Args {
    /// Whether sizes are those of something.
    fn check(&self) -> Result<()> {
        let Args { batch, frames, labels, .. } = *self;
        let of_one = frames.saturating_add(labels).saturating_add(1);
        let rows = batch.saturating_mul(of_one);
        if rows > MOST_ROWS {
            let (argument, expected) = ("--batch x (--frames + --labels + 1)", "of rows, at most 16777216");
            return Err(Error::Argument { argument, expected, found: rows as f64 });
        }
        Ok(())
    }
}

/// Prints parameters and plan; nothing is trained or decoded.
pub fn run(arguments: &Args) -> Result<ExitCode> {
    let Some(path) = &arguments.path else { return plan(0, 0, Options::default(), arguments) };
    if path.extension().is_some_and(|extension| extension == "toml") {
        let (recipe, _) = Recipe::read(path, None)?;
        let listed = training::data::read_manifests("data.train", &recipe.data.train)?;
        warn_each(&listed.warnings);
        let (utterances, mut bad) = (listed.utterances, listed.bad);
        let texts: Vec<String> = utterances.iter().map(|utterance| utterance.text.clone()).collect();
        let tokenizer = train_tokenizer(&recipe, &texts, &mut Messages)?;
        bad.extend(unusable_texts(&utterances, &tokenizer)?);
        bad_items::warn("data.train", &bad);
        let seconds: f64 = utterances.iter().map(|utterance| utterance.seconds).sum();
        outln!("training data: {} utterances, {:.1} minutes", utterances.len(), seconds / 60.0)?;
        describe(&recipe.model(), &tokenizer, arguments)
    } else {
        let checkpoint = Checkpoint::read(path)?;
        let (config, tokenizer) = (checkpoint.model_config(path)?, checkpoint.tokenizer(path)?);
        checkpoint.check(path, &Model::shapes(&config, tokenizer.size())?)?;
        describe(&config, &tokenizer, arguments)
    }
}

/// Prints the messages about the texts.
struct Messages;

impl Observer for Messages {
    fn on_warning(&mut self, warning: &str) {
        warnln!("warning: {warning}");
    }

    fn on_note(&mut self, note: &str) {
        warnln!("note: {note}");
    }
}

fn describe(config: &ModelConfig, tokenizer: &Tokenizer, arguments: &Args) -> Result<ExitCode> {
    outln!("tokens: {} and the blank", tokenizer.size())?;
    outln!("texts: normalize = \"{}\"", tokenizer.unicode_form().name())?;
    if !tokenizer.special().is_empty() {
        outln!("special words, one token each: {}", tokenizer.special().join(" "))?;
    }
    outln!("one encoder frame: {} ms", config.frame_ms())?;
    outln!("{:<40} {:>16} {:>12}", "parameter", "shape", "count")?;
    let mut all = 0;
    for (name, shape) in Model::shapes(config, tokenizer.size())? {
        let count: usize = shape.iter().product();
        outln!("{name:<40} {:>16} {count:>12}", format!("{shape:?}"))?;
        all += count;
    }
    outln!("{:<40} {:>16} {all:>12}", "all", "")?;

    outln!("")?;
    if let Some(gnat) = config.loss.kind.gnat() {
        return lattice(gnat, config, tokenizer.size(), arguments);
    }
    plan(config.joint.width, config.classes(tokenizer.size()), config.loss_options()?, arguments)
}

/// The size of a recognition lattice, and what its loss takes.
fn lattice(gnat: &GnatConfig, config: &ModelConfig, labels: usize, arguments: &Args) -> Result<ExitCode> {
    let Args { hidden, classes, bf16, .. } = *arguments;
    let asked = [("--hidden", hidden.is_some()), ("--classes", classes.is_some()), ("--bf16", bf16)];
    if let Some((argument, _)) = asked.into_iter().find(|(_, asked)| *asked) {
        let (expected, search) = ("a transducer", "a recognition lattice (loss.kind = \"gnat\")");
        return Err(Error::Search { argument, expected, search });
    }
    arguments.check()?;
    let mut config = config.clone();
    let options = &mut config.loss.options;
    options.budget = arguments.budget.unwrap_or(options.budget);
    let budget = options.budget;
    let (context, alignment) = (gnat.ngram(labels)?, gnat.alignment()?);
    let (states, of_frame) = (context.states(), alignment.num_states());
    outln!("recognition lattice: the last {} of {labels} labels, {states} context states", gnat.context)?;
    outln!("one frame: {of_frame} alignment states, {} arc weights", states * (1 + labels))?;
    let over = if gnat.normalize.normalize().is_some() { "each state's arcs" } else { "all paths" };
    outln!("normalised over {over}")?;
    outln!("memory budget of the loss: {}", budget)?;
    let Args { batch, frames, labels: positions, .. } = *arguments;
    let plan = Model::lattice_plan_for(&config, labels, [batch, frames, positions])?;
    if let Some(Plan { utterances, window, kept, bytes, .. }) = plan {
        let weights = if kept { "stay from forward to backward" } else { "are made again in backward" };
        outln!("plan for {batch} utterances of {frames} frames and {positions} labels:")?;
        outln!("  {utterances} together, {window} frames of each at a time; arc weights {weights}")?;
        outln!("  at most {:.1} MB beside parameters, frames and gradients", bytes as f64 / 1e6)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What the loss takes, for the model's sizes or those of the command line.
fn plan(hidden: usize, classes: usize, options: Options, arguments: &Args) -> Result<ExitCode> {
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
