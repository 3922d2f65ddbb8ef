//! Models of exported weights, which run without Python.
//!
//! Axes: C classes, D durations, E width of an encoder row, H width of the joint network, I width
//! of an embedding, P width of the predictor's output.
use std::sync::Arc;

use ::decoding::{
    AffineLayer, DecodingModel, Error, JointNetwork, LstmLayer, LstmPredictor, NO_LABEL, Predictor,
    PredictorActivation, Result, StatelessPredictor,
};
use pyo3::{Bound, FromPyObject, PyAny, PyResult, Python, exceptions::PyValueError, pyclass, pymethods};

use super::{TransducerOptions, value_error};
use crate::{arrays::Borrowed, threads};

/// Predictor and joint network with the weights of another library.
#[pyclass(frozen, module = "panda_rnnt._native")]
pub struct WeightModel {
    model: DecodingModel,
    network: Arc<JointNetwork>,
    /// Width E of encoder rows; H if they arrive projected.
    encoder_width: usize,
    /// Whether the network projects encoder rows.
    has_projection: bool,
}

impl WeightModel {
    /// The model that a search evaluates.
    pub fn model(&self) -> &DecodingModel {
        &self.model
    }

    /// Width of encoder rows.
    pub fn encoder_width(&self) -> usize {
        self.encoder_width
    }

    /// Projects the encoder rows of each utterance; none if they arrive projected.
    pub fn project(&self, utterances: &[&[f32]]) -> Result<Option<Vec<Vec<f32>>>> {
        let project = |rows: &&[f32]| self.network.project_frames(rows);
        self.has_projection.then(|| utterances.iter().map(project).collect()).transpose()
    }
}

/// Arrays of a model (float32), in Python a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct WeightArrays<'py> {
    /// `[ids, I]`
    embedding: Bound<'py, PyAny>,
    /// Weights `[4P, I]` and `[4P, P]`, and bias `[4P]`, of each layer.
    layers: Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>)>,
    /// Weight `[P, context, I]` and bias `[P]` of a stateless predictor.
    convolution: Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
    /// Label before the first one.
    start: u32,
    /// Activation of a stateless predictor.
    predictor_activation: String,
    /// Weight `[H, E]` and bias `[H]`.
    encoder_projection: Option<LayerArrays<'py>>,
    /// Weight `[H, P]` and bias `[H]`.
    predictor_projection: LayerArrays<'py>,
    /// Weight `[C + D, H]` and bias `[C + D]`.
    head: LayerArrays<'py>,
}

/// Weight and bias of an affine layer.
type LayerArrays<'py> = (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

#[pymethods]
impl WeightModel {
    #[new]
    fn new(py: Python, arrays: WeightArrays, options: &str) -> PyResult<Self> {
        let options = TransducerOptions::parse(options)?;
        let predictor = PredictorArrays::new(&arrays)?;
        let frames = arrays.encoder_projection.as_ref();
        let frames = frames.map(|arrays| AffineArrays::new("encoder_projection", arrays)).transpose()?;
        let labels = AffineArrays::new("predictor_projection", &arrays.predictor_projection)?;
        let head = AffineArrays::new("head", &arrays.head)?;
        let predictor = predictor.slices()?;
        let frames = frames.as_ref().map(AffineArrays::slices).transpose()?;
        let (labels, head) = (labels.slices()?, head.slices()?);
        let outcome = py.detach(|| {
            threads::install(|| {
                let frames = frames.as_ref().map(AffineSlices::layer).transpose()?;
                let (labels, head) = (labels.layer()?, head.layer()?);
                let has_projection = frames.is_some();
                let encoder_width = frames.as_ref().map_or(head.inputs(), AffineLayer::inputs);
                let durations = options.topology.num_durations();
                let classes = head.outputs().saturating_sub(durations);
                if options.blank as usize >= classes {
                    return Err(Error::Blank { blank: options.blank, classes });
                }
                let mut network = JointNetwork::new(options.activation, frames, labels, head, durations)?;
                if options.has_factored_blank {
                    network = network.with_factored_blank(options.blank)?;
                }
                let (predictor, network) = (predictor.build()?, Arc::new(network));
                let TransducerOptions { blank, big_blanks, topology, .. } = &options;
                let model = DecodingModel::new(predictor, network.clone(), *blank, big_blanks, topology)?;
                Ok(Self { model, network, encoder_width, has_projection })
            })
        })?;
        outcome.map_err(value_error)
    }

    /// Number of classes, blanks included.
    #[getter]
    fn classes(&self) -> usize {
        self.model.token_table().classes()
    }
}

