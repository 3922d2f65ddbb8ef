//! Micro-benchmarks: rates of matrix products, and tile shapes of the normalizer.
//!
//! The normalizer computes scores by tiles (ranges of classes) for one wave (range of lattice
//! nodes) at a time.
use std::time::{Duration, Instant};

use kernels::packed::{NumberFormat, Operand, PackedOperand, RightPart, RowBits, SumOrder, multiply};
use kernels::{Accumulate, PackedRight, View, ViewMut, product, product_packed};
use panda_core::{
    Adjoints, BackwardInputs, Gradients, Head, Plan, Precision, Rows, Selection, Shape, Workspace, backward,
    forward,
};

use super::error::{Error, Result};
use super::inputs::noise;
use super::workload::median;

/// First argument of the program; the second is the name of a micro-benchmark.
pub(crate) const COMMAND: &str = "micro";

/// Sites, width of the joint network (H), classes of a tile.
const TILE_SIZES: [[usize; 3]; 4] = [[256, 512, 256], [1024, 512, 256], [1024, 512, 1024], [1024, 1024, 256]];
/// The reference product of all suites, in the same order.
const LARGE_PRODUCT: [usize; 3] = [650, 512, 8192];
/// Utterances of a batch, and width of a recurrent layer.
const RECURRENT_SIZES: [[usize; 2]; 3] = [[16, 512], [16, 128], [1, 512]];
/// Rows, inputs and outputs of linear layers of encoders.
const LINEAR_SIZES: [[usize; 3]; 3] = [[375, 1024, 4096], [375, 512, 2048], [8, 1024, 4096]];
/// Sizes of the normalizer calls whose blockings (waves, tiles) are compared.
const SHAPE: Shape = Shape { sites: 2600, hidden: 512, classes: 4096, selected: 2 };
/// Sites of a wave, classes of a tile, tiles processed at once.
const BLOCKINGS: [[usize; 3]; 5] =
    [[512, 256, 16], [1024, 128, 16], [1024, 256, 16], [1024, 1024, 4], [2600, 256, 8]];

/// Runs a micro-benchmark and prints median time and rate of each shape.
///
/// # Errors
/// [`Error::Argument`] for an unknown name.
pub(crate) fn run(name: &str) -> Result<()> {
    match name {
        "product" => measure_products(),
        "formats" => measure_formats(),
        "tiles" => measure_tiles(),
        _ => {
            let (argument, expected) = ("micro", "product, formats or tiles");
            return Err(Error::Argument { argument, expected, found: name.to_owned() });
        }
    }
    Ok(())
}

/// Repeats a call for a second; prints its median time and rate.
fn measure(name: &str, operations: u64, mut call: impl FnMut()) {
    // The first call fills buffers and caches.
    call();
    let (start, mut times) = (Instant::now(), Vec::new());
    while start.elapsed() < Duration::from_secs(1) {
        let start = Instant::now();
        call();
        times.push(start.elapsed().as_secs_f64());
    }
    let seconds = median(&times).unwrap_or(f64::NAN);
    println!("{name:24}  {:9.3} ms  {:6.0} GFLOP/s", 1e3 * seconds, operations as f64 / seconds / 1e9);
}

/// Measures the matrix products of the loss and of recurrent layers.
///
/// On tiles: `scores` h W^T, `hidden` g W, `weight` g^T h, with hidden rows h `[n, H]`, the weight
/// W `[c, H]` of c classes, and the gradient g `[n, c]` of the scores. `step` is a step of a
/// recurrent layer with a packed weight.
fn measure_products() {
    for [n, h, c] in TILE_SIZES.into_iter().chain([LARGE_PRODUCT]) {
        let (hidden, weight, gradient) = (noise(1, n * h, 1.0), noise(2, c * h, 1.0), noise(3, n * c, 1.0));
        let mut scores = vec![0f32; n * c];
        let (mut hidden_gradient, mut weight_gradient) = (vec![0f32; n * h], vec![0f32; c * h]);
        let (hidden, weight) = (View::new(&hidden, n, h), View::new(&weight, c, h));
        let gradient = View::new(&gradient, n, c);
        let (name, operations) = (format!("{n}x{h}x{c}"), (2 * n * h * c) as u64);
        measure(&format!("scores {name}"), operations, || {
            let out = ViewMut::new(&mut scores, n, c);
            product(out, hidden, weight.transposed(), 1.0, Accumulate::Replace);
        });
        if [n, h, c] == LARGE_PRODUCT {
            continue;
        }
        measure(&format!("hidden {name}"), operations, || {
            let out = ViewMut::new(&mut hidden_gradient, n, h);
            product(out, gradient, weight, 1.0, Accumulate::Add);
        });
        measure(&format!("weight {name}"), operations, || {
            let out = ViewMut::new(&mut weight_gradient, c, h);
            product(out, gradient.transposed(), hidden, 1.0, Accumulate::Add);
        });
    }
    for [n, h] in RECURRENT_SIZES {
        let (state, weight) = (noise(4, n * h, 1.0), noise(5, 4 * h * h, 1.0));
        let mut gates = vec![0f32; 4 * n * h];
        let weight = PackedRight::new(View::new(&weight, h, 4 * h));
        measure(&format!("step {n}x{h}"), (8 * n * h * h) as u64, || {
            let out = ViewMut::new(&mut gates, n, 4 * h);
            product_packed(out, View::new(&state, n, h), &weight, Accumulate::Add);
        });
    }
}

