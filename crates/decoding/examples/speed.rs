//! speed
use decoding::*;
use rnnt_dp::Topology;
use std::sync::Arc;
use std::time::Instant;

fn wave(count: usize, seed: u32, scale: f32) -> Vec<f32> {
    let mut x = seed.wrapping_mul(2654435761).wrapping_add(12345);
    (0..count)
        .map(|_| {
            x = x.wrapping_mul(1664525).wrapping_add(1013904223);
            ((x >> 8) as f32 / (1 << 24) as f32 * 2.0 - 1.0) * scale
        })
        .collect()
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let kind = args[1].clone();
    let (e, p, h, v) = (512, 640, 640, 1024);
    let durations: Vec<usize> = if kind == "tdt" { vec![0, 1, 2, 3, 4] } else { vec![] };
    let embed = {
        let mut w = wave((v + 1) * p, 1, 1.7);
        w[v * p..].fill(0.0);
        w
    };
    let (ih, hh, b) = (wave(4 * p * p, 2, 0.06), wave(4 * p * p, 3, 0.06), wave(4 * p, 4, 0.06));
    let predictor = Arc::new(
        LstmPredictor::new(&embed, p, &[LstmLayer { input: &ih, recurrent: &hh, bias: &b }], v as u32)
            .unwrap(),
    );
    let outputs = v + 1 + durations.len();
    let enc = wave(h * e, 5, 0.1);
    let pp = wave(h * p, 6, 0.15);
    let out = wave(outputs * h, 7, 0.25);
    let bias_of = |blank: f32| {
        let mut b = vec![0.0; outputs];
        b[v] = blank;
        b
    };
    let topology = if durations.is_empty() { Topology::rnnt() } else { Topology::tdt(&durations).unwrap() };
    let make = |blank: f32| {
        let network = Arc::new(
            Network::new(
                Activation::Tanh,
                Some(Affine::new("e", &enc, e, None).unwrap()),
                Affine::new("p", &pp, p, None).unwrap(),
                Affine::new("o", &out, h, Some(&bias_of(blank))).unwrap(),
                durations.len(),
            )
            .unwrap(),
        );
        (Model::new(predictor.clone(), network.clone(), v as u32, &[], &topology).unwrap(), network)
    };
    let batch = 32;
    let lengths: Vec<usize> = (0..batch).map(|b| 100 + (b * 97) % 301).collect();
    let encoded: Vec<Vec<f32>> = lengths
        .iter()
        .enumerate()
        .map(|(b, &l)| {
            // correlated frames
            let mut x = wave(l * e, 100 + b as u32, 1.7);
            for t in 1..l {
                for k in 0..e {
                    x[t * e + k] = 0.5 * x[(t - 1) * e + k] + 0.866 * x[t * e + k];
                }
            }
            x
        })
        .collect();
    let options = |w: usize| Greedy { max_symbols: Some(2), look_ahead: w, ..Greedy::default() };
    // calibrate blank bias for 0.25 labels a frame
    let (mut lo, mut hi) = (-20.0f32, 40.0f32);
    let frames_total: usize = lengths.iter().sum();
    for _ in 0..14 {
        let mid = 0.5 * (lo + hi);
        let (model, network) = make(mid);
        let rows: Vec<Vec<f32>> = encoded.iter().map(|x| network.project_frames(x).unwrap()).collect();
        let rows: Vec<&[f32]> = rows.iter().map(|r| &r[..]).collect();
        let mut search = GreedySearch::new(model, options(32)).unwrap();
        let n: usize = search.decode(&rows).unwrap().iter().map(|h| h.labels.len()).sum();
        if n as f64 / frames_total as f64 > 0.25 { lo = mid } else { hi = mid }
    }
    let (model, network) = make(hi);
    let mut report = String::new();
    for size in [1usize, 4, 16, 32] {
        for (name, w) in [("looking", 1), ("ahead", 32), ("frame", 0)] {
            if name == "frame" && args.len() > 2 {
                continue;
            }
            let mut search = GreedySearch::new(model.clone(), options(w.max(1))).unwrap();
            let mut times = vec![];
            let mut labels = 0;
            for rep in 0..if name == "frame" { 2 } else { 5 } {
                let start = Instant::now();
                let mut n = 0;
                for group in encoded.chunks(size) {
                    let rows: Vec<Vec<f32>> =
                        group.iter().map(|x| network.project_frames(x).unwrap()).collect();
                    let rows: Vec<&[f32]> = rows.iter().map(|r| &r[..]).collect();
                    if name == "frame" {
                        n += frame_looping(&model, &rows, &options(1))
                            .unwrap()
                            .iter()
                            .map(|h| h.labels.len())
                            .sum::<usize>();
                    } else {
                        n += search.decode(&rows).unwrap().iter().map(|h| h.labels.len()).sum::<usize>();
                    }
                }
                labels = n;
                if rep > 0 {
                    times.push(start.elapsed().as_secs_f64());
                }
            }
            times.sort_by(f64::total_cmp);
            let t = times[times.len() / 2];
            report += &format!(
                "B {size:2} {name:8} {:7.1} utt/s (min {:.1})  labels/frame {:.3}\n",
                batch as f64 / t,
                batch as f64 / times[0],
                labels as f64 / frames_total as f64
            );
        }
    }
    println!("{report}");
}
