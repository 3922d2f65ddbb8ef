//! `panda info CHECKPOINT|RECIPE`
use std::{path::PathBuf, process::ExitCode};

use panda_core::Tiling;
use rnnt_loss::Targets;
use speech::Tokenizer;
use training::{Model, Recipe, Recogniser};

use crate::error::Result;

/// Arguments of `panda info`.
#[derive(clap::Args)]
pub struct Arguments {
    /// A checkpoint, or a recipe (*.toml)
    path: PathBuf,
    /// Utterances of the batch that the memory plan is for
    #[arg(long, default_value_t = 16)]
    batch: usize,
    /// Encoder frames of an utterance
    #[arg(long, default_value_t = 100)]
    frames: usize,
    /// Labels of an utterance
    #[arg(long, default_value_t = 20)]
    labels: usize,
}

/// Bytes that the loss keeps of a site between forward and backward: its largest score (f32) and log-sum (f64), two class ids with masks,
/// two emissions with adjoints, forward and backward log-sum (f64).
const KEPT: usize = 4 + 8 + 2 * (4 + 1) + 8 * (2 + 2 + 1 + 1);

/// Prints parameters and plan; nothing is trained or decoded.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.path.extension().is_some_and(|extension| extension == "toml") {
        let (recipe, _) = Recipe::read(&arguments.path, None)?;
        let utterances = training::data::read_manifests("data.train", &recipe.data.train)?;
        let texts: Vec<&str> = utterances.iter().map(|utterance| utterance.text.as_str()).collect();
        let tokenizer = Tokenizer::train(recipe.tokens.kind, &texts)?;
        let seconds: f64 = utterances.iter().map(|utterance| utterance.seconds).sum();
        println!("training data: {} utterances, {:.1} minutes", utterances.len(), seconds / 60.0);
        describe(&recipe, &tokenizer, &Model::new(&recipe, tokenizer.size())?, arguments)
    } else {
        let recogniser = Recogniser::load(&arguments.path)?;
        describe(recogniser.recipe(), recogniser.tokenizer(), recogniser.model(), arguments)
    }
}

fn describe(
    recipe: &Recipe,
    tokenizer: &Tokenizer,
    model: &Model,
    arguments: &Arguments,
) -> Result<ExitCode> {
    println!("tokens: {} and the blank", tokenizer.size());
    println!("one encoder frame: {} ms", recipe.frame_ms());
    println!("{:<40} {:>16} {:>12}", "parameter", "shape", "count");
    for (name, parameter) in model.parameters().iter() {
        println!("{name:<40} {:>16} {:>12}", format!("{:?}", parameter.dims()), parameter.elem_count());
    }
    println!("{:<40} {:>16} {:>12}", "all", "", model.parameters().count());

    let Arguments { batch, frames, labels, .. } = *arguments;
    // The labels' values do not matter to a plan.
    let targets = Targets::new(1, vec![frames; batch], vec![vec![0; labels]; batch])?;
    let (n, h, c) = (targets.lattices().sites(), model.width(), model.classes());
    let tiling = Tiling::for_shape(n, c);
    let megabytes = |elements: usize| elements as f64 * 4.0 / 1e6;
    println!(
        "\nloss of {batch} utterances of {frames} frames and {labels} labels: N = {n}, H = {h}, C = {c}"
    );
    println!("  tiles of {} sites x {} classes", tiling.rows, tiling.classes);
    println!("  {} x {} lanes of sites x classes in backward", tiling.row_lanes, tiling.class_lanes);
    println!("  transient memory {:.1} MB", megabytes(tiling.transient(n, h, c)));
    println!("  kept between the directions {:.1} MB", (n * KEPT) as f64 / 1e6);
    println!("  scores of all sites would be {:.1} MB; they are never kept", megabytes(n * c));
    let flop = |factor: f64| factor * n as f64 * h as f64 * c as f64 / 1e9;
    println!("  {:.2} GFLOP forward, {:.2} GFLOP backward", flop(2.0), flop(6.0));
    Ok(ExitCode::SUCCESS)
}
