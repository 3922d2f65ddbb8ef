//! The page.
use recognizer::Metric;
use recognizer::{Score, Transcript};

use crate::html::{count, duration, escape, escape_lines, interval, percent};
use crate::recordings::Recordings;
use crate::run::Run;
use crate::{Options, Result, curves, tables, worst};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// Nothing is loaded from anywhere, whatever a browser finds in the page.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; media-src data:";
/// Rows of a table that are shown without being asked for.
const OPEN: usize = 12;

impl Run {
    /// The page. Recordings in it are at the model's sample rate, as WAV of 16 bits.
    ///
    /// # Errors
    /// [`Error::Plot`](crate::Error::Plot).
    pub fn page(&self, options: &Options) -> Result<String> {
        let title = escape(&self.name);
        let body = [
            format!("<header><h1>{title}</h1>{}</header>\n", cards(self)),
            notes(self),
            curves_section(self)?,
            scores(self),
            worst_section(self, options),
            bad_items(self),
            parameters(self),
            format!(
                "<section><h2 id=\"recipe\">Recipe</h2><pre><code>{}</code></pre></section>\n",
                escape_lines(&self.text)
            ),
        ]
        .concat();
        Ok(format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n{body}<script>\n{SCRIPT}</script>\n</body>\n</html>\n"
        ))
    }
}

fn notes(run: &Run) -> String {
    run.notes.iter().map(|note| format!("<p class=\"note\">{}</p>\n", escape(note))).collect()
}

/// The numbers that one looks for first.
fn cards(run: &Run) -> String {
    let mut cards = Vec::new();
    let first = run.metric();
    let metrics = if first == Metric::Wer { [Metric::Wer, Metric::Cer] } else { [Metric::Cer, Metric::Wer] };
    for (name, transcripts) in run.sets.iter().rev() {
        let score = Score::new(transcripts);
        for metric in metrics {
            let (unit, ends) = match metric {
                Metric::Wer => ("WER", score.interval),
                Metric::Cer => ("CER", score.cer_interval),
            };
            cards.push((format!("{name} {unit}"), percent(score.rate(metric)), interval(ends)));
        }
    }
    let all: usize = run.parameters.values().sum();
    if all > 0 {
        cards.push(("parameters".to_owned(), count(all), String::new()));
    }
    if let Some(epochs) = run.metrics.epochs.last() {
        let of = run.recipe.as_ref().map(|recipe| format!("of {}", recipe.training.run.epochs));
        cards.push(("epochs".to_owned(), count(*epochs as usize), of.unwrap_or_default()));
    }
    let seconds: f64 = run.metrics.values("seconds").iter().sum();
    if seconds > 0.0 {
        cards.push(("training".to_owned(), duration(seconds), String::new()));
    }
    let card = |(name, value, more): &(String, String, String)| {
        format!("<div><dt>{}</dt><dd>{value}<small>{more}</small></dd></div>", escape(name))
    };
    format!("<dl class=\"cards\">{}</dl>", cards.iter().map(card).collect::<String>())
}

fn curves_section(run: &Run) -> Result<String> {
    let drawn = curves::draw(&run.metrics)?;
    if drawn.is_empty() {
        return Ok(String::new());
    }
    let figure = |(title, svg): &(String, String)| {
        format!("<figure role=\"img\" aria-label=\"{}\">{svg}</figure>\n", escape(title))
    };
    let figures: String = drawn.iter().map(figure).collect();
    Ok(format!("<section><h2 id=\"curves\">Curves</h2><div class=\"curves\">{figures}</div></section>\n"))
}

