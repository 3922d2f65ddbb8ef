//! Greedy search with the reference's two ways to stop.
use decoding::{GreedyOptions, GreedySearch, unpad};
use serde::Deserialize;

use super::check::Check;
use super::network::{self, NetworkSizes, refused};
use crate::error::Stop;

#[derive(Debug, Deserialize)]
struct Decode {
    form: Form,
    max_symbols_per_step: usize,
    max_symbols_per_utterance: Option<usize>,
    utterances: Vec<DecodedUtterance>,
}

/// When a search ends early.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Form {
    /// At the beginning of a frame, if more labels than the cap have been emitted.
    FrameStart,
    /// As soon as the cap is reached, without the label that reaches it.
    EveryStep,
}

#[derive(Debug, Deserialize)]
struct DecodedUtterance {
    tokens: Vec<usize>,
    frames: Vec<usize>,
    steps: usize,
}

pub fn run(check: &mut Check) -> Result<(), Stop> {
    let sizes: NetworkSizes = check.file.field("options")?;
    let decodes: Vec<Decode> = check.file.field("decodes")?;
    let model = network::loaded(check.file, &sizes)?;
    let (x, lengths) = network::features(check, &sizes)?;
    let (encoded, encoded_lengths) = model.encoder().forward(&x, &lengths, None)?;
    check.same("enc_lens", &encoded_lengths)?;
    let rows: Vec<f32> = encoded.flatten_all().and_then(|rows| rows.to_vec1()).map_err(refused)?;
    let width = model.encoder().width();
    let stored = check.input::<f32>("enc_out")?;
    let padded = stored.len() / (encoded_lengths.len() * width).max(1);
    for (b, &length) in encoded_lengths.iter().enumerate() {
        for (t, row) in rows[b * padded * width..][..length * width].chunks_exact(width).enumerate() {
            let expected = &stored[(b * padded + t) * width..][..width];
            let close = row.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 2e-6);
            check.equal(&format!("enc_out of utterance {b}, frame {t}, within 2e-6"), &close, &true);
        }
    }
    let (frames, lengths) = model.encode(&x, &lengths)?;
    let frames: Vec<f32> = frames.flatten_all().and_then(|rows| rows.to_vec1()).map_err(refused)?;
    let decoder = model.decoder()?;
    for (number, decode) in decodes.iter().enumerate() {
        let Decode { form, max_symbols_per_step: most, max_symbols_per_utterance: cap, utterances } = decode;
        let max_labels = cap.filter(|_| *form == Form::EveryStep).map(|cap| cap - 1);
        let options = GreedyOptions { max_symbols: Some(*most), max_labels, ..GreedyOptions::default() };
        let refused = |error: decoding::Error| Stop::Refused(error.to_string());
        let mut search = GreedySearch::new(decoder.clone(), options).map_err(refused)?;
        let cut = unpad(&frames, model.width(), &lengths).map_err(refused)?;
        let found = search.decode(&cut).map_err(refused)?;
        for ((b, found), expected) in found.iter().enumerate().zip(utterances) {
            let mut at: Vec<(usize, usize)> =
                found.labels.iter().map(|label| (label.label as usize, label.frame)).collect();
            let mut end = lengths[b];
            if let Some(cap) = cap.filter(|_| *form == Form::FrameStart) {
                // The first frame that more labels than the cap came before.
                let beyond = |&frame: &usize| at.iter().filter(|(_, t)| *t < frame).count() > cap;
                end = (0..end).find(beyond).unwrap_or(end);
                at.retain(|(_, frame)| *frame < end);
            }
            let what = |of: &str| format!("decode {number}, utterance {b}: {of}");
            let (tokens, frames): (Vec<usize>, Vec<usize>) = at.into_iter().unzip();
            let steps = steps(&frames, if found.is_capped { found.end } else { end }, *most, found.is_capped);
            check.equal(&what("tokens"), &tokens, &expected.tokens);
            check.equal(&what("frames"), &frames, &expected.frames);
            check.equal(&what("joint evaluations"), &steps, &expected.steps);
        }
    }
    Ok(())
}

/// Sites that were looked at before frame `end`: one a label, and one a frame that a blank left; and that of the label that met the
/// cap at `end`.
fn steps(frames: &[usize], end: usize, most: usize, capped: bool) -> usize {
    let left_by_blank = |&frame: &usize| frames.iter().filter(|&&t| t == frame).count() < most;
    frames.len() + (0..end).filter(left_by_blank).count() + usize::from(capped)
}
