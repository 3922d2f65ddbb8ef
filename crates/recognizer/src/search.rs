//! `Searcher`: runs a search over encoder rows, greedy, beam, CTC or lattice.
//!
//! It encodes a batch, runs the search that a [`SearchConfig`] selects and, for the silence filter,
//! a greedy search with the model only.
use std::sync::Arc;

use candle_core::Tensor;
use decoding::{
    BeamOptions, BeamSearch, ClassMask, CtcBeamOptions, CtcGreedySearch, CtcPrefixScorer, DecodedToken,
    Fusion, GreedySearch, Hypothesis, NBest, RankedHypothesis, ctc_beam, unpad,
};
use rayon::prelude::*;
use speech::Features;

use crate::search_config::{LatticeSearch, SearchConfig};
use crate::unfused::{UnfusedResult, UnfusedSearch};
use crate::{Error, Result};
use model::Model;
use model::tensors::{counts_tensor, to_vec, with_slice};

/// The search result of an utterance.
#[derive(Debug, Default)]
pub(crate) struct SearchResult {
    /// The best labels.
    pub best: Hypothesis,
    /// The n-best labels, if several were requested.
    pub ranked: Vec<RankedHypothesis>,
    /// The result of the model only, if it may differ.
    ///
    /// No language models, phrases and penalties take part, and no CTC head except in a CTC search.
    pub unfused: Option<UnfusedResult>,
}

impl From<Hypothesis> for SearchResult {
    fn from(best: Hypothesis) -> Self {
        SearchResult { best, ..SearchResult::default() }
    }
}

impl SearchResult {
    /// Converts the best `nbest` hypotheses of a beam.
    fn from_nbest(beam_result: NBest, nbest: usize) -> Self {
        let mut ranked = beam_result.hypotheses;
        let labels = ranked.first().map_or_else(Vec::new, |best| best.labels.clone());
        ranked.truncate(if nbest > 1 { nbest } else { 0 });
        let best = Hypothesis { labels: with_posterior_confidence(labels), ..Hypothesis::default() };
        SearchResult { best, ranked, unfused: None }
    }
}

/// Encodes and decodes batches with one kind of search and reused buffers.
pub(crate) struct Searcher {
    kind: SearchKind,
    /// The allowed classes of the CTC head; `None` allows all.
    ctc_mask: Option<ClassMask>,
    /// Greedy search for the silence filter, if it needs one.
    unfused: Option<UnfusedSearch>,
}

enum SearchKind {
    Greedy(Box<GreedySearch>),
    Beam {
        search: Box<BeamSearch>,
        /// Weight of the CTC head.
        ctc_weight: Option<f32>,
        /// Number of results.
        nbest: usize,
    },
    CtcGreedy(CtcGreedySearch),
    CtcBeam(CtcBeamOptions),
    Lattice(LatticeSearch),
}

impl Searcher {
    /// Creates a search in a model; `decoder` is that of a transducer.
    ///
    /// `ctc_mask` restricts the classes of the CTC head.
    ///
    /// # Errors
    /// [`decoding::Error`] for an option out of range; [`model::Error::Shape`] for a search that
    /// needs a CTC head, a joint network or a lattice that the model does not have.
    pub(crate) fn new(
        model: &Model,
        decoder: Option<&decoding::DecodingModel>,
        ctc_mask: Option<ClassMask>,
        search: &SearchConfig,
    ) -> Result<Self> {
        let decoder = || decoder.cloned().map_or_else(|| model.decoder(), Ok);
        if matches!(search, SearchConfig::Ctc(_) | SearchConfig::BeamWithCtc { .. }) && !model.has_ctc_head()
        {
            return Err(no_ctc_head());
        }
        let uses_joint = !matches!(search, SearchConfig::Ctc(_) | SearchConfig::Lattice(_));
        let unfused = match uses_joint && search.needs_unfused_search() {
            true => Some(UnfusedSearch::new(decoder()?)?),
            false => None,
        };
        let kind = match search {
            SearchConfig::Greedy(options) => {
                SearchKind::Greedy(Box::new(GreedySearch::new(decoder()?, options.clone())?))
            }
            SearchConfig::Ctc(None) => SearchKind::CtcGreedy(new_ctc_greedy_search(model, ctc_mask.clone())?),
            SearchConfig::Ctc(Some(options)) => {
                SearchKind::CtcBeam(CtcBeamOptions { blank: model.blank(), ..options.clone() })
            }
            SearchConfig::Beam(beam) => SearchKind::new_beam(decoder()?, beam, None)?,
            SearchConfig::BeamWithCtc { beam, weight } => {
                if !(0.0..=1e3).contains(weight) {
                    let (expected, found) = ("a number from 0 to 1000", f64::from(*weight));
                    return Err(decoding::Error::Option { option: "ctc weight", expected, found }.into());
                }
                SearchKind::new_beam(decoder()?, beam, Some(*weight))?
            }
            SearchConfig::Lattice(LatticeSearch::Sum { beam: 0 }) => {
                return Err(Error::shape("search.beam", "at least 1 string", "0"));
            }
            SearchConfig::Lattice(search) if model.lattice().is_some() => SearchKind::Lattice(*search),
            SearchConfig::Lattice(_) => return Err(no_lattice(model)),
        };
        Ok(Searcher { kind, ctc_mask, unfused })
    }

