//! The pruned first pass compared with golden vectors of fast_rnnt (k2).
//!
//! Each case of `../shared` is a safetensors file with inputs and outputs, and a JSON file with
//! options. Losses, posteriors, gradients and pruning ranges must match.
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use kernels::Real;
use oracle::{compare::assert_close, golden};
use pruned::{Batch, FirstPass, Matrices, Options, Unigram, first_pass};
use safetensors::{Dtype, SafeTensors};

/// A golden file: options, inputs and expected outputs.
struct Case {
    name: String,
    options: Options,
    s_range: usize,
    batch: Batch,
    /// Shape and values of each tensor.
    tensors: BTreeMap<String, (Vec<usize>, Vec<f64>)>,
}

/// Reads all golden files of pruning; none on a clone without the shared data.
fn cases() -> Vec<Case> {
    let Some(folder) = golden::folder() else { return Vec::new() };
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
    let is_case = |path: &PathBuf| {
        path.extension().is_some_and(|ending| ending == "json") && name(path).starts_with("pruned_")
    };
    let cases: Vec<Case> = files.filter(is_case).map(|path| read(name(&path), &path)).collect();
    assert_eq!(cases.len(), 8, "golden cases of pruning");
    cases
}

/// Reads a golden file and its JSON sidecar.
fn read(name: String, json: &Path) -> Case {
    let sidecar: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let option = |key: &str| &sidecar["options"][key];
    let data = std::fs::read(json.with_extension("safetensors")).unwrap();
    let tensors: BTreeMap<String, (Vec<usize>, Vec<f64>)> = SafeTensors::deserialize(&data)
        .unwrap()
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            let data = view.data();
            let values = match view.dtype() {
                Dtype::F32 => data.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect(),
                Dtype::F64 => data.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect(),
                Dtype::I32 => data.as_chunks().0.iter().map(|&b| f64::from(i32::from_le_bytes(b))).collect(),
                other => panic!("{name}: {other:?}"),
            };
            (name, (view.shape().to_vec(), values))
        })
        .collect();
    let topology = option("rnnt_type").as_str().unwrap().parse().unwrap();
    let option_value = |key: &str| option(key).as_f64().unwrap();
    let options = Options {
        topology,
        lm_only_scale: option_value("lm_only_scale"),
        am_only_scale: option_value("am_only_scale"),
        unigram: Unigram::AllRows,
        delay_penalty: option_value("delay_penalty"),
        fastemit: 0.0,
    };
    let to_usize = |name: &str| tensors[name].1.iter().map(|&v| v as usize).collect::<Vec<_>>();
    let (frames, counts, ids) = (to_usize("logit_lens"), to_usize("target_lens"), to_usize("targets"));
    let width = tensors["targets"].0[1];
    let labels: Vec<Vec<u32>> = counts
        .iter()
        .enumerate()
        .map(|(b, &count)| ids[b * width..b * width + count].iter().map(|&id| id as u32).collect())
        .collect();
    let (max_frames, positions) = (tensors["am"].0[1], tensors["lm"].0[1]);
    let batch = Batch::padded(option_value("blank") as u32, frames, labels, max_frames, positions).unwrap();
    Case { name, options, s_range: option_value("s_range_requested") as usize, batch, tensors }
}

impl Case {
    /// Runs forward and backward; returns the pass and the gradients of `am` and `lm`.
    fn run<F: Real>(&self) -> (FirstPass<F>, Vec<f64>, Vec<f64>) {
        let values = |name: &str| self.tensors[name].1.iter().map(|&v| F::from_f64(v)).collect::<Vec<F>>();
        let (am, lm) = (values("am"), values("lm"));
        let source = Matrices::new(&am, &lm, self.tensors["am"].0[2]).unwrap();
        let pass = first_pass(&source, &self.batch, &self.options).unwrap();
        let gradient = pass.backward(&source, &vec![1.0; self.batch.len()]).unwrap();
        let to_f64 = |values: Vec<F>| values.into_iter().map(F::to_f64).collect();
        (pass, to_f64(gradient.am), to_f64(gradient.lm))
    }

    /// Converts packed occupancies to the padded `px_grad` and `py_grad` of fast_rnnt.
    ///
    /// They are the posteriors of labels, *B x U x T* (or T + 1), and of blanks, *B x (U+1) x T*.
    fn padded(&self, occupancies: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (label_shape, blank_shape) = (&self.tensors["px_grad"].0, &self.tensors["py_grad"].0);
        let mut labels = vec![0.0; label_shape.iter().product()];
        let mut blanks = vec![0.0; blank_shape.iter().product()];
        let lattices = self.batch.lattices();
        for b in 0..self.batch.len() {
            for (site, position) in lattices.site_range(b).zip(lattices.utterance_sites(b)) {
                let index_in = |shape: &[usize]| (b * shape[1] + position.label) * shape[2] + position.frame;
                blanks[index_in(blank_shape)] = occupancies[2 * site];
                if position.label < lattices.num_labels(b) {
                    labels[index_in(label_shape)] = occupancies[2 * site + 1];
                }
            }
        }
        (labels, blanks)
    }

    /// Compares losses, posteriors and gradients with those of the file.
    fn check<F: Real>(&self, loss_tolerance: f64, tolerance: f64) {
        let (pass, am, lm) = self.run::<F>();
        let expected_values = |name: &str| &self.tensors[name].1;
        for (actual, expected) in pass.losses.iter().zip(expected_values("simple_loss")) {
            assert!(
                (actual - expected).abs() <= loss_tolerance * expected.abs().max(1.0),
                "{}: {actual} {expected}",
                self.name
            );
        }
        let (px, py) = self.padded(&pass.occupancies);
        for (name, actual) in [("px_grad", &px), ("py_grad", &py), ("grad_am", &am), ("grad_lm", &lm)] {
            assert_close(&format!("{} {name}", self.name), actual, expected_values(name), tolerance);
        }
    }
}

#[test]
fn f64_equals_fast_rnnt() {
    for case in cases() {
        let tolerance = 1e-9;
        case.check::<f64>(tolerance, tolerance);
    }
}

#[test]
fn f32_equals_fast_rnnt() {
    cases().iter().for_each(|case| case.check::<f32>(2e-6, 2e-5));
}

/// Ranges equal those of fast_rnnt, which has one width for the batch.
///
/// Its windows may extend into padding.
#[test]
fn ranges_are_identical() {
    for case in cases() {
        let (shape, golden) = &case.tensors["ranges"];
        for is_f32 in [false, true] {
            let ranges = match is_f32 {
                false => case.run::<f64>().0.ranges(case.s_range).unwrap(),
                true => case.run::<f32>().0.ranges(case.s_range).unwrap(),
            };
            for b in 0..case.batch.len() {
                assert_eq!(
                    ranges.width(b),
                    case.s_range.min(case.batch.labels(b).len() + 1),
                    "{}",
                    case.name
                );
                for (t, &start) in ranges.starts(b).iter().enumerate() {
                    let expected = golden[(b * shape[1] + t) * shape[2]] as usize;
                    assert_eq!(start, expected, "{}, utterance {b}, frame {t}", case.name);
                }
            }
        }
    }
}
