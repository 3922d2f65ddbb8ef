//! Words of sound that is still arriving are those of the whole.
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use decoding::{Beam, BeamKind};
use recognizer::Error;
use recognizer::{EndpointConfig, Recognizer, SearchConfig, StreamingOptions, Transcription, WindowConfig};
use training::{Start, train};

use super::toy::{RATE, Toy};

/// A model that knows the toy corpus by heart.
pub(super) struct Learnt {
    /// Samples of each utterance.
    pub sounds: Vec<Vec<f32>>,
    checkpoint: Vec<u8>,
    pub recogniser: Recognizer,
}

impl Learnt {
    /// Another one of it, with a search of its own.
    pub fn with_search(&self, search: SearchConfig) -> Recognizer {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, &self.checkpoint).unwrap();
        Recognizer::load(&path).unwrap().with_search(search).unwrap()
    }

    fn with_beam(&self, kind: BeamKind) -> Recognizer {
        self.with_search(SearchConfig::Beam(Beam { kind, ..Beam::default() }))
    }

    /// The toy corpus, one after the other with pauses of so many samples between them.
    pub fn sound(&self, pause: usize) -> Vec<f32> {
        self.sounds.iter().flat_map(|sound| [&sound[..], &vec![0.0; pause]].concat()).collect()
    }
}

/// A model of one direction or two. Nobody drops what is static: its folder is gone, where it was learnt.
pub(super) fn trained(one_way: bool) -> &'static Learnt {
    static MODELS: [OnceLock<Learnt>; 2] = [OnceLock::new(), OnceLock::new()];
    MODELS[usize::from(one_way)].get_or_init(|| {
        let toy = Toy::new();
        let often = format!("train = {:?}", ["train.jsonl"; 40]);
        let mut changes = vec![
            ("train = [\"train.jsonl\"]", often.as_str()),
            ("perturb = { speed = 0.1 }", ""),
            ("max_utterances = 2", "max_utterances = 6"),
            ("max_frames = 200", "max_frames = 400"),
        ];
        if one_way {
            let lstm = "kind = \"lstm\"\nembedding = 8\nhidden = 16\nlayers = 1";
            // What has seen whole sentences only should not wait for the next.
            changes.push((lstm, "kind = \"stateless\"\nembedding = 8\ncontext = 1"));
            changes.push(("bidirectional = true", "bidirectional = false"));
            changes.push(("mels = 12", "mels = 12\nnormalise = \"running\"\nfloor_db = 100.0"));
        }
        let (recipe, folder) = (toy.recipe(&changes), toy.path("run"));
        train(&recipe, Some(24), &folder, Start::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
        let checkpoint = folder.join("best.safetensors");
        let recogniser = Recognizer::load(&checkpoint).unwrap();
        let utterances = speech::read_manifest(&toy.path("train.jsonl")).unwrap();
        let sounds = utterances.iter().map(|one| one.audio(RATE).unwrap().samples).collect();
        Learnt { sounds, checkpoint: std::fs::read(&checkpoint).unwrap(), recogniser }
    })
}

/// All words of a live recognition in pieces of these sizes, over and over.
pub(super) fn live(
    recogniser: &Recognizer,
    samples: &[f32],
    sizes: &[usize],
    options: &StreamingOptions,
) -> (Transcription, usize) {
    let mut live = recogniser.stream(options).unwrap();
    let (mut all, mut endpoints, mut rest) = (Transcription::default(), 0, samples);
    for &size in sizes.iter().cycle() {
        let (piece, after) = rest.split_at(size.min(rest.len()));
        rest = after;
        let update = live.push(piece).unwrap();
        endpoints += usize::from(update.endpoint);
        all.append(update.new);
        if rest.is_empty() {
            break;
        }
    }
    let update = live.finish().unwrap();
    assert_eq!(update.partial, "");
    all.append(update.new);
    (all, endpoints)
}

