//! Log-probabilities of symbols and blank from logits, for fast_rnnt and k2.
//!
//! A row of logits `[B, T, R, C]` belongs to frame t and to a symbol position s: the r-th one, or
//! for pruned logits `ranges[b, t, r]`. With z the row, the log-probabilities are
//!
//! ```text
//! softmax           px(s,t) = z[symbol] - logZ                      py(s,t) = z[blank] - logZ
//! factored blank    px(s,t) = z[symbol] - logZ' + log σ(-z[blank])  py(s,t) = log σ(z[blank])
//! ```
//!
//! logZ: log-sum-exp of the row; logZ': the same without the blank (Variani et al. 2020). Rows
//! outside the boundaries are not read, and their gradient is 0.
use dlpark::ffi::DLDataType;
use panda_core::{
    Adjoints, Error, Real, Selection,
    scores::{self, PADDING},
};
use pyo3::{Bound, PyAny, PyErr, PyResult, Python, exceptions::PyValueError, pyfunction};

use crate::{
    arrays::{Array, ArrayElement, Borrowed},
    lattice_boundaries::{Boundary, read_boundaries, read_symbols},
    targets::expect_batch,
    threads,
};

/// Computes px `[B, S, T]` and py `[B, S+1, T]`.
///
/// They are -inf where no row of logits is in the boundaries.
#[pyfunction]
#[pyo3(signature = (logits, symbols, ranges, boundary, blank, has_factored_blank))]
pub fn site_log_probs(
    python: Python,
    logits: &Bound<PyAny>,
    symbols: &Bound<PyAny>,
    ranges: Option<&Bound<PyAny>>,
    boundary: &Bound<PyAny>,
    blank: u32,
    has_factored_blank: bool,
) -> PyResult<(Array, Array)> {
    let logits = Borrowed::new("logits", logits, 4)?;
    let sites = SiteRows::new(&logits, symbols, ranges, boundary, blank, has_factored_blank)?;
    let LogitShape { batch, frames, max_symbols, .. } = sites.shape;
    macro_rules! call {
        ($type:ty) => {{
            let logits = logits.elements::<$type>()?;
            let (px, py) = python.detach(|| threads::install(|| sites.log_probs(logits)))??;
            let px = <$type>::array(px, vec![batch, max_symbols, frames]);
            Ok((px, <$type>::array(py, vec![batch, max_symbols + 1, frames])))
        }};
    }
    match logits.dtype() {
        DLDataType::F32 => call!(f32),
        DLDataType::F64 => call!(f64),
        _ => Err(logits.dtype_error("float32 or float64")),
    }
}

/// Computes the gradient of the logits from those of px and py.
#[pyfunction]
#[pyo3(signature = (logits, symbols, ranges, boundary, blank, has_factored_blank, d_px, d_py))]
#[expect(clippy::too_many_arguments, reason = "the arguments of the operation in torch")]
pub fn site_log_probs_gradient(
    python: Python,
    logits: &Bound<PyAny>,
    symbols: &Bound<PyAny>,
    ranges: Option<&Bound<PyAny>>,
    boundary: &Bound<PyAny>,
    blank: u32,
    has_factored_blank: bool,
    d_px: &Bound<PyAny>,
    d_py: &Bound<PyAny>,
) -> PyResult<Array> {
    let logits = Borrowed::new("logits", logits, 4)?;
    let sites = SiteRows::new(&logits, symbols, ranges, boundary, blank, has_factored_blank)?;
    let LogitShape { batch, frames, max_symbols, .. } = sites.shape;
    let (d_px, d_py) = (Borrowed::new("d_px", d_px, 3)?, Borrowed::new("d_py", d_py, 3)?);
    for (argument, array, positions) in [("d_px", &d_px, max_symbols), ("d_py", &d_py, max_symbols + 1)] {
        let (expected, found) = ([batch, positions, frames], array.shape::<3>());
        if expected != found {
            return Err(PyValueError::new_err(format!("{argument}: expected {expected:?}, found {found:?}")));
        }
    }
    macro_rules! call {
        ($type:ty) => {{
            let elements = logits.elements::<$type>()?;
            let (d_px, d_py) = (d_px.elements()?, d_py.elements()?);
            let gradient = python.detach(|| threads::install(|| sites.gradient(elements, d_px, d_py)))??;
            Ok(<$type>::array(gradient, logits.shape::<4>().to_vec()))
        }};
    }
    match logits.dtype() {
        DLDataType::F32 => call!(f32),
        DLDataType::F64 => call!(f64),
        _ => Err(logits.dtype_error("float32 or float64")),
    }
}

