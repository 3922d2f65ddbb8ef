//! A head that no process holds as a whole: each has some of the classes, with their gradients and moments.
//!
//! ```sh
//! cargo build --release -p ranks --features mpi --example head_in_parts
//! mpirun -n 2 target/release/examples/head_in_parts --classes 262144 --steps 3
//! ```
//! A few steps of AdamW on a transducer loss whose rows are learnt too. `--check` compares the first step with what one process finds
//! that holds the whole head, and fails where losses, or gradients by their norms, are more than 1e-6 apart; `--double` computes in `f64`.
use std::error::Error;
use std::ops::Range;
use std::process::ExitCode;

use panda_core::{Peers, classes_of};
use ranks::{Courier, Mpi};
use rnnt_loss::{Element, Head, Joint, Options, Output, Session, Targets};

const WIDTH: usize = 256;
const FRAMES: [usize; 2] = [24, 18];
const LABELS: usize = 6;
const WEIGHTS: [f64; 2] = [0.5, 0.5];

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut wanted = Wanted { classes: 4096, steps: 3, check: false };
    let mut double = false;
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let mut number = || arguments.next().and_then(|text| text.parse::<usize>().ok()).filter(|&n| n > 0);
        match name.as_str() {
            "--classes" => wanted.classes = number().ok_or("--classes: expected a number above 0")?,
            "--steps" => wanted.steps = number().ok_or("--steps: expected a number above 0")?,
            "--check" => wanted.check = true,
            "--double" => double = true,
            other => {
                let message = format!("expected --classes N, --steps N, --check or --double, found {other}");
                return Err(message.into());
            }
        }
    }
    let peers = Peers::new(Courier::start(Mpi::start).ok_or("MPI does not start")?);
    if wanted.classes < peers.count() {
        let (least, found) = (peers.count(), wanted.classes);
        return Err(format!("--classes: expected at least {least}, one a process, found {found}").into());
    }
    let near = if double { run::<f64>(&wanted, peers)? } else { run::<f32>(&wanted, peers)? };
    Ok(if near { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Wanted {
    classes: usize,
    steps: usize,
    check: bool,
}

/// Learns; returns whether what was checked is near enough.
fn run<F: Element>(wanted: &Wanted, peers: Peers) -> Result<bool, Box<dyn Error>> {
    let &Wanted { classes, steps, check } = wanted;
    let rank = peers.rank();
    let here = classes_of(rank, peers.count(), classes);
    let labels = |b: usize| (0..LABELS).map(|u| ((1 + b * 77_777 + u * 31_337) % classes) as u32).collect();
    let targets = Targets::new(0, FRAMES.to_vec(), vec![labels(0), labels(1)])?;

    let frames: usize = FRAMES.iter().sum();
    let mut encoded = Learnt::<F>::new(1, 0..frames * WIDTH, 2.0);
    let mut predicted = Learnt::<F>::new(2, 0..2 * (LABELS + 1) * WIDTH, 2.0);
    let mut head = Learnt::<F>::new(3, here.start * WIDTH..here.end * WIDTH, 0.2);
    let mut session = Session::new(&Options::default())?.among(peers);

    let mut near = true;
    for step in 1..=steps {
        let part = Head::part(&head.values, None, WIDTH, here.start, classes)?;
        let out = session.sum(Joint::new(&encoded.values, &predicted.values, part), &targets, &WEIGHTS)?;
        if check && step == 1 {
            let whole = Learnt::<F>::new(3, 0..classes * WIDTH, 0.2).values;
            let joint = Joint::new(&encoded.values, &predicted.values, Head::new(&whole, None, WIDTH)?);
            let alone = Session::new(&Options::default())?.sum(joint, &targets, &WEIGHTS)?;
            let apart = far(&out, &alone, here.start * WIDTH);
            println!(
                "rank {rank}: losses are those of one process to {:.1e}, gradients to {:.1e} of their norm",
                apart[0], apart[1]
            );
            near = apart.iter().all(|&apart| apart <= 1e-6);
        }
        if rank == 0 {
            let loss: f64 = out.losses.iter().zip(WEIGHTS).map(|(loss, weight)| loss * weight).sum();
            println!("step {step}: loss {loss:.6}");
        }
        let gradients = out.gradients;
        encoded.step(&gradients.encoded, step);
        predicted.step(&gradients.predicted, step);
        head.step(&gradients.head.weight, step);
    }
    let mib = |values: usize| (values * size_of::<F>()) as f64 / f64::from(1 << 20);
    println!(
        "rank {rank}: {} of {classes} classes; head {:.0} MiB, moments {:.0} MiB; resident at most {}",
        here.len(),
        mib(head.values.len()),
        mib(head.moments.iter().map(Vec::len).sum()),
        resident().unwrap_or_else(|| "unknown".into()),
    );
    Ok(near)
}

/// What is learnt, with the moments of AdamW.
struct Learnt<F> {
    values: Vec<F>,
    moments: [Vec<F>; 2],
}

impl<F: Element> Learnt<F> {
    /// Some of a list of made-up numbers, whoever holds the others.
    fn new(seed: u64, which: Range<usize>, size: f64) -> Self {
        let value = |at: usize| {
            let mut x = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            x ^= seed.wrapping_mul(0xd1b5_4a32_d192_ed03);
            x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x ^= x >> 29;
            F::from_f64(size * ((x >> 40) as f64 / (1u64 << 24) as f64 - 0.5))
        };
        let values: Vec<F> = which.map(value).collect();
        let moments = [vec![F::ZERO; values.len()], vec![F::ZERO; values.len()]];
        Learnt { values, moments }
    }

    /// AdamW (Loshchilov and Hutter, arXiv 1711.05101), without decay.
    fn step(&mut self, gradient: &[F], step: usize) {
        let [rate, b1, b2] = [1e-2, 0.9, 0.999];
        let [c1, c2] = [b1, b2].map(|b: f64| 1.0 - b.powi(step as i32));
        let [first, second] = &mut self.moments;
        for (((x, g), m), v) in self.values.iter_mut().zip(gradient).zip(first).zip(second) {
            let g = g.to_f64();
            let (new_m, new_v) = (b1 * m.to_f64() + (1.0 - b1) * g, b2 * v.to_f64() + (1.0 - b2) * g * g);
            (*m, *v) = (F::from_f64(new_m), F::from_f64(new_v));
            *x = F::from_f64(x.to_f64() - rate * (new_m / c1) / ((new_v / c2).sqrt() + 1e-8));
        }
    }
}

/// The largest relative distance of a loss, and the largest norm of a gradient's distance by the norm of the gradient.
fn far<F: Element>(found: &Output<F>, alone: &Output<F>, first: usize) -> [f64; 2] {
    let losses = found.losses.iter().zip(&alone.losses).map(|(a, b)| (a - b).abs() / b.abs());
    let (of, all) = (&found.gradients, &alone.gradients);
    let norm = |pairs: &mut dyn Iterator<Item = f64>| pairs.map(|x| x * x).sum::<f64>().sqrt();
    let apart = |found: &[F], all: &[F], first: usize| {
        let all = &all[first..][..found.len()];
        let far = norm(&mut found.iter().zip(all).map(|(a, b)| a.to_f64() - b.to_f64()));
        far / norm(&mut all.iter().map(|x| x.to_f64()))
    };
    let gradients = [
        apart(&of.encoded, &all.encoded, 0),
        apart(&of.predicted, &all.predicted, 0),
        apart(&of.head.weight, &all.head.weight, first),
    ];
    let most = |most: f64, apart: f64| if apart.is_nan() || apart > most { apart } else { most };
    [losses.fold(0.0, most), gradients.into_iter().fold(0.0, most)]
}

/// The most memory that this process has had, as Linux tells it.
fn resident() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = peak.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(format!("{:.0} MiB", kib / 1024.0))
}
