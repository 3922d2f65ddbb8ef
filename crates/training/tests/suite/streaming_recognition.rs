//! Tests that streaming recognition gives the words of the whole recording.
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use decoding::{BeamKind, BeamOptions};
use recognizer::Error;
use recognizer::{EndpointConfig, Recognizer, SearchConfig, StreamingOptions, Transcription, WindowConfig};
use training::{StartMode, train};

use super::toy::{RATE, Toy};

/// Largest time from the sound of a word to its label.
const EMISSION_DELAY_SECONDS: f64 = 0.2;

/// A model that recognizes the toy corpus without error.
pub(super) struct TrainedModel {
    /// Samples of each utterance.
    pub utterances: Vec<Vec<f32>>,
    checkpoint: Vec<u8>,
    pub recognizer: Recognizer,
}

impl TrainedModel {
    /// Another recognizer of the same model with this search.
    pub(crate) fn with_search(&self, search: SearchConfig) -> Recognizer {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, &self.checkpoint).unwrap();
        Recognizer::load(&path).unwrap().with_search(search).unwrap()
    }

    fn with_beam(&self, kind: BeamKind) -> Recognizer {
        self.with_search(SearchConfig::Beam(BeamOptions { kind, ..BeamOptions::default() }))
    }

    /// All utterances in sequence, each followed by a pause of `pause` samples.
    pub(crate) fn recording(&self, pause: usize) -> Vec<f32> {
        self.utterances.iter().flat_map(|samples| [&samples[..], &vec![0.0; pause]].concat()).collect()
    }
}

/// A model whose encoder is causal or bidirectional.
///
/// Statics are never dropped, so that the model does not keep its training folder.
pub(super) fn trained_model(is_causal: bool) -> &'static TrainedModel {
    static MODELS: [OnceLock<TrainedModel>; 2] = [OnceLock::new(), OnceLock::new()];
    MODELS[usize::from(is_causal)].get_or_init(|| {
        let toy = Toy::new();
        let repeated = format!("train = {:?}", ["train.jsonl"; 40]);
        let mut changes = vec![
            ("train = [\"train.jsonl\"]", repeated.as_str()),
            ("perturb = { speed = 0.1 }", ""),
            ("max_utterances = 2", "max_utterances = 6"),
            ("max_frames = 200", "max_frames = 400"),
        ];
        if is_causal {
            let lstm = "kind = \"lstm\"\nembedding = 8\nhidden = 16\nlayers = 1";
            // Context 1: the model has only seen whole sentences, and must not expect the next.
            changes.push((lstm, "kind = \"stateless\"\nembedding = 8\ncontext = 1"));
            changes.push(("bidirectional = true", "bidirectional = false"));
            changes.push(("mels = 12", "mels = 12\nnormalize = \"running\"\nfloor_db = 100.0"));
        }
        let (recipe, folder) = (toy.recipe(&changes), toy.path("run"));
        train(&recipe, Some(24), &folder, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
        let checkpoint = folder.join("best.safetensors");
        let recognizer = Recognizer::load(&checkpoint).unwrap();
        let list = speech::read_manifest(&toy.path("train.jsonl")).unwrap();
        let utterances = list.iter().map(|utterance| utterance.audio(RATE).unwrap().samples).collect();
        TrainedModel { utterances, checkpoint: std::fs::read(&checkpoint).unwrap(), recognizer }
    })
}

/// Words and number of endpoints of a stream.
///
/// The samples arrive in pieces of these sizes, in turn.
pub(super) fn recognize_pieces(
    recognizer: &Recognizer,
    samples: &[f32],
    sizes: &[usize],
    options: &StreamingOptions,
) -> (Transcription, usize) {
    let mut stream = recognizer.stream(options).unwrap();
    let (mut words, mut num_endpoints, mut remaining) = (Transcription::default(), 0, samples);
    for &size in sizes.iter().cycle() {
        let (piece, tail) = remaining.split_at(size.min(remaining.len()));
        remaining = tail;
        let update = stream.push(piece).unwrap();
        num_endpoints += usize::from(update.endpoint);
        words.append(update.final_words);
        if remaining.is_empty() {
            break;
        }
    }
    let update = stream.finish().unwrap();
    assert_eq!(update.partial, "");
    words.append(update.final_words);
    (words, num_endpoints)
}

