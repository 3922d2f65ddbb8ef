//! The selected normalizer: log-probabilities of a few classes per site, exact over all classes.
//!
//! Axes: N sites, H width of the hidden rows, C classes, S selected classes of a site. The formulas
//! are those of `panda_core`.
use dlpark::ffi::DLDataType;
use panda_core::{
    Adjoints, BackwardInputs, Error, Gradients, Head, Normalized, Plan, Precision, Real, Result, Rows,
    Selection, Shape, Sites, Workspace, backward, forward, scores,
};
use pyo3::{Bound, PyAny, PyErr, PyResult, Python, exceptions::PyValueError, pyfunction};

use crate::{
    arrays::{Array, ArrayElement, Borrowed},
    threads,
};

/// An element type of the rows.
trait RowElement: Real + ArrayElement {}

impl RowElement for f32 {}
impl RowElement for f64 {}

/// Fails unless active ids are classes, and distinct if required.
#[pyfunction]
pub fn check_selection(
    selected_ids: &Bound<PyAny>,
    selected_mask: &Bound<PyAny>,
    num_classes: usize,
    reject_duplicates: bool,
) -> PyResult<()> {
    let SelectedIds { ids, active, per_site, .. } =
        SelectedIds::new(selected_ids, selected_mask, num_classes)?;
    if reject_duplicates {
        Selection::new(ids, active, per_site).map_err(normalizer_error)?;
    }
    Ok(())
}

/// Log-probabilities of selected classes.
///
/// Returns emissions `[N, S]` and logZ `[N]` in float64, and logZ in two parts: the largest score
/// of each site in the type of the rows, and the logarithm of the sum relative to it in float64.
/// Emissions of inactive entries are 0. A site without an active entry whose hidden row is not
/// finite is padding: its row is not used, and its logZ is 0.
#[pyfunction]
pub fn selected_forward(
    py: Python,
    hidden: &Bound<PyAny>,
    weight: &Bound<PyAny>,
    bias: &Bound<PyAny>,
    selected_ids: &Bound<PyAny>,
    selected_mask: &Bound<PyAny>,
    tile_c: usize,
) -> PyResult<(Array, Array, Array, Array)> {
    let arguments = Arguments::new(hidden, weight, bias, selected_ids, selected_mask, tile_c)?;
    let Shape { sites, selected, .. } = arguments.shape;
    macro_rules! call {
        ($type:ty) => {{
            let problem = arguments.problem::<$type>()?;
            let outcome = py.detach(|| threads::install(|| problem.forward()))?;
            let (normalized, log_z) = outcome.map_err(normalizer_error)?;
            Ok((
                f64::array(normalized.emissions, vec![sites, selected]),
                f64::array(log_z, vec![sites]),
                <$type>::array(normalized.max, vec![sites]),
                f64::array(normalized.log_sum, vec![sites]),
            ))
        }};
    }
    match arguments.hidden.dtype() {
        DLDataType::F32 => call!(f32),
        DLDataType::F64 => call!(f64),
        _ => Err(arguments.hidden.dtype_error("float32 or float64")),
    }
}

