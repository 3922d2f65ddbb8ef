//! Child process of the benchmark: measures one system on one case.
//!
//! `process_launcher` starts it; its only output is one line of JSON.
use std::time::{Duration, Instant};

use super::case::{CaseSpec, CaseWork, Method, PrunedWork};
use super::error::{Error, Result};
use super::gradients;
use super::machine::MemoryMeter;
use super::rates::Sgemm;
use super::simple_joiner::SimpleScores;
use super::workload::{CaseMeasurement, Workload, median};
use super::{
    decode, dense_baseline::DenseWorkload, encode, inputs::LossInputs, lattice_recursion,
    loss::SessionWorkload, pruned_baseline::PrunedDenseWorkload, pruned_loss::PrunedWorkload,
    recognition_lattices, train,
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
pub(crate) fn run_case(spec: &str) -> Result<()> {
    let spec =
        serde_json::from_str(spec).map_err(|source| Error::Json { what: "description of a case", source })?;
    end_with_parent();
    let measurement = measure_case(&spec)?;
    let line = serde_json::to_string(&measurement)
        .map_err(|source| Error::Json { what: "answer of a case", source })?;
    println!("{line}");
    Ok(())
}

/// Measures memory in the first steps, then times the following ones.
fn measure_case(spec: &CaseSpec) -> Result<CaseMeasurement> {
    let mut workload = prepare_workload(spec)?;
    let meter = MemoryMeter::start();
    let start = Instant::now();
    let gradients = workload.step()?;
    let first_time = start.elapsed();
    for _ in 1..workload.warm_up() {
        workload.step()?;
    }
    let peak_bytes = meter.peak().map(|bytes| bytes.saturating_sub(workload.result_bytes()));
    // The parent compares the gradients of the first step.
    let mut skip = None;
    match &spec.gradients {
        Some(folder) => {
            gradients::write_gradients(folder, gradients)?;
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
    if first_time >= LONG_STEP && workload.warm_up() == 1 {
        times.push(first_time);
        (1..LONG_STEP_PRODUCTS).try_for_each(|_| product())?;
    }
    // Time the steps, in alternation with reference products.
    let seconds = Duration::from_secs_f64(spec.seconds);
    while times.iter().sum::<Duration>() < seconds {
        let mut round_time = Duration::ZERO;
        while round_time < ROUND_TIME.min(seconds) {
            let start = Instant::now();
            let gradients = workload.step()?;
            let time = start.elapsed();
            drop(gradients);
            times.push(time);
            round_time += time;
        }
        product()?;
    }
    let training = workload.training_report()?;
    Ok(CaseMeasurement {
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

/// Creates the workload of a case and a method.
fn prepare_workload(spec: &CaseSpec) -> Result<Box<dyn Workload>> {
    let inputs = match &spec.work {
        CaseWork::Lattices { sizes } => return lattice_recursion::prepare(*sizes, &spec.method),
        CaseWork::Decode(work) => return decode::prepare(work, &spec.method),
        CaseWork::Recognition(work) => return recognition_lattices::prepare(*work, &spec.method),
        CaseWork::Train(work) => return train::prepare(work, &spec.method),
        CaseWork::Encode(work) => return encode::prepare(work, &spec.method),
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
        | Method::Encode { .. }
        | Method::Train { .. } => Box::new(DenseWorkload::new(inputs)?),
    })
}

/// Creates a workload of both passes, panda's or the baseline's.
pub(crate) fn prepare_pruned(work: &PrunedWork, method: &Method) -> Result<Box<dyn Workload>> {
    let inputs = LossInputs::synthetic(&work.loss)?;
    let simple = SimpleScores::new(&inputs, work.scores);
    Ok(match *method {
        Method::Pruned(budget) => Box::new(PrunedWorkload::new(*work, inputs, simple, budget)?),
        _ => Box::new(PrunedDenseWorkload::new(*work, inputs, simple)?),
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
