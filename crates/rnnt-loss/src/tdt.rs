//! Doors for token-and-duration transducers: a softmax over tokens and one over durations at every site.
use panda_core::{Head, JointGradient, Real, scores};

use crate::{
    Error, Layout, Options, Result, Skipped, Targets, Workspace,
    columns::Columns,
    engine::Forward,
    error::expect_rows,
    heads::{Heads, HeadsLoss},
    objective::Transducer,
};

/// Loss and gradients of [`tdt_loss`], each shaped like its argument.
#[derive(Debug, Clone, PartialEq)]
pub struct TdtLoss<F> {
    /// Loss of each utterance, *B*.
    pub losses: Vec<f64>,
    /// Gradient of the frame rows; 0 in padding.
    pub frames: Vec<F>,
    /// Gradient of the label rows; 0 in padding.
    pub labels: Vec<F>,
    /// Gradients of the token head's weight and bias; the latter also for a head without one.
    pub tokens: (Vec<F>, Vec<F>),
    /// Gradients of the duration head's.
    pub durations: (Vec<F>, Vec<F>),
    /// What [`Options::skip`] left out of the gradients.
    pub skipped: Skipped,
}

/// TDT loss (Xu et al., arXiv 2304.06795) of sites `h(t,u) = act(frames[t] + labels[u])` under a token head of any size and
/// a small duration head, with all gradients of `Σ_b weights[b] loss[b]`.
///
/// ```text
/// P(token, d | t, u) = softmax(tokens h)_token · softmax(durations h)_d · exp(-σ)
/// loss = (1 - ω) TDT + ω RNN-T
/// ```
///
/// [`Options::topology`] is [`Topology::tdt`](rnnt_dp::Topology::tdt) with as many durations as the head has classes. The
/// RNN-T loss of the mixture has the same tokens, no durations and no σ: the mean of what NeMo draws at random. An
/// utterance whose frames no sum of durations reaches has the loss +inf and no gradient.
///
/// # Shapes
/// As [`projected_loss`](crate::projected_loss()).
///
/// # Errors
/// As there; heads of different widths; a topology with other columns.
///
/// # Cost
/// As there, and as much again for the duration head as its share of the classes, plus N (2 + D) `f64` three times over.
///
/// ```
/// use rnnt_loss::{Head, Layout, Options, Targets, Topology, tdt_loss};
/// let (tokens, durations) = ([0.1f32; 3 * 4], [0.2; 2 * 4]); // C = 3, D = 2, H = 4
/// let (tokens, durations) = (Head::new(&tokens, None, 4)?, Head::new(&durations, None, 4)?);
/// let options = Options { topology: Topology::tdt(&[1, 2])?, ..Options::default() };
/// let targets = Targets::new(0, vec![3], vec![vec![1]])?; // T = 3, U = 1
/// let rows = ([0.0; 3 * 4], [0.0; 2 * 4]);
/// let out = tdt_loss(&rows.0, &rows.1, &tokens, &durations, Layout::Packed, &targets, &options, &[1.0])?;
/// // Two paths of two arcs, 1 + 2 or 2 + 1 frames, and two of three, of which one frame each: label first or second.
/// let want = -(2.0 * 6f64.powi(-2) + 2.0 * 6f64.powi(-3)).ln();
/// assert!((out.losses[0] - want).abs() < 1e-6);
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
pub fn tdt_loss<F: Real>(
    frames: &[F],
    labels: &[F],
    tokens: &Head<F>,
    durations: &Head<F>,
    layout: Layout,
    targets: &Targets,
    options: &Options,
    weights: &[f64],
) -> Result<TdtLoss<F>> {
    targets.check_classes(tokens.classes())?;
    let heads = Heads::new(tokens, Some(durations), targets.blank(), options)?;
    let out = Workspace::new(options)?.heads_loss((frames, labels), &heads, layout, targets, weights)?;
    let HeadsLoss { losses, rows: JointGradient { frames, labels }, heads, skipped } = out;
    let [tokens, durations]: [_; 2] =
        heads.try_into().unwrap_or_else(|_| unreachable!("two heads have two gradients"));
    Ok(TdtLoss { losses, frames, labels, tokens, durations, skipped })
}

/// TDT loss of ready-made scores, rows of tokens followed by durations, and its gradient.
///
/// # Shapes
/// `scores` *rows x (C + D)* in `layout`, where D is the number of the topology's durations; `weights` *B*. Returns losses *B*
/// and a gradient shaped like the scores, 0 in padding.
///
/// # Errors
/// As [`scores_loss`](crate::scores_loss).
///
/// # Cost
/// O(N (C + D)) time; two copies of the scores.
pub fn tdt_scores_loss<F: Real>(
    scores: &[F],
    classes: usize,
    layout: Layout,
    targets: &Targets,
    options: &Options,
    weights: &[f64],
) -> Result<(Vec<f64>, Vec<F>)> {
    options.without_head()?;
    layout.check(targets)?;
    targets.check_classes(classes)?;
    let count = options.topology.columns() - options.topology.tokens();
    if count == 0 {
        let (expected, found) = ("durations".into(), "none".into());
        return Err(Error::Shape { argument: "options.topology", expected, found });
    }
    let (rows, width) = (layout.score_rows(targets), classes.saturating_add(count));
    expect_rows("scores", rows, width, scores.len())?;
    let columns = |from: usize, to: usize| {
        scores.chunks_exact(width).flat_map(|row| &row[from..to]).copied().collect::<Vec<F>>()
    };
    let mut parts = [(columns(0, classes), classes), (columns(classes, width), count)];
    let (site_of_row, sites) = (layout.site_of_row(targets), targets.lattices().sites());
    let objective = Transducer::new(targets, Columns::TokensAndDurations(count));
    let mut workspace = rnnt_dp::Workspace::new();
    let forward = Forward::from_normaliser(&objective, options, &mut workspace, |head, selection| {
        let (z, classes) = &parts[head];
        scores::forward(z, *classes, &site_of_row, sites, selection)
    })?;
    forward.with_adjoints(targets.lattices(), options, weights, |head, part, adjoints| {
        let (z, classes) = &mut parts[head];
        scores::backward_in_place(z, *classes, &site_of_row, &part.selection, &part.normalized, adjoints)
    })?;
    let [(tokens, _), (durations, _)] = &parts;
    let rows = tokens.chunks_exact(classes).zip(durations.chunks_exact(count));
    let gradient = rows.flat_map(|(tokens, durations)| tokens.iter().chain(durations)).copied().collect();
    Ok((forward.losses().to_vec(), gradient))
}