/// Gradients of hidden rows, weight and bias.
///
/// `d_emissions` and `d_log_z` are the adjoints, the derivatives of the loss.
///
/// `max`, `log_sum` and `emissions` are results of [`selected_forward`]. Without emissions, these
/// are computed by scalar products, and logZ, the sum of `max` and `log_sum`, is an argument:
/// values that are not finite are then errors, in logZ and in the gradients.
#[pyfunction]
#[pyo3(signature = (
    hidden, weight, bias, selected_ids, selected_mask, emissions, max, log_sum, d_emissions, d_log_z, tile_c
))]
#[expect(clippy::too_many_arguments, reason = "the arguments of the operation in torch")]
pub fn selected_backward(
    py: Python,
    hidden: &Bound<PyAny>,
    weight: &Bound<PyAny>,
    bias: &Bound<PyAny>,
    selected_ids: &Bound<PyAny>,
    selected_mask: &Bound<PyAny>,
    emissions: Option<&Bound<PyAny>>,
    max: &Bound<PyAny>,
    log_sum: &Bound<PyAny>,
    d_emissions: &Bound<PyAny>,
    d_log_z: &Bound<PyAny>,
    tile_c: usize,
) -> PyResult<(Array, Array, Array)> {
    let arguments = Arguments::new(hidden, weight, bias, selected_ids, selected_mask, tile_c)?;
    let Shape { sites, hidden: width, classes, selected } = arguments.shape;
    let emissions =
        emissions.map(|emissions| borrow("emissions", emissions, [sites, selected])).transpose()?;
    let d_emissions = borrow("selected_adjoints", d_emissions, [sites, selected])?;
    let (max, log_sum) = (borrow("logZ", max, [sites])?, borrow("logZ", log_sum, [sites])?);
    let d_log_z = borrow("d_log_z", d_log_z, [sites])?;
    let emissions = emissions.as_ref().map(|emissions| emissions.elements::<f64>()).transpose()?;
    let (log_sum, d_emissions) = (log_sum.elements::<f64>()?, d_emissions.elements::<f64>()?);
    let d_log_z = d_log_z.elements::<f64>()?;
    macro_rules! call {
        ($type:ty) => {{
            let problem = arguments.problem::<$type>()?;
            let max = max.elements::<$type>()?;
            if emissions.is_none() {
                problem.check_log_z(max, log_sum)?;
            }
            let outcome = py.detach(|| {
                threads::install(|| {
                    let normalized = problem.normalized(emissions, max, log_sum)?;
                    problem.backward(&normalized, d_emissions, d_log_z)
                })
            })?;
            let [rows, weight, bias] = outcome.map_err(normalizer_error)?;
            if emissions.is_none() {
                for (name, values) in [("hidden", &rows), ("weight", &weight), ("bias", &bias)] {
                    check_gradient(name, values)?;
                }
            }
            Ok((
                <$type>::array(rows, vec![sites, width]),
                <$type>::array(weight, vec![classes, width]),
                <$type>::array(bias, vec![classes]),
            ))
        }};
    }
    match arguments.hidden.dtype() {
        DLDataType::F32 => call!(f32),
        DLDataType::F64 => call!(f64),
        _ => Err(arguments.hidden.dtype_error("float32 or float64")),
    }
}

/// Selected ids with their mask; ids of inactive entries are 0.
struct SelectedIds {
    ids: Vec<u32>,
    active: Vec<bool>,
    sites: usize,
    per_site: usize,
}

impl SelectedIds {
    /// Reads `selected_ids` and `selected_mask` `[N, S]`; a mask is bytes, 0 for inactive entries.
    ///
    /// # Errors
    /// Shapes that differ; another type; an active id that is not a class.
    fn new(selected_ids: &Bound<PyAny>, selected_mask: &Bound<PyAny>, classes: usize) -> PyResult<Self> {
        let ids = Borrowed::new("selected_ids", selected_ids, 2)?;
        let [sites, per_site] = ids.shape();
        let mask = borrow("selected_mask", selected_mask, [sites, per_site])?;
        let active: Vec<bool> = mask.elements::<u8>()?.iter().map(|&byte| byte != 0).collect();
        let ids = ids.integers()?;
        // `Selection` has ids of 32 bits.
        let limit = classes.min(1 << 32) as i64;
        let mut entries = ids.iter().zip(&active);
        if let Some(entry) = entries.position(|(id, &is_active)| is_active && !(0..limit).contains(id)) {
            let (site, slot, found) = (entry / per_site, entry % per_site, ids[entry]);
            return Err(PyValueError::new_err(format!(
                "selected_ids[{site}, {slot}]: expected active ids in [0, {limit}), found {found}"
            )));
        }
        let ids = ids.iter().zip(&active).map(|(&id, &is_active)| if is_active { id as u32 } else { 0 });
        Ok(Self { ids: ids.collect(), active, sites, per_site })
    }
}

/// Arrays of both passes, borrowed for a call.
struct Arguments {
    hidden: Borrowed,
    weight: Borrowed,
    bias: Borrowed,
    selection: Selection,
    shape: Shape,
    tile_c: usize,
}

impl Arguments {
    /// Borrows the arrays.
    ///
    /// # Errors
    /// Shapes that do not match; no class, or rows of width 0; a selection that is not valid.
    fn new(
        hidden: &Bound<PyAny>,
        weight: &Bound<PyAny>,
        bias: &Bound<PyAny>,
        selected_ids: &Bound<PyAny>,
        selected_mask: &Bound<PyAny>,
        tile_c: usize,
    ) -> PyResult<Self> {
        let error = |text: String| Err(PyValueError::new_err(text));
        let (hidden, weight) = (Borrowed::new("hidden", hidden, 2)?, Borrowed::new("weight", weight, 2)?);
        let ([sites, width], [classes, weight_width]) = (hidden.shape(), weight.shape());
        if width == 0 {
            return error("hidden: expected rows of at least 1 number, found 0".to_owned());
        }
        if weight_width != width {
            return error(format!(
                "weight: expected rows of {width} numbers, as hidden, found {weight_width}"
            ));
        }
        if classes == 0 {
            return error("weight: expected at least 1 class, found 0".to_owned());
        }
        if tile_c == 0 {
            return error("tile_c: expected a positive number, found 0".to_owned());
        }
        let bias = borrow("bias", bias, [classes])?;
        let selected = SelectedIds::new(selected_ids, selected_mask, classes)?;
        if selected.sites != sites {
            return error(format!(
                "selected_ids: expected {sites} sites, as hidden, found {}",
                selected.sites
            ));
        }
        let shape = Shape { sites, hidden: width, classes, selected: selected.per_site };
        let selection = Selection::new(selected.ids, selected.active, selected.per_site);
        Ok(Self { hidden, weight, bias, selection: selection.map_err(normalizer_error)?, shape, tile_c })
    }

