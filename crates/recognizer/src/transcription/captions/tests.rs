//! Tests of SRT and WebVTT captions: limits of lines and display times.

use proptest::prelude::*;

use super::*;

fn word(text: &str, start: f64, end: f64) -> TimedWord {
    TimedWord { text: text.into(), start, end, confidence: 1.0, is_recovered: false }
}

fn default_captions(words: &[TimedWord]) -> Vec<Caption> {
    split_into_captions(words, &CaptionOptions::default())
}

fn default_times(words: &[TimedWord]) -> Vec<(u64, u64)> {
    display_times(&default_captions(words), &CaptionOptions::default())
}

#[test]
fn captions_respect_the_limits() {
    let options = CaptionOptions::default();
    let words: Vec<TimedWord> = (0..200)
        .map(|k| word(["one", "seventeen", "of"][k % 3], 0.3 * k as f64, 0.3 * k as f64 + 0.2))
        .collect();
    let captions = default_captions(&words);
    for caption in &captions {
        assert!(caption.end - caption.start <= options.max_seconds + 1e-9);
        assert!(caption.lines.len() <= options.lines);
        assert!(caption.lines.iter().all(|line| count_characters(line) <= options.line_characters));
    }
    let text: Vec<&str> = captions.iter().flat_map(|c| &c.lines).flat_map(|line| line.split(' ')).collect();
    assert_eq!(text, words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>());
    assert!(captions.is_sorted_by(|a, b| a.end <= b.start));
}

#[test]
fn a_pause_ends_a_caption() {
    let captions = default_captions(&[word("a", 0.0, 0.5), word("b", 1.0, 1.2), word("c", 2.3, 2.5)]);
    assert_eq!(captions.iter().map(|c| c.lines.join("/")).collect::<Vec<_>>(), ["a b", "c"]);
    let options = CaptionOptions::default();
    assert_eq!(
        (format_srt(&[], &options), format_vtt(&[], &options)),
        (String::new(), "WEBVTT\n\n".to_owned())
    );
    assert!(format_vtt(&[word("<b>", 0.0, 1.0)], &options).contains("&lt;b&gt;"));
    // A word longer than a line is split.
    let line_lengths = |length| {
        let captions = default_captions(&[word(&"x".repeat(length), 0.0, 1.0), word("y", 1.0, 1.5)]);
        captions
            .iter()
            .map(|caption| caption.lines.iter().map(|line| count_characters(line)).collect())
            .collect::<Vec<Vec<_>>>()
    };
    assert_eq!(line_lengths(60), [[42, 20]]);
    assert_eq!(line_lengths(126), [vec![42, 42], vec![42, 1]]);
    let times = default_times(&[word(&"x".repeat(126), 0.0, 3.0)]);
    assert_eq!(times, [(0, 2000), (2000, 3000)]);
}

#[test]
fn a_caption_is_displayed_long_enough_if_possible() {
    // Words of one encoder row, as for models without durations.
    let times = |starts: &[f64]| {
        let words: Vec<_> = starts.iter().map(|&start| word("a", start, start + 0.03)).collect();
        default_times(&words)
    };
    assert_eq!(times(&[0.0, 2.0]), [(0, 834), (2000, 2834)]);
    assert_eq!(times(&[7.5]), [(7500, 8334)]);
    assert_eq!(times(&[0.0, 0.5, 1.0, 2.23]), [(0, 1030), (2230, 3064)]);
    // A full caption ends when the next one begins.
    let words: Vec<_> = (0..60).map(|k| word("seventeen", 0.1 * k as f64, 0.1 * k as f64 + 0.03)).collect();
    let times = default_times(&words);
    assert!(times.len() > 5);
    for pair in times.windows(2) {
        assert!(pair[0].1 <= pair[1].0 && pair[0].1 - pair[0].0 >= 700, "{times:?}");
    }
    // Words of models with durations can overlap.
    let long = [word(&"x".repeat(84), 0.0, 3.0), word("y", 1.0, 1.1)];
    assert_eq!(default_times(&long), [(0, 1000), (1000, 1834)]);
    // A word with a long duration.
    assert_eq!(default_times(&[word("a", 1.0, 60.0)]), [(1000, 7000)]);
}