#[test]
fn pieces_of_any_size_give_the_words_of_the_whole() {
    let learnt = trained(true);
    let recogniser = &learnt.recogniser;
    let samples = learnt.sound(0);
    let audio = speech::Audio { samples: samples.clone(), sample_rate: RATE };
    let whole = recogniser.transcribe(&audio).unwrap();
    assert!(whole.words.len() > 8, "{}", whole.text);
    assert!(recogniser.stream(&StreamingOptions::default()).unwrap().is_immediate());
    for sizes in [&[1600][..], &[1, 7, 4000, 0, 333], &[samples.len()], &[80]] {
        assert_eq!(live(recogniser, &samples, sizes, &StreamingOptions::default()).0, whole, "{sizes:?}");
    }
}

#[test]
fn a_beam_hears_in_pieces_what_it_hears_in_the_whole() {
    let maes = BeamKind::Maes { expansions: 2, beta: 2, gamma: 2.3, prefix: 1 };
    for kind in [BeamKind::Modified, maes] {
        let learnt = trained(true);
        let recogniser = learnt.with_beam(kind);
        let samples = learnt.sound(0);
        let audio = speech::Audio { samples: samples.clone(), sample_rate: RATE };
        let whole = recogniser.transcribe(&audio).unwrap();
        assert!(whole.words.len() > 8, "{}", whole.text);
        for sizes in [&[1600][..], &[1, 7, 4000, 0, 333], &[samples.len()]] {
            let found = live(&recogniser, &samples, sizes, &StreamingOptions::default()).0;
            assert_eq!(found, whole, "{kind:?} {sizes:?}");
        }
        // A pause decides, here for what was right anyhow.
        let samples = learnt.sound(RATE as usize * 3 / 2);
        let endpoint =
            EndpointConfig { silence_after_words: 1.0, silence_without_words: 100.0, max_seconds: 100.0 };
        let options = StreamingOptions { endpoint: Some(endpoint), ..StreamingOptions::default() };
        let (found, count) = live(&recogniser, &samples, &[400], &options);
        assert_eq!(found.text, whole.text);
        assert!((4..=6).contains(&count), "{count}");
    }
    // Words come before the end, and those that are not complete are shown. What is searched for is not what greedy search finds.
    let learnt = trained(true);
    let odd = Beam { width: 8, blank_penalty: 6.0, ..Beam::default() };
    let recogniser = learnt.with_search(SearchConfig::Beam(odd));
    let samples = learnt.sound(0);
    let audio = speech::Audio { samples: samples.clone(), sample_rate: RATE };
    let whole = recogniser.transcribe(&audio).unwrap();
    assert_ne!(whole.text, learnt.recogniser.transcribe(&audio).unwrap().text);
    for latest in [None, Some(0.5), Some(0.0)] {
        let options = StreamingOptions { latest, ..StreamingOptions::default() };
        let mut live = recogniser.stream(&options).unwrap();
        let (mut found, mut heard, mut shown) = (Transcription::default(), 0, 0);
        for piece in samples.chunks(400) {
            let update = live.push(piece).unwrap();
            heard += piece.len();
            shown += usize::from(!update.partial.is_empty());
            found.append(update.new);
        }
        let before = found.words.len();
        let rest = live.finish().unwrap().new;
        if let Some(latest) = latest {
            // The last of its words may go on; a label is found some frames behind its sound.
            let late = rest.words.iter().rev().skip(1);
            let from = heard as f64 / f64::from(RATE) - latest - 0.2;
            assert!(late.clone().all(|word| word.start >= from), "{latest} {from} {:?}", rest.words);
        }
        found.append(rest);
        assert!(before > 5 && shown > 20, "{latest:?}: {before} {shown}");
        match latest {
            None => assert_eq!(found, whole),
            Some(_) => assert!(found.words.len() > 8, "{}", found.text),
        }
    }

    let learnt = trained(false);
    let recogniser = learnt.with_beam(BeamKind::Modified);
    let samples = learnt.sound(0);
    let whole =
        recogniser.transcribe(&speech::Audio { samples: samples.clone(), sample_rate: RATE }).unwrap();
    let wide = WindowConfig { seconds: 60.0, overlap: 5.0 };
    let pieces = samples.chunks(1000).map(|piece| Ok(piece.to_vec()));
    assert_eq!(recogniser.transcribe_chunks(pieces, wide).unwrap(), whole);
}

