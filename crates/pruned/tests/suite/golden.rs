//! The first pass compared with golden vectors of fast_rnnt, computed in f64.
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use kernels::Real;
use oracle::{compare::assert_close, golden};
use pruned::{Batch, FirstPass, Matrices, Options, Unigram, first_pass};
use safetensors::{Dtype, SafeTensors};

struct Case {
    name: String,
    options: Options,
    s_range: usize,
    batch: Batch,
    /// Shapes and values.
    tensors: BTreeMap<String, (Vec<usize>, Vec<f64>)>,
}

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
    let number = |key: &str| option(key).as_f64().unwrap();
    let options = Options {
        topology,
        lm_only_scale: number("lm_only_scale"),
        am_only_scale: number("am_only_scale"),
        unigram: Unigram::AllRows,
        delay_penalty: number("delay_penalty"),
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
    let batch = Batch::padded(number("blank") as u32, frames, labels, max_frames, positions).unwrap();
    Case { name, options, s_range: number("s_range_requested") as usize, batch, tensors }
}

impl Case {
    fn run<F: Real>(&self) -> (FirstPass<F>, Vec<f64>, Vec<f64>) {
        let values = |name: &str| self.tensors[name].1.iter().map(|&v| F::from_f64(v)).collect::<Vec<F>>();
        let (am, lm) = (values("am"), values("lm"));
        let source = Matrices::new(&am, &lm, self.tensors["am"].0[2]).unwrap();
        let pass = first_pass(&source, &self.batch, &self.options).unwrap();
        let gradient = pass.backward(&source, &vec![1.0; self.batch.len()]).unwrap();
        let wide = |values: Vec<F>| values.into_iter().map(F::to_f64).collect();
        (pass, wide(gradient.am), wide(gradient.lm))
    }

    /// Packed occupancies as the padded `px_grad [B,S,T(+1)]` and `py_grad [B,S+1,T]`.
    fn padded(&self, occupancies: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (px, py) = (&self.tensors["px_grad"].0, &self.tensors["py_grad"].0);
        let mut out = (vec![0.0; px.iter().product()], vec![0.0; py.iter().product()]);
        let lattices = self.batch.lattices();
        for b in 0..self.batch.len() {
            for (site, at) in lattices.site_range(b).zip(lattices.utterance_sites(b)) {
                out.1[(b * py[1] + at.label) * py[2] + at.frame] = occupancies[2 * site];
                if at.label < lattices.labels(b) {
                    out.0[(b * px[1] + at.label) * px[2] + at.frame] = occupancies[2 * site + 1];
                }
            }
        }
        out
    }

    fn check<F: Real>(&self, loss_bar: f64, bar: f64) {
        let (pass, am, lm) = self.run::<F>();
        let expect = |name: &str| &self.tensors[name].1;
        for (actual, expected) in pass.losses.iter().zip(expect("simple_loss")) {
            assert!(
                (actual - expected).abs() <= loss_bar * expected.abs().max(1.0),
                "{}: {actual} {expected}",
                self.name
            );
        }
        let (px, py) = self.padded(&pass.occupancies);
        for (what, actual) in [("px_grad", &px), ("py_grad", &py), ("grad_am", &am), ("grad_lm", &lm)] {
            assert_close(&format!("{} {what}", self.name), actual, expect(what), bar);
        }
    }
}

#[test]
fn f64_equals_fast_rnnt() {
    for case in cases() {
        let bar = 1e-9;
        case.check::<f64>(bar, bar);
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
        for single in [false, true] {
            let ranges = match single {
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
