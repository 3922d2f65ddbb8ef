//! Beam search over a transducer: finds the most probable label sequences.
//!
//! The probability of a sequence is the sum over its paths in the beam. A site is a frame of an
//! utterance and a label sequence, at which the joint network is evaluated. The searches of
//! [`BeamKind`] are the loops in `modified`, `alsd`, `malsd` and `maes`; their steps are the same:
//!
//! | module | step |
//! |---|---|
//! | this | collects the sites of the hypotheses |
//! | `top_k` | scores the sites, finds the best expansions of each |
//! | `utterance` | chooses candidates, merges those with equal labels |
//! | `rows` | computes predictor and scorer states of the new labels |
//! | `nbest` | ranks the hypotheses of the last frame |
//! | `stream` | stores the state between the chunks of an utterance |
mod alsd;
mod maes;
mod malsd;
mod modified;
mod nbest;
mod rows;
mod stream;
mod top_k;
mod utterance;

pub use nbest::{NBest, RankedHypothesis};
pub use stream::BeamStream;

use rows::HypothesisRows;
use top_k::TopK;
use utterance::{BeamUtterance, NO_ROW};

use crate::greedy::frame_count;
use crate::{DecodedToken, DecodingModel, Error, Fusion, Result, SiteIndex, TokenTable};

/// Options of beam search.
///
/// Fusion scores are added to a label's log-probability before the best candidates are chosen
/// ("late pruning"); in k2's recipes they are added afterward, so that a bonus cannot save a
/// label. Blanks keep the log-probability of the joint.
#[derive(Debug, Clone)]
pub struct BeamOptions {
    /// Algorithm.
    pub kind: BeamKind,
    /// Beam width: hypotheses per utterance, at least 1.
    pub width: usize,
    /// Most label sequences of a result, at least 1.
    ///
    /// A result has fewer if the beam has fewer different sequences.
    pub nbest: usize,
    /// Whether to rank results by `log p / (labels + context)` instead of `log p`.
    ///
    /// `log p` favors short sequences. `context` is that of the predictor
    /// ([`Predictor::context`](crate::Predictor::context)), 1 for ALSD and mALSD.
    pub normalize_by_length: bool,
    /// Penalty subtracted from the score of every blank before the softmax.
    ///
    /// Values above 0 reduce deletions.
    pub blank_penalty: f32,
    /// Temperature of the softmax over classes, from 0.001 to 1000; durations ignore it.
    pub temperature: f32,
    /// Language models and phrase lists that all utterances share.
    pub fusion: Vec<Fusion>,
    /// Weight of the internal language model, subtracted from the scores of labels.
    pub internal_lm: f32,
    /// Whether to add final scores: `</s>` of a language model, the refund of an open phrase.
    pub end_scores: bool,
}

/// Algorithm of a beam search.
///
/// | search | synchronous in | labels per frame | TDT | big blanks | modified topology | streams |
/// |---|---|---|---|---|---|---|
/// | [`Modified`](Self::Modified) | frames | at most one | no | yes | yes | yes |
/// | [`Alsd`](Self::Alsd) | steps | any number | no | no | no | no |
/// | [`Malsd`](Self::Malsd) | steps | at most `max_symbols` | yes | yes | yes | no |
/// | [`Maes`](Self::Maes) | frames | at most `expansions` | no | no | no | yes |
///
/// All of them support a factored blank (HAT), whose scores are log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BeamKind {
    /// Modified beam search of k2's recipes.
    ///
    /// At frame t:
    ///
    /// ```text
    /// candidates   h + blank: log p(h) + log p(blank | t, h)      h + y: log p(h) + log p(y | t, h) + fused
    /// keep         the best `width` of all, then merge those with equal labels: add probabilities
    /// ```
    /// A label advances by one frame, as in the modified topology. A big blank advances by its
    /// frames; until then its hypothesis competes unchanged.
    Modified,
    /// Alignment-length-synchronous decoding (Saon et al., ICASSP 2020).
    ///
    /// All hypotheses have the same number i of steps, each a label or a blank, so that a
    /// hypothesis with u labels is at frame `i - u`. A blank at the last frame ends a hypothesis,
    /// which leaves the beam.
    Alsd {
        /// Most labels of an utterance; none: twice the number of frames.
        max_labels: Option<usize>,
    },
    /// Alignment-length-synchronous decoding for any topology (NeMo's batched form).
    ///
    /// Hypotheses advance independently; ended ones stay in the beam. Hypotheses with equal labels
    /// are summed only at the same frame with the same number of labels on it. With durations, a
    /// step is a pair of class and duration.
    Malsd {
        /// Most labels of a frame, at least 1; a hypothesis at the limit takes its best blank.
        max_symbols: usize,
    },
    /// Modified adaptive expansion search (Kim et al., arXiv 2010.14606).
    ///
    /// On every frame, hypotheses are expanded `expansions` times, each by the best `width + beta`
    /// classes that are at most `gamma` below its best class.
    Maes {
        /// Most labels of a frame, at least 1; 2 is usual.
        expansions: usize,
        /// Classes in addition to the width; 2 is usual.
        beta: usize,
        /// Largest distance of a log-probability from the best; 2.3 is usual, infinity keeps all.
        gamma: f64,
        /// Largest difference in length for prefix search; 1 is usual, 0 disables it.
        ///
        /// A label that leads from a hypothesis toward another one that is at most this much
        /// longer is expanded independently of `beta` and `gamma`.
        prefix: usize,
    },
}