/// The words of each utterance, in pieces of these sizes, over and over.
fn utterances(
    recogniser: &Recognizer,
    samples: &[f32],
    sizes: &[usize],
    options: &StreamingOptions,
) -> (Vec<Transcription>, bool) {
    let mut live = recogniser.stream(options).unwrap();
    let (mut all, mut rest) = (vec![Transcription::default()], samples);
    let add = |all: &mut Vec<Transcription>, updates: Vec<recognizer::StreamingUpdate>| {
        for update in updates {
            all.last_mut().unwrap().append(update.new);
            if update.endpoint {
                all.push(Transcription::default());
            }
        }
    };
    for &size in sizes.iter().cycle() {
        let (piece, after) = rest.split_at(size.min(rest.len()));
        rest = after;
        add(&mut all, live.push_split(piece).unwrap());
        if rest.is_empty() {
            break;
        }
    }
    let updates = live.finish_split().unwrap();
    let left_out = updates.last().unwrap().has_discarded;
    add(&mut all, updates);
    (all, left_out)
}

#[test]
fn decisions_do_not_depend_on_the_sizes_of_pieces() {
    let maes = BeamKind::Maes { expansions: 2, beta: 2, gamma: 2.3, prefix: 1 };
    let beam =
        |kind, blank_penalty| SearchConfig::Beam(Beam { kind, width: 8, blank_penalty, ..Beam::default() });
    let searches = [
        SearchConfig::default(),
        beam(BeamKind::Modified, 0.0),
        beam(BeamKind::Modified, 6.0),
        beam(maes, 3.0),
    ];
    let pause = EndpointConfig { silence_after_words: 0.2, silence_without_words: 0.4, max_seconds: 100.0 };
    let length =
        EndpointConfig { silence_after_words: 100.0, silence_without_words: 100.0, max_seconds: 0.7 };
    let mut differ = false;
    for one_way in [true, false] {
        let learnt = trained(one_way);
        let samples = learnt.sound(RATE as usize / 2);
        let whole = speech::Audio { samples: samples.clone(), sample_rate: RATE };
        for (search, silence) in searches.iter().flat_map(|search| [(search, 0.0), (search, 0.999)]) {
            let recogniser = learnt.with_search(search.clone()).with_silence(silence).unwrap();
            let whole = recogniser.transcribe(&whole).unwrap();
            for (latest, endpoint) in
                [(Some(0.0), None), (Some(0.1), Some(length)), (None, Some(pause)), (Some(0.2), Some(pause))]
            {
                let options = StreamingOptions { latest, endpoint, ..StreamingOptions::default() };
                let expected = utterances(&recogniser, &samples, &[80], &options);
                let texts: Vec<&str> = expected.0.iter().map(|one| &one.text[..]).collect();
                differ |= texts.join(" ") != whole.text;
                for sizes in [&[samples.len()][..], &[1600], &[1, 7, 4000, 0, 333], &[12_345, 2]] {
                    let found = utterances(&recogniser, &samples, sizes, &options);
                    assert_eq!(found, expected, "{one_way} {search:?} {silence} {options:?} {sizes:?}");
                }
            }
        }
    }
    assert!(differ, "no decision changed a text");
}

