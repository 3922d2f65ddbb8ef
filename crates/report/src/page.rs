//! `Run::page`: composes the HTML page of a report from its sections.
use recognizer::Metric;
use recognizer::{Score, Transcript};

use crate::html::{escape, escape_lines, format_count, format_duration, format_interval, format_percent};
use crate::recordings::Recordings;
use crate::run::Run;
use crate::{Options, Result, curves, plots, tables, worst};

/// Style sheet of the page.
const STYLE: &str = include_str!("page.css");
/// Script that sorts tables.
const SCRIPT: &str = include_str!("page.js");
/// Content security policy: the page loads nothing from other addresses.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; media-src data:";
/// Sample rate of the audio if the recipe is invalid.
const DEFAULT_SAMPLE_RATE: u32 = 16_000;
/// Maximum number of rows of a table that is expanded initially.
const MAX_OPEN_ROWS: usize = 12;

impl Run {
    /// Returns the HTML page; its audio is 16-bit WAV at the model's sample rate.
    ///
    /// # Errors
    /// [`Error::Plot`](crate::Error::Plot).
    pub fn page(&self, options: &Options) -> Result<String> {
        let title = escape(&self.name);
        let body = [
            format!("<header><h1>{title}</h1>{}</header>\n", summary(self)),
            notes_section(self),
            curves_section(self)?,
            scores_section(self),
            worst_section(self, options),
            bad_items_section(self),
            parameters_section(self),
            format!(
                "<section><h2 id=\"recipe\">Recipe</h2><pre><code>{}</code></pre></section>\n",
                escape_lines(&self.recipe_text)
            ),
        ]
        .concat();
        Ok(format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{STYLE}{}</style>\n</head>\n<body>\n{body}<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
            plots::DARK_STYLE
        ))
    }
}

/// Formats the notes on parts that are left out.
fn notes_section(run: &Run) -> String {
    run.notes.iter().map(|note| format!("<p class=\"note\">{}</p>\n", escape(note))).collect()
}

/// A number of the summary.
struct SummaryCard {
    name: String,
    value: String,
    /// Small text after the value, HTML.
    detail: String,
}

/// Formats the summary: error rates, parameters, epochs, training time.
fn summary(run: &Run) -> String {
    let mut cards = Vec::new();
    let mut add_card =
        |name: String, value: String, detail: String| cards.push(SummaryCard { name, value, detail });
    let metrics =
        if run.metric() == Metric::Wer { [Metric::Wer, Metric::Cer] } else { [Metric::Cer, Metric::Wer] };
    for (set, transcripts) in run.transcripts.iter().rev() {
        let score = Score::new(transcripts);
        for metric in metrics {
            let (metric_name, interval) = match metric {
                Metric::Wer => ("WER", score.wer_interval),
                Metric::Cer => ("CER", score.cer_interval),
            };
            add_card(
                format!("{set} {metric_name}"),
                format_percent(score.rate(metric)),
                format_interval(interval),
            );
        }
    }
    let parameter_count: usize = run.parameters.values().sum();
    if parameter_count > 0 {
        add_card("parameters".to_owned(), format_count(parameter_count), String::new());
    }
    if let Some(epochs) = run.metrics.epochs.last() {
        let planned = run.recipe.as_ref().map(|recipe| format!("of {}", recipe.training.run.epochs));
        add_card("epochs".to_owned(), format_count(*epochs as usize), planned.unwrap_or_default());
    }
    let seconds: f64 = run.metrics.values("seconds").iter().sum();
    if seconds > 0.0 {
        add_card("training time".to_owned(), format_duration(seconds), String::new());
    }
    let card = |SummaryCard { name, value, detail }: &SummaryCard| {
        format!("<div><dt>{}</dt><dd>{value}<small>{detail}</small></dd></div>", escape(name))
    };
    format!("<dl class=\"cards\">{}</dl>", cards.iter().map(card).collect::<String>())
}

/// Draws the training curves.
fn curves_section(run: &Run) -> Result<String> {
    let plots = curves::draw(&run.metrics)?;
    if plots.is_empty() {
        return Ok(String::new());
    }
    let figure = |(title, svg): &(String, String)| {
        format!("<figure role=\"img\" aria-label=\"{}\">{svg}</figure>\n", escape(title))
    };
    let figures: String = plots.iter().map(figure).collect();
    Ok(format!("<section><h2 id=\"curves\">Curves</h2><div class=\"curves\">{figures}</div></section>\n"))
}

