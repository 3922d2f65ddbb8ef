//! Beam search: the most probable label sequences, each with all of its paths that the beam has kept.
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
use utterance::{BeamUtterance, FRESH};

use crate::greedy::whole_rows;
use crate::{DecodedToken, DecodingModel, Error, Fusion, Result, SiteIndex, TokenTable};

/// Options of beam search.
///
/// Language models and lists ([`BeamOptions::fusion`]) add to a label's log-probability when it is appended, and take part in the choice
/// of the best candidates ("late pruning"): a bonus that comes after that choice, as in k2's recipes, could only come too late.
/// Blanks keep the log-probability that the joint gives them.
#[derive(Debug, Clone)]
pub struct BeamOptions {
    /// The search.
    pub kind: BeamKind,
    /// Hypotheses that are kept of an utterance, at least 1.
    pub width: usize,
    /// Most label sequences of a result, at least 1. Never more than the beam has kept, less where hypotheses have met.
    pub nbest: usize,
    /// Whether results are ordered by `log p / (labels + context)`, with the predictor's
    /// [`context`](crate::Predictor::context) (1 for ALSD and mALSD), and not by `log p`, which favours few labels.
    pub normalize_by_length: bool,
    /// What is taken from the score of every blank before the softmax; above 0 against lost words.
    pub blank_penalty: f32,
    /// What all scores of classes are divided by before the softmax, from 0.001 to 1000; those of durations are not.
    pub temperature: f32,
    /// Language models and lists that all utterances share.
    pub fusion: Vec<Fusion>,
    /// Weight of the internal language model that is taken away from the scores of labels, where the joint knows one.
    pub internal_lm: f32,
    /// Whether automata score the end of an utterance: `</s>` of a language model, an unfinished phrase.
    pub end_scores: bool,
}

/// A way to go through frames and labels.
///
/// | search | synchronous in | a frame emits | TDT | big blanks | modified topology | streams |
/// |---|---|---|---|---|---|---|
/// | [`Modified`](Self::Modified) | frames | at most one label | no | yes | yes | yes |
/// | [`Alsd`](Self::Alsd) | steps | any number | no | no | no | no |
/// | [`Malsd`](Self::Malsd) | steps | at most `max_symbols` | yes | yes | yes | no |
/// | [`Maes`](Self::Maes) | frames | at most `expansions` labels | no | no | no | yes |
///
/// A factored blank (HAT) is known to all: its scores are log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BeamKind {
    /// Modified beam search of k2's recipes. At frame t
    ///
    /// ```text
    /// candidates   h + blank: log p(h) + log p(blank | t, h)      h + y: log p(h) + log p(y | t, h) + fused
    /// keep         the best `width` of all, then add up those with equal labels
    /// ```
    /// A label moves one frame on, as in the modified topology. A big blank moves on by its frames; its hypothesis competes as it is
    /// until they are over.
    Modified,
    /// Alignment-length-synchronous decoding (Saon et al., ICASSP 2020): all hypotheses have made the same number i of steps, each a
    /// label or a blank, so that one with u labels is at frame `i - u`. A blank at the last frame ends a hypothesis, which then
    /// competes no more.
    Alsd {
        /// Most labels of an utterance; none: twice as many as frames.
        max_labels: Option<usize>,
    },
    /// The same for batches and any topology (NeMo's batched form): each hypothesis goes on by its own steps, the ended ones compete
    /// on, and only hypotheses at the same frame, with as many labels on it, are added up. With durations, a step is a pair of class
    /// and duration.
    Malsd {
        /// Most labels of a frame, at least 1. Who has as many takes its best blank, and pays for it.
        max_symbols: usize,
    },
    /// Modified adaptive expansion search (Kim et al., arXiv 2010.14606): on every frame, hypotheses are expanded by labels
    /// `expansions` times, each by the best `width + beta` classes that are at most `gamma` below its best.
    Maes {
        /// Most labels of a frame, at least 1; 2 is usual.
        expansions: usize,
        /// Classes beyond the width; 2 is usual.
        beta: usize,
        /// Largest distance of a log-probability from the best one; 2.3 is usual, infinity keeps all.
        gamma: f64,
        /// Largest number of labels that a hypothesis may be longer than one whose labels on the way to it are expanded
        /// whatever `beta` and `gamma` are; 1 is usual, 0 expands none of these.
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

    /// Whether all hypotheses are at one frame after each, so that utterances may arrive in chunks.
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
        let moves =
            label.is_some_and(|label| token_table.durations() == 0 && token_table.frames(label, 0) > 0);
        let big_blanks = token_table.blanks().count() > 1;
        let found = match self {
            BeamKind::Modified | BeamKind::Alsd { .. } | BeamKind::Maes { .. }
                if token_table.durations() > 0 =>
            {
                "durations"
            }
            BeamKind::Alsd { .. } | BeamKind::Maes { .. } if big_blanks => "big blanks",
            BeamKind::Alsd { .. } | BeamKind::Maes { .. } if moves => "labels that move on by a frame",
            _ => return Ok(()),
        };
        Err(Error::Search { search: self.name(), found })
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
            let found = f64::from(self.temperature);
            let expected = "a number from 0.001 to 1000";
            return Err(Error::Option { option: "temperature", expected, found });
        }
        crate::greedy::check_weight("blank_penalty", self.blank_penalty)?;
        self.kind.check(model.token_table())?;
        crate::greedy::check_fusion(model, &self.fusion, self.internal_lm)
    }
}

