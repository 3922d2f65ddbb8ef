//! What in the data of a run is no error, but hardly meant, or worth a word.
use std::collections::HashSet;

use crate::Result;
use crate::data::UtteranceSource;
use kernels::Excerpt;
use speech::batching::filter_by_duration;
use speech::{Conversion, FeatureConfig, FrontEnd, Normalization};
use speech::{Tokenizer, Utterance};

/// Utterances that are there more than once: they count that often.
pub fn repeated(set: &str, utterances: &[Utterance]) -> Option<String> {
    let mut seen = HashSet::new();
    let again: Vec<&Utterance> = utterances
        .iter()
        .filter(|of| !seen.insert((&of.id, &of.text, format!("{:?}", of.segments))))
        .collect();
    let first = again.first()?;
    Some(format!(
        "{set}: {} of {} utterances are there already, the first of them {}",
        again.len(),
        utterances.len(),
        Excerpt(&first.id)
    ))
}

/// Utterances without those that are longer than a recipe allows, and a word about these.
pub fn short_enough(
    set: &str,
    utterances: Vec<Utterance>,
    max: Option<f64>,
) -> (Vec<Utterance>, Option<String>) {
    let Some(max) = max else { return (utterances, None) };
    let seconds: Vec<f64> = utterances.iter().map(|utterance| utterance.seconds).collect();
    let found = filter_by_duration(&seconds, max);
    let note = format!(
        "{set}: {} of {} utterances, {:.2} of {:.2} hours, are longer than batch.max_seconds = {max} and left out",
        found.removed,
        seconds.len(),
        found.removed_seconds / 3600.0,
        seconds.iter().sum::<f64>() / 3600.0,
    );
    let mut kept = found.kept.into_iter().peekable();
    let all = utterances.into_iter().enumerate();
    (all.filter(|(at, _)| kept.next_if_eq(at).is_some()).map(|(_, one)| one).collect(), Some(note))
}

/// Texts in which there is no word that the model can write.
pub fn unknown(set: &str, utterances: &[Utterance], tokenizer: &Tokenizer) -> Option<String> {
    let unknown = |of: &&Utterance| {
        let mut words = of.text.split_whitespace().peekable();
        words.peek().is_some() && words.all(|word| tokenizer.encode(word).is_err())
    };
    let unknown: Vec<&Utterance> = utterances.iter().filter(unknown).collect();
    let first = unknown.first()?;
    Some(format!(
        "{set}: {} texts hold only words that the tokens cannot write, the first of them {}",
        unknown.len(),
        Excerpt(&first.id)
    ))
}

/// Utterances that are examined.
const UTTERANCES: usize = 20;
/// Largest share of values at the floor without a warning.
const MAX_SHARE: f64 = 0.5;

/// Returns a warning if most values of a training set are at the floor of `floor_db` below a full sine.
///
/// A value is at the floor if its power is at most that of the floor. Twenty utterances that are evenly spread over the list
/// are examined; recordings that cannot be read are passed over. Only where whole utterances are not normalized.
pub(crate) fn floor_warning(
    set: &str,
    list: &dyn UtteranceSource,
    config: &FeatureConfig,
) -> Result<Option<String>> {
    let is_relative = matches!(config.normalise, Normalization::Running | Normalization::None);
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
