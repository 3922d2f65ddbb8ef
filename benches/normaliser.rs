//! Which tile shape is best for the selected normaliser, forward and backward, without keeping any score?
//!
//! Each name is `wave x classes of a tile, tiles in flight`; `planned` is what [`Plan::new`] chooses.
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use panda_core::{
    Adjoints, Backward, Gradients, Head, Plan, Precision, Rows, Selection, Shape, Sites, Workspace, backward,
    forward,
};

const SHAPE: Shape = Shape { sites: 2600, hidden: 512, classes: 4096, selected: 2 };
/// Wave, classes of a tile, tiles in flight.
const CUTS: [[usize; 3]; 5] =
    [[512, 256, 16], [1024, 128, 16], [1024, 256, 16], [1024, 1024, 4], [2600, 256, 8]];

fn numbers(count: usize, scale: f32) -> Vec<f32> {
    (0..count).map(|i| scale * ((i * 37 % 101) as f32 / 50.0 - 1.0)).collect()
}

fn tiles(criterion: &mut Criterion) {
    let Shape { sites, hidden: h, classes, selected } = SHAPE;
    let (hidden, weight) = (numbers(sites * h, 1.0), numbers(classes * h, 0.04));
    let rows = Rows::new(&hidden, h).expect("whole rows");
    let head = Head::new(&weight, None, h).expect("whole rows");
    let ids = (0..sites).flat_map(|i| [0, 1 + i as u32 % (classes as u32 - 1)]).collect();
    let selection = Selection::new(ids, vec![true; selected * sites], selected).expect("ids below C");
    let adjoints = vec![-0.3; selected * sites];
    let planned = Plan::<f32>::new(SHAPE, Precision::Full, usize::MAX, false).expect("no limit");
    let cuts = CUTS.map(|[wave, tile_classes, tiles]| Plan { wave, tile_classes, tiles, ..planned });

    let mut group = criterion.benchmark_group("normaliser");
    group.sample_size(10).throughput(Throughput::Elements(planned.operations(SHAPE)));
    let named =
        cuts.iter().map(|plan| (format!("{}x{},{}", plan.wave, plan.tile_classes, plan.tiles), *plan));
    for (name, plan) in named.chain([("planned".to_owned(), planned)]) {
        let mut workspace = Workspace::with_plan(plan).expect("no part of a plan is zero");
        let mut into = Gradients::zero(rows.zero_gradient(), &head);
        group.bench_function(BenchmarkId::from_parameter(name), |bench| {
            bench.iter(|| {
                let out = forward(&rows, &head, &selection, &mut workspace).expect("finite scores");
                let (sites, head, selection) = (&rows, &head, &selection);
                let adjoints = &Adjoints::new(&adjoints);
                let arguments = Backward { sites, head, selection, normalized: &out, adjoints };
                backward(arguments, &mut workspace, &mut into).expect("as forward");
            });
        });
    }
    group.finish();
}

criterion_group!(benches, tiles);
criterion_main!(benches);