    /// Borrows the elements.
    fn problem<F: RowElement>(&self) -> PyResult<Problem<'_, F>> {
        let Self { hidden, weight, bias, selection, shape, tile_c } = self;
        let Shape { sites, hidden: width, .. } = *shape;
        let (hidden, weight, bias) = (hidden.elements()?, weight.elements()?, bias.elements()?);
        let is_padding = (0..sites)
            .map(|site| {
                let row: &[F] = &hidden[site * width..][..width];
                selection.active(site).next().is_none() && !row.iter().all(|value| value.to_f64().is_finite())
            })
            .collect();
        let rows = Rows::new(hidden, width).map_err(normalizer_error)?;
        Ok(Problem {
            sites: PaddedRows { rows, hidden, is_padding },
            head: Head::new(weight, Some(bias), width).map_err(normalizer_error)?,
            bias,
            selection,
            plan: tiled_plan(*shape, *tile_c).map_err(normalizer_error)?,
        })
    }
}

/// Returns a plan with at most `tile_c` classes at a time.
///
/// Their scores and score gradients exist for a wave of sites. No scores are saved for backward.
fn tiled_plan<F: Real>(shape: Shape, tile_c: usize) -> Result<Plan<F>> {
    let plan = Plan::new(shape, Precision::Full, usize::MAX, false)?;
    let tile_classes = plan.tile_classes.min(tile_c);
    Ok(Plan { tile_classes, group_tiles: plan.group_tiles.min(tile_c / tile_classes), ..plan })
}

/// Arguments of both passes.
struct Problem<'a, F> {
    sites: PaddedRows<'a, F>,
    head: Head<'a, F>,
    bias: &'a [F],
    selection: &'a Selection,
    plan: Plan<F>,
}

impl<F: RowElement> Problem<'_, F> {
    /// Computes the emissions; also returns logZ, 0 for padding.
    fn forward(&self) -> Result<(Normalized<F>, Vec<f64>)> {
        let mut workspace = Workspace::with_plan(self.plan)?;
        let normalized = forward(&self.sites, &self.head, self.selection, &mut workspace)?;
        let log_z = self.sites.is_padding.iter().enumerate();
        let log_z =
            log_z.map(|(site, &is_padding)| if is_padding { 0.0 } else { normalized.log_z(site) }).collect();
        Ok((normalized, log_z))
    }

    /// Computes the gradients of rows, weight and bias.
    ///
    /// The adjoint of a padding site's logZ is ignored.
    fn backward(
        &self,
        normalized: &Normalized<F>,
        d_emissions: &[f64],
        d_log_z: &[f64],
    ) -> Result<[Vec<F>; 3]> {
        let d_log_z = d_log_z.iter().zip(&self.sites.is_padding);
        let d_log_z: Vec<f64> =
            d_log_z.map(|(&adjoint, &is_padding)| if is_padding { 0.0 } else { adjoint }).collect();
        let adjoints = &Adjoints { log_z: Some(&d_log_z), ..Adjoints::new(d_emissions) };
        let Self { sites, head, selection, .. } = self;
        let mut gradients = Gradients::zero(sites.zero_gradient(), head);
        let inputs = BackwardInputs { sites, head, selection, normalized, adjoints };
        backward(inputs, &mut Workspace::with_plan(self.plan)?, &mut gradients)?;
        let Gradients { sites: rows, weight, bias } = gradients;
        Ok([rows, weight, bias.into_iter().map(F::from_f64).collect()])
    }

    /// Creates the result of forward from its parts; missing emissions are computed.
    fn normalized(&self, emissions: Option<&[f64]>, max: &[F], log_sum: &[f64]) -> Result<Normalized<F>> {
        // The result for no site has no saved scores, so that backward recomputes all of them.
        let mut normalized = scores::forward(&[], 1, &[], 0, &Selection::default())?;
        normalized.emissions = match emissions {
            Some(emissions) => emissions.to_vec(),
            None => self.emissions(max, log_sum),
        };
        (normalized.max, normalized.log_sum) = (max.to_vec(), log_sum.to_vec());
        Ok(normalized)
    }

    /// Computes emissions from logZ by scalar products.
    fn emissions(&self, max: &[F], log_sum: &[f64]) -> Vec<f64> {
        let (width, per_site) = (self.head.hidden(), self.selection.per_site());
        let mut emissions = vec![0.0; max.len() * per_site];
        for site in 0..max.len() {
            let row = &self.sites.hidden[site * width..][..width];
            for (slot, class) in self.selection.active(site) {
                let weight = &self.head.weight()[class as usize * width..][..width];
                let products = row.iter().zip(weight).map(|(h, w)| h.to_f64() * w.to_f64());
                let score = products.sum::<f64>() + self.bias[class as usize].to_f64();
                emissions[site * per_site + slot] = (score - max[site].to_f64()) - log_sum[site];
            }
        }
        emissions
    }

    /// Fails unless logZ is finite at all sites with an active entry.
    fn check_log_z(&self, max: &[F], log_sum: &[f64]) -> PyResult<()> {
        for (site, (max, log_sum)) in max.iter().zip(log_sum).enumerate() {
            let log_z = max.to_f64() + log_sum;
            if !log_z.is_finite() && self.selection.active(site).next().is_some() {
                return Err(PyValueError::new_err(format!(
                    "logZ[{site}]: expected a finite number, found {log_z}"
                )));
            }
        }
        Ok(())
    }
}

