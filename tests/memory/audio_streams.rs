//! Tests that memory of audio streams does not grow with their length.
use std::path::Path;

use panda::model::Model;
use panda::recognizer::{ChunkedEncoder, StreamingEncoder, WindowConfig};
use panda::speech::{AudioChunks, Channel, Conversion};
use panda::training::Recipe;

use crate::counting_allocator::{Measurement, exclusive, measure};

/// Sample rate of the model in Hz.
const RATE: usize = 8000;
/// Sample rate of the WAV file in Hz.
const FILE_RATE: u32 = 11_025;
const JOINT_WIDTH: usize = 7;
/// Allowed growth of the peak from one to ten minutes, in bytes.
const MAX_GROWTH: usize = 4096;

/// Returns an untrained model with an LSTM encoder.
fn model(features: &str, bidirectional: bool) -> Model {
    let text = format!(
        r#"
        data = {{ train = ["none.jsonl"] }}
        features = {{ sample_rate = 8000, mels = 20, {features} }}
        tokens = {{ kind = "words" }}
        encoder = {{ layers = 2, hidden = 16, bidirectional = {bidirectional} }}
        predictor = {{ kind = "stateless", embedding = 3, context = 1 }}
        joint = {{ width = {JOINT_WIDTH} }}
        optimizer = {{ learning_rate = 1e-3 }}
        batch = {{ max_frames = 100, max_utterances = 4 }}
        training = {{ epochs = 1 }}
        "#
    );
    Model::new(&Recipe::parse(&text, Path::new("test.toml")).unwrap().model_config(), 4).unwrap()
}

/// Pieces of audio, 100 ms each.
fn audio_pieces(pieces: usize) -> impl Iterator<Item = Vec<f32>> {
    let sample = |i: usize| 0.1 * (i as f32 * 0.3).sin() * (i as f32 * 1e-4).cos();
    (0..pieces).map(move |n| (n * RATE / 10..(n + 1) * RATE / 10).map(sample).collect())
}

/// Returns the peak bytes for one and for ten minutes of audio.
///
/// On one thread: the peak of parallel tasks depends on their order.
fn peak_bytes(run: impl Fn(usize) + Sync) -> [usize; 2] {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| [600, 6000].map(|pieces| measure(|| run(pieces)).peak_growth))
}

#[test]
fn a_streaming_encoder_frees_returned_rows() {
    let _guard = exclusive();
    let model = model("normalize = \"running\"", false);
    let [short, long] = peak_bytes(|pieces| {
        let mut encoder = StreamingEncoder::new(&model).unwrap();
        let (id, mut rows) = (encoder.open(), 0);
        for piece in audio_pieces(pieces) {
            encoder.push(id, &piece).unwrap();
            rows +=
                encoder.encode().unwrap().iter().map(|output| output.rows.len() / JOINT_WIDTH).sum::<usize>();
        }
        assert!(rows > 3 * pieces, "{rows}");
    });
    assert!(long < short + MAX_GROWTH, "{short} bytes for a minute, {long} for ten");
}

#[test]
fn a_chunked_encoder_frees_returned_rows() {
    let _guard = exclusive();
    let model = model("", true);
    let [short, long] = peak_bytes(|pieces| {
        let mut windows = ChunkedEncoder::new(&model, WindowConfig { seconds: 10.0, overlap: 2.0 }).unwrap();
        let mut rows = Vec::new();
        for piece in audio_pieces(pieces) {
            windows.push(&piece, &mut rows).unwrap();
            rows.clear();
        }
    });
    assert!(long < short + MAX_GROWTH, "{short} bytes for a minute, {long} for ten");
}

#[test]
fn files_are_read_in_pieces() {
    let _guard = exclusive();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.wav");
    let [short, long] = [60, 600].map(|seconds: u32| {
        // Two channels of 16 bits.
        let bytes = seconds * 4 * FILE_RATE;
        let mut file =
            [&b"RIFF"[..], &(36 + bytes).to_le_bytes(), b"WAVEfmt \x10\0\0\0\x01\0\x02\0"].concat();
        file.extend(
            [FILE_RATE.to_le_bytes(), (4 * FILE_RATE).to_le_bytes(), [4, 0, 16, 0], *b"data"].concat(),
        );
        file.extend(bytes.to_le_bytes());
        file.extend((0..bytes).map(|i| (i % 251) as u8));
        std::fs::write(&path, file).unwrap();
        let conversion = Conversion { channel: Channel::Mix, resample: true };
        let Measurement { peak_growth: peak, result: samples, .. } = measure(|| {
            let pieces = AudioChunks::open(&path, RATE as u32, &conversion).unwrap();
            pieces.map(|piece| piece.unwrap().len()).sum::<usize>()
        });
        assert_eq!(samples, (seconds as usize * FILE_RATE as usize * RATE).div_ceil(FILE_RATE as usize));
        peak
    });
    assert!(long < short + MAX_GROWTH, "{short} bytes for a minute, {long} for ten");
}