#[test]
fn pieces_of_any_size_give_the_words_of_the_whole() {
    let model = trained_model(true);
    let recognizer = &model.recognizer;
    let samples = model.recording(0);
    let audio = speech::Audio { samples: samples.clone(), sample_rate: RATE };
    let transcription = recognizer.transcribe(&audio).unwrap();
    assert!(transcription.words.len() > 8, "{}", transcription.text);
    assert!(recognizer.stream(&StreamingOptions::default()).unwrap().is_immediate());
    for sizes in [&[1600][..], &[1, 7, 4000, 0, 333], &[samples.len()], &[80]] {
        assert_eq!(
            recognize_pieces(recognizer, &samples, sizes, &StreamingOptions::default()).0,
            transcription,
            "{sizes:?}"
        );
    }
}

#[test]
fn a_beam_gives_the_same_words_for_pieces_and_the_whole() {
    let maes = BeamKind::Maes { expansions: 2, beta: 2, gamma: 2.3, prefix: 1 };
    for kind in [BeamKind::Modified, maes] {
        let model = trained_model(true);
        let recognizer = model.with_beam(kind);
        let samples = model.recording(0);
        let audio = speech::Audio { samples: samples.clone(), sample_rate: RATE };
        let transcription = recognizer.transcribe(&audio).unwrap();
        assert!(transcription.words.len() > 8, "{}", transcription.text);
        for sizes in [&[1600][..], &[1, 7, 4000, 0, 333], &[samples.len()]] {
            let streamed = recognize_pieces(&recognizer, &samples, sizes, &StreamingOptions::default()).0;
            assert_eq!(streamed, transcription, "{kind:?} {sizes:?}");
        }
        // A pause commits the best text, which is correct here in any case.
        let samples = model.recording(RATE as usize * 3 / 2);
        let endpoint =
            EndpointConfig { silence_after_words: 1.0, silence_without_words: 100.0, max_seconds: 100.0 };
        let options = StreamingOptions { endpoint: Some(endpoint), ..StreamingOptions::default() };
        let (streamed, count) = recognize_pieces(&recognizer, &samples, &[400], &options);
        assert_eq!(streamed.text, transcription.text);
        assert!((4..=6).contains(&count), "{count}");
    }
    // Words are committed before the end, and incomplete ones are shown. The blank penalty makes
    // the text differ from that of greedy search.
    let model = trained_model(true);
    let penalized = BeamOptions { width: 8, blank_penalty: 6.0, ..BeamOptions::default() };
    let recognizer = model.with_search(SearchConfig::Beam(penalized));
    let samples = model.recording(0);
    let audio = speech::Audio { samples: samples.clone(), sample_rate: RATE };
    let transcription = recognizer.transcribe(&audio).unwrap();
    assert_ne!(transcription.text, model.recognizer.transcribe(&audio).unwrap().text);
    for latest in [None, Some(0.5), Some(0.0)] {
        let options = StreamingOptions { latest, ..StreamingOptions::default() };
        let mut stream = recognizer.stream(&options).unwrap();
        let (mut streamed, mut num_samples, mut num_partial) = (Transcription::default(), 0, 0);
        for piece in samples.chunks(400) {
            let update = stream.push(piece).unwrap();
            num_samples += piece.len();
            num_partial += usize::from(!update.partial.is_empty());
            streamed.append(update.final_words);
        }
        let words_before_end = streamed.words.len();
        let last_words = stream.finish().unwrap().final_words;
        if let Some(latest) = latest {
            // The last word may continue; a label is emitted some frames after its sound.
            let mut other_words = last_words.words.iter().rev().skip(1);
            let earliest = num_samples as f64 / f64::from(RATE) - latest - EMISSION_DELAY_SECONDS;
            let are_late = other_words.all(|word| word.start >= earliest);
            assert!(are_late, "{latest} {earliest} {:?}", last_words.words);
        }
        streamed.append(last_words);
        assert!(words_before_end > 5 && num_partial > 20, "{latest:?}: {words_before_end} {num_partial}");
        match latest {
            None => assert_eq!(streamed, transcription),
            Some(_) => assert!(streamed.words.len() > 8, "{}", streamed.text),
        }
    }

    let model = trained_model(false);
    let recognizer = model.with_beam(BeamKind::Modified);
    let samples = model.recording(0);
    let transcription =
        recognizer.transcribe(&speech::Audio { samples: samples.clone(), sample_rate: RATE }).unwrap();
    let wide = WindowConfig { seconds: 60.0, overlap: 5.0 };
    let pieces = samples.chunks(1000).map(|piece| Ok(piece.to_vec()));
    assert_eq!(recognizer.transcribe_chunks(pieces, wide).unwrap(), transcription);
}

