//! First values of the weights, each from its own stream: adding a parameter leaves the others as they are.
use rand::RngExt;

use crate::random::{Purpose, hash, stream};

/// How a parameter starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Init {
    /// All zero, as a bias starts.
    Zero,
    /// Uniform in ±limit.
    Uniform(f32),
    /// Normal with mean 0 and this deviation.
    Normal(f32),
    /// An LSTM's packed weight `[D + H + 1, 4H]`: uniform in ±1/√H, bias 0 but 1 for the forget gate.
    Lstm,
}

impl Init {
    /// ±1/√inputs, as usual for a linear layer.
    pub fn linear(inputs: usize) -> Self {
        Init::Uniform(1.0 / (inputs as f32).sqrt())
    }

    /// How many of the values, the last ones, are biases.
    pub fn biases(self, shape: &[usize]) -> usize {
        match self {
            Init::Zero => shape.iter().product(),
            Init::Lstm => shape[1],
            Init::Uniform(_) | Init::Normal(_) => 0,
        }
    }

    /// The values of the parameter `name` with this shape.
    pub fn values(self, seed: u64, name: &str, shape: &[usize]) -> Vec<f32> {
        let mut rng = stream(seed, Purpose::Weights, hash(name), 0);
        let count = shape.iter().product();
        let mut uniform = |limit: f32| limit * (2.0 * rng.random::<f32>() - 1.0);
        match self {
            Init::Zero => vec![0.0; count],
            Init::Uniform(limit) => (0..count).map(|_| uniform(limit)).collect(),
            Init::Normal(deviation) => (0..count).map(|_| deviation * normal(&mut rng)).collect(),
            Init::Lstm => {
                let hidden = shape[1] / 4;
                let limit = 1.0 / (hidden as f32).sqrt();
                let mut values: Vec<f32> = (0..count).map(|_| uniform(limit)).collect();
                let bias = &mut values[count - 4 * hidden..];
                bias.fill(0.0);
                bias[hidden..2 * hidden].fill(1.0);
                values
            }
        }
    }
}

/// One standard normal number (Box and Muller's transform).
fn normal(rng: &mut impl rand::Rng) -> f32 {
    let (a, b) = (rng.random::<f64>(), rng.random::<f64>());
    ((-2.0 * (1.0 - a).ln()).sqrt() * (std::f64::consts::TAU * b).cos()) as f32
}