impl BeamKind {
    fn name(self) -> &'static str {
        match self {
            BeamKind::Modified => "modified",
            BeamKind::Alsd { .. } => "ALSD",
            BeamKind::Malsd { .. } => "mALSD",
            BeamKind::Maes { .. } => "mAES",
        }
    }

    /// Returns whether the search decodes streams: all hypotheses are at the same frame.
    pub fn supports_streaming(self) -> bool {
        matches!(self, BeamKind::Modified | BeamKind::Maes { .. })
    }

    fn check(self, token_table: &TokenTable) -> Result<()> {
        let at_least_one = |option, value| match value {
            0 => Err(Error::Option { option, expected: "at least 1", found: 0.0 }),
            _ => Ok(()),
        };
        match self {
            BeamKind::Modified => {}
            BeamKind::Alsd { max_labels } => at_least_one("max_labels", max_labels.unwrap_or(1))?,
            BeamKind::Malsd { max_symbols } => at_least_one("max_symbols", max_symbols)?,
            BeamKind::Maes { expansions, gamma, .. } => {
                at_least_one("expansions", expansions)?;
                if gamma.is_nan() || gamma < 0.0 {
                    return Err(Error::Option { option: "gamma", expected: "at least 0", found: gamma });
                }
            }
        }
        let label = (0..token_table.classes() as u32).find(|&class| !token_table.is_blank(class));
        let labels_advance = label
            .is_some_and(|label| token_table.durations() == 0 && token_table.frame_advance(label, 0) > 0);
        let big_blanks = token_table.blanks().count() > 1;
        let unsupported = match self {
            BeamKind::Modified | BeamKind::Alsd { .. } | BeamKind::Maes { .. }
                if token_table.durations() > 0 =>
            {
                "durations"
            }
            BeamKind::Alsd { .. } | BeamKind::Maes { .. } if big_blanks => "big blanks",
            BeamKind::Alsd { .. } | BeamKind::Maes { .. } if labels_advance => {
                "labels that advance by a frame"
            }
            _ => return Ok(()),
        };
        Err(Error::Search { search: self.name(), found: unsupported })
    }
}

impl Default for BeamOptions {
    fn default() -> Self {
        BeamOptions {
            kind: BeamKind::Modified,
            width: 4,
            nbest: 1,
            normalize_by_length: true,
            blank_penalty: 0.0,
            temperature: 1.0,
            fusion: Vec::new(),
            internal_lm: 0.0,
            end_scores: true,
        }
    }
}

impl BeamOptions {
    fn check(&self, model: &DecodingModel) -> Result<()> {
        for (option, value) in [("width", self.width), ("nbest", self.nbest)] {
            if value == 0 {
                return Err(Error::Option { option, expected: "at least 1", found: 0.0 });
            }
        }
        if !(1e-3..=1e3).contains(&self.temperature) {
            let temperature = f64::from(self.temperature);
            let expected = "a number from 0.001 to 1000";
            return Err(Error::Option { option: "temperature", expected, found: temperature });
        }
        crate::greedy::check_weight("blank_penalty", self.blank_penalty)?;
        self.kind.check(model.token_table())?;
        crate::greedy::check_fusion(model, &self.fusion, self.internal_lm)
    }
}

