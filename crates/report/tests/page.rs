//! Tests of report pages, written from synthetic run folders.
use std::path::{Path, PathBuf};

use report::{Error, Options, Result, Run};
use tempfile::TempDir;

/// A recipe whose comment contains markup.
const RECIPE: &str = r#"# </code><script>alert("recipe")</script>
[data]
train = ["list.jsonl"]
dev = ["list.jsonl"]
test = ["list.jsonl"]
[features]
sample_rate = 8000
mels = 12
[tokens]
kind = "characters"
[encoder]
layers = 1
hidden = 16
bidirectional = true
[predictor]
kind = "stateless"
embedding = 8
context = 1
[joint]
width = 16
[optimizer]
learning_rate = 1e-2
[batch]
max_frames = 200
max_utterances = 2
[training]
epochs = 3
"#;
/// Text that must be escaped.
const MARKUP: &str = "<script>alert('x')</script>";

/// Writes a corpus of two recordings, its recipe and a run folder.
fn write_corpus_and_run(recipe: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    std::fs::create_dir(&run).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("recipe.toml", recipe);
    write("run/recipe.toml", recipe);
    write("run/recipe.path", folder.path().join("recipe.toml").to_str().unwrap());
    write("run/metrics.csv", "epoch,step,loss,dev_wer,<script>b\n1,5,9.5,,1\n2,10,3.5,0.5,2\n");
    for name in ["0.wav", "1.wav"] {
        let samples: Vec<u8> = (0..800u16).flat_map(|n| (n * 40).to_le_bytes()).collect();
        std::fs::write(folder.path().join(name), wav_file(&samples)).unwrap();
    }
    let lines = [
        r#"{"id": "one", "file": "0.wav", "text": "EVIL two", "speaker": "EVIL", "seconds": 0.1}"#,
        r#"{"id": "two", "file": "1.wav", "text": "天气 很好", "speaker": "b", "seconds": 0.1}"#,
    ];
    write("list.jsonl", &lines.join("\n").replace("EVIL", MARKUP));
    let lines = [
        r#"{"id": "one", "subset": "EVIL", "reference": "EVIL two", "hypothesis": "EVIL too & more"}"#,
        r#"{"id": "two", "reference": "天气 很好", "hypothesis": "天汽 很"}"#,
    ];
    write("run/test.hypotheses.jsonl", &lines.join("\n").replace("EVIL", MARKUP));
    (folder, run)
}

/// A WAV file of 16-bit samples at 8 kHz.
fn wav_file(data: &[u8]) -> Vec<u8> {
    let data_bytes = data.len() as u32;
    let parts: &[&[u8]] = &[
        b"RIFF",
        // The file without its first 8 bytes: 36 bytes of header and the data.
        &(data_bytes + 36).to_le_bytes(),
        // A format chunk of 16 bytes: PCM, one channel.
        b"WAVEfmt \x10\0\0\0\x01\0\x01\0",
        // Samples per second, bytes per second.
        &8000u32.to_le_bytes(),
        &16000u32.to_le_bytes(),
        // Bytes and bits per sample.
        b"\x02\0\x10\0data",
        &data_bytes.to_le_bytes(),
        data,
    ];
    parts.concat()
}

/// The page of a run with the recipe next to the manifests.
fn write_page(run: &Path, recipe: Option<&Path>) -> Result<String> {
    Run::read(run, recipe)?.page(&Options::default())
}

/// The page of a run without errors.
fn read_page(run: &Path, options: &Options) -> String {
    Run::read(run, None).unwrap().page(options).unwrap()
}

#[test]
fn texts_are_escaped_and_nothing_is_loaded() {
    let (_corpus, run) = write_corpus_and_run(RECIPE);
    let html = read_page(&run, &Options::default());
    assert_eq!(html.matches("<script").count(), 1);
    assert!(html.contains("&lt;script&gt;alert(&quot;recipe&quot;)&lt;/script&gt;"));
    assert!(html.contains("too</span>") && html.contains("&amp;</span>"));
    for reference in ["href=", "url(", "@import", "src=\"http", "<link", "<img", "<iframe"] {
        assert!(!html.contains(reference), "{reference}");
    }
    let addresses = html.matches("://").count();
    assert_eq!(addresses, html.matches("http://www.w3.org/2000/svg").count());
}

#[test]
fn the_page_shows_the_contents_of_the_folder() {
    let (_corpus, run) = write_corpus_and_run(RECIPE);
    let html = read_page(&run, &Options::default());
    // Curves of two known columns and an unknown one.
    assert_eq!(html.matches("<figure").count(), 3);
    assert!(html.contains("data:audio/wav;base64,UklGR") && html.matches("<audio").count() == 2);
    assert!(html.contains("2 speakers of test") && html.contains("over speakers"));
    assert!(html.contains("<td data-v=\"2\">2</td>"), "{html}");
    assert!(html.contains("the run folder has no checkpoint."));
    // Substituted words are aligned.
    assert!(html.contains("title=\"substitution\"><span>天气</span> <span>天汽</span>"), "{html}");
    assert_eq!(html, read_page(&run, &Options::default()));

    let characters = RECIPE.to_owned() + "metric = \"cer\"\n";
    let (_corpus, run) = write_corpus_and_run(&characters);
    let html = read_page(&run, &Options::default());
    assert!(html.contains("title=\"substitution\"><span>气</span> <span>汽</span>"));
    assert!(html.contains("title=\"deletion\"><span>好</span> <span>—</span>"));
}

