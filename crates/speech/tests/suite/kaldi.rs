//! Kaldi's front end beside kaldi-native-fbank, which `golden/kaldi.py` asked.

use speech::features::Framing;
use speech::{Audio, FeatureConfig, FrontEnd, Preset};

/// That of `golden/kaldi.py`.
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
fn features_are_those_of_kaldi_native_fbank() {
    let golden: serde_json::Value = serde_json::from_str(include_str!("../golden/kaldi.json")).unwrap();
    let front_end = FrontEnd::new(&Preset::Kaldi.config()).unwrap();
    let mut compared = 0;
    for case in golden["cases"].as_array().unwrap() {
        let samples = signal(case["samples"].as_u64().unwrap() as usize);
        let plane = front_end.log_mel(&Audio { samples, sample_rate: 16_000 }).unwrap();
        let rows = case["features"].as_array().unwrap();
        assert_eq!((plane.frames, plane.dim), (rows.len(), 80));
        for (t, row) in rows.iter().enumerate() {
            for (m, stored) in row.as_array().unwrap().iter().enumerate() {
                let (found, stored) = (f64::from(plane.frame(t)[m]), stored.as_f64().unwrap());
                // They compute in f32: the largest difference is 1.1e-4.
                assert!(
                    (found - stored).abs() < 3e-4,
                    "frame {t}, bin {m}: expected {stored}, found {found}"
                );
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 80 * (21 + 3 + 1 + 1));
}

#[test]
fn with_windows_inside_it_streams() {
    let front_end = FrontEnd::new(&Preset::Kaldi.config()).unwrap();
    let error = front_end.stream().unwrap_err().to_string();
    assert_eq!(
        error,
        "setting `framing`: expected \"inside\", for sound that arrives in pieces, found \"middle\""
    );
    let config = FeatureConfig { framing: Framing::Inside, ..Preset::Kaldi.config() };
    let front_end = FrontEnd::new(&config).unwrap();
    let samples = signal(3333);
    let whole = front_end.log_mel(&Audio { samples: samples.clone(), sample_rate: 16_000 }).unwrap();
    for cut in [1, 77, 400, 2000] {
        let (mut stream, mut frames) = (front_end.stream().unwrap(), Vec::new());
        for piece in samples.chunks(cut) {
            front_end.push(&mut stream, piece, &mut frames).unwrap();
        }
        front_end.finish(&mut stream, &mut frames).unwrap();
        assert_eq!(frames, whole.data, "pieces of {cut}");
    }
}