/// Beam search over batches and, for frame-synchronous algorithms, streams.
///
/// One evaluation of the joint scores the hypotheses of all utterances, and one predictor step
/// advances all new labels. Results of an utterance do not depend on the batch. Ties go to the
/// better hypothesis of the previous step, then to the lower class.
#[derive(Debug)]
pub struct BeamSearch {
    model: DecodingModel,
    options: BeamOptions,
    results: Vec<NBest>,
    buffers: BeamBuffers,
    /// Streams of [`BeamSearch::decode`], whose memory later calls reuse.
    reusable_streams: Vec<BeamStream>,
}

/// Buffers that are reused from call to call.
#[derive(Debug, Default)]
struct BeamBuffers {
    utterances: Vec<BeamUtterance>,
    rows: HypothesisRows,
    /// Sites of the current step.
    sites: Vec<SiteIndex>,
    top_k: TopK,
}

/// Arguments of all searches.
#[derive(Clone, Copy)]
struct BeamTask<'a> {
    model: &'a DecodingModel,
    options: &'a BeamOptions,
    /// Frame rows of each utterance, a chunk or all of them.
    chunks: &'a [&'a [f32]],
}

impl BeamSearch {
    /// Creates a search over a model.
    ///
    /// # Errors
    /// [`Error::Option`] for an option outside its range; [`Error::Search`] if the algorithm does
    /// not support the model.
    pub fn new(model: DecodingModel, options: BeamOptions) -> Result<Self> {
        options.check(&model)?;
        Ok(Self {
            model,
            options,
            results: Vec::new(),
            buffers: BeamBuffers::default(),
            reusable_streams: Vec::new(),
        })
    }

    /// Decodes whole utterances.
    ///
    /// # Shapes
    /// `frames`: rows `[T_b, F]` of each of B utterances, T_b frames of width F; an empty one
    /// returns one hypothesis without labels. [`unpad`](crate::unpad) splits a padded batch.
    ///
    /// # Errors
    /// [`Error::Utterance`] with the error of one utterance: rows that are not whole, or scores of
    /// the joint or of a scorer that are NaN, +inf or all -inf.
    ///
    /// Cost per utterance: scores of at most `width` sites a frame (ALSD: a step; mAES: more), and
    /// a predictor step for each new label of a hypothesis. Memory `O(B width (C + H))`, reused,
    /// and the labels; C: classes; H: width of a label row.
    pub fn decode(&mut self, frames: &[&[f32]]) -> Result<&[NBest]> {
        self.decode_with(frames, vec![Vec::new(); frames.len()])
    }

    /// Decodes whole utterances, each with additional fusions.
    ///
    /// Examples are phrases that are likely in one utterance, and the scores of its CTC head
    /// ([`CtcPrefixScorer`](crate::CtcPrefixScorer)).
    ///
    /// # Errors
    /// Those of [`Self::decode`]; [`Error::Count`] unless `fusion` has one entry per utterance;
    /// [`Error::Utterance`] with [`Error::Option`] for an invalid weight.
    pub fn decode_with(&mut self, frames: &[&[f32]], fusion: Vec<Vec<Fusion>>) -> Result<&[NBest]> {
        if fusion.len() != frames.len() {
            let (expected, found) = (frames.len(), fusion.len());
            return Err(Error::Count { argument: "fusion", expected, found });
        }
        for (b, fusion) in fusion.iter().enumerate() {
            crate::greedy::check_weights(fusion).map_err(|error| error.in_utterance(b))?;
        }
        let mut streams = std::mem::take(&mut self.reusable_streams);
        while streams.len() < frames.len() {
            streams.push(BeamStream::new(&self.model, &self.options.fusion));
        }
        for (stream, fusion) in streams.iter_mut().zip(fusion) {
            stream.reset(&self.model, &self.options.fusion, fusion);
        }
        let batch: Vec<&BeamStream> = streams.iter().take(frames.len()).collect();
        let outcome = self.run(&batch, frames, self.options.end_scores);
        streams.iter_mut().for_each(|stream| stream.fusion.clear());
        self.buffers.utterances.iter_mut().for_each(|utterance| utterance.fusion.clear());
        self.reusable_streams = streams;
        outcome.map(|()| &self.results[..])
    }

