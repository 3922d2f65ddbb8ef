//! Columns of a suite that decodes.
use super::{name, or_dash, share, significant, status};
use crate::row::Row;

/// The head.
pub const HEAD: [&str; 12] = [
    "case",
    "system",
    "utt/s",
    "RTFx",
    "x frame-looping",
    "x torch",
    "labels/frame",
    "time ms",
    "peak MB",
    "GFLOP/s",
    "sgemm",
    "status",
];

/// A line below it.
pub fn line(row: &Row, first: bool) -> [String; HEAD.len()] {
    let speed = row.speed.as_ref();
    let times = |ratio: Option<f64>| or_dash(ratio.map(|ratio| format!("{ratio:.2}")));
    [
        name(row, first),
        row.system.clone(),
        or_dash(speed.map(|speed| significant(speed.utterances_per_second))),
        or_dash(speed.map(|speed| format!("{:.0}", speed.rtfx))),
        times(speed.and_then(|speed| speed.over_frame_looping)),
        times(speed.and_then(|speed| speed.over_torch)),
        or_dash(speed.map(|speed| format!("{:.3}", speed.labels_per_frame))),
        or_dash(row.median_ms.map(significant)),
        or_dash(row.peak_bytes.map(|bytes| format!("{:.1}", bytes as f64 / 1e6))),
        or_dash(row.gflops.map(|rate| format!("{rate:.0}"))),
        or_dash(row.sgemm_share.map(share)),
        status(row),
    ]
}

/// What the ratios are to.
pub fn note(rows: &[Row]) -> Option<String> {
    let products: Vec<f64> = rows.iter().filter_map(|row| row.speed?.sgemm).collect();
    let sgemm = crate::median::median(&products)?;
    Some(format!(
        "sgemm {sgemm:.0} GFLOP/s; x torch: the best PyTorch decoder of this column on a machine of {:.0} GFLOP/s, scaled",
        crate::speed::TORCH_SGEMM
    ))
}
