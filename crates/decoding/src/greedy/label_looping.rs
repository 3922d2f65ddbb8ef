//! Label-looping: the greedy transducer search of batches and streams.
//!
//! All utterances of a batch advance to their next label, then one predictor step processes all new
//! labels (Bataev et al., arXiv 2406.06220). A site is a frame of an utterance and its label row,
//! the projected predictor output. C: classes; D: durations.
use kernels::{par_for, parts, parts_mut};

use super::{GreedyOptions, GreedyStream, choose_label, decoded_token, frame_count};
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
/// Labels over which the moving average of the frames per label extends.
const AVERAGED_LABELS: f32 = 4.0;

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
    buffers: GreedyBuffers,
    /// Streams of [`GreedySearch::decode`], whose memory later calls reuse.
    reusable_streams: Vec<GreedyStream>,
}

/// Buffers that are reused from call to call.
#[derive(Debug, Default)]
struct GreedyBuffers {
    utterances: Vec<GreedyUtterance>,
    states: States,
    /// Label rows of the utterances.
    label_rows: Vec<f32>,
    /// Fusion scores of each class, *utterances x C*; empty without fusion.
    fused: Vec<f32>,
    /// Scorer states of each utterance of the batch.
    scorer_states: Vec<Vec<u32>>,
    /// Rows of the utterances that search for their next label.
    searching: Vec<usize>,
    sites: Vec<SiteIndex>,
    /// Scores of the sites, *n x (C + D)*.
    scores: Vec<f32>,
    /// Best class of each site; none for invalid scores.
    best_classes: Vec<Option<BestClass>>,
    /// Labels of the next predictor step.
    labels: Vec<u32>,
    /// Scratch memory for the predictor's output.
    predicted: Vec<f32>,
    scratch: NetworkScratch,
    /// Final state of each utterance of the batch.
    finished: Vec<Option<GreedyUtterance>>,
    end_states: States,
    end_label_rows: Vec<f32>,
}

/// An unfinished utterance.
#[derive(Debug, Clone, Copy)]
struct GreedyUtterance {
    /// Index in the batch.
    index: usize,
    /// Current frame of the chunk.
    t: usize,
    /// Number of frames of the chunk.
    chunk_frames: usize,
    /// First frame of the chunk, counted over all chunks.
    first_frame: usize,
    /// Labels on the current frame.
    symbols: usize,
    /// Labels of the utterance.
    labels: usize,
    /// Frame of the newest label.
    newest_label_frame: Option<usize>,
    is_capped: bool,
    /// Moving average of the frames per label.
    frames_per_label: f32,
    /// Frames since the newest label.
    frames_since_label: usize,
    /// Frames to score next.
    look_ahead: usize,
    /// Index of the first of their sites in the batch.
    first_site: usize,
    /// Its next label; the predictor step that follows consumes it.
    next_label: Option<u32>,
}

/// Arguments of the steps of a search.
#[derive(Clone, Copy)]
struct GreedyTask<'a> {
    model: &'a DecodingModel,
    options: &'a GreedyOptions,
    streams: &'a [&'a mut GreedyStream],
    /// Frame rows of each utterance, a chunk or all of them.
    chunks: &'a [&'a [f32]],
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
            buffers: GreedyBuffers::default(),
            reusable_streams: Vec::new(),
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
        let mut streams = std::mem::take(&mut self.reusable_streams);
        streams.iter_mut().for_each(|stream| stream.reset(&self.model, &self.options.fusion));
        while streams.len() < frames.len() {
            streams.push(self.stream());
        }
        let mut batch: Vec<&mut GreedyStream> = streams.iter_mut().take(frames.len()).collect();
        let outcome = self.run(&mut batch, frames);
        self.reusable_streams = streams;
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
        let shared_fusions = self.options.fusion.len();
        for (b, stream) in streams.iter().enumerate() {
            stream.check(&self.model, shared_fusions).map_err(|error| error.in_utterance(b))?;
        }
        self.run(streams, chunks)?;
        Ok(&self.hypotheses)
    }

    /// Decodes chunks inside the thread pool, which avoids thread switches per loop.
    fn run(&mut self, streams: &mut [&mut GreedyStream], chunks: &[&[f32]]) -> Result<()> {
        let mut frame_counts = Vec::with_capacity(chunks.len());
        for (b, chunk) in chunks.iter().enumerate() {
            frame_counts.push(frame_count(chunk, &self.model).map_err(|error| error.in_utterance(b))?);
        }
        let Self { model, options, hypotheses, buffers, .. } = self;
        hypotheses.reset(chunks.len(), options.record_steps);
        kernels::run_in_pool(|| {
            buffers.load(model, streams, &frame_counts);
            buffers.search(GreedyTask { model, options, streams, chunks }, hypotheses)
        })?;
        buffers.save(model, streams, &frame_counts, hypotheses);
        Ok(())
    }
}

