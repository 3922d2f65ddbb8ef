//! A head that no process holds as a whole: each has some of the classes, with their gradients and moments.
//!
//! ```sh
//! cargo build --release -p ranks --features mpi --example head_in_parts
//! mpirun -n 2 target/release/examples/head_in_parts --classes 262144 --steps 3
//! ```
//! A few steps of AdamW on a transducer loss whose rows are learnt too. `--check` compares the first step with what one process finds
//! that holds the whole head, and fails where they are more than 1e-6 apart.
use std::error::Error;
use std::process::ExitCode;

use panda_core::{Peers, classes_of};
use ranks::{Courier, Mpi};
use rnnt_loss::{Head, Joint, Options, Output, Session, Targets};

const WIDTH: usize = 256;
const FRAMES: [usize; 2] = [24, 18];
const LABELS: usize = 6;
const WEIGHTS: [f64; 2] = [0.5, 0.5];

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let (mut classes, mut steps, mut check) = (4096, 3, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let mut number = || arguments.next().and_then(|text| text.parse::<usize>().ok()).filter(|&n| n > 0);
        match name.as_str() {
            "--classes" => classes = number().ok_or("--classes: expected a number above 0")?,
            "--steps" => steps = number().ok_or("--steps: expected a number above 0")?,
            "--check" => check = true,
            other => return Err(format!("expected --classes N, --steps N or --check, found {other}").into()),
        }
    }
    let peers = Peers::new(Courier::start(Mpi::start).ok_or("MPI does not start")?);
    let (rank, count) = (peers.rank(), peers.count());
    if classes < count {
        return Err(
            format!("--classes: expected at least {count}, one for each process, found {classes}").into()
        );
    }
    let here = classes_of(rank, count, classes);
    let labels = |b: usize| (0..LABELS).map(|u| ((1 + b * 77_777 + u * 31_337) % classes) as u32).collect();
    let targets = Targets::new(0, FRAMES.to_vec(), vec![labels(0), labels(1)])?;

    let frames: usize = FRAMES.iter().sum();
    let mut encoded = Learnt::new(1, 0..frames * WIDTH, 2.0);
    let mut predicted = Learnt::new(2, 0..2 * (LABELS + 1) * WIDTH, 2.0);
    let mut head = Learnt::new(3, here.start * WIDTH..here.end * WIDTH, 0.2);
    let mut session = Session::new(&Options::default())?.among(peers);

    let mut apart = 0.0;
    for step in 1..=steps {
        let part = Head::part(&head.values, None, WIDTH, here.start, classes)?;
        let joint = Joint::new(&encoded.values, &predicted.values, part);
        let out = session.sum(joint, &targets, &WEIGHTS)?;
        if check && step == 1 {
            let whole = Learnt::new(3, 0..classes * WIDTH, 0.2).values;
            let joint = Joint::new(&encoded.values, &predicted.values, Head::new(&whole, None, WIDTH)?);
            let alone = Session::new(&Options::default())?.sum(joint, &targets, &WEIGHTS)?;
            apart = far(&out, &alone, here.start * WIDTH);
            println!("rank {rank}: loss and gradients are those of one process to {apart:.1e}");
        }
        if rank == 0 {
            println!(
                "step {step}: loss {:.6}",
                out.losses.iter().zip(WEIGHTS).map(|(l, w)| l * w).sum::<f64>()
            );
        }
        let gradients = out.gradients;
        encoded.step(&gradients.encoded, step);
        predicted.step(&gradients.predicted, step);
        head.step(&gradients.head.weight, step);
    }
    let mib = |values: usize| (values * size_of::<f32>()) as f64 / f64::from(1 << 20);
    println!(
        "rank {rank}: {} of {classes} classes; head {:.0} MiB, moments {:.0} MiB; resident at most {}",
        here.len(),
        mib(head.values.len()),
        mib(head.moments.iter().map(Vec::len).sum()),
        resident().unwrap_or_else(|| "unknown".into()),
    );
    Ok(if apart <= 1e-6 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What is learnt, with the moments of AdamW.
struct Learnt {
    values: Vec<f32>,
    moments: [Vec<f32>; 2],
}

impl Learnt {
    /// Some of a list of made-up numbers, whoever holds the others.
    fn new(seed: u64, which: std::ops::Range<usize>, size: f32) -> Self {
        let value = |at: usize| {
            let mut x = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
                ^ seed.wrapping_mul(0xd1b5_4a32_d192_ed03);
            x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x ^= x >> 29;
            size * ((x >> 40) as f32 / (1u64 << 24) as f32 - 0.5)
        };
        let values: Vec<f32> = which.map(value).collect();
        let moments = [vec![0.0; values.len()], vec![0.0; values.len()]];
        Learnt { values, moments }
    }

    /// AdamW (Loshchilov and Hutter, arXiv 1711.05101), without decay.
    fn step(&mut self, gradient: &[f32], step: usize) {
        let [rate, b1, b2] = [1e-2f32, 0.9, 0.999];
        let [c1, c2] = [b1, b2].map(|b| 1.0 - b.powi(step as i32));
        let [first, second] = &mut self.moments;
        for (((x, g), m), v) in self.values.iter_mut().zip(gradient).zip(first).zip(second) {
            *m = b1 * *m + (1.0 - b1) * g;
            *v = b2 * *v + (1.0 - b2) * g * g;
            *x -= rate * (*m / c1) / ((*v / c2).sqrt() + 1e-8);
        }
    }
}

/// The largest distance, by the size of the loss and of the largest element of each gradient.
fn far(found: &Output<f32>, alone: &Output<f32>, first: usize) -> f64 {
    let of = |found: &[f32], all: &[f32], first: usize| {
        let largest = all.iter().fold(0.0f64, |largest, &x| largest.max(f64::from(x).abs()));
        let far = found.iter().zip(&all[first..]).map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs());
        far.fold(0.0, f64::max) / largest
    };
    let losses = found.losses.iter().zip(&alone.losses).map(|(a, b)| (a - b).abs() / b.abs());
    let (found, alone) = (&found.gradients, &alone.gradients);
    [
        losses.fold(0.0, f64::max),
        of(&found.encoded, &alone.encoded, 0),
        of(&found.predicted, &alone.predicted, 0),
        of(&found.head.weight, &alone.head.weight, first),
    ]
    .into_iter()
    .fold(0.0, f64::max)
}

/// The most memory that this process has had, as Linux tells it.
fn resident() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = peak.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(format!("{:.0} MiB", kib / 1024.0))
}