    /// Encodes and decodes a batch of utterances.
    ///
    /// With `filters_silence`, results have the input of the silence filter
    /// ([`SearchResult::unfused`]).
    pub(crate) fn recognize(
        &mut self,
        model: &Model,
        features: &[&Features],
        filters_silence: bool,
    ) -> Result<Vec<SearchResult>> {
        // 1. Encoder rows of the batch.
        let (rows, lengths) = model::collate(features, &model.config().input.rows)?;
        let (encoded, lengths) = model.encoder().forward(&rows, &lengths, None)?;
        // 2. The search; those over the joint network project the encoder rows first.
        let Searcher { kind, ctc_mask, unfused } = self;
        let ctc_mask = ctc_mask.as_ref();
        let mut unfused = unfused.as_mut().filter(|_| filters_silence);
        Ok(match kind {
            SearchKind::Greedy(search) => {
                let frames = model.project_frames(encoded)?;
                with_utterance_rows(&frames, &lengths, |rows, _| {
                    add_unfused_results(
                        search.decode(rows)?.iter().map(SearchResult::from).collect(),
                        unfused.as_deref_mut(),
                        rows,
                    )
                })?
            }
            SearchKind::Beam { search, ctc_weight, nbest } => {
                // The prefix scores of the CTC head are a fusion of each utterance.
                let fusions = match ctc_weight {
                    Some(weight) => {
                        with_ctc_log_probs(model, &encoded, &lengths, ctc_mask, |rows, classes| {
                            ctc_fusions(rows, classes, *weight)
                        })?
                    }
                    None => vec![Vec::new(); lengths.len()],
                };
                let frames = model.project_frames(encoded)?;
                with_utterance_rows(&frames, &lengths, |rows, _| {
                    let beam_results = search.decode_with(rows, fusions)?;
                    let results = beam_results
                        .iter()
                        .map(|result| SearchResult::from_nbest(result.clone(), *nbest))
                        .collect();
                    add_unfused_results(results, unfused, rows)
                })?
            }
            SearchKind::CtcGreedy(search) => {
                let logits = model.ctc_logits(&encoded)?.ok_or_else(no_ctc_head)?;
                let hypotheses = with_utterance_rows(&logits, &lengths, |rows, _| search.decode(rows))?;
                hypotheses.into_iter().map(|hypothesis| with_posteriors(hypothesis).into()).collect()
            }
            SearchKind::CtcBeam(options) => {
                with_ctc_log_probs(model, &encoded, &lengths, ctc_mask, |rows, classes| {
                    let beam_results = ctc_beam(rows, classes, options)?;
                    let unfused_results = UnfusedResult::from_ctc(rows, classes, ctc_blank(classes))?;
                    let results = beam_results
                        .into_iter()
                        .map(|result| SearchResult::from_nbest(result, options.nbest));
                    Ok(results
                        .zip(unfused_results)
                        .map(|(result, unfused)| SearchResult { unfused: Some(unfused), ..result })
                        .collect())
                })?
            }
            SearchKind::Lattice(search) => {
                // The lattice reads encoder rows without a projection.
                let gnat = model.lattice().ok_or_else(|| no_lattice(model))?;
                let num_frames = counts_tensor(&lengths)?;
                match *search {
                    LatticeSearch::BestPath => {
                        let paths = gnat.best_paths(&encoded, &num_frames)?;
                        paths
                            .iter()
                            .map(|path| lattice_hypothesis(&path.labels(), &path.frames()).into())
                            .collect()
                    }
                    LatticeSearch::Sum { beam } => {
                        let paths = gnat.best_strings(&encoded, &num_frames, beam)?;
                        paths
                            .iter()
                            .map(|path| lattice_hypothesis(&path.labels(), &path.frames()).into())
                            .collect()
                    }
                }
            }
        })
    }
}

impl SearchKind {
    fn new_beam(
        decoder: decoding::DecodingModel,
        options: &BeamOptions,
        ctc_weight: Option<f32>,
    ) -> Result<Self> {
        let search = Box::new(BeamSearch::new(decoder, options.clone())?);
        Ok(SearchKind::Beam { search, ctc_weight, nbest: options.nbest })
    }
}

