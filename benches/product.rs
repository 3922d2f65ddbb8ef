//! Which rate does the matrix library reach on the loss's three products, alone and on one thread? Our own kernels have to
//! beat it.
//!
//! `scores` is *h Wᵀ* of a tile, `hidden` its gradient *g W*, `weight` the head's *gᵀ h*; `large` is the product that
//! `panda bench` measures everything against.
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kernels::{Accumulate, View, ViewMut, product};

/// Sites x H x classes of a tile.
const TILES: [[usize; 3]; 4] = [[256, 512, 256], [1024, 512, 256], [1024, 512, 1024], [1024, 1024, 256]];

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect()
}

fn products(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("product");
    for [n, h, c] in TILES.into_iter().chain([[650, 512, 8192]]) {
        let (hidden, weight, gradient) = (numbers(n * h), numbers(c * h), numbers(n * c));
        let mut scores = vec![0f32; n * c];
        let (mut hidden_gradient, mut weight_gradient) = (vec![0f32; n * h], vec![0f32; c * h]);
        let (hidden, weight) = (View::new(&hidden, n, h), View::new(&weight, c, h));
        let gradient = View::new(&gradient, n, c);
        let name = format!("{n}x{h}x{c}");
        group.throughput(Throughput::Elements((2 * n * h * c) as u64));
        group.bench_function(BenchmarkId::new("scores", &name), |bench| {
            let mut run = || {
                let out = ViewMut::new(&mut scores, n, c);
                product(out, hidden, weight.transposed(), 1.0, Accumulate::Replace);
            };
            bench.iter(&mut run);
        });
        if n == 650 {
            continue;
        }
        group.bench_function(BenchmarkId::new("hidden", &name), |bench| {
            let mut run = || {
                let out = ViewMut::new(&mut hidden_gradient, n, h);
                product(out, gradient, weight, 1.0, Accumulate::Add);
            };
            bench.iter(&mut run);
        });
        group.bench_function(BenchmarkId::new("weight", &name), |bench| {
            let mut run = || {
                let out = ViewMut::new(&mut weight_gradient, c, h);
                product(out, gradient.transposed(), hidden, 1.0, Accumulate::Add);
            };
            bench.iter(&mut run);
        });
    }
    group.finish();
}

criterion_group!(benches, products);
criterion_main!(benches);
