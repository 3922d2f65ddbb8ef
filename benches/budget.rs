//! What is a byte of budget worth: from no score kept to all of them?
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rnnt_loss::{Head, Joint, Options, Session, Targets};

/// T, U, H, C of one utterance.
const SIZES: [usize; 4] = [100, 25, 256, 2048];

fn numbers(count: usize, scale: f32) -> Vec<f32> {
    (0..count).map(|i| scale * ((i * 37 % 101) as f32 / 50.0 - 1.0)).collect()
}

fn budgets(criterion: &mut Criterion) {
    let [t, u, h, c] = SIZES;
    let (frames, labels) = (numbers(t * h, 1.0), numbers((u + 1) * h, 1.0));
    let (weight, bias) = (numbers(c * h, 0.06), numbers(c, 0.06));
    let head = Head::new(&weight, Some(&bias), h).expect("whole rows");
    let spoken = (0..u as u32).map(|i| 1 + i * 37 % (c as u32 - 1)).collect();
    let targets = Targets::new(0, vec![t], vec![spoken]).expect("no label is blank");
    let scores = t * (u + 1) * c * 4;
    let cases =
        [("recompute", usize::MAX, false), ("half", scores / 2, true), ("unlimited", usize::MAX, true)];
    let mut group = criterion.benchmark_group("budget");
    group.sample_size(10);
    for (name, budget, keep_scores) in cases {
        let options = Options { budget, keep_scores, ..Options::default() };
        let mut session = Session::new(&options).expect("options that make sense");
        group.bench_function(BenchmarkId::from_parameter(name), |bench| {
            bench.iter(|| {
                let joint = Joint::new(&frames, &labels, head);
                session.sum(joint, &targets, &[1.0]).expect("a batch that fits")
            });
        });
    }
    group.finish();
}

criterion_group!(benches, budgets);
criterion_main!(benches);
