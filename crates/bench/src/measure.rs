//! Child process of the benchmark: measures one system on one case.
use std::time::{Duration, Instant};

use super::answer::{CaseAnswer, Workload, median};
use super::case::{CaseWork, Method, PrunedWork, Spec};
use super::error::{Error, Result};
use super::gradients;
use super::machine::MemoryMeter;
use super::rates::Sgemm;
use super::simple::SimpleScores;
use super::{
    decode, dense::Dense, inputs::LossInputs, lattices, loss::SessionWorkload, pruned::Pruned,
    pruned_dense::PrunedDense, recognition, train,
};

/// Duration from which a first step is timed, not a warm-up.
///
/// The cost of first use is negligible in such a step.
const LONG_STEP: Duration = Duration::from_secs(4);
/// Time of the steps between two reference products.
const ROUND_TIME: Duration = Duration::from_millis(200);
/// Number of reference products if the first step is timed.
const LONG_STEP_PRODUCTS: usize = 3;

/// Runs a case given as JSON and prints its measurements as JSON.
///
/// # Errors
/// Invalid descriptions, errors of the system, and gradients that cannot be written.
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
    let mut workload = prepare(spec)?;
    let meter = MemoryMeter::start();
    let start = Instant::now();
    let gradients = workload.step()?;
    let first = start.elapsed();
    for _ in 1..workload.warm_up() {
        workload.step()?;
    }
    let peak_bytes = meter.peak().map(|bytes| bytes.saturating_sub(workload.result_bytes()));
    let mut skip = None;
    match &spec.gradients {
        Some(folder) => {
            gradients::write(folder, gradients)?;
            skip = workload.skip_report()?;
        }
        None => drop(gradients),
    }
    workload.check()?;
    let mut times = Vec::new();
    let mut rates = Vec::new();
    // After the memory is measured, since the operands do not belong to the system.
    let sgemm = workload.operations().map(|_| Sgemm::new()).transpose()?;
    let mut product = || -> Result<()> {
        rates.extend(sgemm.as_ref().map(Sgemm::rate).transpose()?);
        Ok(())
    };
    product()?;
    if first >= LONG_STEP && workload.warm_up() == 1 {
        times.push(first);
        (1..LONG_STEP_PRODUCTS).try_for_each(|_| product())?;
    }
    let seconds = Duration::from_secs_f64(spec.seconds);
    while times.iter().sum::<Duration>() < seconds {
        let mut round = Duration::ZERO;
        while round < ROUND_TIME.min(seconds) {
            let start = Instant::now();
            let gradients = workload.step()?;
            let time = start.elapsed();
            drop(gradients);
            times.push(time);
            round += time;
        }
        product()?;
    }
    let training = workload.training_report()?;
    Ok(CaseAnswer {
        shape: workload.shape(),
        milliseconds: times.iter().map(|time| time.as_secs_f64() * 1e3).collect(),
        peak_bytes,
        operations: workload.operations(),
        // The first product is a warm-up.
        sgemm: median(rates.get(1..).unwrap_or_default()),
        skip,
        pruning: workload.pruning_report(),
        decoding: workload.decoding_report(),
        training,
    })
}

fn prepare(spec: &Spec) -> Result<Box<dyn Workload>> {
    let inputs = match &spec.work {
        CaseWork::Lattices { sizes } => return lattices::prepare(*sizes, &spec.method),
        CaseWork::Decode(work) => return decode::prepare(work, &spec.method),
        CaseWork::Recognition(work) => return recognition::prepare(*work, &spec.method),
        CaseWork::Train(work) => return train::prepare(work, &spec.method),
        CaseWork::Pruned(work) if matches!(spec.method, Method::Pruned(_) | Method::PrunedBaseline) => {
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
        Method::Panda { budget, skip, bf16 } => Box::new(SessionWorkload::new(inputs, budget, skip, bf16)?),
        Method::Baseline
        | Method::Pruned(_)
        | Method::PrunedBaseline
        | Method::Decode(_)
        | Method::BestPath
        | Method::Denominator
        | Method::Train { .. } => Box::new(Dense::new(inputs)?),
    })
}

/// Creates a workload of both passes, panda's or the baseline's.
pub fn prepare_pruned(work: &PrunedWork, method: &Method) -> Result<Box<dyn Workload>> {
    let inputs = LossInputs::synthetic(&work.loss)?;
    let simple = SimpleScores::new(&inputs, work.scores);
    Ok(match *method {
        Method::Pruned(budget) => Box::new(Pruned::new(*work, inputs, simple, budget)?),
        _ => Box::new(PrunedDense::new(*work, inputs, simple)?),
    })
}

/// Ends this process when its parent ends and closes standard input.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        eprintln!("error: the parent process has ended");
        std::process::exit(1);
    });
}
