//! Tests that features of the Kaldi preset equal those of kaldi-native-fbank.
//!
//! `golden/kaldi.py` wrote the golden vectors.

use speech::features::Framing;
use speech::{Audio, FeatureConfig, FrontEnd, Preset};

/// The signal of `golden/kaldi.py`.
fn signal(count: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut sample = |n: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let value = (n * n / 8 % 4001) as i32 - 2000 + (state >> 22) as i32 - 512;
        if (1400..2200).contains(&n) { 0.0 } else { value as f32 / 32768.0 }
    };
    (0..count).map(&mut sample).collect()
}

#[test]
fn features_equal_those_of_kaldi_native_fbank() {
    let golden: serde_json::Value = serde_json::from_str(include_str!("../golden/kaldi.json")).unwrap();
    let front_end = FrontEnd::new(&Preset::Kaldi.config()).unwrap();
    let mut num_compared = 0;
    for case in golden["cases"].as_array().unwrap() {
        let samples = signal(case["samples"].as_u64().unwrap() as usize);
        let features = front_end.log_mel(&Audio { samples, sample_rate: 16_000 }).unwrap();
        let rows = case["features"].as_array().unwrap();
        assert_eq!((features.frames, features.dim), (rows.len(), 80));
        for (t, row) in rows.iter().enumerate() {
            for (m, stored) in row.as_array().unwrap().iter().enumerate() {
                let (value, stored) = (f64::from(features.frame(t)[m]), stored.as_f64().unwrap());
                // kaldi-native-fbank computes in f32: the largest difference is 1.1e-4.
                assert!(
                    (value - stored).abs() < 3e-4,
                    "frame {t}, bin {m}: expected {stored}, found {value}"
                );
                num_compared += 1;
            }
        }
    }
    // 80 bins of the frames of four signals.
    assert_eq!(num_compared, 80 * (21 + 3 + 1 + 1));
}

#[test]
fn windows_within_the_signal_allow_streaming() {
    let front_end = FrontEnd::new(&Preset::Kaldi.config()).unwrap();
    let error = front_end.stream().unwrap_err().to_string();
    assert_eq!(
        error,
        "setting `framing`: expected \"inside\" or \"zero-padded\", for streaming, found \"middle\""
    );
    let config = FeatureConfig { framing: Framing::Inside, ..Preset::Kaldi.config() };
    let front_end = FrontEnd::new(&config).unwrap();
    let samples = signal(3333);
    let complete = front_end.log_mel(&Audio { samples: samples.clone(), sample_rate: 16_000 }).unwrap();
    for size in [1, 77, 400, 2000] {
        let (mut stream, mut frames) = (front_end.stream().unwrap(), Vec::new());
        for chunk in samples.chunks(size) {
            front_end.push(&mut stream, chunk, &mut frames).unwrap();
        }
        front_end.finish(&mut stream, &mut frames).unwrap();
        assert_eq!(frames, complete.data, "chunks of {size}");
    }
}
