//! Golden vectors of independent programs.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use decoding::{
    Automaton, Beam, BeamSearch, Confidence, Description, Fusion, Greedy, GreedySearch, Hypotheses, Measure, Model, Stream, frame_looping,
    greedy, unpadded,
};
use safetensors::SafeTensors;
use serde_json::Value;

fn folder() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden/decoding");
    path.is_dir().then_some(path)
}

#[derive(Debug)]
struct Bigram {
    table: Vec<f32>,
    vocab: usize,
    blank: u32,
}

impl Bigram {
    fn number(&self, class: u32) -> usize {
        (class - u32::from(class > self.blank)) as usize
    }
}

impl Automaton for Bigram {
    fn start(&self) -> u32 {
        self.vocab as u32
    }
    fn step(&self, state: u32, class: u32) -> (f32, u32) {
        let v = self.number(class);
        (self.table[state as usize * self.vocab + v], v as u32)
    }
    fn add_scores(&self, state: u32, weight: f32, scores: &mut [f32]) {
        for class in (0..scores.len() as u32).filter(|&class| class != self.blank) {
            scores[class as usize] += weight * self.step(state, class).0;
        }
    }
    fn finish(&self, _: u32) -> f32 {
        0.0
    }
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn close(what: &str, found: &[f64], expected: &[f64], bar: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= bar * b.abs().max(1.0), "{what} [{at}]: {a} is not {b}");
    }
}

fn compare(what: &str, found: &Hypotheses, expected: &Value) {
    for (b, expected) in expected.as_array().unwrap().iter().enumerate() {
        let what = format!("{what} utterance {b}");
        let labels = found.labels(b);
        let of = |f: &dyn Fn(&decoding::Emitted) -> f64| labels.iter().map(f).collect::<Vec<f64>>();
        close(&what, &of(&|l| f64::from(l.label)), &numbers(&expected["tokens"]), 0.0);
        close(&what, &of(&|l| l.frame as f64), &numbers(&expected["timestamps"]), 0.0);
        close(&what, &of(&|l| l.log_prob), &numbers(&expected["token_logp"]), 1e-4);
        close(&what, &of(&|l| f64::from(l.logit)), &numbers(&expected["token_logit"]), 1e-4);
        if let Some(durations) = expected.get("durations") {
            close(&what, &of(&|l| l.duration as f64), &numbers(durations), 0.0);
            close(&what, &of(&|l| l.duration_log_prob), &numbers(&expected["duration_logp"]), 1e-4);
            assert_eq!(found.ended(b) as u64, expected["end_time"].as_u64().unwrap(), "{what}");
        }
    }
}