impl GreedyBuffers {
    /// Loads the state of each utterance that has frames.
    fn load(&mut self, model: &DecodingModel, streams: &[&mut GreedyStream], frame_counts: &[usize]) {
        let (states, label_row) = model.start();
        self.utterances.clear();
        self.states.clear(states.shape());
        self.label_rows.clear();
        self.finished.clear();
        self.finished.resize(streams.len(), None);
        self.end_states.clear(states.shape());
        resized(&mut self.end_label_rows, streams.len() * label_row.len());
        self.scorer_states.resize_with(streams.len().max(self.scorer_states.len()), Vec::new);
        for (b, (stream, &chunk_frames)) in streams.iter().zip(frame_counts).enumerate() {
            self.end_states.extend(&stream.states, [0]);
            self.scorer_states[b].clone_from(&stream.scorer_states);
            if stream.skipped_frames >= chunk_frames || stream.is_capped() {
                continue;
            }
            self.states.extend(&stream.states, [0]);
            self.label_rows.extend_from_slice(&stream.label_row);
            self.utterances.push(GreedyUtterance {
                index: b,
                t: stream.skipped_frames,
                chunk_frames,
                first_frame: stream.frames,
                symbols: 0,
                labels: stream.labels,
                newest_label_frame: stream.newest_label_frame,
                is_capped: false,
                frames_per_label: INITIAL_FRAMES_PER_LABEL,
                frames_since_label: 0,
                look_ahead: INITIAL_FRAMES_PER_LABEL as usize,
                first_site: 0,
                next_label: None,
            });
        }
    }

    /// Decodes the loaded chunks.
    fn search(&mut self, task: GreedyTask, hypotheses: &mut Hypotheses) -> Result<()> {
        self.compute_fusion_scores(task);
        while !self.utterances.is_empty() {
            self.searching.clear();
            self.searching.extend(0..self.utterances.len());
            while !self.searching.is_empty() {
                self.score_frames(task);
                self.advance_frames(task, hypotheses)?;
            }
            // An utterance without a label is finished.
            self.remove_finished(task.model, |utterance| utterance.next_label.is_none());
            self.step(task.model);
            self.remove_finished(task.model, |utterance| {
                utterance.t >= utterance.chunk_frames || utterance.is_capped
            });
            self.compute_fusion_scores(task);
        }
        Ok(())
    }

