//! The recipe keys of the Conformer encoder (`[encoder]`), and their checks.
use std::fmt;
use std::sync::Arc;

use candle_nn::VarBuilder;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ConformerEncoder;
use super::packed::PackedConformer;
use crate::Result;
use crate::config::adapter::AdapterConfig;
use crate::config::values::{MAX_SMALL_COUNT, MAX_WIDTH, check_count, check_dropout, ensure};
use crate::encoders::{BuildEncoder, Encoder, InferenceEncoder, NumberFormat, ReadTensor, SubsamplingConfig};
use layers::attention::ChunkSizes;

/// Largest number of rows of a chunk, and of its left context.
const MAX_ATTENTION_ROWS: usize = 10_000;

/// `[encoder]` with `kind = "conformer"`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConformerEncoderConfig {
    /// Number of layers.
    pub layers: usize,
    /// Width W of the rows.
    pub width: usize,
    /// Number of attention heads; each has an even width.
    pub heads: usize,
    /// Inner width F of the feed-forward modules; often 4 W.
    pub feed_forward: usize,
    /// Window of the depthwise convolution in frames, k.
    ///
    /// An odd number centered at the current frame or, with chunks, the current and earlier frames.
    pub kernel: usize,
    /// Dropout rate in and after each module.
    #[serde(default)]
    pub dropout: f32,
    /// The range of attention.
    #[serde(default)]
    pub attention: AttentionKind,
    /// Optional convolutions in front.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsampling: Option<SubsamplingConfig>,
}

/// The range of attention: `"full"` or `{ chunk = n, left = m }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AttentionKind {
    /// The whole utterance.
    #[default]
    Full,
    /// The current chunk and some before it.
    Chunked(ChunkedAttention),
}

/// `encoder.attention` with chunks, in encoder rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkedAttention {
    /// Rows of a chunk.
    pub chunk: usize,
    /// Chunks before the current one in attention.
    pub left: usize,
}

impl AttentionKind {
    pub(super) fn chunks(&self) -> Option<ChunkSizes> {
        match *self {
            AttentionKind::Full => None,
            AttentionKind::Chunked(ChunkedAttention { chunk, left }) => {
                Some(ChunkSizes { chunk_rows: chunk, left_chunks: left })
            }
        }
    }
}

impl ConformerEncoderConfig {
    /// Returns the taps of depthwise convolutions that apply to earlier frames.
    pub(super) fn past_taps(&self) -> usize {
        if self.attention.chunks().is_some() { self.kernel - 1 } else { self.kernel / 2 }
    }
}

impl Serialize for AttentionKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            AttentionKind::Full => serializer.serialize_str("full"),
            AttentionKind::Chunked(chunks) => chunks.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for AttentionKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct AttentionVisitor;

        impl<'de> Visitor<'de> for AttentionVisitor {
            type Value = AttentionKind;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("\"full\" or { chunk = n, left = m } for attention")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<AttentionKind, E> {
                match text {
                    "full" => Ok(AttentionKind::Full),
                    other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
                }
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> std::result::Result<AttentionKind, M::Error> {
                let chunks = ChunkedAttention::deserialize(MapAccessDeserializer::new(map));
                chunks.map(AttentionKind::Chunked).map_err(M::Error::custom)
            }
        }

        deserializer.deserialize_any(AttentionVisitor)
    }
}

impl BuildEncoder for ConformerEncoderConfig {
    fn check(&self) -> Result<()> {
        check_count("encoder.layers", self.layers, MAX_SMALL_COUNT)?;
        check_count("encoder.width", self.width, MAX_WIDTH)?;
        check_count("encoder.heads", self.heads, MAX_WIDTH)?;
        let expected = format!("a multiple of 2 · heads = {}", 2 * self.heads);
        ensure("encoder.width", &expected, self.width.is_multiple_of(2 * self.heads), self.width)?;
        check_count("encoder.feed_forward", self.feed_forward, MAX_WIDTH)?;
        check_count("encoder.kernel", self.kernel, MAX_SMALL_COUNT)?;
        check_dropout("encoder.dropout", self.dropout)?;
        match self.attention {
            AttentionKind::Full => {
                let is_odd = self.kernel % 2 == 1;
                ensure("encoder.kernel", "an odd number without chunks", is_odd, self.kernel)?;
            }
            AttentionKind::Chunked(ChunkedAttention { chunk, left }) => {
                check_count("encoder.attention.chunk", chunk, MAX_ATTENTION_ROWS)?;
                let rows = left.saturating_mul(chunk);
                let expected = format!("at most {MAX_ATTENTION_ROWS} rows in {left} chunks of {chunk}");
                ensure("encoder.attention.left", &expected, rows <= MAX_ATTENTION_ROWS, rows)?;
            }
        }
        self.subsampling.as_ref().map_or(Ok(()), SubsamplingConfig::check)
    }

    fn reduction(&self) -> usize {
        self.subsampling.as_ref().map_or(1, |subsampling| subsampling.factor)
    }

    fn subsamples(&self) -> bool {
        self.subsampling.is_some()
    }

    fn dropout(&self) -> f32 {
        self.dropout
    }

    fn recomputes(&self) -> bool {
        true
    }

    fn build(&self, input_width: usize, vb: &VarBuilder) -> Result<Arc<dyn Encoder>> {
        Ok(Arc::new(ConformerEncoder::new(self, input_width, vb)?))
    }

    fn build_with_adapter(
        &self,
        input_width: usize,
        adapter: &AdapterConfig,
        vb: &VarBuilder,
    ) -> Result<Arc<dyn Encoder>> {
        Ok(Arc::new(ConformerEncoder::with_adapter(self, input_width, Some(adapter), vb)?))
    }

    /// Packs in `f32` and in 8-bit blocks.
    fn pack(
        &self,
        input_width: usize,
        format: NumberFormat,
        read: &mut ReadTensor,
    ) -> Result<Option<Arc<dyn InferenceEncoder>>> {
        match format {
            NumberFormat::Bf16 => Ok(None),
            _ => Ok(Some(Arc::new(PackedConformer::read(self, input_width, format, read)?))),
        }
    }
}
