//! Warnings about valid but suspicious data: duplicates, unknown words, floored features.
//!
//! The loading of a run passes them to its observer; `set` is the name of the set in messages.
use std::collections::HashSet;

use crate::Result;
use crate::data::UtteranceSource;
use kernels::Excerpt;
use speech::batching::filter_by_duration;
use speech::{Conversion, FeatureConfig, FrontEnd, Normalization, Tokenizer, Utterance};

/// Returns a warning about utterances that a set contains more than once.
pub(crate) fn duplicate_warning(set: &str, utterances: &[Utterance]) -> Option<String> {
    let mut distinct = HashSet::new();
    let repeated: Vec<&Utterance> = utterances
        .iter()
        .filter(|u| !distinct.insert((&u.id, &u.text, format!("{:?}", u.segments))))
        .collect();
    let first = repeated.first()?;
    Some(format!(
        "{set}: {} of {} utterances are repetitions of others, the first of them {}",
        repeated.len(),
        utterances.len(),
        Excerpt(&first.id)
    ))
}

/// Removes utterances longer than `max_seconds`; returns a note about them.
pub(crate) fn remove_long_utterances(
    set: &str,
    utterances: Vec<Utterance>,
    max_seconds: Option<f64>,
) -> (Vec<Utterance>, Option<String>) {
    let Some(max_seconds) = max_seconds else { return (utterances, None) };
    let seconds: Vec<f64> = utterances.iter().map(|utterance| utterance.seconds).collect();
    let selection = filter_by_duration(&seconds, max_seconds);
    let note = format!(
        "{set}: {} of {} utterances, {:.2} of {:.2} hours, are longer than batch.max_seconds = {max_seconds} and left out",
        selection.removed,
        seconds.len(),
        selection.removed_seconds / 3600.0,
        seconds.iter().sum::<f64>() / 3600.0,
    );
    // The indices are in the order of the list.
    let mut kept_indices = selection.kept_indices.into_iter().peekable();
    let indexed = utterances.into_iter().enumerate();
    let remaining = indexed.filter(|(index, _)| kept_indices.next_if_eq(index).is_some());
    (remaining.map(|(_, utterance)| utterance).collect(), Some(note))
}

/// Returns a warning about texts that the tokenizer cannot encode at all.
pub(crate) fn unknown_words_warning(
    set: &str,
    utterances: &[Utterance],
    tokenizer: &Tokenizer,
) -> Option<String> {
    let is_unknown = |utterance: &&Utterance| {
        let mut words = utterance.text.split_whitespace().peekable();
        words.peek().is_some() && words.all(|word| tokenizer.encode(word).is_err())
    };
    let unknown: Vec<&Utterance> = utterances.iter().filter(is_unknown).collect();
    let first = unknown.first()?;
    Some(format!(
        "{set}: {} texts contain only words that the tokens cannot spell, the first of them {}",
        unknown.len(),
        Excerpt(&first.id)
    ))
}

/// Number of utterances that `floor_warning` examines.
const EXAMINED_UTTERANCES: usize = 20;
/// Largest fraction of values at the floor without a warning.
const MAX_FLOOR_FRACTION: f64 = 0.5;

/// Returns a warning if most values of a set are floored.
///
/// The floor is `floor_db` below a full-scale sine; a value is at the floor if its power is at most
/// that. Twenty utterances, evenly spread over the list, are examined; recordings that cannot be
/// read are skipped. None if whole utterances are normalized.
pub(crate) fn floor_warning(
    set: &str,
    list: &dyn UtteranceSource,
    config: &FeatureConfig,
) -> Result<Option<String>> {
    let is_relative = matches!(config.normalize, Normalization::Running | Normalization::None);
    if !is_relative || config.is_floor_absolute() {
        return Ok(None);
    }
    let front_end = FrontEnd::new(config)?;
    let conversion = Conversion { resample: config.resample, ..Conversion::default() };
    // The log feature of a power at the floor: ln(power / full_scale + floor) = ln(2 · floor).
    let max_floored_value =
        std::f64::consts::LN_2 - f64::from(config.floor_db) * std::f64::consts::LN_10 / 10.0;
    let (mut num_at_floor, mut num_values) = (0, 0);
    let count = list.count().min(EXAMINED_UTTERANCES);
    for index in 0..count {
        let Ok(utterance) = list.get(index * list.count() / count) else { continue };
        let Ok((audio, _)) = utterance.audio_as(config.sample_rate, &conversion) else { continue };
        let Ok(stages) = front_end.stages(&audio) else { continue };
        num_at_floor += stages.log.iter().filter(|&&value| value <= max_floored_value).count();
        num_values += stages.log.len();
    }
    let fraction = num_at_floor as f64 / (num_values as f64).max(1.0);
    Ok((fraction > MAX_FLOOR_FRACTION).then(|| {
        format!(
            "{set}: {:.0} % of the features of {count} utterances are at the floor, {} dB below a full sine; features.floor_db = 100 \
             suits normalize = \"running\" and \"none\"",
            100.0 * fraction,
            config.floor_db
        )
    }))
}