#[test]
fn a_full_caption_ends_at_a_pause() {
    // A caption has at most twelve words of six letters; a long pause follows the listed words.
    let words = |before_long_pauses: &[usize]| {
        let mut start = 0.0;
        let word_at = |k: usize| {
            let word = word("sesame", start, start + 0.2);
            start += if before_long_pauses.contains(&k) { 0.6 } else { 0.3 };
            word
        };
        (1..=18).map(word_at).collect::<Vec<_>>()
    };
    let counts = |words: &[TimedWord]| -> Vec<usize> {
        let num_words = |caption: &Caption| caption.lines.iter().map(|line| line.split(' ').count()).sum();
        default_captions(words).iter().map(num_words).collect()
    };
    assert_eq!(counts(&words(&[])), [12, 6]);
    assert_eq!(counts(&words(&[9])), [9, 9]);
    assert_eq!(counts(&words(&[7, 10])), [10, 8]);
    // A pause in the first half is ignored: the caption would be short.
    assert_eq!(counts(&words(&[4])), [12, 6]);
}

/// Words with pauses, overlaps, times of 0, and texts longer than a line.
fn any_words() -> impl Strategy<Value = Vec<TimedWord>> {
    let word_and_times = ("[a-z<&é]{1,12}|[a-z]{50,130}", 0.0..2.5f64, -0.1..1.5f64);
    let time_scales = [Just(1.0), Just(0.1), Just(0.0)];
    let scale = proptest::strategy::Union::new(time_scales);
    (proptest::collection::vec(word_and_times, 0..60), scale, 0.0..1e5f64).prop_map(
        |(list, scale, mut start)| {
            let mut next_word = |(text, step, length): (String, f64, f64)| {
                start += scale * step;
                word(&text, start, start + length.max(0.0))
            };
            list.into_iter().map(&mut next_word).collect()
        },
    )
}

proptest! {
    #[test]
    fn every_caption_satisfies_the_options(
        words in any_words(),
        pause_seconds in 0.05..3.0f64,
        min_seconds in 0.01..2.0f64,
        additional_seconds in 0.0..6.0f64,
        line_characters in 1usize..60,
        lines in 1usize..4,
    ) {
        let max_seconds = min_seconds + additional_seconds;
        let options = CaptionOptions { pause_seconds, min_seconds, max_seconds, line_characters, lines };
        let captions = split_into_captions(&words, &options);
        for caption in &captions {
            prop_assert!((1..=lines).contains(&caption.lines.len()));
            for line in &caption.lines {
                prop_assert!((1..=line_characters).contains(&count_characters(line)), "{line}");
            }
        }
        let lines = captions.iter().flat_map(|caption| &caption.lines);
        let shown_words: Vec<&str> = lines.flat_map(|line| line.split(' ')).collect();
        let split_letters = |word: &TimedWord| {
            let letters: Vec<char> = word.text.chars().collect();
            letters.chunks(line_characters).map(|part| part.iter().collect()).collect::<Vec<String>>()
        };
        prop_assert_eq!(shown_words, words.iter().flat_map(split_letters).collect::<Vec<_>>());
        let times = display_times(&captions, &options);
        prop_assert_eq!(times.len(), captions.len());
        for (index, &(start, end)) in times.iter().enumerate() {
            prop_assert!(start < end && end - start <= to_milliseconds(max_seconds));
            let next = times.get(index + 1).map_or(u64::MAX, |next| next.0);
            prop_assert!(end <= next);
            // The minimum duration, or until the next caption.
            prop_assert!(end - start >= to_milliseconds(min_seconds) || end == next, "{times:?}");
        }
    }
}
