//! Example: transducer loss and gradients with 20,000 classes in a few megabytes.
//!
//! `cargo run --release --example loss`
use candle_core::{DType, Device, Tensor, Var};
use panda::rnnt_loss::{Error, Options, Targets, candle::transducer_loss};

fn main() -> Result<(), Error> {
    let (classes, width, frames, labels) = (20_000, 128, 60, 12);
    let device = Device::Cpu;
    let test_values = |shape: &[usize], step: f32| -> Result<Var, Error> {
        let values: Vec<f32> =
            (0..shape.iter().product()).map(|i: usize| (i as f32 * step).sin() * 0.2).collect();
        Ok(Var::from_tensor(&Tensor::from_vec(values, shape, &device)?)?)
    };
    // Projected outputs of an encoder and a predictor, for two utterances of different lengths.
    let encoded = test_values(&[2, frames, width], 0.37)?;
    let predicted = test_values(&[2, labels + 1, width], 0.73)?;
    let weight = test_values(&[classes, width], 0.11)?;
    let bias = Var::zeros(classes, DType::F32, &device)?;

    // The blank is class 0; the second utterance has 35 frames and three labels.
    let label_ids = vec![(1..=12).collect(), vec![7, 7, 19_999]];
    let targets = Targets::new(0, vec![frames, 35], label_ids)?;
    let losses = transducer_loss(&encoded, &predicted, &weight, &bias, &targets, &Options::default())?;
    let gradients = losses.mean_all()?.backward()?;

    println!("loss of each utterance: {:?}", losses.to_vec1::<f64>()?);
    for (name, variable) in
        [("encoded", &encoded), ("predicted", &predicted), ("weight", &weight), ("bias", &bias)]
    {
        let Some(gradient) = gradients.get(variable) else { continue };
        let norm = gradient.sqr()?.sum_all()?.to_scalar::<f32>()?.sqrt();
        println!("gradient of {name:<10} {:?}, norm {norm:.4}", gradient.dims());
    }
    // Four bytes per score.
    let sites = targets.lattices().num_sites();
    println!(
        "{sites} sites x {classes} classes would be {} MB of scores; none were kept",
        sites * classes * 4 / 1_000_000
    );
    Ok(())
}