/// Measures products of packed operands on one thread, in all formats.
///
/// The rows are packed before.
fn measure_formats() {
    for [n, inputs, outputs] in LINEAR_SIZES {
        let (rows, weight) = (noise(8, n * inputs, 1.0), noise(9, outputs * inputs, 0.04));
        let weight = View::new(&weight, outputs, inputs).transposed();
        let mut out = vec![0f32; n * outputs];
        for (name, format, row_bits) in [
            ("f32", NumberFormat::F32, RowBits::Eight),
            ("bf16", NumberFormat::Bf16, RowBits::Eight),
            ("q8", NumberFormat::Q8, RowBits::Eight),
            ("q8, 16-bit rows", NumberFormat::Q8, RowBits::Sixteen),
        ] {
            let mut left = PackedOperand::new(format, Operand::Left);
            left.set_row_bits(row_bits);
            left.fill(View::new(&rows, n, inputs));
            let right = PackedOperand::packed(format, Operand::Right, weight);
            let name = format!("{name} {n}x{inputs}x{outputs}");
            measure(&name, (2 * n * inputs * outputs) as u64, || {
                let right = RightPart { operand: &right, first_column: 0, first_step: 0 };
                let out = ViewMut::new(&mut out, n, outputs);
                multiply(out, (&left, 0), right, SumOrder::Blocked, Accumulate::Replace);
            });
        }
    }
}

/// Measures forward and backward of the selected normalizer for several blockings.
///
/// No scores are kept. A name is `sites of a wave x classes of a tile, tiles processed at once`;
/// `planned` is the choice of [`Plan::new`].
fn measure_tiles() {
    let Shape { sites, hidden: h, classes, selected } = SHAPE;
    let (hidden, weight) = (noise(6, sites * h, 1.0), noise(7, classes * h, 0.04));
    let rows = Rows::new(&hidden, h).expect("whole rows");
    let head = Head::new(&weight, None, h).expect("whole rows");
    let ids = (0..sites).flat_map(|i| [0, 1 + i as u32 % (classes as u32 - 1)]).collect();
    let selection = Selection::new(ids, vec![true; selected * sites], selected).expect("ids below C");
    let adjoints = vec![-0.3; selected * sites];
    let planned = Plan::<f32>::new(SHAPE, Precision::Full, usize::MAX, false).expect("no limit");
    let blockings = BLOCKINGS.map(|[wave, tile_classes, tiles]| {
        (
            format!("{wave}x{tile_classes},{tiles}"),
            Plan { wave_sites: wave, tile_classes, group_tiles: tiles, ..planned },
        )
    });
    for (name, plan) in blockings.into_iter().chain([("planned".to_owned(), planned)]) {
        let mut workspace = Workspace::with_plan(plan).expect("no part of a plan is zero");
        let mut total_gradients = Gradients::zero(panda_core::Sites::zero_gradient(&rows), &head);
        measure(&name, planned.operations(SHAPE), || {
            let normalized = &forward(&rows, &head, &selection, &mut workspace).expect("finite scores");
            let (sites, head, selection, adjoints) = (&rows, &head, &selection, &Adjoints::new(&adjoints));
            let arguments = BackwardInputs { sites, head, selection, normalized, adjoints };
            backward(arguments, &mut workspace, &mut total_gradients).expect("as forward");
        });
    }
}
