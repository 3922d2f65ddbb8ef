//! What does the lattice recursion cost for each site, with one utterance and with many, long and short?
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rnnt_dp::{Lattices, Regularisers, Topology, Workspace};

/// B, T, U.
const SIZES: [[usize; 3]; 4] = [[1, 50, 10], [1, 500, 100], [16, 50, 10], [16, 500, 100]];

fn lattices(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lattice");
    for [batch, frames, labels] in SIZES {
        let lattices = Lattices::new(vec![frames; batch], vec![labels; batch]).expect("small lattices");
        let emissions: Vec<f64> =
            (0..2 * lattices.sites()).map(|i| -0.1 - (i * 37 % 101) as f64 / 35.0).collect();
        let mut workspace = Workspace::new();
        let (mut losses, mut adjoints) = (vec![0.0; batch], vec![0.0; emissions.len()]);
        let (topology, regularisers) = (Topology::rnnt(), Regularisers::default());
        group.throughput(Throughput::Elements(lattices.sites() as u64));
        group.bench_function(BenchmarkId::from_parameter(format!("{batch}x{frames}x{labels}")), |bench| {
            bench.iter(|| {
                let run = workspace.forward_backward(
                    &lattices,
                    &topology,
                    &emissions,
                    &regularisers,
                    &mut losses,
                    &mut adjoints,
                );
                run.expect("finite emissions");
            });
        });
    }
    group.finish();
}

criterion_group!(benches, lattices);
criterion_main!(benches);
