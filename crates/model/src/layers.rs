//! Layers of encoders and predictors, as candle operations with hand-written gradients.
pub(crate) mod activations;
pub(crate) mod attention;
pub(crate) mod batch_norm;
pub(crate) mod convolution;
pub(crate) mod depthwise;
pub(crate) mod depthwise_2d;
pub(crate) mod feed_forward;
pub(crate) mod footprint;
pub(crate) mod layer_norm;
pub(crate) mod linear;
pub(crate) mod low_rank;
pub(crate) mod lstm;
pub(crate) mod operation;
pub(crate) mod ragged;
pub(crate) mod recompute;
pub(crate) mod relative_attention;