#[test]
fn run_folders_with_old_names_of_recipe_keys_are_read() {
    let recipe = RECIPE.replace("mels = 12", "mels = 12\nnormalize = \"none\"\nframing = \"centered\"");
    let old_recipe = recipe
        .replace("[optimizer]", "[optimiser]")
        .replace("normalize =", "normalise =")
        .replace("\"centered\"", "\"centred\"");
    let (corpus, run) = write_corpus_and_run(&recipe);
    let expected = read_page(&run, &Options::default());
    assert!(expected.contains("<audio") && expected.contains(&recipe[recipe.find("[optimizer]").unwrap()..]));
    std::fs::write(run.join("recipe.toml"), &old_recipe).unwrap();
    let to_new_names = |html: String| {
        let html = html.replace("[optimiser]", "[optimizer]").replace("normalise =", "normalize =");
        html.replace("centred", "centered")
    };
    assert_eq!(to_new_names(read_page(&run, &Options::default())), expected);
    // The recipe next to the manifests may have old names too.
    std::fs::write(corpus.path().join("recipe.toml"), &old_recipe).unwrap();
    let html = write_page(&run, Some(&corpus.path().join("recipe.toml"))).unwrap();
    assert_eq!(to_new_names(html), expected);
}

#[test]
fn audio_has_a_limit_and_can_be_left_out() {
    let (_corpus, run) = write_corpus_and_run(RECIPE);
    let silent = read_page(&run, &Options { max_audio_bytes: 0, ..Options::default() });
    assert!(!silent.contains("<audio") && !silent.contains("data:audio"));
    // 1,644 bytes are 2,192 characters; one recording fits.
    let short = read_page(&run, &Options { max_audio_bytes: 4000, ..Options::default() });
    assert_eq!(short.matches("<audio").count(), 1);
    assert!(short.contains(" 1 recordings did not fit into 0.0 MiB"));
    assert_eq!(read_page(&run, &Options { worst: 1, ..Options::default() }).matches("<article").count(), 1);
}

#[test]
fn missing_files_are_reported() {
    let (corpus, run) = write_corpus_and_run(RECIPE);
    let remove = |name: &str| std::fs::remove_file(corpus.path().join(name)).unwrap();
    remove("1.wav");
    let html = read_page(&run, &Options::default());
    assert!(html.matches("<audio").count() == 1 && html.contains("1.wav"));
    // Another text with the same id belongs to another recording.
    let list = std::fs::read_to_string(corpus.path().join("list.jsonl")).unwrap();
    std::fs::write(corpus.path().join("list.jsonl"), list.replace("two\"", "three\"")).unwrap();
    assert_eq!(read_page(&run, &Options::default()).matches("<audio").count(), 0);
    // Another recipe next to the manifests differs from that of the run.
    let other_recipe = corpus.path().join("other_recipe.toml");
    let error = write_page(&run, Some(&other_recipe)).unwrap_err();
    assert!(matches!(error, Error::Io { .. }) && error.to_string().contains("other_recipe.toml"), "{error}");
    for (recipe, differs) in [(RECIPE.to_owned(), false), (RECIPE.replace("list.jsonl", "more.jsonl"), true)]
    {
        std::fs::write(&other_recipe, recipe).unwrap();
        let html = write_page(&run, Some(&other_recipe)).unwrap();
        assert_eq!(html.contains("names other manifests"), differs);
    }
    remove("list.jsonl");
    let html = read_page(&run, &Options::default());
    assert!(html.contains("The manifests of test cannot be read") && html.contains("--recipe"));
    let error = write_page(&run, Some(&corpus.path().join("recipe.toml"))).unwrap_err();
    assert!(matches!(error, Error::Training(_)) && error.to_string().contains("list.jsonl"));
    // An unfinished run.
    remove("run/test.hypotheses.jsonl");
    remove("run/metrics.csv");
    let html = read_page(&run, &Options::default());
    assert!(html.contains("no hypotheses yet") && !html.contains("<figure"));
    std::fs::write(run.join("recipe.toml"), "[data]\ntrain = 7").unwrap();
    assert!(read_page(&run, &Options::default()).contains("class=\"note\""));
}

#[test]
fn corrupted_files_are_errors() {
    let (corpus, run) = write_corpus_and_run(RECIPE);
    let error = write_page(&corpus.path().join("none"), None).unwrap_err();
    assert!(matches!(&error, Error::NoRun { .. }) && error.to_string().contains("recipe.toml"), "{error}");
    std::fs::write(run.join("metrics.csv"), "epoch,loss\n1,2,3\n").unwrap();
    let error = write_page(&run, None).unwrap_err();
    assert!(matches!(&error, Error::Metrics { .. }) && error.to_string().contains("metrics.csv"), "{error}");
    std::fs::write(run.join("metrics.csv"), "epoch,loss\n1,2\n").unwrap();
    std::fs::write(run.join("test.hypotheses.jsonl"), "\n{\"id\": 3}\n").unwrap();
    let error = write_page(&run, None).unwrap_err();
    assert!(matches!(&error, Error::Line { line: 2, .. }), "{error}");
}

#[test]
fn inputs_of_a_page_are_protected() {
    let (corpus, run) = write_corpus_and_run(RECIPE);
    std::fs::write(run.join("report.html"), "an older page").unwrap();
    let contents = Run::read(&run, None).unwrap();
    let inputs: Vec<&Path> = contents.inputs().collect();
    for name in ["run/recipe.toml", "run/metrics.csv", "run/test.hypotheses.jsonl", "list.jsonl", "1.wav"] {
        assert!(inputs.contains(&corpus.path().join(name).as_path()), "{name}: {inputs:?}");
    }
    assert!(!inputs.contains(&run.join("report.html").as_path()));
}
