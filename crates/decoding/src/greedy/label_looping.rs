//! Label-looping: greedy search of batches and streams.
//!
//! All utterances of a batch advance to their next label, then one predictor step processes all new
//! labels (Bataev et al., arXiv 2406.06220). A site is a frame of an utterance and its label row,
//! the projected predictor output.
use kernels::{par_for, parts, parts_mut};

use super::{GreedyOptions, GreedyStream, decoded_token, whole_rows, with_fused};
use crate::affine::resized;
use crate::best_class::{BestClass, best_class, invalid_scores};
use crate::{
    DecodedToken, DecodingModel, DecodingStep, Hypotheses, NetworkScratch, Result, SiteBatch, SiteIndex,
    States,
};

/// Number of sites scored together: enough for a matrix product at full speed.
const MIN_SITES: usize = 28;
/// [`MIN_SITES`] with durations or big blanks, which skip scored frames.
const MIN_SITES_WITH_SKIPS: usize = 4;
/// Sites whose best classes one parallel task finds.
const SITES_PER_TASK: usize = 4;
/// Initial estimate of the number of frames per label.
const INITIAL_FRAMES_PER_LABEL: f32 = 4.0;

/// Greedy search over batches and streams by label-looping.
///
/// All utterances search for their next label, then one predictor step advances all that have one
/// (Bataev et al., "Label-looping", arXiv 2406.06220, algorithm 3).
///
/// ```text
/// while utterances are unfinished:
///   while some of them search for a label:
///     scores of their next frames, as many as the last labels took           look-ahead
///     each advances to its first label, or to the end of the scored frames
///   record labels; utterances without one are finished
///   predictor and its projection for the others
/// ```
/// Rows are compact: finished utterances cost nothing and padding is never read. Labels and times
/// equal those of [`greedy()`](crate::greedy()), log-probabilities agree to f32 precision; neither
/// depends on the rest of the batch.
#[derive(Debug)]
pub struct GreedySearch {
    model: DecodingModel,
    options: GreedyOptions,
    hypotheses: Hypotheses,
    work: GreedyBuffers,
    /// Reusable streams of [`GreedySearch::decode`].
    spare: Vec<GreedyStream>,
}

/// Buffers that are reused from call to call.
#[derive(Debug, Default)]
struct GreedyBuffers {
    utterances: Vec<GreedyUtterance>,
    states: States,
    /// Label rows of the utterances.
    rows: Vec<f32>,
    /// Fusion scores of each class, *utterances x C*; empty without fusion.
    fused: Vec<f32>,
    /// Scorer states of each utterance of the batch.
    scorer_states: Vec<Vec<u32>>,
    waiting: Vec<usize>,
    sites: Vec<SiteIndex>,
    scores: Vec<f32>,
    best_classes: Vec<Option<BestClass>>,
    labels: Vec<u32>,
    predicted: Vec<f32>,
    scratch: NetworkScratch,
    /// Final state of each utterance of the batch.
    ends: Vec<Option<GreedyUtterance>>,
    end_states: States,
    end_rows: Vec<f32>,
}

/// An unfinished utterance.
#[derive(Debug, Clone, Copy)]
struct GreedyUtterance {
    /// Index in the batch.
    index: usize,
    /// Current frame of the chunk.
    t: usize,
    /// Frames of the chunk.
    frames: usize,
    /// Frames before the chunk.
    before: usize,
    /// Labels on the current frame.
    symbols: usize,
    /// Labels of the utterance.
    labels: usize,
    /// Frame of the newest label.
    newest: Option<usize>,
    is_capped: bool,
    /// Moving average of the frames per label.
    frames_per_label: f32,
    /// Frames since the newest label.
    since: usize,
    /// Frames to score next.
    look_ahead: usize,
    /// Index of the first of their sites.
    first_site: usize,
    /// The label found; the predictor step that follows consumes it.
    label: Option<u32>,
}

impl GreedySearch {
    /// Creates a search over a model.
    ///
    /// # Errors
    /// [`Error::Option`](crate::Error::Option) for an option outside its range.
    pub fn new(model: DecodingModel, options: GreedyOptions) -> Result<Self> {
        options.check(&model)?;
        Ok(Self {
            model,
            options,
            hypotheses: Hypotheses::default(),
            work: GreedyBuffers::default(),
            spare: Vec::new(),
        })
    }

    /// The model.
    pub fn model(&self) -> &DecodingModel {
        &self.model
    }

