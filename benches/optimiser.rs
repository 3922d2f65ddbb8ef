//! One step of each optimiser over the 49,006,080 weights of MLPerf's recogniser, and of the moving average, beside a copy of as many
//! bytes.
//!
//! `cargo bench --bench optimiser`
use std::hint::black_box;
use std::time::Duration;

use candle_core::Tensor;
use candle_nn::VarBuilder;
use criterion::{Criterion, criterion_group, criterion_main};
use training::ema::Ema;
use training::optimiser::{AdamW, Clip, Lamb, LambConfig, Optimiser};
use training::{Gradients, Parameters};

/// An LSTM layer's weights.
fn lstm(vb: &VarBuilder, name: &str, input: usize, hidden: usize) -> training::Result<()> {
    let vb = vb.pp(name);
    vb.get((4 * hidden, input), "weight_ih_l0")?;
    vb.get((4 * hidden, hidden), "weight_hh_l0")?;
    vb.get(4 * hidden, "bias_ih_l0")?;
    vb.get(4 * hidden, "bias_hh_l0")?;
    Ok(())
}

fn mlperf() -> Parameters {
    let make = |vb: VarBuilder| {
        for (name, input) in
            [("pre0", 240), ("pre1", 1024), ("post0", 2048), ("post1", 1024), ("post2", 1024)]
        {
            lstm(&vb, name, input, 1024)?;
        }
        lstm(&vb, "prediction0", 512, 512)?;
        lstm(&vb, "prediction1", 512, 512)?;
        vb.get((1023, 512), "embedding")?;
        for (name, input, output) in [("pred", 512, 512), ("enc", 1024, 512), ("out", 512, 1024)] {
            candle_nn::linear(input, output, vb.pp(name))?;
        }
        Ok(())
    };
    Parameters::build(1, make).expect("a model without mistakes").0
}

fn steps(c: &mut Criterion) {
    let parameters = mlperf();
    assert_eq!(parameters.count(), 49_006_080);
    let terms: Vec<Tensor> =
        parameters.iter().map(|(_, v)| v.as_tensor().affine(0.5, 0.01).unwrap()).collect();
    // The gradient of Σ (0.25 w² + 0.01 w) at the first weights.
    let loss =
        parameters.iter().zip(&terms).map(|((_, v), g)| (v.as_tensor() * g).unwrap().sum_all().unwrap());
    let found = Tensor::stack(&loss.collect::<Vec<_>>(), 0).unwrap().sum_all().unwrap().backward().unwrap();
    let mut gradients = Gradients::default();
    gradients.add(&parameters, found).expect("as many as parameters");
    let adamw: training::recipe::OptimiserConfig =
        serde_json::from_value(serde_json::json!({"learning_rate": 1e-4})).expect("keys of [optimiser]");
    let lamb = LambConfig { betas: [0.9, 0.999], eps: 1e-9, weight_decay: 1e-3, bias_correction: true };

    let mut group = c.benchmark_group("49M");
    group.sample_size(15).measurement_time(Duration::from_secs(6));
    let mut lamb = Lamb::new(&parameters, lamb, Clip::Single(1.0));
    group.bench_function("lamb", |b| b.iter(|| lamb.step(&parameters, &gradients, 1e-4).unwrap()));
    drop(lamb);
    let mut adamw = AdamW::new(&parameters, &adamw);
    group.bench_function("adamw", |b| b.iter(|| adamw.step(&parameters, &gradients, 1e-4).unwrap()));
    drop(adamw);
    let mut ema = Ema::new(0.999, false, &parameters).unwrap();
    group.bench_function("average", |b| b.iter(|| ema.update(1, &parameters).unwrap()));
    drop(ema);
    // 24 bytes a weight, a third of them written, as the first pass of LAMB.
    let count = parameters.count();
    let (a, b, mut out) = (vec![1f32; 2 * count], vec![2f32; 2 * count], vec![0f32; 2 * count]);
    group.bench_function("floor of 24 bytes", |bench| {
        bench.iter(|| {
            let parts = (
                kernels::parts_mut(&mut out, 1 << 14),
                kernels::parts(&a, 1 << 14),
                kernels::parts(&b, 1 << 14),
            );
            kernels::par_for(parts, |_, (out, a, b)| {
                out.iter_mut().zip(a).zip(b).for_each(|((out, a), b)| *out = a + b);
            });
            black_box(out[count]);
        });
    });
    group.finish();
}

criterion_group!(benches, steps);
criterion_main!(benches);
