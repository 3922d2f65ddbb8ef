//! A Conformer with chunks, piece by piece.
use std::collections::BTreeMap;

use decoding::AffineLayer;

use super::block::ConformerLayer;
use super::fixed::{FixedBlock, Memory};
use super::{ChunkedAttention, Front};
use crate::Result;
use crate::encoders::subsampling_stream::SubsamplingStream;
use crate::encoders::{EncoderChunk, EncoderState, EncoderStream, stream};

/// [`super::ConformerEncoder`] with its weights packed and its states outside.
///
/// A chunk is encoded when it is complete, or at the end of the utterance.
///
/// | state | size |
/// |---|---|
/// | `layers.N.keys`: keys and values of the chunks that the next one sees, without their rotation | `[m · chunk, 2W]`, m up to `left` |
/// | `layers.N.tail`: rows in front of the depthwise convolution | `[up to k - 1, W]` |
/// | `waiting`: rows of the chunk that is not complete | fewer than the chunk, `[W]` each |
/// | those of the subsampling | |
pub(super) struct ConformerStream {
    front: FixedFront,
    layers: Vec<FixedBlock>,
    width: usize,
    chunk: usize,
    /// Names of keys and tail of each layer.
    names: Vec<[String; 2]>,
    /// How many values each part of a state may have.
    sizes: BTreeMap<String, Vec<usize>>,
}

enum FixedFront {
    Linear(AffineLayer),
    Subsampling(Box<SubsamplingStream>),
}

const WAITING: &str = "waiting";

impl ConformerStream {
    pub fn new(
        front: &Front,
        layers: &[ConformerLayer],
        width: usize,
        chunks: &ChunkedAttention,
    ) -> Result<Self> {
        let &ChunkedAttention { chunk, left } = chunks;
        let names: Vec<[String; 2]> =
            (0..layers.len()).map(|at| ["keys", "tail"].map(|part| format!("layers.{at}.{part}"))).collect();
        let mut sizes = BTreeMap::new();
        for ([keys, tail], layer) in names.iter().zip(layers) {
            sizes.insert(keys.clone(), (0..=left).map(|m| 2 * m * chunk * width).collect());
            sizes.insert(tail.clone(), (0..=layer.convolution.before).map(|rows| rows * width).collect());
        }
        sizes.insert(WAITING.into(), (0..chunk).map(|rows| rows * width).collect());
        let front = match front {
            Front::Linear(front) => FixedFront::Linear(front.packed("pre_encode.out")?),
            Front::Subsampling(front) => FixedFront::Subsampling(Box::new(front.stream()?)),
        };
        if let FixedFront::Subsampling(front) = &front {
            sizes.extend(front.sizes());
        }
        let layers = layers.iter().map(FixedBlock::new).collect::<Result<_>>()?;
        Ok(ConformerStream { front, layers, width, chunk, names, sizes })
    }
}

impl EncoderStream for ConformerStream {
    fn input(&self) -> usize {
        match &self.front {
            FixedFront::Linear(front) => front.inputs(),
            FixedFront::Subsampling(front) => front.input(),
        }
    }

    fn width(&self) -> usize {
        self.width
    }

    fn start(&self) -> EncoderState {
        EncoderState::empty(&self.sizes)
    }

    fn check(&self, state: &EncoderState) -> Result<()> {
        state.check(&self.sizes)
    }

    fn step(&self, pieces: &mut [EncoderChunk]) -> Result<Vec<Vec<f32>>> {
        stream::check(self, pieces)?;
        let mut rows = match &self.front {
            FixedFront::Linear(front) => pieces.iter().map(|piece| front.rows(piece.rows)).collect(),
            FixedFront::Subsampling(front) => front.step(pieces),
        };
        for (piece, rows) in pieces.iter_mut().zip(&mut rows) {
            let Some(waiting) = piece.state.values.get_mut(WAITING) else { continue };
            waiting.append(rows);
            let ready = if piece.last {
                waiting.len()
            } else {
                waiting.len() / self.width / self.chunk * self.chunk * self.width
            };
            *rows = waiting.drain(..ready).collect();
        }
        let lengths: Vec<usize> = rows.iter().map(|rows| rows.len() / self.width).collect();
        let mut x = rows.concat();
        for (layer, names) in self.layers.iter().zip(&self.names) {
            let mut taken: Vec<[Vec<f32>; 2]> = pieces
                .iter_mut()
                .map(|piece| {
                    names
                        .each_ref()
                        .map(|name| piece.state.values.get_mut(name).map(std::mem::take).unwrap_or_default())
                })
                .collect();
            let mut memories: Vec<Memory> =
                taken.iter_mut().map(|[keys, tail]| Memory { keys, tail }).collect();
            x = layer.step(x, &lengths, &mut memories);
            for (piece, values) in pieces.iter_mut().zip(taken) {
                piece.state.values.extend(names.iter().cloned().zip(values));
            }
        }
        for piece in pieces.iter_mut().filter(|piece| piece.last) {
            *piece.state = self.start();
        }
        let mut rest = &x[..];
        let mut next = |length: &usize| {
            let (rows, after) = rest.split_at(length * self.width);
            rest = after;
            rows.to_vec()
        };
        Ok(lengths.iter().map(&mut next).collect())
    }
}
