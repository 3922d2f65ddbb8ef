//! Which rate do products reach on the loss's three shapes, alone and on one thread?
//!
//! `scores` is *h Wᵀ* of a tile, `hidden` its gradient *g W*, `weight` the head's *gᵀ h*; `large` is the product that
//! `panda bench` measures everything against. `step` is that of a recurrent layer, its weight packed before.
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kernels::{Accumulate, PackedRight, View, ViewMut, product, product_packed};

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
    for [n, h] in [[16, 512], [16, 128], [1, 512]] {
        let (state, weight, mut gates) = (numbers(n * h), numbers(4 * h * h), vec![0f32; 4 * n * h]);
        let weight = PackedRight::new(View::new(&weight, h, 4 * h));
        group.throughput(Throughput::Elements((8 * n * h * h) as u64));
        group.bench_function(BenchmarkId::new("step", format!("{n}x{h}")), |bench| {
            let mut run = || {
                let out = ViewMut::new(&mut gates, n, 4 * h);
                product_packed(out, View::new(&state, n, h), &weight, Accumulate::Add);
            };
            bench.iter(&mut run);
        });
    }
    group.finish();
}

criterion_group!(benches, products);
criterion_main!(benches);
