//! `PlainEncoder`: the formulas of the encoder in plain loops.
use super::{BANDS, Weights};
use crate::encoders::fast_conformer::{ConvolutionNorm, FastConformerEncoderConfig};

type Rows = Vec<Vec<f64>>;

/// The encoder by its formulas, without any optimization.
pub(super) struct PlainEncoder<'a> {
    pub config: &'a FastConformerEncoderConfig,
    pub weights: &'a Weights,
}

impl PlainEncoder<'_> {
    fn values(&self, name: &str) -> Vec<f64> {
        let values = self.weights.get(&format!("encoder.{name}"));
        values.unwrap_or_else(|| panic!("{name}")).iter().map(|&x| f64::from(x)).collect()
    }

    fn bias(&self, name: &str, count: usize) -> Vec<f64> {
        let name = format!("{name}.bias");
        match self.weights.contains_key(&format!("encoder.{name}")) {
            true => self.values(&name),
            false => vec![0.0; count],
        }
    }

    fn linear(&self, name: &str, x: &Rows) -> Rows {
        let weight = self.values(&format!("{name}.weight"));
        let inputs = x[0].len();
        let bias = self.bias(name, weight.len() / inputs);
        let row = |x: &Vec<f64>| {
            let outputs = weight.chunks(inputs).zip(&bias);
            outputs.map(|(w, b)| b + w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>()).collect()
        };
        x.iter().map(row).collect()
    }

    fn norm(&self, name: &str, x: &Rows) -> Rows {
        let (weight, bias) = (self.values(&format!("{name}.weight")), self.values(&format!("{name}.bias")));
        let row = |x: &Vec<f64>| {
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
            let scale = 1.0 / (variance + 1e-5).sqrt();
            x.iter().zip(weight.iter().zip(&bias)).map(|(x, (w, b))| (x - mean) * scale * w + b).collect()
        };
        x.iter().map(row).collect()
    }

    fn subsample(&self, frames: &[f32]) -> Rows {
        let config = &self.config.subsampling;
        let before = config.padding_before() as i64;
        // [channel][time][band]
        let mut x: Vec<Rows> =
            vec![frames.chunks(BANDS).map(|frame| frame.iter().map(|&x| f64::from(x)).collect()).collect()];
        for stage in 0..config.stages() {
            let strided = if stage == 0 { 0 } else { 3 * stage - 1 };
            let weight = self.values(&format!("pre_encode.conv.{strided}.weight"));
            let bias = self.values(&format!("pre_encode.conv.{strided}.bias"));
            let (times, bands) = (config.stage_len(x[0].len()), config.stage_len(x[0][0].len()));
            let mut y: Vec<Rows> = vec![vec![vec![0.0; bands]; times]; config.channels];
            for c in 0..config.channels {
                let source = &x[if stage == 0 { 0 } else { c }];
                for (t, f) in (0..times).flat_map(|t| (0..bands).map(move |f| (t, f))) {
                    y[c][t][f] = bias[c];
                    for (i, j) in (0..3).flat_map(|i| (0..3).map(move |j| (i, j))) {
                        let (row, band) = (2 * t as i64 + i - before, 2 * f as i64 + j - before);
                        let value = usize::try_from(row).ok().and_then(|row| source.get(row));
                        let value = value.and_then(|row| row.get(usize::try_from(band).ok()?));
                        y[c][t][f] += weight[c * 9 + (3 * i + j) as usize] * value.copied().unwrap_or(0.0);
                    }
                }
            }
            if stage > 0 {
                let weight = self.values(&format!("pre_encode.conv.{}.weight", 3 * stage));
                let bias = self.values(&format!("pre_encode.conv.{}.bias", 3 * stage));
                let mixed = |c: usize, t: usize, f: usize| {
                    let terms = (0..config.channels).map(|i| weight[c * config.channels + i] * y[i][t][f]);
                    bias[c] + terms.sum::<f64>()
                };
                y = (0..config.channels)
                    .map(|c| (0..times).map(|t| (0..bands).map(|f| mixed(c, t, f)).collect()).collect())
                    .collect();
            }
            y.iter_mut().flatten().flatten().for_each(|y| *y = y.max(0.0));
            x = y;
        }
        let flat =
            (0..x[0].len()).map(|t| x.iter().flat_map(|channel| channel[t].clone()).collect()).collect();
        let factor = if self.config.scale_input { (self.config.width as f64).sqrt() } else { 1.0 };
        let rows = self.linear("pre_encode.out", &flat);
        rows.into_iter().map(|row| row.into_iter().map(|x| x * factor).collect()).collect()
    }

    fn feed_forward(&self, layer: usize, number: usize, x: &Rows) -> Rows {
        let x = self.norm(&format!("layers.{layer}.norm_feed_forward{number}"), x);
        let mut inner = self.linear(&format!("layers.{layer}.feed_forward{number}.linear1"), &x);
        inner.iter_mut().flatten().for_each(|x| *x /= 1.0 + (-*x).exp());
        self.linear(&format!("layers.{layer}.feed_forward{number}.linear2"), &inner)
    }

    fn attention(&self, layer: usize, x: &Rows) -> Rows {
        let FastConformerEncoderConfig { width, heads, .. } = *self.config;
        let (d, name) = (width / heads, format!("layers.{layer}.self_attn"));
        let x = self.norm(&format!("layers.{layer}.norm_self_att"), x);
        let [q, k, v] = ["q", "k", "v"].map(|part| self.linear(&format!("{name}.linear_{part}"), &x));
        let [u, bias_v] = ["u", "v"].map(|part| self.values(&format!("{name}.pos_bias_{part}")));
        let position = |distance: i64| {
            let angle = |c: usize| distance as f64 * 10_000f64.powf(-2.0 * (c / 2) as f64 / width as f64);
            let table =
                (0..width).map(|c| if c % 2 == 0 { angle(c).sin() } else { angle(c).cos() }).collect();
            self.linear(&format!("{name}.linear_pos"), &vec![table]).remove(0)
        };
        let mut out = vec![vec![0.0; width]; x.len()];
        for i in 0..x.len() {
            let keys = self.config.attention.keys(i, x.len());
            for head in 0..heads {
                let columns = head * d..(head + 1) * d;
                let score = |j: usize| {
                    let r = position(i as i64 - j as i64);
                    let terms =
                        columns.clone().map(|c| (q[i][c] + u[c]) * k[j][c] + (q[i][c] + bias_v[c]) * r[c]);
                    terms.sum::<f64>() / (d as f64).sqrt()
                };
                let weights: Vec<f64> = keys.clone().map(|j| score(j).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for c in columns.clone() {
                    out[i][c] = keys.clone().zip(&weights).map(|(j, w)| w / sum * v[j][c]).sum();
                }
            }
        }
        self.linear(&format!("{name}.linear_out"), &out)
    }

    fn convolution(&self, layer: usize, x: &Rows) -> Rows {
        let FastConformerEncoderConfig { width, kernel, .. } = *self.config;
        let name = format!("layers.{layer}.conv");
        let x = self.norm(&format!("layers.{layer}.norm_conv"), x);
        let gated = self.linear(&format!("{name}.pointwise_conv1"), &x);
        let gated: Rows = gated
            .iter()
            .map(|row| (0..width).map(|c| row[c] / (1.0 + (-row[width + c]).exp())).collect())
            .collect();
        let (weight, bias) = (
            self.values(&format!("{name}.depthwise_conv.weight")),
            self.bias(&format!("{name}.depthwise_conv"), width),
        );
        let past = if self.config.causal_convolution { kernel - 1 } else { (kernel - 1) / 2 } as i64;
        let mut y: Rows = (0..gated.len())
            .map(|t| {
                let value = |c: usize| {
                    let terms = (0..kernel).filter_map(|j| {
                        let row = usize::try_from(t as i64 + j as i64 - past).ok()?;
                        Some(weight[c * kernel + j] * gated.get(row)?[c])
                    });
                    bias[c] + terms.sum::<f64>()
                };
                (0..width).map(value).collect()
            })
            .collect();
        let norm = format!("{name}.batch_norm");
        y = match self.config.convolution_norm {
            ConvolutionNorm::Layer => self.norm(&norm, &y),
            ConvolutionNorm::Batch => {
                let [gamma, beta, mean, variance] = ["weight", "bias", "running_mean", "running_var"]
                    .map(|part| self.values(&format!("{norm}.{part}")));
                let value =
                    |(c, x): (usize, &f64)| (x - mean[c]) / (variance[c] + 1e-5).sqrt() * gamma[c] + beta[c];
                y.iter().map(|row| row.iter().enumerate().map(value).collect()).collect()
            }
        };
        y.iter_mut().flatten().for_each(|x| *x /= 1.0 + (-*x).exp());
        self.linear(&format!("{name}.pointwise_conv2"), &y)
    }

    pub(super) fn encode(&self, frames: &[f32]) -> Vec<f64> {
        if frames.is_empty() {
            return Vec::new();
        }
        let mut x = self.subsample(frames);
        let add = |x: &mut Rows, factor: f64, y: Rows| {
            x.iter_mut().flatten().zip(y.iter().flatten()).for_each(|(x, y)| *x += factor * y);
        };
        for layer in 0..self.config.layers {
            let y = self.feed_forward(layer, 1, &x);
            add(&mut x, 0.5, y);
            let y = self.attention(layer, &x);
            add(&mut x, 1.0, y);
            let y = self.convolution(layer, &x);
            add(&mut x, 1.0, y);
            let y = self.feed_forward(layer, 2, &x);
            add(&mut x, 0.5, y);
            x = self.norm(&format!("layers.{layer}.norm_out"), &x);
        }
        x.concat()
    }
}
