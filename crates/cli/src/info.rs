//! `panda info CHECKPOINT|RECIPE`
use std::{path::PathBuf, process::ExitCode};

use rnnt_loss::{Options, Targets};
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
    let (h, c) = (model.width(), model.classes());
    let plan = rnnt_loss::MemoryPlan::new(&targets, h, c, 4, &Options::default());
    println!("\n{plan}");
    Ok(ExitCode::SUCCESS)
}