/// Borrowed arrays of a predictor.
struct PredictorArrays {
    embedding: Borrowed,
    layers: Vec<[Borrowed; 3]>,
    convolution: Option<[Borrowed; 2]>,
    start: u32,
    activation: PredictorActivation,
}

impl PredictorArrays {
    fn new(arrays: &WeightArrays) -> PyResult<Self> {
        let layer = |(input, recurrent, bias): &(Bound<PyAny>, Bound<PyAny>, Bound<PyAny>)| {
            Ok([
                Borrowed::new("lstm.weight_ih", input, 2)?,
                Borrowed::new("lstm.weight_hh", recurrent, 2)?,
                Borrowed::new("lstm.bias", bias, 1)?,
            ])
        };
        let convolution = |(weight, bias): &(Bound<PyAny>, Bound<PyAny>)| {
            Ok::<_, pyo3::PyErr>([
                Borrowed::new("conv.weight", weight, 3)?,
                Borrowed::new("conv.bias", bias, 1)?,
            ])
        };
        let activation = match arrays.predictor_activation.as_str() {
            "tanh" => PredictorActivation::Tanh,
            "relu" => PredictorActivation::Relu,
            found => {
                return Err(PyValueError::new_err(format!(
                    "predictor_activation: expected 'tanh' or 'relu', found '{found}'"
                )));
            }
        };
        Ok(Self {
            embedding: Borrowed::new("embedding.weight", &arrays.embedding, 2)?,
            layers: arrays.layers.iter().map(layer).collect::<PyResult<_>>()?,
            convolution: arrays.convolution.as_ref().map(convolution).transpose()?,
            start: arrays.start,
            activation,
        })
    }

    fn slices(&self) -> PyResult<PredictorSlices<'_>> {
        let [_, embedding_width] = self.embedding.shape();
        let mut layers = Vec::with_capacity(self.layers.len());
        for [input, recurrent, bias] in &self.layers {
            layers.push(LstmLayer {
                input: input.elements()?,
                recurrent: recurrent.elements()?,
                bias: bias.elements()?,
            });
        }
        let convolution = match &self.convolution {
            None => None,
            Some([weight, bias]) => {
                let [_, context, _] = weight.shape();
                Some((weight.elements()?, bias.elements()?, context))
            }
        };
        Ok(PredictorSlices {
            embedding: self.embedding.elements()?,
            embedding_width,
            layers,
            convolution,
            start: self.start,
            activation: self.activation,
        })
    }
}

/// Weights of a predictor.
struct PredictorSlices<'a> {
    embedding: &'a [f32],
    embedding_width: usize,
    layers: Vec<LstmLayer<'a>>,
    /// Weight, bias and context of a stateless predictor.
    convolution: Option<(&'a [f32], &'a [f32], usize)>,
    start: u32,
    activation: PredictorActivation,
}

impl PredictorSlices<'_> {
    fn build(&self) -> Result<Arc<dyn Predictor>> {
        let (embedding, width) = (self.embedding, self.embedding_width);
        let Some((weight, bias, context)) = self.convolution else {
            return Ok(Arc::new(LstmPredictor::new(embedding, width, &self.layers, self.start)?));
        };
        // The context before any label: nothing, then the start label.
        let mut start = vec![NO_LABEL; context];
        if let Some(last) = start.last_mut() {
            *last = self.start;
        }
        let predictor = StatelessPredictor::new((embedding, width), weight, bias, &start, self.activation)?;
        Ok(Arc::new(predictor))
    }
}

/// Borrowed arrays of an affine layer.
struct AffineArrays {
    name: &'static str,
    weight: Borrowed,
    bias: Option<Borrowed>,
}

impl AffineArrays {
    fn new(name: &'static str, (weight, bias): &LayerArrays) -> PyResult<Self> {
        let weight = Borrowed::new(name, weight, 2)?;
        let bias = bias.as_ref().map(|bias| Borrowed::new(name, bias, 1)).transpose()?;
        Ok(Self { name, weight, bias })
    }

    fn slices(&self) -> PyResult<AffineSlices<'_>> {
        let [_, inputs] = self.weight.shape();
        let bias = self.bias.as_ref().map(Borrowed::elements::<f32>).transpose()?;
        Ok(AffineSlices { name: self.name, weight: self.weight.elements()?, inputs, bias })
    }
}

/// Weights of an affine layer.
struct AffineSlices<'a> {
    name: &'static str,
    weight: &'a [f32],
    inputs: usize,
    bias: Option<&'a [f32]>,
}

impl AffineSlices<'_> {
    fn layer(&self) -> Result<AffineLayer> {
        AffineLayer::new(self.name, self.weight, self.inputs, self.bias)
    }
}