/// Sizes of logits `[B, T, R, C]`, and the number of symbols S.
#[derive(Clone, Copy)]
struct LogitShape {
    batch: usize,
    frames: usize,
    positions: usize,
    classes: usize,
    max_symbols: usize,
}

/// A row of logits inside the boundaries.
struct Site {
    row: usize,
    /// Index in py.
    py: usize,
    /// Index in px and class of the next symbol; none after the last symbol.
    next_symbol: Option<(usize, u32)>,
}

/// The rows of logits that are inside the boundaries.
struct SiteRows {
    shape: LogitShape,
    blank: u32,
    has_factored_blank: bool,
    sites: Vec<Site>,
    /// Site of each row.
    site_of_row: Vec<u32>,
    /// Blank and next symbol of each site.
    selection: Selection,
}

/// Selected classes of a site: blank and next symbol.
const CLASSES_PER_SITE: usize = 2;

impl SiteRows {
    /// Reads the arguments of a call.
    ///
    /// # Errors
    /// Shapes, types, boundaries or symbols that do not match; ranges that are not consecutive
    /// positions; a blank that is not a class, or that is a symbol although it is factored.
    fn new(
        logits: &Borrowed,
        symbols: &Bound<PyAny>,
        ranges: Option<&Bound<PyAny>>,
        boundary: &Bound<PyAny>,
        blank: u32,
        has_factored_blank: bool,
    ) -> PyResult<Self> {
        let [batch, frames, positions, classes] = logits.shape();
        let [_, max_symbols] = Borrowed::new("symbols", symbols, 2)?.shape();
        if ranges.is_none() && positions != max_symbols + 1 {
            return Err(PyValueError::new_err(format!(
                "symbols: expected {} columns, one less than the symbol positions of logits, found \
                 {max_symbols}",
                positions.saturating_sub(1)
            )));
        }
        if blank as usize >= classes {
            return Err(PyValueError::new_err(format!(
                "termination_symbol: expected a class from 0 to below {classes}, found {blank}"
            )));
        }
        let shape = LogitShape { batch, frames, positions, classes, max_symbols };
        let boundaries = read_boundaries(boundary, batch, max_symbols, frames)?;
        let symbols = read_symbols(symbols, &boundaries, max_symbols, classes)?;
        let first_positions = match ranges {
            Some(ranges) => Some(first_positions(ranges, &boundaries, &shape)?),
            None => None,
        };
        let rows = batch * frames * positions;
        if rows >= PADDING as usize {
            return Err(PyValueError::new_err(format!(
                "logits: expected fewer than {PADDING} rows of classes, found {rows}"
            )));
        }
        let (mut sites, mut site_of_row) = (Vec::new(), vec![PADDING; rows]);
        for (utterance, boundary) in boundaries.iter().enumerate() {
            for frame in boundary.frames.clone() {
                let frame_index = utterance * frames + frame;
                let first_position = first_positions.as_ref().map_or(0, |first| first[frame_index]);
                for position in first_position.max(boundary.symbols.start)
                    ..(first_position + positions).min(boundary.symbols.end + 1)
                {
                    let row = frame_index * positions + position - first_position;
                    site_of_row[row] = sites.len() as u32;
                    let symbol_index = utterance * max_symbols + position;
                    let next_symbol = (position < boundary.symbols.end)
                        .then(|| (symbol_index * frames + frame, symbols[symbol_index] as u32));
                    sites.push(Site { row, py: (symbol_index + utterance) * frames + frame, next_symbol });
                }
            }
        }
        let is_blank = |site: &Site| site.next_symbol.is_some_and(|(_, symbol)| symbol == blank);
        if has_factored_blank && sites.iter().any(is_blank) {
            return Err(PyValueError::new_err(format!(
                "symbols: expected symbols other than the factored blank {blank}"
            )));
        }
        let next_symbols = || sites.iter().map(|site| site.next_symbol.map(|(_, symbol)| symbol));
        let ids = next_symbols().flat_map(|symbol| [blank, symbol.unwrap_or(blank)]).collect();
        let is_other = |symbol: Option<u32>| symbol.is_some_and(|symbol| symbol != blank);
        let active = next_symbols().flat_map(|symbol| [!has_factored_blank, is_other(symbol)]).collect();
        let selection = Selection::new(ids, active, CLASSES_PER_SITE)
            .map_err(|error| PyValueError::new_err(format!("symbols: {error}")))?;
        Ok(Self { shape, blank, has_factored_blank, sites, site_of_row, selection })
    }