    /// Decodes whole utterances.
    ///
    /// # Shapes
    /// `frames`: rows `[T_b, F]` of each utterance, possibly empty. [`unpad`](crate::unpad) splits
    /// a padded batch.
    ///
    /// # Errors
    /// [`Error::Utterance`](crate::Error::Utterance) with the error of one utterance: rows that are
    /// not whole, or scores that are NaN, +inf or all -inf.
    ///
    /// Cost per utterance: a predictor step for each label, and scores of at most `T + U` sites in
    /// addition to those that look-ahead computes needlessly. Memory `O(B (C + H))`, reused.
    pub fn decode(&mut self, frames: &[&[f32]]) -> Result<&Hypotheses> {
        let mut streams = std::mem::take(&mut self.spare);
        streams.iter_mut().for_each(|stream| stream.reset(&self.model, &self.options.fusion));
        while streams.len() < frames.len() {
            streams.push(self.stream());
        }
        let mut of_batch: Vec<&mut GreedyStream> = streams.iter_mut().take(frames.len()).collect();
        let outcome = self.run(&mut of_batch, frames);
        self.spare = streams;
        outcome.map(|()| &self.hypotheses)
    }

    /// Creates a stream, an utterance that arrives in chunks.
    pub fn stream(&self) -> GreedyStream {
        GreedyStream::new(&self.model, &self.options.fusion)
    }

    /// Decodes the next chunk of each stream and returns the new labels.
    ///
    /// Times count from the start of the stream. The labels of all chunks equal those of
    /// [`Self::decode`] for the whole utterance, for every segmentation and batch; chunks may be
    /// empty.
    ///
    /// # Errors
    /// Those of [`Self::decode`]; [`Error::Stream`](crate::Error::Stream) for a state of another
    /// model; [`Error::Count`](crate::Error::Count) unless there is one chunk per stream. Streams
    /// are unchanged after an error.
    pub fn advance(&mut self, streams: &mut [&mut GreedyStream], chunks: &[&[f32]]) -> Result<&Hypotheses> {
        if streams.len() != chunks.len() {
            let (expected, found) = (streams.len(), chunks.len());
            return Err(crate::Error::Count { argument: "chunks", expected, found });
        }
        let shared = self.options.fusion.len();
        for (b, stream) in streams.iter().enumerate() {
            stream.check(&self.model, shared).map_err(|error| error.in_utterance(b))?;
        }
        self.run(streams, chunks)?;
        Ok(&self.hypotheses)
    }

    /// Decodes chunks inside the thread pool, which avoids thread switches per loop.
    fn run(&mut self, streams: &mut [&mut GreedyStream], chunks: &[&[f32]]) -> Result<()> {
        let mut counts = Vec::with_capacity(chunks.len());
        for (b, chunk) in chunks.iter().enumerate() {
            counts.push(whole_rows(chunk, &self.model).map_err(|error| error.in_utterance(b))?);
        }
        let Self { model, options, hypotheses, work, .. } = self;
        hypotheses.reset(chunks.len(), options.record_steps);
        kernels::install(|| {
            work.load(model, streams, &counts);
            work.search(model, options, streams, chunks, hypotheses)
        })?;
        work.save(model, streams, &counts, hypotheses);
        Ok(())
    }
}

impl GreedyBuffers {
    /// Loads the state of each utterance that has frames.
    fn load(&mut self, model: &DecodingModel, streams: &[&mut GreedyStream], counts: &[usize]) {
        let (states, row) = model.start();
        self.utterances.clear();
        self.states.clear(states.shape());
        self.rows.clear();
        self.ends.clear();
        self.ends.resize(streams.len(), None);
        self.end_states.clear(states.shape());
        resized(&mut self.end_rows, streams.len() * row.len());
        self.scorer_states.resize_with(streams.len().max(self.scorer_states.len()), Vec::new);
        for (b, (stream, &frames)) in streams.iter().zip(counts).enumerate() {
            self.end_states.extend(&stream.states, [0]);
            self.scorer_states[b].clone_from(&stream.scorer_states);
            if stream.jump >= frames || stream.capped.is_some() {
                continue;
            }
            self.states.extend(&stream.states, [0]);
            self.rows.extend_from_slice(&stream.row);
            self.utterances.push(GreedyUtterance {
                index: b,
                t: stream.jump,
                frames,
                before: stream.frames,
                symbols: 0,
                labels: stream.labels,
                newest: stream.newest,
                is_capped: false,
                frames_per_label: INITIAL_FRAMES_PER_LABEL,
                since: 0,
                look_ahead: INITIAL_FRAMES_PER_LABEL as usize,
                first_site: 0,
                label: None,
            });
        }
    }

    fn search(
        &mut self,
        model: &DecodingModel,
        options: &GreedyOptions,
        streams: &[&mut GreedyStream],
        chunks: &[&[f32]],
        hypotheses: &mut Hypotheses,
    ) -> Result<()> {
        self.fuse(model, options, streams);
        while !self.utterances.is_empty() {
            self.waiting.clear();
            self.waiting.extend(0..self.utterances.len());
            while !self.waiting.is_empty() {
                self.score_frames(model, options, chunks);
                self.advance_frames(model, options, streams, hypotheses)?;
            }
            // An utterance without a label is finished.
            self.remove_finished(model, |utterance| utterance.label.is_none());
            self.step(model);
            self.remove_finished(model, |utterance| utterance.t >= utterance.frames || utterance.is_capped);
            self.fuse(model, options, streams);
        }
        Ok(())
    }