/// Beam search over batches and, where the search is synchronous in frames, streams.
///
/// All hypotheses of all utterances meet their frames in one evaluation of the joint, and all new labels go through one step of the
/// predictor. Results of an utterance do not depend on the others. Among equal candidates the better hypothesis of the step before
/// wins, then the lower class.
#[derive(Debug)]
pub struct BeamSearch {
    model: DecodingModel,
    options: BeamOptions,
    found: Vec<NBest>,
    work: BeamBuffers,
    /// Streams of [`BeamSearch::decode`].
    spare: Vec<BeamStream>,
}

/// Everything that stays from call to call.
#[derive(Debug, Default)]
struct BeamBuffers {
    lanes: Vec<BeamUtterance>,
    rows: HypothesisRows,
    sites: Vec<SiteIndex>,
    short: TopK,
}

/// What all searches read.
#[derive(Clone, Copy)]
struct BeamTask<'a> {
    model: &'a DecodingModel,
    options: &'a BeamOptions,
    chunks: &'a [&'a [f32]],
}

impl BeamSearch {
    /// A search over a model; its buffers stay from call to call.
    ///
    /// # Errors
    /// [`Error::Option`] for an option outside its range; [`Error::Search`] if the search does not know what classes of the model
    /// mean.
    pub fn new(model: DecodingModel, options: BeamOptions) -> Result<Self> {
        options.check(&model)?;
        Ok(Self { model, options, found: Vec::new(), work: BeamBuffers::default(), spare: Vec::new() })
    }

    /// The model.
    pub fn model(&self) -> &DecodingModel {
        &self.model
    }

    /// Decodes whole utterances.
    ///
    /// # Shapes
    /// `frames`: for each utterance its rows `[T_b, F]`; any of them may be empty, which gives one hypothesis without labels.
    /// [`unpad`](crate::unpad) takes them out of a padded batch.
    ///
    /// # Errors
    /// [`Error::Utterance`] around what is wrong with one: rows that are not whole, or scores that are NaN, +inf or all -inf, of the
    /// joint or of an scorer.
    ///
    /// Cost: for each utterance scores of at most `width` sites a frame (a step of ALSD; mAES expands more), and a predictor
    /// step for each label that a hypothesis gets; memory `O(B width (C + H))`, which stays, and the labels.
    pub fn decode(&mut self, frames: &[&[f32]]) -> Result<&[NBest]> {
        self.decode_with(frames, vec![Vec::new(); frames.len()])
    }