/// Adds the result of the unfused search on the same rows.
fn add_unfused_results(
    mut results: Vec<SearchResult>,
    unfused: Option<&mut UnfusedSearch>,
    rows: &[&[f32]],
) -> decoding::Result<Vec<SearchResult>> {
    if let Some(search) = unfused {
        let unfused_results = search.decode(rows)?;
        results.iter_mut().zip(unfused_results).for_each(|(result, unfused)| result.unfused = Some(unfused));
    }
    Ok(results)
}

/// Calls `search` with the rows of each utterance and their width.
fn with_utterance_rows<T>(
    rows: &Tensor,
    lengths: &[usize],
    search: impl FnOnce(&[&[f32]], usize) -> decoding::Result<T>,
) -> Result<T> {
    let width = rows.dim(2)?;
    let search_result = with_slice(rows, |rows: &[f32]| {
        Ok(unpad(rows, width, lengths).and_then(|utterances| search(&utterances, width)))
    })?;
    Ok(search_result?)
}

/// Calls `search` with the log-probabilities of the CTC head for each utterance.
///
/// They are those among the classes that the mask allows.
fn with_ctc_log_probs<T>(
    model: &Model,
    encoded: &Tensor,
    lengths: &[usize],
    mask: Option<&ClassMask>,
    search: impl FnOnce(&[&[f32]], usize) -> decoding::Result<T>,
) -> Result<T> {
    let log_probs = model.ctc_log_probabilities(encoded)?.ok_or_else(no_ctc_head)?;
    let Some(mask) = mask else { return with_utterance_rows(&log_probs, lengths, search) };
    let mut values = to_vec(&log_probs)?;
    mask.renormalize(&mut values);
    let utterances = unpad(&values, mask.classes(), lengths)?;
    Ok(search(&utterances, mask.classes())?)
}

/// Returns the CTC prefix scores of each utterance for fusion.
///
/// `log_probs` are those of the CTC head, `[T_b, C]` each.
fn ctc_fusions(log_probs: &[&[f32]], classes: usize, weight: f32) -> decoding::Result<Vec<Vec<Fusion>>> {
    let utterance_fusions = |(utterance, rows): (usize, &&[f32])| {
        let scorer = CtcPrefixScorer::new(rows, classes, ctc_blank(classes))
            .map_err(|source| decoding::Error::Utterance { utterance, source: Box::new(source) })?;
        Ok(vec![Fusion { scorer: Arc::new(scorer), weight }])
    };
    log_probs.par_iter().enumerate().map(utterance_fusions).collect()
}

/// Creates the greedy search with the CTC head of a model.
///
/// # Errors
/// Those of [`CtcGreedySearch::new`] and [`CtcGreedySearch::with_mask`].
pub(crate) fn new_ctc_greedy_search(model: &Model, mask: Option<ClassMask>) -> Result<CtcGreedySearch> {
    // The head has no big blanks.
    let search = CtcGreedySearch::new(model.blank() as usize + 1, model.blank())?;
    Ok(match mask {
        Some(mask) => search.with_mask(mask)?,
        None => search,
    })
}

/// Returns the blank of the CTC head: its last class, as in the model.
fn ctc_blank(classes: usize) -> u32 {
    classes as u32 - 1
}

fn no_ctc_head() -> Error {
    let expected = "a model with a CTC head (loss.kind = \"ctc\" or training.ctc_weight) for a CTC search";
    Error::shape("search", expected, "one without")
}

fn no_lattice(model: &Model) -> Error {
    let expected = "a model with loss.kind = \"gnat\" for a search in a lattice";
    Error::shape("search", expected, if model.is_ctc() { "a CTC model" } else { "a transducer" })
}

/// Sets the confidence of labels to their posterior.
///
/// For results without the distribution at the label's frame.
pub(crate) fn with_posterior_confidence(mut labels: Vec<DecodedToken>) -> Vec<DecodedToken> {
    labels.iter_mut().for_each(|label| label.confidence = label.log_prob.exp());
    labels
}

/// [`with_posterior_confidence`] for the labels of a hypothesis.
fn with_posteriors(hypothesis: Hypothesis) -> Hypothesis {
    Hypothesis { labels: with_posterior_confidence(hypothesis.labels), ..hypothesis }
}

/// Converts a lattice path: its labels begin at 1, those of the tokenizer at 0.
///
/// A lattice has sums over paths, but no confidence of single labels: all have confidence 1.
fn lattice_hypothesis(labels: &[u32], frames: &[usize]) -> Hypothesis {
    let decoded_token = |(&label, &frame): (&u32, &usize)| DecodedToken {
        label: label - 1,
        frame,
        log_prob: 0.0,
        confidence: 1.0,
        ..DecodedToken::default()
    };
    Hypothesis { labels: labels.iter().zip(frames).map(decoded_token).collect(), ..Hypothesis::default() }
}