/// The words of each utterance of a stream, as [`recognize_pieces`].
///
/// Returns in addition whether words were discarded as silence.
fn recognize_utterances(
    recognizer: &Recognizer,
    samples: &[f32],
    sizes: &[usize],
    options: &StreamingOptions,
) -> (Vec<Transcription>, bool) {
    let mut stream = recognizer.stream(options).unwrap();
    let (mut utterances, mut remaining) = (vec![Transcription::default()], samples);
    let add = |utterances: &mut Vec<Transcription>, updates: Vec<recognizer::StreamingUpdate>| {
        for update in updates {
            utterances.last_mut().unwrap().append(update.final_words);
            if update.endpoint {
                utterances.push(Transcription::default());
            }
        }
    };
    for &size in sizes.iter().cycle() {
        let (piece, tail) = remaining.split_at(size.min(remaining.len()));
        remaining = tail;
        add(&mut utterances, stream.push_split(piece).unwrap());
        if remaining.is_empty() {
            break;
        }
    }
    let updates = stream.finish_split().unwrap();
    let has_discarded = updates.last().unwrap().has_discarded;
    add(&mut utterances, updates);
    (utterances, has_discarded)
}

#[test]
fn decisions_do_not_depend_on_the_sizes_of_pieces() {
    let maes = BeamKind::Maes { expansions: 2, beta: 2, gamma: 2.3, prefix: 1 };
    let beam = |kind, blank_penalty| {
        SearchConfig::Beam(BeamOptions { kind, width: 8, blank_penalty, ..BeamOptions::default() })
    };
    let searches = [
        SearchConfig::default(),
        beam(BeamKind::Modified, 0.0),
        beam(BeamKind::Modified, 6.0),
        beam(maes, 3.0),
    ];
    let pause = EndpointConfig { silence_after_words: 0.2, silence_without_words: 0.4, max_seconds: 100.0 };
    let length =
        EndpointConfig { silence_after_words: 100.0, silence_without_words: 100.0, max_seconds: 0.7 };
    let mut is_different = false;
    for is_causal in [true, false] {
        let model = trained_model(is_causal);
        let samples = model.recording(RATE as usize / 2);
        let audio = speech::Audio { samples: samples.clone(), sample_rate: RATE };
        for (search, silence) in searches.iter().flat_map(|search| [(search, 0.0), (search, 0.999)]) {
            let recognizer = model.with_search(search.clone()).with_silence(silence).unwrap();
            let transcription = recognizer.transcribe(&audio).unwrap();
            for (latest, endpoint) in
                [(Some(0.0), None), (Some(0.1), Some(length)), (None, Some(pause)), (Some(0.2), Some(pause))]
            {
                let options = StreamingOptions { latest, endpoint, ..StreamingOptions::default() };
                let expected = recognize_utterances(&recognizer, &samples, &[80], &options);
                let texts: Vec<&str> = expected.0.iter().map(|part| &part.text[..]).collect();
                is_different |= texts.join(" ") != transcription.text;
                for sizes in [&[samples.len()][..], &[1600], &[1, 7, 4000, 0, 333], &[12_345, 2]] {
                    let streamed = recognize_utterances(&recognizer, &samples, sizes, &options);
                    assert_eq!(streamed, expected, "{is_causal} {search:?} {silence} {options:?} {sizes:?}");
                }
            }
        }
    }
    assert!(is_different, "no commit changed a text");
}