    /// The same, each utterance with automata of its own beside those of the search: phrases that are likely in one of them, what a CTC
    /// head says of it ([`CtcPrefixScorer`](crate::CtcPrefixScorer)).
    ///
    /// # Errors
    /// As [`Self::decode`]; [`Error::Count`] if there are not as many `lists` as utterances; [`Error::Utterance`] around [`Error::Option`]
    /// for a weight that is no number.
    pub fn decode_with(&mut self, frames: &[&[f32]], lists: Vec<Vec<Fusion>>) -> Result<&[NBest]> {
        if lists.len() != frames.len() {
            let (expected, found) = (frames.len(), lists.len());
            return Err(Error::Count { argument: "lists", expected, found });
        }
        for (b, list) in lists.iter().enumerate() {
            crate::greedy::check_weights(list).map_err(|error| error.in_utterance(b))?;
        }
        let mut streams = std::mem::take(&mut self.spare);
        while streams.len() < frames.len() {
            streams.push(BeamStream::new(&self.model, &self.options.fusion));
        }
        for (stream, lists) in streams.iter_mut().zip(lists) {
            stream.reset(&self.model, &self.options.fusion, lists);
        }
        let of_batch: Vec<&BeamStream> = streams.iter().take(frames.len()).collect();
        let outcome = self.run(&of_batch, frames, self.options.end_scores);
        streams.iter_mut().for_each(|stream| stream.lists.clear());
        self.work.lanes.iter_mut().for_each(|lane| lane.lists.clear());
        self.spare = streams;
        outcome.map(|()| &self.found[..])
    }

    /// A new stream: an utterance that will arrive in chunks.
    ///
    /// # Errors
    /// [`Error::Search`] if the hypotheses of the search are not all at one frame.
    pub fn stream(&self) -> Result<BeamStream> {
        match self.options.kind.supports_streaming() {
            true => Ok(BeamStream::new(&self.model, &self.options.fusion)),
            false => Err(Error::Search { search: self.options.kind.name(), found: "streams" }),
        }
    }

    /// Decodes the next chunk of each stream; the result is what is known of all of its frames, without the labels that
    /// [`BeamStream::take_stable`] took out and without scores of ends.
    ///
    /// After all chunks of a stream its hypotheses are those of the whole, however it is cut and whatever else is in the batch; chunks
    /// may be empty.
    ///
    /// # Errors
    /// As [`Self::decode`]; [`Error::Search`] as [`Self::stream`]; [`Error::Stream`] for a state that is not this model's;
    /// [`Error::Count`] if there are not as many chunks as streams. Streams are then as they were.
    pub fn advance(&mut self, streams: &mut [&mut BeamStream], chunks: &[&[f32]]) -> Result<&[NBest]> {
        self.continues(streams, chunks, false)?;
        for (stream, lane) in streams.iter_mut().zip(&mut self.work.lanes) {
            stream.states.clear(self.model.start().0.shape());
            stream.rows.clear();
            stream.automata.clear();
            let automata = self.options.fusion.len() + stream.lists.len();
            self.work.rows.save(lane, automata, (&mut stream.states, &mut stream.rows, &mut stream.automata));
            stream.put(lane);
        }
        Ok(&self.found)
    }

    /// Decides, before the end of a stream, for the next labels of its best hypothesis, so many or all that it has, and takes them
    /// out, as [`BeamStream::take_stable`] does with what all hypotheses share; those that begin otherwise are forgotten. For words
    /// that may not be late, and for pauses in a recording that goes on.
    ///
    /// Two hypotheses that differ in a label long past stay as they are apart where the predictor has forgotten that label: without a
    /// decision they halve the beam for ever.
    ///
    /// # Errors
    /// [`Error::Stream`] for a state that is not this model's, which is then as it was.
    pub fn commit(&self, stream: &mut BeamStream, labels: usize) -> Result<Vec<DecodedToken>> {
        stream.check(&self.model, self.options.fusion.len())?;
        let best = nbest::best(&stream.hyps, &stream.tree, (&self.model, &self.options));
        Ok(best.map_or_else(Vec::new, |best| stream.commit(&best, labels)))
    }

    /// The result of streams that are at their end: with scores of ends, if the options ask for them.
    ///
    /// # Errors
    /// As [`Self::advance`].
    pub fn finish(&mut self, streams: &mut [&mut BeamStream]) -> Result<&[NBest]> {
        let nothing = vec![&[][..]; streams.len()];
        self.continues(streams, &nothing, self.options.end_scores)?;
        Ok(&self.found)
    }

