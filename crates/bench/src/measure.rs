//! The child process: one system does one case, and is watched.
use std::time::{Duration, Instant};

use super::answer::{CaseAnswer, Workload, median};
use super::case::{CaseWork, Method, PrunedWork, Spec};
use super::error::{Error, Result};
use super::gradients;
use super::machine::Meter;
use super::rates::Sgemm;
use super::trivial::Trivial;
use super::{
    decode, dense::Dense, inputs::LossInputs, lattices, loss::SessionWorkload, pruned::Pruned,
    pruned_dense::PrunedDense, recognition, train,
};

/// A first step as long as this is not taken as a warm-up: what a warm-up hides is nothing beside it.
const LONG: Duration = Duration::from_secs(4);
/// Seconds of steps between two products.
const ROUND: Duration = Duration::from_millis(200);
/// Products beside a step that is timed alone.
const FEW: usize = 3;

/// Does what a child process was told, a case as JSON, and prints its answer as one line of JSON.
///
/// # Errors
/// A description that is none, whatever the system has to say, and gradients that cannot be written.
pub fn run_case(spec: &str) -> Result<()> {
    let spec =
        serde_json::from_str(spec).map_err(|source| Error::Json { what: "description of a case", source })?;
    end_with_parent();
    let answer = run(&spec)?;
    let line =
        serde_json::to_string(&answer).map_err(|source| Error::Json { what: "answer of a case", source })?;
    println!("{line}");
    Ok(())
}

fn run(spec: &Spec) -> Result<CaseAnswer> {
    let mut subject = prepare(spec)?;
    let meter = Meter::start();
    let start = Instant::now();
    let gradients = subject.step()?;
    let first = start.elapsed();
    for _ in 1..subject.warm_up() {
        subject.step()?;
    }
    let peak_bytes = meter.peak().map(|bytes| bytes.saturating_sub(subject.result_bytes()));
    let mut skip = None;
    match &spec.gradients {
        Some(folder) => {
            gradients::write(folder, gradients)?;
            skip = subject.skip_report()?;
        }
        None => drop(gradients),
    }
    subject.check()?;
    let mut times = Vec::new();
    let mut rates = Vec::new();
    // After the memory has been measured: the product's operands are not the system's.
    let sgemm = subject.operations().map(|_| Sgemm::new()).transpose()?;
    let mut product = || -> Result<()> {
        rates.extend(sgemm.as_ref().map(Sgemm::rate).transpose()?);
        Ok(())
    };
    product()?;
    if first >= LONG && subject.warm_up() == 1 {
        times.push(first);
        (1..FEW).try_for_each(|_| product())?;
    }
    let seconds = Duration::from_secs_f64(spec.seconds);
    while times.iter().sum::<Duration>() < seconds {
        let mut round = Duration::ZERO;
        while round < ROUND.min(seconds) {
            let start = Instant::now();
            let gradients = subject.step()?;
            let time = start.elapsed();
            drop(gradients);
            times.push(time);
            round += time;
        }
        product()?;
    }
    let training = subject.training_report()?;
    Ok(CaseAnswer {
        shape: subject.shape(),
        milliseconds: times.iter().map(|time| time.as_secs_f64() * 1e3).collect(),
        peak_bytes,
        operations: subject.operations(),
        // The first product was a warm-up.
        sgemm: median(rates.get(1..).unwrap_or_default()),
        skip,
        pruning: subject.pruning_report(),
        decoding: subject.decoding_report(),
        training,
    })
}

fn prepare(spec: &Spec) -> Result<Box<dyn Workload>> {
    let inputs = match &spec.work {
        CaseWork::Lattices { sizes } => return lattices::prepare(*sizes, &spec.method),
        CaseWork::Decode(work) => return decode::prepare(work, &spec.method),
        CaseWork::Recognition(work) => return recognition::prepare(*work, &spec.method),
        CaseWork::Train(work) => return train::prepare(work, &spec.method),
        CaseWork::Pruned(work) if matches!(spec.method, Method::Pruned(_) | Method::PrunedTextbook) => {
            return prepare_pruned(work, &spec.method);
        }
        CaseWork::Loss(work) | CaseWork::Pruned(PrunedWork { loss: work, .. }) => {
            LossInputs::synthetic(work)?
        }
        CaseWork::Model { checkpoint, manifest, utterances } => {
            LossInputs::recorded(checkpoint, manifest, *utterances)?
        }
    };
    Ok(match spec.method {
        Method::Ours { budget, skip, bf16 } => Box::new(SessionWorkload::new(inputs, budget, skip, bf16)?),
        Method::Textbook
        | Method::Pruned(_)
        | Method::PrunedTextbook
        | Method::Decode(_)
        | Method::BestPath
        | Method::Denominator
        | Method::Train { .. } => Box::new(Dense::new(inputs)?),
    })
}

/// Both passes, ours or the rival's.
pub fn prepare_pruned(work: &PrunedWork, method: &Method) -> Result<Box<dyn Workload>> {
    let inputs = LossInputs::synthetic(&work.loss)?;
    let trivial = Trivial::of(&inputs, work.scores);
    Ok(match *method {
        Method::Pruned(budget) => Box::new(Pruned::new(*work, inputs, trivial, budget)?),
        _ => Box::new(PrunedDense::new(*work, inputs, trivial)?),
    })
}

/// Ends this process when the one that started it is gone: its end of the pipe closes, however it went.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        eprintln!("error: the benchmark that this case belongs to is gone");
        std::process::exit(1);
    });
}
