//! Model configurations of published systems: MLPerf Training's RNN-T.
use super::ModelConfig;
use crate::config::{ActivationKind, InitKind, JointConfig};
use crate::encoders::{EncoderKind, LstmEncoderConfig, TimeReduction};
use crate::input::{InputConfig, RowsConfig};
use crate::predictors::{LstmPredictorConfig, PredictorKind, StartEmbedding};

impl ModelConfig {
    /// Returns MLPerf Training's RNN-T of v1.0 to v3.1, with 49,006,080 parameters.
    ///
    /// The number of parameters is for 1,023 labels.
    ///
    /// | part | shape |
    /// |---|---|
    /// | input | 80 mels, 3 frames stacked: 240 values every 30 ms |
    /// | encoder | 2 LSTM layers of 1,024; pairs of rows are concatenated; 3 layers of 1,024; dropout 0.1 after each |
    /// | predictor | embedding of 512 without a row for the blank, zeros at the start; 2 LSTM layers of 512; dropout 0.3 after both |
    /// | joint | 512, ReLU, dropout 0.3 |
    ///
    /// LSTMs have two biases; weights are initialized as in [`InitKind::Mlperf`].
    ///
    /// ```
    /// use model::{Model, ModelConfig};
    /// let count = |config| -> model::Result<usize> {
    ///     Ok(Model::shapes(config, 1023)?.values().map(|shape| shape.iter().product::<usize>()).sum())
    /// };
    /// let config = ModelConfig::mlperf();
    /// assert_eq!(count(&config)?, 49_006_080);
    /// assert_eq!(config.frame_ms(), 60.0);
    /// # Ok::<(), model::Error>(())
    /// ```
    pub fn mlperf() -> Self {
        Self::mlperf_with_widths(1024, 512, 512)
    }

    /// Returns the same model with other widths.
    ///
    /// `predictor` is the width of its embedding as well.
    pub fn mlperf_with_widths(encoder: usize, predictor: usize, joint: usize) -> Self {
        let lstm = LstmEncoderConfig {
            layers: 5,
            hidden: encoder,
            bidirectional: false,
            dropout: 0.1,
            two_biases: true,
            time_reduction: Some(TimeReduction { after_layer: 2, factor: 2 }),
            subsampling: None,
        };
        let predictor_config = LstmPredictorConfig {
            embedding: predictor,
            hidden: predictor,
            layers: 2,
            dropout: 0.3,
            embedding_dropout: Some(0.0),
            start: StartEmbedding::Zero,
            two_biases: true,
        };
        let mut config = ModelConfig {
            input: InputConfig {
                features: speech::Preset::Mlperf.config(),
                rows: RowsConfig { stack: 3, stride: 3, channels: 0 },
            },
            predictor: Some(PredictorKind::Lstm(predictor_config)),
            init: InitKind::Mlperf { scale: 0.5, hidden_bias_scale: 0.0 },
            ..ModelConfig::new(EncoderKind::Lstm(lstm), JointConfig { width: joint, dropout: 0.3 })
        };
        config.loss.options.activation = ActivationKind::Relu;
        config
    }
}