    /// Returns px and py.
    fn log_probs<F: Real>(&self, logits: &[F]) -> PyResult<(Vec<F>, Vec<F>)> {
        let LogitShape { batch, frames, max_symbols, .. } = self.shape;
        let mut px = vec![F::NEG_INFINITY; batch * max_symbols * frames];
        let mut py = vec![F::NEG_INFINITY; batch * (max_symbols + 1) * frames];
        if self.sites.is_empty() {
            return Ok((px, py));
        }
        let masked = self.has_factored_blank.then(|| self.without_blank(logits));
        let emissions = self.normalize(masked.as_deref().unwrap_or(logits))?.emissions;
        for (site, emissions) in self.sites.iter().zip(emissions.chunks_exact(CLASSES_PER_SITE)) {
            let [mut blank, mut symbol] = [emissions[0], emissions[1]];
            if self.has_factored_blank {
                let score = logits[self.blank_index(site)].to_f64();
                if score.is_nan() {
                    return Err(self.logit_error(site));
                }
                blank = log_sigmoid(score);
                symbol += log_sigmoid(-score);
            }
            py[site.py] = F::from_f64(blank);
            if let Some((index, class)) = site.next_symbol {
                px[index] = F::from_f64(if class == self.blank { blank } else { symbol });
            }
        }
        Ok((px, py))
    }

    /// Returns the gradient of the logits.
    fn gradient<F: Real>(&self, logits: &[F], d_px: &[F], d_py: &[F]) -> PyResult<Vec<F>> {
        if self.sites.is_empty() {
            return Ok(vec![F::ZERO; logits.len()]);
        }
        let mut gradient = if self.has_factored_blank { self.without_blank(logits) } else { logits.to_vec() };
        let normalized = self.normalize(&gradient)?;
        let mut adjoints = Vec::with_capacity(self.sites.len() * CLASSES_PER_SITE);
        for site in &self.sites {
            let (d_blank, d_symbol) = site_gradients(site, d_px, d_py);
            // A symbol that is the blank shares its entry.
            let is_blank = site.next_symbol.is_some_and(|(_, class)| class == self.blank);
            adjoints.extend(if is_blank { [d_blank + d_symbol, 0.0] } else { [d_blank, d_symbol] });
        }
        scores::backward_in_place(
            &mut gradient,
            self.shape.classes,
            &self.site_of_row,
            &self.selection,
            &normalized,
            &Adjoints::new(&adjoints),
        )
        .map_err(|error| self.error(&error))?;
        if self.has_factored_blank {
            for site in &self.sites {
                let (d_blank, d_symbol) = site_gradients(site, d_px, d_py);
                let score = logits[self.blank_index(site)].to_f64();
                let (blank, no_blank) = (log_sigmoid(score).exp(), log_sigmoid(-score).exp());
                gradient[self.blank_index(site)] = F::from_f64(d_blank * no_blank - d_symbol * blank);
            }
        }
        Ok(gradient)
    }