/// Formats error rates of sets, subsets and speakers, and frequent errors.
fn scores_section(run: &Run) -> String {
    let mut rows = Vec::new();
    let mut details = String::new();
    for (set, transcripts) in run.transcripts.iter().rev() {
        rows.push((set.clone(), Score::new(transcripts)));
        let subsets = Score::group_by(transcripts, |transcript| transcript.subset.as_ref());
        rows.extend(subsets.into_iter().map(|(subset, score)| (format!("{set}: {subset}"), score)));
        details += &speaker_details(set, transcripts, run.metric());
        details += &match tables::error_table(transcripts, run.metric()) {
            table if table.is_empty() => table,
            table => format!(
                "<details><summary>Most frequent errors of {}</summary>{table}</details>\n",
                escape(set)
            ),
        };
    }
    if rows.is_empty() {
        return "<p class=\"note\">There are no hypotheses yet: the run is not finished.</p>\n".to_owned();
    }
    let caption = "Error rates of sets and subsets, with 95 % bootstrap intervals over utterances";
    let table = tables::score_table(caption, "set", &rows);
    format!("<section><h2 id=\"errors\">Errors</h2>\n{table}{details}</section>\n")
}

/// Formats the error rates of each speaker, the worst first.
fn speaker_details(set: &str, transcripts: &[Transcript], metric: Metric) -> String {
    let speakers = Score::group_by(transcripts, |transcript| transcript.speaker.as_ref());
    if speakers.is_empty() {
        return String::new();
    }
    let mut rows: Vec<(String, Score)> = speakers.into_iter().collect();
    rows.sort_by(|a, b| b.1.rate(metric).total_cmp(&a.1.rate(metric)));
    let open = if rows.len() <= MAX_OPEN_ROWS { " open" } else { "" };
    let (set, count) = (escape(set), rows.len());
    let table = tables::score_table(&format!("Speakers of {set}, worst first"), "speaker", &rows);
    format!("<details{open}><summary>{count} speakers of {set}</summary>{table}</details>\n")
}

/// Formats the utterances of the last set with most errors, with audio.
fn worst_section(run: &Run, options: &Options) -> String {
    let Some((set, transcripts)) = run.transcripts.iter().next_back() else { return String::new() };
    let metric = run.metric();
    let worst_transcripts = worst::select_worst(transcripts, metric, options.worst);
    if worst_transcripts.is_empty() {
        return String::new();
    }
    let sample_rate = run.recipe.as_ref().map_or(DEFAULT_SAMPLE_RATE, |recipe| recipe.features.sample_rate);
    let mut recordings = Recordings::new(sample_rate, options.max_audio_bytes);
    let utterances = run.utterances.get(set);
    let mut cards = String::new();
    for transcript in &worst_transcripts {
        let recordings = Some(&mut recordings).filter(|_| options.max_audio_bytes > 0);
        cards += &worst::utterance_card(transcript, metric, utterances, recordings);
    }
    let mib = |bytes: usize| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let mut audio = match recordings.used_bytes {
        0 => String::new(),
        used => {
            format!(" Audio takes {} of this page; the limit is {}.", mib(used), mib(options.max_audio_bytes))
        }
    };
    if recordings.left_out_count > 0 {
        let (count, limit) = (recordings.left_out_count, mib(options.max_audio_bytes));
        audio += &format!(" {count} recordings did not fit into {limit} and are left out.");
    }
    let unit = if metric == Metric::Wer { "word" } else { "character" };
    format!(
        "<section><h2 id=\"worst\">Worst utterances of {}</h2>\n<p>The {} utterances with most {unit} errors: \
         reference above hypothesis, with <span class=\"s\">substitutions</span>, <span class=\"d\">deletions</span> and \
         <span class=\"i\">insertions</span>.{audio}</p>\n<div class=\"worst\">{cards}</div></section>\n",
        escape(set),
        worst_transcripts.len(),
    )
}

/// Formats the bad items, one table per set.
fn bad_items_section(run: &Run) -> String {
    if run.bad_items.is_empty() {
        return String::new();
    }
    let tables: String =
        run.bad_items.iter().map(|(set, items)| tables::bad_item_table(set, items)).collect();
    format!("<section><h2 id=\"bad-items\">Unusable utterances</h2>\n{tables}</section>\n")
}

/// Formats the number of parameters of each part of the model.
fn parameters_section(run: &Run) -> String {
    if run.parameters.is_empty() {
        return String::new();
    }
    let row = |(part, number): (&str, usize)| {
        format!(
            "<tr><th scope=\"row\">{}</th><td data-v=\"{number}\">{}</td></tr>",
            escape(part),
            format_count(number)
        )
    };
    let rows: String = run.parameters.iter().map(|(part, number)| row((part, *number))).collect();
    let total = row(("total", run.parameters.values().sum()));
    format!(
        "<section><h2 id=\"parameters\">Parameters</h2><div class=\"wide\"><table><thead><tr><th scope=\"col\">part</th>\
         <th scope=\"col\">parameters</th></tr></thead><tbody>{rows}</tbody><tfoot>{total}</tfoot></table></div></section>\n"
    )
}