    /// Scores the next frames of the utterances that search for a label.
    fn score_frames(&mut self, model: &DecodingModel, options: &GreedyOptions, chunks: &[&[f32]]) {
        let Self { utterances, waiting, sites, scores, best_classes, rows, scratch, .. } = self;
        let min_sites =
            if model.token_table().max_blank_frames() > 1 { MIN_SITES_WITH_SKIPS } else { MIN_SITES };
        let limit = (min_sites / waiting.len()).clamp(1, options.look_ahead);
        sites.clear();
        for &at in &*waiting {
            let utterance = &mut utterances[at];
            utterance.first_site = sites.len();
            utterance.look_ahead = utterance.look_ahead.min(limit).min(utterance.frames - utterance.t);
            let site = |frame| SiteIndex { utterance: utterance.index, frame, row: at };
            sites.extend((utterance.t..utterance.t + utterance.look_ahead).map(site));
        }
        let outputs = model.outputs();
        let scores = resized(scores, sites.len() * outputs);
        model.joint().scores(&SiteBatch { frames: chunks, rows, sites }, scores, scratch);
        best_classes.clear();
        best_classes.resize(sites.len(), None);
        par_for(
            (parts_mut(best_classes, SITES_PER_TASK), parts(scores, SITES_PER_TASK * outputs)),
            |_, (best_classes, scores)| {
                let scores = scores.chunks_exact(outputs);
                best_classes
                    .iter_mut()
                    .zip(scores)
                    .for_each(|(best, scores)| *best = best_class(scores, model.token_table()));
            },
        );
    }

    /// Advances waiting utterances to their next label, or past the scored frames.
    fn advance_frames(
        &mut self,
        model: &DecodingModel,
        options: &GreedyOptions,
        streams: &[&mut GreedyStream],
        hypotheses: &mut Hypotheses,
    ) -> Result<()> {
        let token_table = model.token_table();
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut still_waiting = 0;
        for index in 0..waiting.len() {
            let at = waiting[index];
            let utterance = &mut self.utterances[at];
            let (from, b) = (utterance.t, utterance.index);
            utterance.label = None;
            let mut label = None;
            while utterance.t < from + utterance.look_ahead && label.is_none() {
                let site = utterance.first_site + utterance.t - from;
                let Some(best) = self.best_classes[site] else {
                    let scores = &self.scores[site * model.outputs()..][..model.outputs()];
                    return Err(
                        invalid_scores(scores, token_table, utterance.before + utterance.t).in_utterance(b)
                    );
                };
                utterance.since += 1;
                if token_table.is_blank(best.class) {
                    let frames = token_table.frames(best.class, best.duration).max(1);
                    let (frame, class, log_prob) =
                        (utterance.before + utterance.t, best.class, best.log_prob);
                    hypotheses.step(b, DecodingStep { frame, class, log_prob, frames });
                    (utterance.t, utterance.symbols) = (utterance.t.saturating_add(frames), 0);
                } else {
                    label = Some((site, best));
                }
            }
            if let Some((site, best)) = label {
                self.emit(at, (site, best), (model, options, streams), hypotheses)?;
            } else if utterance.t < utterance.frames {
                // The run of blanks is longer than estimated.
                utterance.look_ahead *= 2;
                waiting[still_waiting] = at;
                still_waiting += 1;
            }
        }
        waiting.truncate(still_waiting);
        self.waiting = waiting;
        Ok(())
    }

