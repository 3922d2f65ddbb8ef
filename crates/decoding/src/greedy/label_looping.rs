//! Label-looping: greedy search of many utterances at once.
use kernels::{par_for, parts, parts_mut};

use super::{GreedyOptions, GreedyStream, emitted, whole_rows, with_fused};
use crate::affine::sized;
use crate::best_class::{BestClass, invalid_scores, pick};
use crate::{
    DecodedToken, DecodingModel, DecodingStep, Hypotheses, NetworkScratch, Result, SiteBatch, SiteIndex,
    States,
};

/// Sites at which scores are wanted together: enough for a product at full speed.
const SITES: usize = 28;
/// The same where durations or big blanks pass over some of them, which are then computed in vain.
const SITES_PASSED: usize = 4;
/// Sites of a task that looks for best classes.
const PICKS: usize = 4;
/// Frames from label to label that a new utterance is thought to have.
const RUN: f32 = 4.0;

/// Greedy search over batches and streams: all utterances look for their next label, then the predictor advances all that have one
/// (Bataev et al., "Label-looping", arXiv 2406.06220, algorithm 3).
///
/// ```text
/// while utterances are left:
///   while some of them wait for a label:
///     scores of the next frames of those that wait, as many as the last labels took     look-ahead
///     each walks its frames up to the first label, or waits on
///   record labels; those without one are at their end
///   predictor and its projection, all that are left
/// ```
/// Rows are compact: who has left costs nothing, and a padded frame is never seen. Labels and times are those of
/// [`greedy()`](crate::greedy()), log-probabilities as close as f32 is, whatever else is in the batch.
#[derive(Debug)]
pub struct GreedySearch {
    model: DecodingModel,
    options: GreedyOptions,
    found: Hypotheses,
    work: GreedyBuffers,
    /// Streams of [`GreedySearch::decode`].
    spare: Vec<GreedyStream>,
}

/// Everything that stays from call to call.
#[derive(Debug, Default)]
struct GreedyBuffers {
    lanes: Vec<GreedyUtterance>,
    states: States,
    /// Label rows of the lanes.
    rows: Vec<f32>,
    /// What language models and lists say of each class, *lanes x C*; empty without any.
    fused: Vec<f32>,
    /// States of the automata of all utterances.
    automata: Vec<Vec<u32>>,
    waiting: Vec<usize>,
    sites: Vec<SiteIndex>,
    scores: Vec<f32>,
    picks: Vec<Option<BestClass>>,
    labels: Vec<u32>,
    predicted: Vec<f32>,
    scratch: NetworkScratch,
    /// How each utterance ended.
    ends: Vec<Option<GreedyUtterance>>,
    end_states: States,
    end_rows: Vec<f32>,
}

/// An utterance that is not at its end.
#[derive(Debug, Clone, Copy)]
struct GreedyUtterance {
    utterance: usize,
    /// Frame of the chunk, and how many it has.
    t: usize,
    frames: usize,
    /// Frames before the chunk.
    before: usize,
    /// Labels on this frame, and in all.
    symbols: usize,
    labels: usize,
    newest: Option<usize>,
    capped: bool,
    /// Mean of the frames from label to label, lately; and those since the last one.
    run: f32,
    since: usize,
    /// Frames to look at next, and the first of their sites.
    look: usize,
    first: usize,
    /// The next label.
    label: Option<u32>,
}

