//! Words as captions: SubRip and WebVTT.
use super::TimedWord;

/// A pause that ends a caption, in seconds.
const PAUSE: f64 = 1.0;
/// Longest caption, in seconds.
const LONGEST: f64 = 6.0;
/// Shortest caption, in milliseconds: 5/6 s, unless the next one starts earlier.
const MIN_MILLISECONDS: u64 = 834;
/// Characters of a line, and lines of a caption.
const LINE: usize = 42;
const LINES: usize = 2;

/// Words that are shown together.
struct Caption {
    start: f64,
    end: f64,
    lines: Vec<String>,
}

/// Groups words: a new caption begins after a pause, and where the old one would be too long to be read.
fn captions(words: &[TimedWord]) -> Vec<Caption> {
    let mut all: Vec<Caption> = Vec::new();
    for (word, text) in words.iter().flat_map(|word| parts(&word.text).map(move |part| (word, part))) {
        let last = all.last_mut().filter(|last| {
            word.start - last.end < PAUSE && word.end - last.start <= LONGEST && has_room(last, &text)
        });
        match last {
            Some(last) => {
                last.end = last.end.max(word.end);
                let line = last.lines.last_mut().filter(|line| width(line) + 1 + width(&text) <= LINE);
                match line {
                    Some(line) => *line += &format!(" {text}"),
                    None => last.lines.push(text),
                }
            }
            None => all.push(Caption { start: word.start, end: word.end, lines: vec![text] }),
        }
    }
    all
}

/// A word in parts that fit into a line.
fn parts(word: &str) -> impl Iterator<Item = String> {
    let letters: Vec<char> = word.chars().collect();
    letters.chunks(LINE).map(|part| part.iter().collect()).collect::<Vec<String>>().into_iter()
}

/// Start and end of each caption in milliseconds: long enough to be read, and none beyond the start of the next.
fn shown(captions: &[Caption]) -> Vec<(u64, u64)> {
    let starts: Vec<u64> = captions.iter().map(|caption| milliseconds(caption.start)).collect();
    let one = |(at, caption): (usize, &Caption)| {
        let start = starts[at];
        let end = milliseconds(caption.end).max(start + MIN_MILLISECONDS);
        (start, starts.get(at + 1).map_or(end, |&next| end.min(next.max(start))))
    };
    captions.iter().enumerate().map(one).collect()
}

fn milliseconds(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1000.0).round() as u64
}

fn has_room(caption: &Caption, word: &str) -> bool {
    caption.lines.len() < LINES
        || caption.lines.last().is_none_or(|line| width(line) + 1 + width(word) <= LINE)
}

fn width(text: &str) -> usize {
    text.chars().count()
}

/// `HH:MM:SS` and milliseconds.
fn time(milliseconds: u64, point: char) -> String {
    let seconds = milliseconds / 1000;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}{point}{:03}", seconds % 60, milliseconds % 1000)
}

pub(super) fn srt(words: &[TimedWord]) -> String {
    let captions = captions(words);
    let one = |(number, (caption, (start, end))): (usize, (&Caption, (u64, u64)))| {
        let lines = caption.lines.join("\n");
        format!("{}\n{} --> {}\n{lines}\n\n", number + 1, time(start, ','), time(end, ','))
    };
    captions.iter().zip(shown(&captions)).enumerate().map(one).collect()
}

pub(super) fn vtt(words: &[TimedWord]) -> String {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let captions = captions(words);
    let one = |(caption, (start, end)): (&Caption, (u64, u64))| {
        format!("{} --> {}\n{}\n\n", time(start, '.'), time(end, '.'), escaped(&caption.lines.join("\n")))
    };
    let captions: String = captions.iter().zip(shown(&captions)).map(one).collect();
    format!("WEBVTT\n\n{captions}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str, start: f64, end: f64) -> TimedWord {
        TimedWord { text: text.into(), start, end, confidence: 1.0 }
    }

    #[test]
    fn captions_are_short_enough_to_be_read() {
        let words: Vec<TimedWord> = (0..200)
            .map(|k| word(["one", "seventeen", "of"][k % 3], 0.3 * k as f64, 0.3 * k as f64 + 0.2))
            .collect();
        let found = captions(&words);
        for caption in &found {
            assert!(caption.end - caption.start <= LONGEST + 1e-9 && caption.lines.len() <= LINES);
            assert!(caption.lines.iter().all(|line| width(line) <= LINE));
        }
        let text: Vec<&str> = found.iter().flat_map(|c| &c.lines).flat_map(|line| line.split(' ')).collect();
        assert_eq!(text, words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>());
        assert!(found.is_sorted_by(|a, b| a.end <= b.start));
    }

    #[test]
    fn a_pause_ends_a_caption_and_nothing_is_nothing() {
        let found = captions(&[word("a", 0.0, 0.5), word("b", 1.0, 1.2), word("c", 2.3, 2.5)]);
        assert_eq!(found.iter().map(|c| c.lines.join("/")).collect::<Vec<_>>(), ["a b", "c"]);
        assert_eq!((srt(&[]), vtt(&[])), (String::new(), "WEBVTT\n\n".to_owned()));
        assert!(vtt(&[word("<b>", 0.0, 1.0)]).contains("&lt;b&gt;"));
        // A word that is wider than a line is cut.
        let lines = |length| {
            let words = [word(&"x".repeat(length), 0.0, 1.0), word("y", 1.0, 1.5)];
            let all = captions(&words);
            all.iter().map(|one| one.lines.iter().map(|line| width(line)).collect()).collect::<Vec<Vec<_>>>()
        };
        assert_eq!(lines(60), [[42, 20]]);
        assert_eq!(lines(126), [vec![42, 42], vec![42, 1]]);
    }

    #[test]
    fn a_caption_is_shown_long_enough_where_there_is_room() {
        // One encoder row each, as a model without durations gives them.
        let at = |starts: &[f64]| {
            let words: Vec<_> = starts.iter().map(|&start| word("a", start, start + 0.03)).collect();
            shown(&captions(&words))
        };
        assert_eq!(at(&[0.0, 2.0]), [(0, 834), (2000, 2834)]);
        assert_eq!(at(&[7.5]), [(7500, 8334)]);
        assert_eq!(at(&[0.0, 0.5, 1.0, 2.23]), [(0, 1030), (2230, 3064)]);
        // A caption that is full ends where the next begins.
        let words: Vec<_> =
            (0..60).map(|k| word("seventeen", 0.1 * k as f64, 0.1 * k as f64 + 0.03)).collect();
        let times = shown(&captions(&words));
        assert!(times.len() > 5);
        for pair in times.windows(2) {
            assert!(pair[0].1 <= pair[1].0 && pair[0].1 - pair[0].0 >= 700, "{times:?}");
        }
        // Words that overlap, as those of models with durations may.
        let long = [word(&"x".repeat(84), 0.0, 3.0), word("y", 1.0, 1.1)];
        assert_eq!(shown(&captions(&long)), [(0, 1000), (1000, 1834)]);
    }
}