fn scores(run: &Run) -> String {
    let mut all = Vec::new();
    let mut more = String::new();
    for (name, transcripts) in run.sets.iter().rev() {
        all.push((name.clone(), Score::new(transcripts)));
        let subsets = Score::group_by(transcripts, |one| one.subset.as_ref());
        all.extend(subsets.into_iter().map(|(subset, score)| (format!("{name}: {subset}"), score)));
        more += &speakers(name, transcripts, run.metric());
        more += &match tables::frequent(transcripts, run.metric()) {
            table if table.is_empty() => table,
            table => format!(
                "<details><summary>Most frequent errors of {}</summary>{table}</details>\n",
                escape(name)
            ),
        };
    }
    if all.is_empty() {
        return "<p class=\"note\">There are no hypotheses yet: the run has not come to its end.</p>\n"
            .to_owned();
    }
    let table =
        tables::scores("Sets and their subsets, with 95 % bootstrap intervals over utterances", "set", &all);
    format!("<section><h2 id=\"errors\">Errors</h2>\n{table}{more}</section>\n")
}

/// A row a speaker, the worst first.
fn speakers(name: &str, transcripts: &[Transcript], metric: Metric) -> String {
    let speakers = Score::group_by(transcripts, |one| one.speaker.as_ref());
    if speakers.is_empty() {
        return String::new();
    }
    let mut rows: Vec<(String, Score)> = speakers.into_iter().collect();
    rows.sort_by(|a, b| b.1.rate(metric).total_cmp(&a.1.rate(metric)));
    let open = if rows.len() <= OPEN { " open" } else { "" };
    let (name, many) = (escape(name), rows.len());
    let table = tables::scores(&format!("Speakers of {name}, the worst first"), "speaker", &rows);
    format!("<details{open}><summary>{many} speakers of {name}</summary>{table}</details>\n")
}

fn worst_section(run: &Run, options: &Options) -> String {
    let Some((name, transcripts)) = run.sets.iter().next_back() else { return String::new() };
    let metric = run.metric();
    let chosen = worst::choose(transcripts, metric, options.worst);
    if chosen.is_empty() {
        return String::new();
    }
    let rate = run.recipe.as_ref().map_or(16_000, |recipe| recipe.features.sample_rate);
    let mut recordings = Recordings::new(rate, options.audio);
    let utterances = run.utterances.get(name);
    let mut cards = String::new();
    for one in &chosen {
        let recordings = Some(&mut recordings).filter(|_| options.audio > 0);
        cards += &worst::card(one, metric, utterances, recordings);
    }
    let mib = |bytes: usize| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let mut sound = match recordings.used {
        0 => String::new(),
        used => format!(" Sound takes {} of this page, at most {}.", mib(used), mib(options.audio)),
    };
    if recordings.left_out > 0 {
        let (left, limit) = (recordings.left_out, mib(options.audio));
        sound += &format!(" {left} recordings did not fit into {limit} and are left out.");
    }
    let what = if metric == Metric::Wer { "word" } else { "character" };
    format!(
        "<section><h2 id=\"worst\">Worst utterances of {}</h2>\n<p>The {} with most {what} errors: what was said \
         above what was heard, with <span class=\"s\">substitutions</span>, <span class=\"d\">deletions</span> and \
         <span class=\"i\">insertions</span>.{sound}</p>\n<div class=\"worst\">{cards}</div></section>\n",
        escape(name),
        chosen.len(),
    )
}

/// The utterances that could not be used, a table for each set.
fn bad_items(run: &Run) -> String {
    if run.bad.is_empty() {
        return String::new();
    }
    let tables: String = run.bad.iter().map(|(set, items)| tables::bad_items(set, items)).collect();
    format!("<section><h2 id=\"bad-items\">Utterances that could not be used</h2>\n{tables}</section>\n")
}

fn parameters(run: &Run) -> String {
    if run.parameters.is_empty() {
        return String::new();
    }
    let row = |(part, number): (&str, usize)| {
        format!(
            "<tr><th scope=\"row\">{}</th><td data-v=\"{number}\">{}</td></tr>",
            escape(part),
            count(number)
        )
    };
    let rows: String = run.parameters.iter().map(|(part, number)| row((part, *number))).collect();
    let all = row(("all", run.parameters.values().sum()));
    format!(
        "<section><h2 id=\"parameters\">Parameters</h2><div class=\"wide\"><table><thead><tr><th scope=\"col\">part</th>\
         <th scope=\"col\">numbers</th></tr></thead><tbody>{rows}</tbody><tfoot>{all}</tfoot></table></div></section>\n"
    )
}
