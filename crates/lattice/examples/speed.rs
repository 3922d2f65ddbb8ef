//! Timings while building.
use lattice::*;
use std::time::Instant;
fn main() {
    let arg = |n: usize, d: usize| std::env::args().nth(n).and_then(|a| a.parse().ok()).unwrap_or(d);
    let (order, b, t, u) = (arg(1, 2), arg(2, 1), arg(3, 128), arg(4, 32));
    let reps = arg(5, 5);
    let (v, h) = (32, 512);
    let context = FullNGram::new(v, order).unwrap();
    let c = context.states();
    let mut seed = 1u32;
    let mut random = |n: usize, scale: f32| -> Vec<f32> {
        (0..n)
            .map(|_| {
                seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
                ((seed >> 8) as f32 / (1 << 24) as f32 - 0.5) * 2.0 * scale
            })
            .collect()
    };
    let s = 1.0 / (h as f32).sqrt();
    let (emb, pc, pf, jb, k0, b0, k1, b1) = (
        random(c * h, s),
        random(h * h, s),
        random(h * h, s),
        random(h, 0.1),
        random(h, s),
        random(1, 0.1),
        random(h * v, s),
        random(v, 0.1),
    );
    let frames = random(b * t * h, 1.0);
    let labels: Vec<u32> = (0..b * u).map(|i| (i * 7 % v) as u32 + 1).collect();
    let joint = Joint {
        embeddings: Embeddings::Table(&emb),
        states: c,
        vocabulary: v,
        project_context: &pc,
        project_frame: &pf,
        joint_bias: &jb,
        blank: &k0,
        blank_bias: &b0,
        lexical: &k1,
        lexical_bias: &b1,
    };
    let lattice = RecognitionLattice::new(&context, Alignment::FrameDependent, &joint).unwrap();
    let frames = Frames::new(&frames, &[b, t, h], &vec![t; b]).unwrap();
    let labels = Labels::new(&labels, &[b, u], &vec![u; b]).unwrap();
    let budget = match arg(6, 0) {
        0 => MemoryBudget::recompute(),
        1 => MemoryBudget::unlimited(),
        mb => MemoryBudget::bytes(mb << 20),
    };
    let mut session = Session::new(budget);
    let median = |mut f: Box<dyn FnMut() + '_>| {
        let mut times: Vec<f64> = (0..reps)
            .map(|_| {
                let s = Instant::now();
                f();
                s.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        times.sort_by(f64::total_cmp);
        (times[0], times[reps / 2])
    };
    let w = vec![1.0; b];
    let what = std::env::var("WHAT").unwrap_or("dpt".into());
    let flop = 2.0 * (b * t * c * h * (v + 1)) as f64;
    if what.contains('d') {
        let (lo, m) = median(Box::new(|| {
            session.distances(Sum::Denominator, &lattice, &frames, None).unwrap();
        }));
        println!("denominator {lo:.2} {m:.2} ms, {:.0} GFLOP/s", flop / m / 1e6);
    }
    if what.contains('p') {
        let (lo, m) = median(Box::new(|| {
            session.best_paths(&lattice, &frames).unwrap();
        }));
        println!("path {lo:.2} {m:.2} ms, {:.0} GFLOP/s", flop / m / 1e6);
    }
    if what.contains('n') {
        let (lo, m) = median(Box::new(|| {
            session.sum_of(Sum::Numerator, &lattice, &frames, Some(&labels), &w).unwrap();
        }));
        println!("numerator {lo:.2} {m:.2} ms");
    }
    if what.contains('t') {
        let (lo, m) = median(Box::new(|| {
            session.sum(&lattice, &frames, &labels, &w).unwrap();
        }));
        println!("training {lo:.2} {m:.2} ms, {:.0} GFLOP/s (4x)", 4.0 * flop / m / 1e6);
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("{}", status.lines().find(|l| l.starts_with("VmHWM")).unwrap());
}