    fn continues(&mut self, streams: &mut [&mut BeamStream], chunks: &[&[f32]], ends: bool) -> Result<()> {
        self.stream()?;
        if streams.len() != chunks.len() {
            let (expected, found) = (streams.len(), chunks.len());
            return Err(Error::Count { argument: "chunks", expected, found });
        }
        let shared = self.options.fusion.len();
        for (b, stream) in streams.iter().enumerate() {
            stream.check(&self.model, shared).map_err(|error| error.in_utterance(b))?;
        }
        let streams: Vec<&BeamStream> = streams.iter().map(|stream| &**stream).collect();
        self.run(&streams, chunks, ends)
    }

    /// Inside of the thread pool, so that each parallel loop need not enter it.
    fn run(&mut self, streams: &[&BeamStream], chunks: &[&[f32]], ends: bool) -> Result<()> {
        let Self { model, options, found, work, .. } = self;
        let mut counts = Vec::with_capacity(chunks.len());
        for (b, chunk) in chunks.iter().enumerate() {
            counts.push(whole_rows(chunk, model).map_err(|error| error.in_utterance(b))?);
        }
        let task = BeamTask { model, options, chunks };
        kernels::install(|| {
            work.begin(task, streams, &counts)?;
            match options.kind {
                BeamKind::Modified => work.modified(task),
                BeamKind::Alsd { max_labels } => work.alsd(task, max_labels),
                BeamKind::Malsd { max_symbols } => work.malsd(task, max_symbols),
                BeamKind::Maes { expansions, beta, gamma, prefix } => {
                    work.maes(task, &maes::Limits { expansions, beta, gamma, prefix })
                }
            }
        })?;
        found.clear();
        // ALSD has looked at the ends already.
        let ends = ends && !matches!(options.kind, BeamKind::Alsd { .. });
        for lane in &work.lanes {
            found.push(nbest::rank(lane, &work.rows, (model, options), ends)?);
        }
        Ok(())
    }
}

impl BeamBuffers {
    /// A lane for each utterance.
    fn begin(&mut self, task: BeamTask, streams: &[&BeamStream], counts: &[usize]) -> Result<()> {
        let Self { lanes, rows, .. } = self;
        lanes.resize_with(streams.len(), BeamUtterance::default);
        for (b, (lane, (stream, &frames))) in lanes.iter_mut().zip(streams.iter().zip(counts)).enumerate() {
            lane.utterance = b;
            lane.tree.clone_from(&stream.tree);
            lane.hyps.clone_from(&stream.hyps);
            lane.hyps.iter_mut().for_each(|hyp| hyp.row = FRESH);
            lane.aside.clear();
            lane.lists.clone_from(&stream.lists);
            (lane.before, lane.end) = (stream.frames, stream.frames.saturating_add(frames));
        }
        rows.reset(task.model, task.options, lanes);
        for (b, stream) in streams.iter().enumerate() {
            for hyp in 0..stream.hyps.len() {
                rows.load((b, hyp), &stream.states, &stream.rows, &stream.automata);
            }
        }
        rows.place(task.model, task.options, lanes)
    }

    /// Lists sites: of each lane the hypotheses that `wanted` names.
    fn visit(&mut self, wanted: impl Fn(&BeamUtterance, &utterance::BeamHypothesis) -> bool) {
        self.sites.clear();
        for lane in &mut self.lanes {
            lane.first = self.sites.len();
            for hyp in lane.hyps.iter().filter(|hyp| wanted(lane, hyp)) {
                let (frame, row) = (hyp.time - lane.before, hyp.row as usize);
                self.sites.push(SiteIndex { utterance: lane.utterance, frame, row });
            }
        }
    }

    /// Finds so many entries of each site.
    fn look(&mut self, task: BeamTask, count: usize) -> Result<()> {
        let of = (task.model, task.options);
        let found = self.short.find(of, (task.chunks, &self.sites), &mut self.rows, count);
        found.map_err(|(site, error)| {
            let utterance = self.sites[site].utterance;
            let before = self.lanes[utterance].before;
            match error {
                Error::Score { frame, class, found } => Error::Score { frame: before + frame, class, found },
                other => other,
            }
            .in_utterance(utterance)
        })
    }

    /// Rows for all new labels; labels that nobody has any more are forgotten.
    fn extend(&mut self, task: BeamTask) -> Result<()> {
        self.rows.extend(task.model, task.options, &mut self.lanes)?;
        self.lanes.iter_mut().for_each(BeamUtterance::prune);
        Ok(())
    }
}