    /// Creates a stream, an utterance that arrives in chunks.
    ///
    /// # Errors
    /// [`Error::Search`] if the algorithm does not [support](BeamKind::supports_streaming) streams.
    pub fn stream(&self) -> Result<BeamStream> {
        match self.options.kind.supports_streaming() {
            true => Ok(BeamStream::new(&self.model, &self.options.fusion)),
            false => Err(Error::Search { search: self.options.kind.name(), found: "streams" }),
        }
    }

    /// Decodes the next chunk of each stream and returns its hypotheses.
    ///
    /// They do not contain the labels that [`BeamStream::take_stable`] removed, nor final scores.
    /// After the last chunk they equal those of the whole utterance, for every segmentation and
    /// batch; chunks may be empty.
    ///
    /// # Errors
    /// Those of [`Self::decode`] and [`Self::stream`]; [`Error::Stream`] for a state of another
    /// model; [`Error::Count`] unless there is one chunk per stream. Streams are unchanged after an
    /// error.
    pub fn advance(&mut self, streams: &mut [&mut BeamStream], chunks: &[&[f32]]) -> Result<&[NBest]> {
        self.advance_streams(streams, chunks, false)?;
        for (stream, utterance) in streams.iter_mut().zip(&mut self.buffers.utterances) {
            stream.states.clear(self.model.start().0.shape());
            stream.label_rows.clear();
            stream.scorer_states.clear();
            let scorers_per_hyp = self.options.fusion.len() + stream.fusion.len();
            self.buffers.rows.save(
                utterance,
                scorers_per_hyp,
                &mut stream.states,
                &mut stream.label_rows,
                &mut stream.scorer_states,
            );
            stream.save(utterance);
        }
        Ok(&self.results)
    }

    /// Commits labels of the best hypothesis, removes and returns them.
    ///
    /// `labels` is their number, at most all. Hypotheses with a different prefix are
    /// dropped. Use it for words with a deadline and at pauses; [`BeamStream::take_stable`] removes
    /// the labels that all hypotheses share. Two hypotheses that differ only in an old label,
    /// outside the predictor's context, have the same continuations, and each of these takes two
    /// places in the beam until one hypothesis is committed.
    ///
    /// # Errors
    /// [`Error::Stream`] for a state of another model, which is then unchanged.
    pub fn commit(&self, stream: &mut BeamStream, labels: usize) -> Result<Vec<DecodedToken>> {
        stream.check(&self.model, self.options.fusion.len())?;
        let best = nbest::best_hypothesis(&stream.hyps, &stream.tree, &self.model, &self.options);
        Ok(best.map_or_else(Vec::new, |best| stream.commit(&best, labels)))
    }

    /// Returns the final hypotheses of streams, optionally with final scores.
    ///
    /// # Errors
    /// Those of [`Self::advance`].
    pub fn finish(&mut self, streams: &mut [&mut BeamStream]) -> Result<&[NBest]> {
        let no_chunks = vec![&[][..]; streams.len()];
        self.advance_streams(streams, &no_chunks, self.options.end_scores)?;
        Ok(&self.results)
    }

    /// Decodes a chunk of each stream, after a check of the streams.
    fn advance_streams(
        &mut self,
        streams: &mut [&mut BeamStream],
        chunks: &[&[f32]],
        add_end_scores: bool,
    ) -> Result<()> {
        self.stream()?;
        if streams.len() != chunks.len() {
            let (expected, found) = (streams.len(), chunks.len());
            return Err(Error::Count { argument: "chunks", expected, found });
        }
        let shared_fusions = self.options.fusion.len();
        for (b, stream) in streams.iter().enumerate() {
            stream.check(&self.model, shared_fusions).map_err(|error| error.in_utterance(b))?;
        }
        let streams: Vec<&BeamStream> = streams.iter().map(|stream| &**stream).collect();
        self.run(&streams, chunks, add_end_scores)
    }