    fn normalize<F: Real>(&self, logits: &[F]) -> PyResult<panda_core::Normalized<F>> {
        scores::forward(logits, self.shape.classes, &self.site_of_row, self.sites.len(), &self.selection)
            .map_err(|error| self.error(&error))
    }

    /// Copies the logits, with -inf for the blank.
    fn without_blank<F: Real>(&self, logits: &[F]) -> Vec<F> {
        let mut copy = logits.to_vec();
        self.sites.iter().for_each(|site| copy[self.blank_index(site)] = F::NEG_INFINITY);
        copy
    }

    /// Returns the index of a site's blank in the logits.
    fn blank_index(&self, site: &Site) -> usize {
        site.row * self.shape.classes + self.blank as usize
    }

    /// Converts an error; those of a site name its row of logits.
    fn error(&self, error: &Error) -> PyErr {
        match error {
            Error::NotFinite { site } | Error::AllMasked { site } => self.logit_error(&self.sites[*site]),
            error => PyValueError::new_err(format!("logits: {error}")),
        }
    }

    fn logit_error(&self, site: &Site) -> PyErr {
        let LogitShape { frames, positions, .. } = self.shape;
        let (frame_index, position) = (site.row / positions, site.row % positions);
        let (utterance, frame) = (frame_index / frames, frame_index % frames);
        PyValueError::new_err(format!(
            "logits[{utterance}, {frame}, {position}]: expected scores that are finite or -inf, and a finite \
             one, found NaN, +inf or only -inf"
        ))
    }
}

/// Returns the gradients of the blank's and the next symbol's log-probability.
fn site_gradients<F: Real>(site: &Site, d_px: &[F], d_py: &[F]) -> (f64, f64) {
    (d_py[site.py].to_f64(), site.next_symbol.map_or(0.0, |(index, _)| d_px[index].to_f64()))
}

/// Returns `log(1 / (1 + exp(-x)))`.
fn log_sigmoid(x: f64) -> f64 {
    x.min(0.0) - (-x.abs()).exp().ln_1p()
}

/// Reads pruning ranges `[B, T, R]`; returns the first position of each frame, 0 for padding.
///
/// # Errors
/// Another shape or type; positions of a frame that are not consecutive, or exceed S.
fn first_positions(
    ranges: &Bound<PyAny>,
    boundaries: &[Boundary],
    shape: &LogitShape,
) -> PyResult<Vec<usize>> {
    let array = Borrowed::new("ranges", ranges, 3)?;
    let [batch, frames, positions] = array.shape();
    expect_batch("ranges", shape.batch, batch)?;
    if [frames, positions] != [shape.frames, shape.positions] {
        return Err(PyValueError::new_err(format!(
            "ranges: expected {} frames of {} positions, as logits, found {frames} of {positions}",
            shape.frames, shape.positions
        )));
    }
    let ranges = array.integers()?;
    let mut first_positions = vec![0; batch * frames];
    for (utterance, boundary) in boundaries.iter().enumerate() {
        for frame in boundary.frames.clone() {
            let frame_index = utterance * frames + frame;
            let range = &ranges[frame_index * positions..][..positions];
            let is_consecutive = range.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]));
            let is_valid = |position: &i64| (0..=shape.max_symbols as i64).contains(position);
            if !is_consecutive || !range.iter().all(is_valid) {
                return Err(PyValueError::new_err(format!(
                    "ranges[{utterance}, {frame}]: expected consecutive symbol positions from 0 to {}, found \
                     {range:?}",
                    shape.max_symbols
                )));
            }
            first_positions[frame_index] = range.first().map_or(0, |&first| first as usize);
        }
    }
    Ok(first_positions)
}