    /// Records a label and estimates the frames until the next one.
    fn emit(
        &mut self,
        at: usize,
        (site, best): (usize, BestClass),
        (model, options, streams): (&DecodingModel, &GreedyOptions, &[&mut GreedyStream]),
        hypotheses: &mut Hypotheses,
    ) -> Result<()> {
        let (token_table, utterance) = (model.token_table(), &mut self.utterances[at]);
        let b = utterance.index;
        if utterance.labels >= options.label_limit(utterance.before + utterance.t) {
            utterance.is_capped = true;
            return Ok(());
        }
        let scores = &self.scores[site * model.outputs()..][..token_table.classes()];
        let mut label = decoded_token(&best, token_table, utterance.before + utterance.t);
        if !self.fused.is_empty() {
            let fused = &mut self.fused[at * token_table.classes()..][..token_table.classes()];
            label = with_fused(label, scores, fused, token_table).map_err(|error| error.in_utterance(b))?;
            let fusion = options.fusion.iter().chain(&streams[b].fusion);
            for (state, fusion) in self.scorer_states[b].iter_mut().zip(fusion) {
                *state = fusion.scorer.step(*state, label.label).1;
            }
        }
        if let Some(confidence) = options.confidence {
            label.confidence = confidence.score(scores);
        }
        hypotheses.push(b, label);
        let DecodedToken { label: class, frame, log_prob, duration, .. } = label;
        hypotheses.step(b, DecodingStep { frame, class, log_prob, frames: duration });
        utterance.symbols += 1;
        utterance.labels += 1;
        utterance.newest = Some(label.frame);
        let is_full = Some(utterance.symbols) == options.max_symbols;
        let frames = label.duration.max(usize::from(is_full));
        if frames > 0 {
            (utterance.t, utterance.symbols) = (utterance.t.saturating_add(frames), 0);
        }
        utterance.frames_per_label += (utterance.since as f32 - utterance.frames_per_label) / 4.0;
        (utterance.look_ahead, utterance.since) = ((utterance.frames_per_label.round() as usize).max(1), 0);
        utterance.label = Some(class);
        Ok(())
    }

    /// Advances the predictor by the label of each utterance.
    fn step(&mut self, model: &DecodingModel) {
        let Self { utterances, labels, states, rows, predicted, scratch, .. } = self;
        labels.clear();
        labels.extend(utterances.iter().filter_map(|utterance| utterance.label));
        if !labels.is_empty() {
            model.step(labels, states, rows, (predicted, scratch));
        }
    }

    /// Computes the fusion scores of each utterance's scorer states.
    fn fuse(&mut self, model: &DecodingModel, options: &GreedyOptions, streams: &[&mut GreedyStream]) {
        let classes = model.token_table().classes();
        let has_fusion = streams.iter().any(|stream| !stream.fusion.is_empty());
        if options.fusion.is_empty() && !has_fusion && options.internal_lm == 0.0 {
            self.fused.clear();
            return;
        }
        let fused = resized(&mut self.fused, self.utterances.len() * classes);
        if options.internal_lm == 0.0 {
            fused.fill(0.0);
        } else {
            model.joint().internal_lm(&self.rows, fused, &mut self.scratch);
            fused.iter_mut().for_each(|score| *score *= -options.internal_lm);
        }
        let (utterances, scorer_states) = (&self.utterances, &self.scorer_states);
        par_for((parts_mut(fused, classes.max(1)), parts(utterances, 1)), |_, (fused, utterance)| {
            let b = utterance[0].index;
            let fusions = options.fusion.iter().chain(&streams[b].fusion);
            for (fusion, &state) in fusions.zip(&scorer_states[b]) {
                fusion.add_scores(state, fused);
            }
        });
    }

    /// Removes finished utterances and saves their final states.
    fn remove_finished(&mut self, model: &DecodingModel, is_finished: impl Fn(&GreedyUtterance) -> bool) {
        if !self.utterances.iter().any(&is_finished) {
            return;
        }
        let width = model.start().1.len();
        let Self { utterances, states, rows, ends, end_states, end_rows, .. } = self;
        let mut count = 0;
        for at in 0..utterances.len() {
            let utterance = utterances[at];
            if is_finished(&utterance) {
                end_states.set(utterance.index, states, at);
                end_rows[utterance.index * width..][..width].copy_from_slice(&rows[at * width..][..width]);
                ends[utterance.index] = Some(utterance);
            } else {
                rows.copy_within(at * width..(at + 1) * width, count * width);
                count += 1;
            }
        }
        rows.truncate(count * width);
        states.retain(|at| !is_finished(&utterances[at]));
        utterances.retain(|utterance| !is_finished(utterance));
    }

    /// Writes the final states back into the streams.
    fn save(
        &self,
        model: &DecodingModel,
        streams: &mut [&mut GreedyStream],
        counts: &[usize],
        hypotheses: &mut Hypotheses,
    ) {
        let width = model.start().1.len();
        for (b, (stream, &frames)) in streams.iter_mut().zip(counts).enumerate() {
            let t = match self.ends[b] {
                None => stream.jump,
                Some(utterance) => {
                    let end = stream.frames.saturating_add(utterance.t);
                    stream.states.set(0, &self.end_states, b);
                    stream.row.copy_from_slice(&self.end_rows[b * width..][..width]);
                    stream.scorer_states.clone_from(&self.scorer_states[b]);
                    (stream.labels, stream.newest) = (utterance.labels, utterance.newest);
                    stream.capped = utterance.is_capped.then_some(end);
                    utterance.t
                }
            };
            let end = stream.capped.unwrap_or(stream.frames.saturating_add(t));
            hypotheses.set_end(b, end, stream.is_capped());
            stream.jump = t.saturating_sub(frames);
            stream.frames = stream.frames.saturating_add(frames);
        }
    }
}
