//! Sizes of the made-up model.
/// E, P and H, and the labels V.
pub const ENCODER: usize = 512;
pub const PREDICTOR: usize = 640;
pub const HIDDEN: usize = 640;
pub const LABELS: usize = 1024;