    /// Decodes chunks inside the thread pool, which avoids thread switches per loop.
    fn run(&mut self, streams: &[&BeamStream], chunks: &[&[f32]], add_end_scores: bool) -> Result<()> {
        let Self { model, options, results, buffers, .. } = self;
        let mut frame_counts = Vec::with_capacity(chunks.len());
        for (b, chunk) in chunks.iter().enumerate() {
            frame_counts.push(frame_count(chunk, model).map_err(|error| error.in_utterance(b))?);
        }
        let task = BeamTask { model, options, chunks };
        kernels::run_in_pool(|| {
            buffers.load(task, streams, &frame_counts)?;
            match options.kind {
                BeamKind::Modified => buffers.run_modified(task),
                BeamKind::Alsd { max_labels } => buffers.run_alsd(task, max_labels),
                BeamKind::Malsd { max_symbols } => buffers.run_malsd(task, max_symbols),
                BeamKind::Maes { expansions, beta, gamma, prefix } => {
                    buffers.run_maes(task, &maes::MaesOptions { expansions, beta, gamma, prefix })
                }
            }
        })?;
        results.clear();
        // ALSD adds final scores when a hypothesis ends.
        let add_end_scores = add_end_scores && !matches!(options.kind, BeamKind::Alsd { .. });
        for utterance in &buffers.utterances {
            results.push(nbest::rank(utterance, &buffers.rows, model, options, add_end_scores)?);
        }
        Ok(())
    }
}

impl BeamBuffers {
    /// Loads the state of each stream; `frame_counts` are the frames of the chunks.
    fn load(&mut self, task: BeamTask, streams: &[&BeamStream], frame_counts: &[usize]) -> Result<()> {
        let Self { utterances, rows, .. } = self;
        utterances.resize_with(streams.len(), BeamUtterance::default);
        for (b, (utterance, (stream, &chunk_frames))) in
            utterances.iter_mut().zip(streams.iter().zip(frame_counts)).enumerate()
        {
            utterance.index = b;
            utterance.tree.clone_from(&stream.tree);
            utterance.hyps.clone_from(&stream.hyps);
            utterance.hyps.iter_mut().for_each(|hyp| hyp.row = NO_ROW);
            utterance.ended_hyps.clear();
            utterance.fusion.clone_from(&stream.fusion);
            utterance.first_frame = stream.frames;
            utterance.end_frame = stream.frames.saturating_add(chunk_frames);
        }
        rows.reset(task.model, task.options, utterances);
        for (b, stream) in streams.iter().enumerate() {
            for hyp_index in 0..stream.hyps.len() {
                rows.load(b, hyp_index, &stream.states, &stream.label_rows, &stream.scorer_states);
            }
        }
        rows.store(task.model, task.options, utterances)
    }

    /// Collects the sites of the hypotheses that satisfy a predicate.
    fn collect_sites(&mut self, filter: impl Fn(&BeamUtterance, &utterance::BeamHypothesis) -> bool) {
        self.sites.clear();
        for utterance in &mut self.utterances {
            utterance.first_site = self.sites.len();
            for hyp in utterance.hyps.iter().filter(|hyp| filter(utterance, hyp)) {
                self.sites.push(SiteIndex {
                    utterance: utterance.index,
                    frame: hyp.frame - utterance.first_frame,
                    label_row: hyp.row as usize,
                });
            }
        }
    }

    /// Scores the sites; finds the best `count` expansions of each.
    fn score_sites(&mut self, task: BeamTask, count: usize) -> Result<()> {
        let BeamTask { model, options, chunks } = task;
        let outcome = self.top_k.find(model, options, chunks, &self.sites, &mut self.rows, count);
        outcome.map_err(|(site, error)| {
            let index = self.sites[site].utterance;
            let first_frame = self.utterances[index].first_frame;
            match error {
                Error::Score { frame, class, found } => {
                    Error::Score { frame: first_frame + frame, class, found }
                }
                other => other,
            }
            .in_utterance(index)
        })
    }

    /// Computes the states of all new labels; removes dead labels from the trees.
    fn extend(&mut self, task: BeamTask) -> Result<()> {
        self.rows.extend(task.model, task.options, &mut self.utterances)?;
        self.utterances.iter_mut().for_each(BeamUtterance::sweep_tree_if_large);
        Ok(())
    }
}
