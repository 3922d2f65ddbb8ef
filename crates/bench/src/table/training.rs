//! Columns of a suite that trains.
use super::{name, or_dash, share, significant, status};
use crate::floors::{Floors, Training};
use crate::row::Row;

/// The head.
pub const HEAD: [&str; 15] = [
    "case",
    "system",
    "step ms",
    "utt/s",
    "GFLOP/s",
    "sgemm",
    "encoder",
    "predictor",
    "loss",
    "backward",
    "optimiser",
    "peak MB",
    "resident",
    "floors",
    "status",
];

/// A line below it.
pub fn line(row: &Row, first: bool) -> [String; HEAD.len()] {
    let training = row.training.as_ref();
    let part = |value: fn(&Training) -> f64| or_dash(training.map(|training| significant(value(training))));
    let megabytes = |bytes: Option<u64>| or_dash(bytes.map(|bytes| format!("{:.0}", bytes as f64 / 1e6)));
    [
        name(row, first),
        row.system.clone(),
        or_dash(row.median_ms.map(significant)),
        part(|training| training.utterances_per_second),
        or_dash(row.gflops.map(|rate| format!("{rate:.0}"))),
        or_dash(row.sgemm_share.map(share)),
        part(|training| training.of.parts.encoder),
        part(|training| training.of.parts.predictor),
        part(|training| training.of.parts.loss),
        part(|training| training.of.parts.backward),
        part(|training| training.of.parts.optimiser),
        megabytes(row.peak_bytes),
        megabytes(training.and_then(|training| training.of.resident_bytes)),
        or_dash(training.map(|training| floors(&training.floors))),
        status(row),
    ]
}

/// Products, recurrent weights and optimiser, in milliseconds.
fn floors(Floors { products, recurrent, optimiser }: &Floors) -> String {
    let products = or_dash(products.map(significant));
    format!("{products} + {} + {}", significant(*recurrent), significant(*optimiser))
}

/// What the floors are.
pub fn note(rows: &[Row]) -> Option<String> {
    let Training { of, .. } = rows.iter().find_map(|row| row.training)?;
    Some(format!(
        "{} weights; parts in ms, those up to the loss forward only; floors in ms: products at sgemm's rate, recurrent weights read at \
         every frame ({:.0} GB/s), the optimiser's bytes ({:.0} GB/s)",
        of.parameters, of.cached, of.streamed
    ))
}