#[test]
fn every_case_agrees() {
    let Some(folder) = folder() else {
        eprintln!("skipped: no ../shared/golden/decoding");
        return;
    };
    let (mut count, mut beams) = (0, 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "json") || path.file_stem().unwrap() == "suite" {
            continue;
        }
        let case: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let bytes = std::fs::read(path.with_extension("safetensors")).unwrap();
        let name = case["name"].as_str().unwrap();
        let description: Description = serde_json::from_value(case["model"].clone()).unwrap();
        let (model, network) = Model::from_safetensors(&bytes, &description).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let floats = |name: &str| -> Vec<f32> {
            let view = file.tensor(name).unwrap();
            view.data().as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
        };
        let lengths: Vec<usize> = numbers(&case["lengths"]).iter().map(|&l| l as usize).collect();
        let rows = network.project_frames(&floats("enc")).unwrap();
        let width = model.width();
        let frames = unpadded(&rows, width, &lengths).unwrap();
        for decode in case["decodes"].as_array().unwrap() {
            let what = format!("{name} {}", decode["id"]);
            let max_symbols = decode["max_symbols"].as_u64().map(|ms| ms as usize);
            let mut options = Greedy { max_symbols, steps: true, ..Greedy::default() };
            match decode["kind"].as_str().unwrap() {
                "greedy" => {
                    for look_ahead in [1, 5, 32] {
                        options.look_ahead = look_ahead;
                        let mut search = GreedySearch::new(model.clone(), options.clone()).unwrap();
                        let found = search.decode(&frames).unwrap();
                        compare(&what, found, &decode["utterances"]);
                        for (b, expected) in decode["utterances"].as_array().unwrap().iter().enumerate() {
                            assert_eq!(found.steps(b).len() as u64, expected["joint_steps"].as_u64().unwrap());
                            for (step, expected) in found.steps(b).iter().zip(expected["steps"].as_array().into_iter().flatten()) {
                                let expected = numbers(expected);
                                assert_eq!((step.frame as f64, f64::from(step.class)), (expected[0], expected[1]));
                                close(&what, &[step.log_prob], &expected[2..3], 1e-4);
                                if let Some(frames) = expected.get(3) {
                                    assert_eq!(step.frames as f64, *frames);
                                }
                            }
                        }
                    }
                    compare(&what, &frame_looping(&model, &frames, &options).unwrap(), &decode["utterances"]);
                    for (frames, expected) in frames.iter().zip(decode["utterances"].as_array().unwrap()) {
                        let found = greedy(&model, frames, &options).unwrap();
                        let ids: Vec<f64> = found.ids().iter().map(|&id| f64::from(id)).collect();
                        close(&what, &ids, &numbers(&expected["tokens"]), 0.0);
                        close(&what, &[found.score()], &[expected["score_logp_sum"].as_f64().unwrap()], 1e-3);
                        close(&what, &[found.logits()], &[expected["score_logit_sum"].as_f64().unwrap()], 1e-3);
                    }
                    let measured = decode["utterances"][0].get("confidence").is_some();
                    for (measure, exponent, key) in Measure::ALL
                        .map(|measure| (measure, 0.33, measure.name().replace('-', "_")))
                        .into_iter()
                        .chain([(Measure::MaxProb, 1.0, "max_prob_a1".to_owned())])
                        .filter(|_| measured)
                    {
                        let confidence = Some(Confidence { measure, exponent });
                        let mut search =
                            GreedySearch::new(model.clone(), Greedy { confidence, ..options.clone() }).unwrap();
                        let found = search.decode(&frames).unwrap();
                        for (b, expected) in decode["utterances"].as_array().unwrap().iter().enumerate() {
                            let found: Vec<f64> = found.labels(b).iter().map(|l| l.confidence).collect();
                            close(&format!("{what} {key}"), &found, &numbers(&expected["confidence"][&key]), 1e-4);
                        }
                    }
                }
                "greedy_lm_fusion" => {
                    let blank = description.blank;
                    let automaton =
                        Arc::new(Bigram { table: floats("lm.log_prob"), vocab: description.vocab, blank });
                    let weight = decode["alpha"].as_f64().unwrap() as f32;
                    options.fusion = vec![Fusion { automaton, weight }];
                    let mut search = GreedySearch::new(model.clone(), options).unwrap();
                    compare(&what, search.decode(&frames).unwrap(), &decode["utterances"]);
                }
                "chunked_greedy" => {
                    let chunk = decode["chunk"].as_u64().unwrap() as usize;
                    let mut search = GreedySearch::new(model.clone(), options).unwrap();
                    let mut streams: Vec<Stream> = frames.iter().map(|_| search.stream()).collect();
                    for at in 0..lengths.iter().max().unwrap().div_ceil(chunk) {
                        let cut = |rows: &&'_ [f32]| -> (usize, usize) {
                            let end = rows.len() / width;
                            (end.min(at * chunk) * width, end.min((at + 1) * chunk) * width)
                        };
                        let chunks: Vec<&[f32]> = frames.iter().map(|rows| &rows[cut(rows).0..cut(rows).1]).collect();
                        let mut all: Vec<&mut Stream> = streams.iter_mut().collect();
                        let found = search.advance(&mut all, &chunks).unwrap();
                        for b in 0..chunks.len() {
                            let Some(expected) = decode["utterances"][b].get(at) else { continue };
                            let (labels, what) = (found.labels(b), format!("{what} utterance {b} chunk {at}"));
                            let ids: Vec<f64> = labels.iter().map(|l| f64::from(l.label)).collect();
                            close(&what, &ids, &numbers(&expected["tokens"]), 0.0);
                            let times: Vec<f64> = labels.iter().map(|l| l.frame as f64).collect();
                            close(&what, &times, &numbers(&expected["timestamps"]), 0.0);
                            assert_eq!(all[b].jump() as u64, expected["time_jump"].as_u64().unwrap(), "{what}");
                        }
                    }
                }
                "modified_beam" => {
                    let number = |key: &str| decode[key].as_f64().unwrap() as f32;
                    let width = decode["beam"].as_u64().unwrap() as usize;
                    let options = Beam {
                        width,
                        nbest: width,
                        blank_penalty: number("blank_penalty"),
                        temperature: number("temperature"),
                        ..Beam::default()
                    };
                    let mut search = BeamSearch::new(model.clone(), options).unwrap();
                    let found = search.decode(&frames).unwrap();
                    for (b, expected) in decode["utterances"].as_array().unwrap().iter().enumerate() {
                        let (found, expected) = (&found[b].hypotheses, expected.as_array().unwrap());
                        assert_eq!(found.len(), expected.len(), "{what} utterance {b}");
                        for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
                            let what = format!("{what} utterance {b} hypothesis {place}");
                            let of = |f: &dyn Fn(&decoding::Emitted) -> f64| -> Vec<f64> {
                                found.labels.iter().map(f).collect()
                            };
                            close(&what, &of(&|l| f64::from(l.label)), &numbers(&expected["tokens"]), 0.0);
                            close(&what, &of(&|l| l.frame as f64), &numbers(&expected["timestamps"]), 0.0);
                            close(&what, &[found.log_prob], &[expected["log_prob"].as_f64().unwrap()], 1e-3);
                            close(&what, &[found.score], &[expected["norm_score"].as_f64().unwrap()], 1e-4);
                        }
                    }
                    beams += 1;
                }
                _ => continue,
            }
            count += 1;
        }
    }
    assert!(count > 40 && beams >= 7, "{count} {beams}");
}