#[test]
fn searches_without_streams_are_named() {
    let recogniser = trained(false).with_beam(BeamKind::Malsd { max_symbols: 3 });
    let error = recogniser.stream(&StreamingOptions::default()).err().unwrap().to_string();
    assert!(error.contains("mALSD beam search knows no streams"), "{error}");
    let beside = SearchConfig::BeamWithCtc { beam: Beam::default(), weight: 0.5 };
    for search in [SearchConfig::Ctc(None), beside] {
        let recogniser = trained(false).with_search(search);
        let error = recogniser.stream(&StreamingOptions::default()).err().unwrap().to_string();
        assert!(error.contains("a greedy search or a beam with the joint network only"), "{error}");
    }
}

#[test]
fn a_pause_ends_an_utterance_and_changes_no_word() {
    let learnt = trained(true);
    let recogniser = &learnt.recogniser;
    let samples = learnt.sound(RATE as usize * 3 / 2);
    let audio = speech::Audio { samples: samples.clone(), sample_rate: RATE };
    let whole = recogniser.transcribe(&audio).unwrap();
    let options = |endpoint| StreamingOptions { endpoint: Some(endpoint), ..StreamingOptions::default() };
    let endpoint =
        EndpointConfig { silence_after_words: 1.0, silence_without_words: 100.0, max_seconds: 100.0 };
    let (found, count) = live(recogniser, &samples, &[400], &options(endpoint));
    assert_eq!(found, whole);
    // One for each sentence that was heard.
    assert!((4..=6).contains(&count), "{count}");
    // A limit on the length does not cut words, and comes as often as it can.
    let endpoint =
        EndpointConfig { silence_after_words: 100.0, silence_without_words: 100.0, max_seconds: 1.0 };
    let (found, count) = live(recogniser, &samples, &[400], &options(endpoint));
    let seconds = samples.len() / RATE as usize;
    assert_eq!(found, whole);
    assert!((seconds / 2..=seconds).contains(&count), "{count} of {seconds} s");
}

#[test]
fn windows_of_a_model_that_hears_both_ways_give_what_one_window_gives() {
    let learnt = trained(false);
    let recogniser = &learnt.recogniser;
    let samples = learnt.sound(0);
    let audio = speech::Audio { samples: samples.clone(), sample_rate: RATE };
    let whole = recogniser.transcribe(&audio).unwrap();
    let pieces = || samples.chunks(1000).map(|piece| Ok(piece.to_vec()));
    let wide = WindowConfig { seconds: 60.0, overlap: 5.0 };
    assert_eq!(recogniser.transcribe_chunks(pieces(), wide).unwrap(), whole);
    // Shorter windows hear the same words of these whistles.
    let narrow = WindowConfig { seconds: 2.0, overlap: 1.0 };
    let found = recogniser.transcribe_chunks(pieces(), narrow).unwrap();
    assert!(!recogniser.stream(&StreamingOptions::default()).unwrap().is_immediate());
    let same = found.words.iter().zip(&whole.words).filter(|(a, b)| a.text == b.text).count();
    assert!(
        same + 2 >= whole.words.len() && found.words.is_sorted_by(|a, b| a.start <= b.start),
        "{}",
        found.text
    );
    let error = recogniser.transcribe_chunks(pieces(), WindowConfig { seconds: 1.0, overlap: 1.0 });
    assert!(matches!(error, Err(Error::Model(model::Error::Shape { .. }))), "{error:?}");
}

#[test]
fn nothing_is_believed_of_silence_and_bad_samples_are_named() {
    for one_way in [true, false] {
        let recogniser = &trained(one_way).recogniser;
        let (found, _) = {
            let mut live = recogniser.stream(&StreamingOptions::default()).unwrap();
            for _ in 0..30 {
                assert_eq!(live.push(&[0.0; 1000]).unwrap().new, Transcription::default());
            }
            (live.finish().unwrap().new, 0)
        };
        assert_eq!(found, Transcription::default());
        let mut live = recogniser.stream(&StreamingOptions::default()).unwrap();
        let error = live.push(&[0.0, f32::NAN]).unwrap_err().to_string();
        assert!(error.contains("NaN"), "{error}");
        assert_eq!(live.finish().unwrap().new, Transcription::default());
    }
}
