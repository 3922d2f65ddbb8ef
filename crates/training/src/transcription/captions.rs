//! Words as captions: SubRip and WebVTT.
use super::TimedWord;

/// A pause that ends a caption, in seconds.
const PAUSE: f64 = 1.0;
/// Longest caption, in seconds.
const LONGEST: f64 = 6.0;
/// Characters of a line, and lines of a caption.
const LINE: usize = 42;
const LINES: usize = 2;

/// Words that are shown together.
struct Caption {
    start: f64,
    end: f64,
    lines: Vec<String>,
}

/// A new caption begins after a pause, and where the old one would be too long to be read.
fn captions(words: &[TimedWord]) -> Vec<Caption> {
    let mut all: Vec<Caption> = Vec::new();
    for word in words {
        let last = all.last_mut().filter(|last| {
            word.start - last.end < PAUSE && word.end - last.start <= LONGEST && has_room(last, &word.text)
        });
        match last {
            Some(last) => {
                last.end = last.end.max(word.end);
                let line = last.lines.last_mut().filter(|line| width(line) + 1 + width(&word.text) <= LINE);
                match line {
                    Some(line) => *line += &format!(" {}", word.text),
                    None => last.lines.push(word.text.clone()),
                }
            }
            None => {
                all.push(Caption { start: word.start, end: word.end, lines: vec![word.text.clone()] });
            }
        }
    }
    all
}

fn has_room(caption: &Caption, word: &str) -> bool {
    caption.lines.len() < LINES
        || caption.lines.last().is_none_or(|line| width(line) + 1 + width(word) <= LINE)
}

fn width(text: &str) -> usize {
    text.chars().count()
}

/// `HH:MM:SS` and milliseconds.
fn time(seconds: f64, point: char) -> String {
    let all = (seconds.max(0.0) * 1000.0).round() as u64;
    let (seconds, minutes, hours) = (all / 1000 % 60, all / 60_000 % 60, all / 3_600_000);
    format!("{hours:02}:{minutes:02}:{seconds:02}{point}{:03}", all % 1000)
}

pub(super) fn srt(words: &[TimedWord]) -> String {
    let one = |(number, Caption { start, end, lines }): (usize, Caption)| {
        format!("{}\n{} --> {}\n{}\n\n", number + 1, time(start, ','), time(end, ','), lines.join("\n"))
    };
    captions(words).into_iter().enumerate().map(one).collect()
}

pub(super) fn vtt(words: &[TimedWord]) -> String {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let one = |Caption { start, end, lines }: Caption| {
        format!("{} --> {}\n{}\n\n", time(start, '.'), time(end, '.'), escaped(&lines.join("\n")))
    };
    let captions: String = captions(words).into_iter().map(one).collect();
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
        // A word that is wider than a line has one of its own.
        let long = "x".repeat(60);
        assert_eq!(captions(&[word(&long, 0.0, 1.0), word("y", 1.0, 1.5)])[0].lines, [long.as_str(), "y"]);
    }
}
