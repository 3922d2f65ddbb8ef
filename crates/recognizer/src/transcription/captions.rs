//! Formats timed words as captions: SubRip (SRT) and WebVTT files.
use super::TimedWord;

/// Layout of captions.
#[derive(Debug, Clone, PartialEq)]
pub struct CaptionOptions {
    /// Pause between words that ends a caption, in seconds.
    pub pause_seconds: f64,
    /// Shortest display time in seconds, unless the next caption starts earlier.
    ///
    /// At most `max_seconds`.
    pub min_seconds: f64,
    /// Longest display time in seconds.
    pub max_seconds: f64,
    /// Characters per line.
    pub line_characters: usize,
    /// Lines per caption.
    pub lines: usize,
}

impl Default for CaptionOptions {
    /// Returns a pause of 1 s and two lines of 42 characters.
    ///
    /// Display times are 5/6 s to 6 s.
    fn default() -> Self {
        Self { pause_seconds: 1.0, min_seconds: 0.834, max_seconds: 6.0, line_characters: 42, lines: 2 }
    }
}

/// A word, or a part of a word longer than a line.
struct CaptionPiece {
    text: String,
    start: f64,
    end: f64,
}

/// Words that are displayed together.
struct Caption {
    start: f64,
    end: f64,
    lines: Vec<String>,
}

/// Groups words to captions.
///
/// A new caption begins after a pause, or where the previous one would exceed the limits. A full
/// caption ends at the longest pause of its second half.
fn split_into_captions(words: &[TimedWord], options: &CaptionOptions) -> Vec<Caption> {
    let pieces: Vec<CaptionPiece> =
        words.iter().flat_map(|word| split_word(word, options.line_characters.max(1))).collect();
    let (mut captions, mut rest) = (Vec::new(), &pieces[..]);
    while !rest.is_empty() {
        let (head, tail) = rest.split_at(count_caption_pieces(rest, options));
        captions.push(layout_caption(head, options));
        rest = tail;
    }
    captions
}

/// Splits a word into parts of at most a line.
///
/// Times are proportional to the characters.
fn split_word(word: &TimedWord, max_characters: usize) -> Vec<CaptionPiece> {
    let letters: Vec<char> = word.text.chars().collect();
    let time_at = |letter: usize| word.start + (word.end - word.start) * letter as f64 / letters.len() as f64;
    let new_piece = |(index, part): (usize, &[char])| CaptionPiece {
        text: part.iter().collect(),
        start: time_at(index * max_characters),
        end: time_at(index * max_characters + part.len()),
    };
    letters.chunks(max_characters).enumerate().map(new_piece).collect()
}

/// Returns the number of pieces of the next caption, at least 1.
fn count_caption_pieces(pieces: &[CaptionPiece], options: &CaptionOptions) -> usize {
    let Some(first) = pieces.first() else { return 0 };
    let (mut end, mut column, mut lines) = (first.end, count_characters(&first.text), 1);
    for (index, piece) in pieces.iter().enumerate().skip(1) {
        if piece.start - end >= options.pause_seconds {
            return index;
        }
        end = end.max(piece.end);
        let added = 1 + count_characters(&piece.text);
        if column + added <= options.line_characters {
            column += added;
        } else {
            (column, lines) = (added - 1, lines + 1);
        }
        if lines > options.lines || end - first.start > options.max_seconds {
            return split_point(&pieces[..=index]);
        }
    }
    pieces.len()
}

/// Returns where to split pieces of which all but the last fit.
///
/// The split is at the longest pause of the second half; of equal pauses, at the last.
fn split_point(pieces: &[CaptionPiece]) -> usize {
    let fitting = pieces.len() - 1;
    // In milliseconds, so that rounding errors do not count.
    let pause_before = |index: &usize| to_milliseconds(pieces[*index].start - pieces[*index - 1].end);
    (fitting.div_ceil(2).max(1)..=fitting).max_by_key(pause_before).unwrap_or(fitting)
}

/// Lays out pieces as lines.
fn layout_caption(pieces: &[CaptionPiece], options: &CaptionOptions) -> Caption {
    let mut lines: Vec<String> = Vec::new();
    for CaptionPiece { text, .. } in pieces {
        let fits = |line: &&mut String| {
            count_characters(line) + 1 + count_characters(text) <= options.line_characters
        };
        match lines.last_mut().filter(fits) {
            Some(line) => *line += &format!(" {text}"),
            None => lines.push(text.clone()),
        }
    }
    let start = pieces.first().map_or(0.0, |piece| piece.start);
    Caption { start, end: pieces.iter().fold(start, |end, piece| end.max(piece.end)), lines }
}

/// Returns start and end of each caption in milliseconds.
///
/// Captions are displayed long enough to be read, and not beyond the start of the next. Starts
/// increase and no time is empty, even if words overlap.
fn display_times(captions: &[Caption], options: &CaptionOptions) -> Vec<(u64, u64)> {
    let [min_duration, max_duration] = [options.min_seconds, options.max_seconds].map(to_milliseconds);
    let mut starts: Vec<u64> = Vec::with_capacity(captions.len());
    for caption in captions {
        let earliest = starts.last().map_or(0, |start| start + 1);
        starts.push(to_milliseconds(caption.start).max(earliest));
    }
    let display_time = |(index, caption): (usize, &Caption)| {
        let start = starts[index];
        let end =
            to_milliseconds(caption.end).max(start + min_duration.max(1)).min(start + max_duration.max(1));
        (start, starts.get(index + 1).map_or(end, |&next| end.min(next)))
    };
    captions.iter().enumerate().map(display_time).collect()
}

fn to_milliseconds(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1000.0).round() as u64
}

fn count_characters(text: &str) -> usize {
    text.chars().count()
}

/// Formats milliseconds as `HH:MM:SS` and milliseconds.
fn format_time(milliseconds: u64, decimal_mark: char) -> String {
    let seconds = milliseconds / 1000;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}{decimal_mark}{:03}", seconds % 60, milliseconds % 1000)
}

/// Formats words as SubRip captions.
pub(super) fn format_srt(words: &[TimedWord], options: &CaptionOptions) -> String {
    let captions = split_into_captions(words, options);
    let format_caption = |(number, (caption, (start, end))): (usize, (&Caption, (u64, u64)))| {
        let lines = caption.lines.join("\n");
        format!("{}\n{} --> {}\n{lines}\n\n", number + 1, format_time(start, ','), format_time(end, ','))
    };
    captions.iter().zip(display_times(&captions, options)).enumerate().map(format_caption).collect()
}

/// Formats words as WebVTT captions.
pub(super) fn format_vtt(words: &[TimedWord], options: &CaptionOptions) -> String {
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let captions = split_into_captions(words, options);
    let format_caption = |(caption, (start, end)): (&Caption, (u64, u64))| {
        format!(
            "{} --> {}\n{}\n\n",
            format_time(start, '.'),
            format_time(end, '.'),
            escape(&caption.lines.join("\n"))
        )
    };
    let captions: String =
        captions.iter().zip(display_times(&captions, options)).map(format_caption).collect();
    format!("WEBVTT\n\n{captions}")
}

#[cfg(test)]
mod tests;