impl GreedySearch {
    /// A search over a model; its buffers stay from call to call.
    ///
    /// # Errors
    /// [`Error::Option`](crate::Error::Option) for an option outside its range.
    pub fn new(model: DecodingModel, options: GreedyOptions) -> Result<Self> {
        options.check(&model)?;
        Ok(Self {
            model,
            options,
            found: Hypotheses::default(),
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
    /// `frames`: for each utterance its rows `[T_b, F]`; any of them may be empty. [`unpad`](crate::unpad) takes them out of a
    /// padded batch.
    ///
    /// # Errors
    /// [`Error::Utterance`](crate::Error::Utterance) around what is wrong with one: rows that are not whole, or scores that are NaN,
    /// +inf or all -inf.
    ///
    /// Cost: a predictor step for each label, and scores of at most `T + U` sites beside those that look-ahead computes in vain,
    /// for each utterance; memory `O(B (C + H))`, which stays.
    pub fn decode(&mut self, frames: &[&[f32]]) -> Result<&Hypotheses> {
        let mut streams = std::mem::take(&mut self.spare);
        streams.iter_mut().for_each(|stream| stream.reset(&self.model, &self.options.fusion));
        while streams.len() < frames.len() {
            streams.push(self.stream());
        }
        let mut of_batch: Vec<&mut GreedyStream> = streams.iter_mut().take(frames.len()).collect();
        let outcome = self.run(&mut of_batch, frames);
        self.spare = streams;
        outcome.map(|()| &self.found)
    }

    /// A new stream: an utterance that will arrive in chunks.
    pub fn stream(&self) -> Stream {
        GreedyStream::new(&self.model, &self.options.fusion)
    }

    /// Decodes the next chunk of each stream; the result has the new labels alone, with times counted from the stream's start.
    ///
    /// All chunks of a stream together give what [`Self::decode`] gives for the whole, however it is cut and whatever else is in the
    /// batch; chunks may be empty.
    ///
    /// # Errors
    /// As [`Self::decode`]; [`Error::Stream`](crate::Error::Stream) for a state that is not this model's;
    /// [`Error::Count`](crate::Error::Count) if there are not as many chunks as streams. Streams are then as they were.
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
        Ok(&self.found)
    }

    /// Inside of the thread pool, so that each parallel loop need not enter it.
    fn run(&mut self, streams: &mut [&mut GreedyStream], chunks: &[&[f32]]) -> Result<()> {
        let mut counts = Vec::with_capacity(chunks.len());
        for (b, chunk) in chunks.iter().enumerate() {
            counts.push(whole_rows(chunk, &self.model).map_err(|error| error.in_utterance(b))?);
        }
        let Self { model, options, found, work, .. } = self;
        found.reset(chunks.len(), options.record_steps);
        kernels::install(|| {
            work.begin(model, streams, &counts);
            work.search(model, options, streams, chunks, found)
        })?;
        work.end(model, streams, &counts, found);
        Ok(())
    }
}

impl GreedyBuffers {
    /// A lane for each utterance that has frames to look at.
    fn begin(&mut self, model: &DecodingModel, streams: &[&mut GreedyStream], counts: &[usize]) {
        let (states, row) = model.start();
        self.lanes.clear();
        self.states.clear(states.shape());
        self.rows.clear();
        self.ends.clear();
        self.ends.resize(streams.len(), None);
        self.end_states.clear(states.shape());
        sized(&mut self.end_rows, streams.len() * row.len());
        self.automata.resize_with(streams.len().max(self.automata.len()), Vec::new);
        for (b, (stream, &frames)) in streams.iter().zip(counts).enumerate() {
            self.end_states.extend(&stream.states, [0]);
            self.automata[b].clone_from(&stream.automata);
            if stream.jump >= frames || stream.capped.is_some() {
                continue;
            }
            self.states.extend(&stream.states, [0]);
            self.rows.extend_from_slice(&stream.row);
            self.lanes.push(GreedyUtterance {
                utterance: b,
                t: stream.jump,
                frames,
                before: stream.frames,
                symbols: 0,
                labels: stream.labels,
                newest: stream.newest,
                capped: false,
                run: RUN,
                since: 0,
                look: RUN as usize,
                first: 0,
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
        found: &mut Hypotheses,
    ) -> Result<()> {
        self.fuse(model, options, streams);
        while !self.lanes.is_empty() {
            self.waiting.clear();
            self.waiting.extend(0..self.lanes.len());
            while !self.waiting.is_empty() {
                self.look(model, options, chunks);
                self.walk(model, options, streams, found)?;
            }
            // Without a label, an utterance is at its end.
            self.leave(model, |lane| lane.label.is_none());
            self.step(model);
            self.leave(model, |lane| lane.t >= lane.frames || lane.capped);
            self.fuse(model, options, streams);
        }
        Ok(())
    }

    /// Scores of the next frames of all that wait.
    fn look(&mut self, model: &DecodingModel, options: &GreedyOptions, chunks: &[&[f32]]) {
        let Self { lanes, waiting, sites, scores, picks, rows, scratch, .. } = self;
        let enough = if model.token_table().max_blank_frames() > 1 { SITES_PASSED } else { SITES };
        let most = (enough / waiting.len()).clamp(1, options.look_ahead);
        sites.clear();
        for &at in &*waiting {
            let lane = &mut lanes[at];
            lane.first = sites.len();
            lane.look = lane.look.min(most).min(lane.frames - lane.t);
            let site = |frame| SiteIndex { utterance: lane.utterance, frame, row: at };
            sites.extend((lane.t..lane.t + lane.look).map(site));
        }
        let outputs = model.outputs();
        let scores = sized(scores, sites.len() * outputs);
        model.joint().scores(&SiteBatch { frames: chunks, rows, at: sites }, scores, scratch);
        picks.clear();
        picks.resize(sites.len(), None);
        par_for((parts_mut(picks, PICKS), parts(scores, PICKS * outputs)), |_, (picks, scores)| {
            let scores = scores.chunks_exact(outputs);
            picks
                .iter_mut()
                .zip(scores)
                .for_each(|(picked, scores)| *picked = pick(scores, model.token_table()));
        });
    }

    /// Lets all that wait go on to their next labels, as far as they have scores.
    fn walk(
        &mut self,
        model: &DecodingModel,
        options: &GreedyOptions,
        streams: &[&mut GreedyStream],
        found: &mut Hypotheses,
    ) -> Result<()> {
        let token_table = model.token_table();
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut still = 0;
        for index in 0..waiting.len() {
            let at = waiting[index];
            let lane = &mut self.lanes[at];
            let (from, b) = (lane.t, lane.utterance);
            lane.label = None;
            let mut label = None;
            while lane.t < from + lane.look && label.is_none() {
                let site = lane.first + lane.t - from;
                let Some(picked) = self.picks[site] else {
                    let scores = &self.scores[site * model.outputs()..][..model.outputs()];
                    return Err(invalid_scores(scores, token_table, lane.before + lane.t).in_utterance(b));
                };
                lane.since += 1;
                if token_table.is_blank(picked.class) {
                    let frames = token_table.frames(picked.class, picked.duration).max(1);
                    let (frame, class, log_prob) = (lane.before + lane.t, picked.class, picked.log_prob);
                    found.step(b, DecodingStep { frame, class, log_prob, frames });
                    (lane.t, lane.symbols) = (lane.t.saturating_add(frames), 0);
                } else {
                    label = Some((site, picked));
                }
            }
            if let Some((site, picked)) = label {
                self.emit(at, (site, picked), (model, options, streams), found)?;
            } else if lane.t < lane.frames {
                // Blanks have lasted longer than was thought.
                lane.look *= 2;
                waiting[still] = at;
                still += 1;
            }
        }
        waiting.truncate(still);
        self.waiting = waiting;
        Ok(())
    }

    /// Records the label that a lane has found at a site, and moves on.
    fn emit(
        &mut self,
        at: usize,
        (site, picked): (usize, BestClass),
        (model, options, streams): (&DecodingModel, &GreedyOptions, &[&mut GreedyStream]),
        found: &mut Hypotheses,
    ) -> Result<()> {
        let (token_table, lane) = (model.token_table(), &mut self.lanes[at]);
        let b = lane.utterance;
        if lane.labels >= options.cap(lane.before + lane.t) {
            lane.capped = true;
            return Ok(());
        }
        let scores = &self.scores[site * model.outputs()..][..token_table.classes()];
        let mut label = emitted(&picked, token_table, lane.before + lane.t);
        if !self.fused.is_empty() {
            let fused = &mut self.fused[at * token_table.classes()..][..token_table.classes()];
            label = with_fused(label, scores, fused, token_table).map_err(|error| error.in_utterance(b))?;
            let automata = options.fusion.iter().chain(&streams[b].lists);
            for (state, fusion) in self.automata[b].iter_mut().zip(automata) {
                *state = fusion.scorer.step(*state, label.label).1;
            }
        }
        if let Some(confidence) = options.confidence {
            label.confidence = confidence.score(scores);
        }
        found.push(b, label);
        let DecodedToken { label: class, frame, log_prob, duration, .. } = label;
        found.step(b, DecodingStep { frame, class, log_prob, frames: duration });
        lane.symbols += 1;
        lane.labels += 1;
        lane.newest = Some(label.frame);
        let full = Some(lane.symbols) == options.max_symbols;
        let frames = label.duration.max(usize::from(full));
        if frames > 0 {
            (lane.t, lane.symbols) = (lane.t.saturating_add(frames), 0);
        }
        lane.run += (lane.since as f32 - lane.run) / 4.0;
        (lane.look, lane.since) = ((lane.run.round() as usize).max(1), 0);
        lane.label = Some(class);
        Ok(())
    }

    /// Predictor and projection of all lanes, each of which has a label.
    fn step(&mut self, model: &DecodingModel) {
        let Self { lanes, labels, states, rows, predicted, scratch, .. } = self;
        labels.clear();
        labels.extend(lanes.iter().filter_map(|lane| lane.label));
        if !labels.is_empty() {
            model.step(labels, states, rows, (predicted, scratch));
        }
    }

    /// What automata add in the states that the lanes are in.
    fn fuse(&mut self, model: &DecodingModel, options: &GreedyOptions, streams: &[&mut GreedyStream]) {
        let classes = model.token_table().classes();
        let lists = streams.iter().any(|stream| !stream.lists.is_empty());
        if options.fusion.is_empty() && !lists && options.internal_lm == 0.0 {
            self.fused.clear();
            return;
        }
        let fused = sized(&mut self.fused, self.lanes.len() * classes);
        if options.internal_lm == 0.0 {
            fused.fill(0.0);
        } else {
            model.joint().internal_lm(&self.rows, fused, &mut self.scratch);
            fused.iter_mut().for_each(|score| *score *= -options.internal_lm);
        }
        let (lanes, automata) = (&self.lanes, &self.automata);
        par_for((parts_mut(fused, classes.max(1)), parts(lanes, 1)), |_, (fused, lane)| {
            let b = lane[0].utterance;
            let all = options.fusion.iter().chain(&streams[b].lists);
            for (fusion, &state) in all.zip(&automata[b]) {
                fusion.add_scores(state, fused);
            }
        });
    }

    /// Takes out the lanes that are over and keeps what streams need of them.
    fn leave(&mut self, model: &DecodingModel, over: impl Fn(&GreedyUtterance) -> bool) {
        if !self.lanes.iter().any(&over) {
            return;
        }
        let width = model.start().1.len();
        let Self { lanes, states, rows, ends, end_states, end_rows, .. } = self;
        let mut kept = 0;
        for at in 0..lanes.len() {
            let lane = lanes[at];
            if over(&lane) {
                end_states.set(lane.utterance, states, at);
                end_rows[lane.utterance * width..][..width].copy_from_slice(&rows[at * width..][..width]);
                ends[lane.utterance] = Some(lane);
            } else {
                rows.copy_within(at * width..(at + 1) * width, kept * width);
                kept += 1;
            }
        }
        rows.truncate(kept * width);
        states.retain(|at| !over(&lanes[at]));
        lanes.retain(|lane| !over(lane));
    }

    /// Writes what was found out back into the streams.
    fn end(
        &self,
        model: &DecodingModel,
        streams: &mut [&mut GreedyStream],
        counts: &[usize],
        found: &mut Hypotheses,
    ) {
        let width = model.start().1.len();
        for (b, (stream, &frames)) in streams.iter_mut().zip(counts).enumerate() {
            let t = match self.ends[b] {
                None => stream.jump,
                Some(lane) => {
                    let end = stream.frames.saturating_add(lane.t);
                    stream.states.set(0, &self.end_states, b);
                    stream.row.copy_from_slice(&self.end_rows[b * width..][..width]);
                    stream.automata.clone_from(&self.automata[b]);
                    (stream.labels, stream.newest) = (lane.labels, lane.newest);
                    stream.capped = lane.capped.then_some(end);
                    lane.t
                }
            };
            let end = stream.capped.unwrap_or(stream.frames.saturating_add(t));
            found.end(b, end, stream.is_capped());
            stream.jump = t.saturating_sub(frames);
            stream.frames = stream.frames.saturating_add(frames);
        }
    }
}
