//! A warning about features of which most values are at the floor.
use speech::{Conversion, FeatureConfig, FrontEnd, Normalise};

use crate::Result;
use crate::data::List;

/// Utterances that are examined.
const UTTERANCES: usize = 20;
/// Largest share of values at the floor without a warning.
const MAX_SHARE: f64 = 0.5;

/// Returns a warning if most values of a training set are at the floor of `floor_db` below a full sine.
///
/// A value is at the floor if its power is at most that of the floor. Twenty utterances that are evenly spread over the list
/// are examined; recordings that cannot be read are passed over. Only where whole utterances are not normalized.
pub(crate) fn floor_warning(set: &str, list: &dyn List, config: &FeatureConfig) -> Result<Option<String>> {
    let is_relative = matches!(config.normalise, Normalise::Running | Normalise::None);
    if !is_relative || config.floor_power > 0.0 {
        return Ok(None);
    }
    let front_end = FrontEnd::new(config)?;
    let conversion = Conversion { resample: config.resample, ..Conversion::default() };
    // ln(p / full + floor) with p / full = floor.
    let limit = std::f64::consts::LN_2 - f64::from(config.floor_db) * std::f64::consts::LN_10 / 10.0;
    let (mut at_floor, mut all) = (0, 0);
    let count = list.count().min(UTTERANCES);
    for index in 0..count {
        let Ok(one) = list.get(index * list.count() / count) else { continue };
        let Ok((audio, _)) = one.audio_as(config.sample_rate, &conversion) else { continue };
        let Ok(stages) = front_end.stages(&audio) else { continue };
        at_floor += stages.log.iter().filter(|&&value| value <= limit).count();
        all += stages.log.len();
    }
    let share = at_floor as f64 / (all as f64).max(1.0);
    Ok((share > MAX_SHARE).then(|| {
        format!(
            "{set}: {:.0} % of the features of {count} utterances are at the floor, {} dB below a full sine; features.floor_db = 100 \
             suits normalise = \"running\" and \"none\"",
            100.0 * share,
            config.floor_db
        )
    }))
}
