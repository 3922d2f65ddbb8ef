//! LSTM layers of one direction, piece by piece.
use std::collections::BTreeMap;

use super::subsampling_stream::SubsamplingStream;
use super::{EncoderChunk, EncoderState, EncoderStream, TimeReduction, stream};
use crate::Result;
use crate::layers::lstm::{LstmState, StreamingLstm};

/// [`super::LstmEncoder`] with its weights packed and its states outside.
///
/// | state | size |
/// |---|---|
/// | `layers.N.h`, `layers.N.c` | `[H]` |
/// | `reduction.rows`: rows that wait for the others of their group | fewer than the factor |
/// | those of the subsampling | |
pub(super) struct LstmStream {
    subsampling: Option<SubsamplingStream>,
    layers: Vec<StreamingLstm>,
    reduction: Option<TimeReduction>,
    /// Names of h and c of each layer.
    names: Vec<[String; 2]>,
    /// How many values each part of a state may have.
    sizes: BTreeMap<String, Vec<usize>>,
}

const ROWS: &str = "reduction.rows";

impl LstmStream {
    /// There is at least one layer.
    pub fn new(
        subsampling: Option<SubsamplingStream>,
        layers: Vec<StreamingLstm>,
        reduction: Option<TimeReduction>,
    ) -> Self {
        let names: Vec<[String; 2]> =
            (0..layers.len()).map(|layer| ["h", "c"].map(|part| format!("layers.{layer}.{part}"))).collect();
        let parts = names.iter().zip(&layers);
        let mut sizes: BTreeMap<String, Vec<usize>> = parts
            .flat_map(|(names, layer)| names.iter().map(|name| (name.clone(), vec![layer.width()])))
            .collect();
        if let Some(reduction) = &reduction {
            let width = layers[reduction.after_layer].input() / reduction.factor;
            sizes.insert(ROWS.into(), (0..reduction.factor).map(|rows| rows * width).collect());
        }
        if let Some(subsampling) = &subsampling {
            sizes.extend(subsampling.sizes());
        }
        LstmStream { subsampling, layers, reduction, names, sizes }
    }

    fn reduction(&self, layer: usize) -> Option<&TimeReduction> {
        self.reduction.as_ref().filter(|reduction| reduction.after_layer == layer)
    }

    /// One layer of all pieces, from their rows to their rows.
    fn layer(&self, layer: usize, pieces: &mut [EncoderChunk], rows: Vec<Vec<f32>>) -> Result<Vec<Vec<f32>>> {
        let (lstm, names) = (&self.layers[layer], &self.names[layer]);
        let lengths: Vec<usize> = rows.iter().map(|rows| rows.len() / lstm.input()).collect();
        let values = |piece: &mut EncoderChunk, part: usize| {
            piece.state.values.get_mut(&names[part]).map(std::mem::take).unwrap_or_default()
        };
        let mut states: Vec<LstmState> =
            pieces.iter_mut().map(|piece| LstmState { h: values(piece, 0), c: values(piece, 1) }).collect();
        let out = lstm.forward(&rows.concat(), &lengths, &mut states);
        for (piece, LstmState { h, c }) in pieces.iter_mut().zip(states) {
            piece.state.values.extend([(names[0].clone(), h), (names[1].clone(), c)]);
        }
        let out = out?;
        let mut rest = &out[..];
        let mut next = |length: &usize| {
            let (rows, after) = rest.split_at(length * lstm.width());
            rest = after;
            rows.to_vec()
        };
        Ok(lengths.iter().map(&mut next).collect())
    }
}

impl EncoderStream for LstmStream {
    fn input(&self) -> usize {
        if let Some(subsampling) = &self.subsampling {
            return subsampling.input();
        }
        let width = self.layers[0].input();
        self.reduction(0).map_or(width, |reduction| width / reduction.factor)
    }

    fn width(&self) -> usize {
        self.layers.last().map_or(0, StreamingLstm::width)
    }

    fn start(&self) -> EncoderState {
        EncoderState::empty(&self.sizes)
    }

    fn check(&self, state: &EncoderState) -> Result<()> {
        state.check(&self.sizes)
    }

    fn step(&self, pieces: &mut [EncoderChunk]) -> Result<Vec<Vec<f32>>> {
        stream::check(self, pieces)?;
        let mut rows: Vec<Vec<f32>> = match &self.subsampling {
            Some(subsampling) => subsampling.step(pieces),
            None => pieces.iter().map(|piece| piece.rows.to_vec()).collect(),
        };
        for layer in 0..self.layers.len() {
            if self.reduction(layer).is_some() {
                let width = self.layers[layer].input();
                for (piece, rows) in pieces.iter_mut().zip(&mut rows) {
                    let Some(waiting) = piece.state.values.get_mut(ROWS) else { continue };
                    *rows = whole_groups(waiting, rows, width, piece.last);
                }
            }
            rows = self.layer(layer, pieces, rows)?;
        }
        for piece in pieces.iter_mut().filter(|piece| piece.last) {
            *piece.state = self.start();
        }
        Ok(rows)
    }
}

/// Rows of `width` values from those that waited and new ones, which are a part of a row each; the
/// rest waits, or, at the end, is filled up with zeros.
fn whole_groups(waiting: &mut Vec<f32>, rows: &[f32], width: usize, last: bool) -> Vec<f32> {
    let mut all = std::mem::take(waiting);
    all.extend_from_slice(rows);
    if last {
        all.resize(all.len().next_multiple_of(width), 0.0);
    }
    *waiting = all.split_off(all.len() / width * width);
    all
}