/// Hidden rows, with zeros instead of the rows of padding.
struct PaddedRows<'a, F> {
    rows: Rows<'a, F>,
    hidden: &'a [F],
    is_padding: Vec<bool>,
}

impl<F: Real> Sites<F> for PaddedRows<'_, F> {
    type Gradient = Vec<F>;
    fn len(&self) -> usize {
        self.rows.len()
    }
    fn width(&self) -> usize {
        self.rows.width()
    }
    fn max_abs(&self) -> f64 {
        self.rows.max_abs()
    }
    fn fill(&self, sites: &[usize], hidden: &mut [F]) {
        self.rows.fill(sites, hidden);
        for (&site, row) in sites.iter().zip(hidden.chunks_exact_mut(self.width())) {
            if self.is_padding[site] {
                row.fill(F::ZERO);
            }
        }
    }
    fn pull_back(&self, _sites: &[usize], _hidden: &[F], _gradient: &mut [F]) {}
    fn zero_gradient(&self) -> Vec<F> {
        self.rows.zero_gradient()
    }
    fn scatter(&self, sites: &[usize], gradient: &[F], into: &mut Vec<F>) {
        self.rows.scatter(sites, gradient, into);
    }
}

/// Borrows an array of a known shape.
fn borrow<const RANK: usize>(
    argument: &'static str,
    array: &Bound<PyAny>,
    expected: [usize; RANK],
) -> PyResult<Borrowed> {
    let array = Borrowed::new(argument, array, RANK)?;
    let shape: [usize; RANK] = array.shape();
    if shape == expected {
        return Ok(array);
    }
    Err(PyValueError::new_err(format!("{argument}: expected shape {expected:?}, found {shape:?}")))
}

/// Fails for a gradient that is infinite or NaN.
fn check_gradient<F: Real>(argument: &str, values: &[F]) -> PyResult<()> {
    if values.iter().all(|value| value.to_f64().is_finite()) {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "grad_{argument}: expected finite numbers, found NaN or infinity: \
         hidden, weight or bias contain such values, or logZ is that of other arguments"
    )))
}

/// Converts an error of the normalizer, with the names of Python.
fn normalizer_error(error: Error) -> PyErr {
    PyValueError::new_err(match error {
        Error::DuplicateClass { site, class } => {
            format!(
                "selected_ids[{site}]: expected ids that are distinct within each site, found {class} twice"
            )
        }
        Error::InfiniteWeight { class, value } => {
            format!("weight[{class}]: expected finite numbers, found {value:e}")
        }
        Error::NotFinite { site } => {
            format!("hidden[{site}]: expected scores that are finite or -inf, found NaN or +inf")
        }
        Error::AllMasked { site } => {
            format!("hidden[{site}]: expected a class with a finite score, found -inf for all classes")
        }
        Error::Adjoint { argument: "adjoints.log_z", site, value } => {
            format!("d_log_z[{site}]: expected a finite number, found {value:e}")
        }
        Error::Adjoint { site, value, .. } => {
            format!("selected_adjoints[{site}]: expected finite numbers, found {value:e}")
        }
        error => error.to_string(),
    })
}