    /// Scores the next frames of the utterances that search for a label.
    fn score_frames(&mut self, task: GreedyTask) {
        let GreedyTask { model, options, chunks, .. } = task;
        let Self { utterances, searching, sites, scores, best_classes, label_rows, scratch, .. } = self;
        let min_sites =
            if model.token_table().max_blank_frames() > 1 { MIN_SITES_WITH_SKIPS } else { MIN_SITES };
        let max_look_ahead = (min_sites / searching.len()).clamp(1, options.look_ahead);
        // Sites of all utterances that search.
        sites.clear();
        for &row in &*searching {
            let utterance = &mut utterances[row];
            utterance.first_site = sites.len();
            let remaining_frames = utterance.chunk_frames - utterance.t;
            utterance.look_ahead = utterance.look_ahead.min(max_look_ahead).min(remaining_frames);
            let site = |frame| SiteIndex { utterance: utterance.index, frame, label_row: row };
            sites.extend((utterance.t..utterance.t + utterance.look_ahead).map(site));
        }
        // Their scores, in one product, and the best class of each.
        let outputs = model.outputs();
        let scores = resized(scores, sites.len() * outputs);
        model.joint().scores(&SiteBatch { frames: chunks, label_rows, sites }, scores, scratch);
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

    /// Advances searching utterances to their next label, or past the scored frames.
    fn advance_frames(&mut self, task: GreedyTask, hypotheses: &mut Hypotheses) -> Result<()> {
        let (model, token_table) = (task.model, task.model.token_table());
        let mut searching = std::mem::take(&mut self.searching);
        // Number of rows that still search; they move to the front of the list.
        let mut still_searching = 0;
        for index in 0..searching.len() {
            let row = searching[index];
            let utterance = &mut self.utterances[row];
            let (first_scored_frame, b) = (utterance.t, utterance.index);
            utterance.next_label = None;
            // Skip blanks up to the next label or the last scored frame.
            let mut site_and_label = None;
            while utterance.t < first_scored_frame + utterance.look_ahead && site_and_label.is_none() {
                let site = utterance.first_site + utterance.t - first_scored_frame;
                let Some(best) = self.best_classes[site] else {
                    let scores = &self.scores[site * model.outputs()..][..model.outputs()];
                    return Err(invalid_scores(scores, token_table, utterance.first_frame + utterance.t)
                        .in_utterance(b));
                };
                utterance.frames_since_label += 1;
                if token_table.is_blank(best.class) {
                    let frames = token_table.frame_advance(best.class, best.duration).max(1);
                    let (frame, class, log_prob) =
                        (utterance.first_frame + utterance.t, best.class, best.log_prob);
                    hypotheses.record_step(b, DecodingStep { frame, class, log_prob, frames });
                    (utterance.t, utterance.symbols) = (utterance.t.saturating_add(frames), 0);
                } else {
                    site_and_label = Some((site, best));
                }
            }
            if let Some((site, best)) = site_and_label {
                self.emit(task, row, site, &best, hypotheses)?;
            } else if utterance.t < utterance.chunk_frames {
                // The run of blanks is longer than estimated.
                utterance.look_ahead *= 2;
                searching[still_searching] = row;
                still_searching += 1;
            }
        }
        searching.truncate(still_searching);
        self.searching = searching;
        Ok(())
    }

    /// Records the label of a site; estimates the frames until the next.
    ///
    /// `row` is the index of the utterance among the unfinished ones.
    fn emit(
        &mut self,
        task: GreedyTask,
        row: usize,
        site: usize,
        best: &BestClass,
        hypotheses: &mut Hypotheses,
    ) -> Result<()> {
        let GreedyTask { model, options, streams, .. } = task;
        let (token_table, utterance) = (model.token_table(), &mut self.utterances[row]);
        let b = utterance.index;
        if utterance.labels >= options.label_limit(utterance.first_frame + utterance.t) {
            utterance.is_capped = true;
            return Ok(());
        }
        // The label, its fusion score and its confidence.
        let scores = &self.scores[site * model.outputs()..][..token_table.classes()];
        let mut label = decoded_token(best, token_table, utterance.first_frame + utterance.t);
        if !self.fused.is_empty() {
            let fused = &mut self.fused[row * token_table.classes()..][..token_table.classes()];
            label = choose_label(label, scores, fused, token_table).map_err(|error| error.in_utterance(b))?;
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
        hypotheses.record_step(b, DecodingStep { frame, class, log_prob, frames: duration });
        // Advance the utterance.
        utterance.symbols += 1;
        utterance.labels += 1;
        utterance.newest_label_frame = Some(label.frame);
        let is_frame_full = Some(utterance.symbols) == options.max_symbols;
        let frames = label.duration.max(usize::from(is_frame_full));
        if frames > 0 {
            (utterance.t, utterance.symbols) = (utterance.t.saturating_add(frames), 0);
        }
        // Estimate the frames until the next label.
        utterance.frames_per_label +=
            (utterance.frames_since_label as f32 - utterance.frames_per_label) / AVERAGED_LABELS;
        (utterance.look_ahead, utterance.frames_since_label) =
            ((utterance.frames_per_label.round() as usize).max(1), 0);
        utterance.next_label = Some(class);
        Ok(())
    }

    /// Advances the predictor by the label of each utterance.
    fn step(&mut self, model: &DecodingModel) {
        let Self { utterances, labels, states, label_rows, predicted, scratch, .. } = self;
        labels.clear();
        labels.extend(utterances.iter().filter_map(|utterance| utterance.next_label));
        if !labels.is_empty() {
            model.step(labels, states, label_rows, predicted, scratch);
        }
    }

    /// Computes the fusion scores of each utterance's scorer states.
    fn compute_fusion_scores(&mut self, task: GreedyTask) {
        let GreedyTask { model, options, streams, .. } = task;
        let classes = model.token_table().classes();
        let has_stream_fusion = streams.iter().any(|stream| !stream.fusion.is_empty());
        if options.fusion.is_empty() && !has_stream_fusion && options.internal_lm == 0.0 {
            self.fused.clear();
            return;
        }
        let fused = resized(&mut self.fused, self.utterances.len() * classes);
        if options.internal_lm == 0.0 {
            fused.fill(0.0);
        } else {
            model.joint().internal_lm(&self.label_rows, fused, &mut self.scratch);
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
        let Self { utterances, states, label_rows, finished, end_states, end_label_rows, .. } = self;
        // Rows of unfinished utterances move to the front.
        let mut unfinished_count = 0;
        for row in 0..utterances.len() {
            let utterance = utterances[row];
            if is_finished(&utterance) {
                end_states.copy_row(utterance.index, states, row);
                end_label_rows[utterance.index * width..][..width]
                    .copy_from_slice(&label_rows[row * width..][..width]);
                finished[utterance.index] = Some(utterance);
            } else {
                label_rows.copy_within(row * width..(row + 1) * width, unfinished_count * width);
                unfinished_count += 1;
            }
        }
        label_rows.truncate(unfinished_count * width);
        states.retain(|row| !is_finished(&utterances[row]));
        utterances.retain(|utterance| !is_finished(utterance));
    }

    /// Writes the final states back into the streams.
    fn save(
        &self,
        model: &DecodingModel,
        streams: &mut [&mut GreedyStream],
        frame_counts: &[usize],
        hypotheses: &mut Hypotheses,
    ) {
        let width = model.start().1.len();
        for (b, (stream, &chunk_frames)) in streams.iter_mut().zip(frame_counts).enumerate() {
            // Frame of the chunk, or beyond it, at which the search continues.
            let t = match self.finished[b] {
                None => stream.skipped_frames,
                Some(utterance) => {
                    let end_frame = stream.frames.saturating_add(utterance.t);
                    stream.states.copy_row(0, &self.end_states, b);
                    stream.label_row.copy_from_slice(&self.end_label_rows[b * width..][..width]);
                    stream.scorer_states.clone_from(&self.scorer_states[b]);
                    stream.labels = utterance.labels;
                    stream.newest_label_frame = utterance.newest_label_frame;
                    stream.capped_at = utterance.is_capped.then_some(end_frame);
                    utterance.t
                }
            };
            let end_frame = stream.capped_at.unwrap_or(stream.frames.saturating_add(t));
            hypotheses.set_end(b, end_frame, stream.is_capped());
            stream.skipped_frames = t.saturating_sub(chunk_frames);
            stream.frames = stream.frames.saturating_add(chunk_frames);
        }
    }
}