#[test]
fn searches_without_streaming_are_errors() {
    let recognizer = trained_model(false).with_beam(BeamKind::Malsd { max_symbols: 3 });
    let error = recognizer.stream(&StreamingOptions::default()).err().unwrap().to_string();
    assert!(error.contains("mALSD beam search does not support streams"), "{error}");
    let with_ctc = SearchConfig::BeamWithCtc { beam: BeamOptions::default(), weight: 0.5 };
    for search in [SearchConfig::Ctc(None), with_ctc] {
        let recognizer = trained_model(false).with_search(search);
        let error = recognizer.stream(&StreamingOptions::default()).err().unwrap().to_string();
        assert!(error.contains("a greedy search or a beam with the joint network only"), "{error}");
    }
}

#[test]
fn a_pause_ends_an_utterance_and_changes_no_word() {
    let model = trained_model(true);
    let recognizer = &model.recognizer;
    let samples = model.recording(RATE as usize * 3 / 2);
    let audio = speech::Audio { samples: samples.clone(), sample_rate: RATE };
    let transcription = recognizer.transcribe(&audio).unwrap();
    let options = |endpoint| StreamingOptions { endpoint: Some(endpoint), ..StreamingOptions::default() };
    let endpoint =
        EndpointConfig { silence_after_words: 1.0, silence_without_words: 100.0, max_seconds: 100.0 };
    let (streamed, count) = recognize_pieces(recognizer, &samples, &[400], &options(endpoint));
    assert_eq!(streamed, transcription);
    // One for each recognized sentence.
    assert!((4..=6).contains(&count), "{count}");
    // A limit on the length ends utterances as early as possible, but never within a word.
    let endpoint =
        EndpointConfig { silence_after_words: 100.0, silence_without_words: 100.0, max_seconds: 1.0 };
    let (streamed, count) = recognize_pieces(recognizer, &samples, &[400], &options(endpoint));
    let seconds = samples.len() / RATE as usize;
    assert_eq!(streamed, transcription);
    assert!((seconds / 2..=seconds).contains(&count), "{count} of {seconds} s");
}

#[test]
fn windows_of_a_bidirectional_model_give_the_words_of_one_window() {
    let model = trained_model(false);
    let recognizer = &model.recognizer;
    let samples = model.recording(0);
    let audio = speech::Audio { samples: samples.clone(), sample_rate: RATE };
    let transcription = recognizer.transcribe(&audio).unwrap();
    let pieces = || samples.chunks(1000).map(|piece| Ok(piece.to_vec()));
    let wide = WindowConfig { seconds: 60.0, overlap: 5.0 };
    assert_eq!(recognizer.transcribe_chunks(pieces(), wide).unwrap(), transcription);
    // Shorter windows give the same words for these tones.
    let narrow = WindowConfig { seconds: 2.0, overlap: 1.0 };
    let windowed = recognizer.transcribe_chunks(pieces(), narrow).unwrap();
    assert!(!recognizer.stream(&StreamingOptions::default()).unwrap().is_immediate());
    let same = windowed.words.iter().zip(&transcription.words).filter(|(a, b)| a.text == b.text).count();
    assert!(
        same + 2 >= transcription.words.len() && windowed.words.is_sorted_by(|a, b| a.start <= b.start),
        "{}",
        windowed.text
    );
    let error = recognizer.transcribe_chunks(pieces(), WindowConfig { seconds: 1.0, overlap: 1.0 });
    assert!(matches!(error, Err(Error::Model(model::Error::Shape { .. }))), "{error:?}");
}

#[test]
fn silence_has_no_words_and_invalid_samples_are_errors() {
    for is_causal in [true, false] {
        let recognizer = &trained_model(is_causal).recognizer;
        let mut stream = recognizer.stream(&StreamingOptions::default()).unwrap();
        for _ in 0..30 {
            assert_eq!(stream.push(&[0.0; 1000]).unwrap().final_words, Transcription::default());
        }
        assert_eq!(stream.finish().unwrap().final_words, Transcription::default());
        let mut stream = recognizer.stream(&StreamingOptions::default()).unwrap();
        let error = stream.push(&[0.0, f32::NAN]).unwrap_err().to_string();
        assert!(error.contains("NaN"), "{error}");
        assert_eq!(stream.finish().unwrap().final_words, Transcription::default());
    }
}
