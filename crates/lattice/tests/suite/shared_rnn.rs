//! Lattice context embeddings of an LSTM, compared with their definition.
//!
//! The definition evaluates one state after the other. Values and gradients are also compared with
//! LAST (golden vectors), gradients with central differences.
use lattice::{Context, Error, FullNGram, Parameters, Real, SharedRnn};
use oracle::differences::central_difference;

use crate::common::{
    F32_GRADIENTS, F64, Tolerance, assert_thread_independent, assert_within, dot, f32_values, golden, random,
};

/// Parameters by the names of the reference implementation.
struct OwnedRnn<F> {
    vocabulary: usize,
    order: usize,
    parameters: Parameters<F>,
}

/// Returns the name of a parameter of the LSTM cell.
fn cell(name: &str) -> String {
    format!("weight_fn_cacher/rnn_cell/{name}")
}

const EMBEDDING: &str = "weight_fn_cacher/Embed_0/embedding";

impl<F: Real> OwnedRnn<F> {
    /// Random parameters of a shape: V, order n, label embedding width RE, and width R.
    fn random([vocabulary, order, re, r]: [usize; 4]) -> Self {
        let mut parameters =
            Parameters::from([(EMBEDDING.to_owned(), random((vocabulary + 1) * re, 1, 1.0))]);
        for (seed, gate) in (2..).zip(["i", "f", "g", "o"]) {
            let scale = 1.5 / (r as f64).sqrt();
            parameters.insert(cell(&format!("i{gate}/kernel")), random(re * r, seed, scale));
            parameters.insert(cell(&format!("h{gate}/kernel")), random(r * r, seed + 4, scale));
            parameters.insert(cell(&format!("h{gate}/bias")), random(r, seed + 8, 0.5));
        }
        Self { vocabulary, order, parameters }
    }

    fn borrow(&self) -> SharedRnn<'_, F> {
        let parameters = |names: [&str; 4]| names.map(|name| self.parameters[&cell(name)].as_slice());
        SharedRnn {
            vocabulary: self.vocabulary,
            order: self.order,
            embedding: &self.parameters[EMBEDDING],
            input: parameters(["ii/kernel", "if/kernel", "ig/kernel", "io/kernel"]),
            recurrent: parameters(["hi/kernel", "hf/kernel", "hg/kernel", "ho/kernel"]),
            bias: parameters(["hi/bias", "hf/bias", "hg/bias", "ho/bias"]),
        }
    }
}

/// Compares with golden vectors of LAST.
fn equals_last<F: Real>(values: Tolerance, gradients: Tolerance) {
    let Some(golden) = golden("weight_fns.f64") else { return };
    let start = "rnn_cacher/params/";
    let parameters = golden
        .names_with_prefix(start)
        .map(|name| (format!("weight_fn_cacher/{name}"), golden.cast(&format!("{start}{name}"))));
    let [vocabulary, order] = golden.values("rnn_cacher/vocab_context") else { panic!("two numbers") };
    let (vocabulary, order) = (*vocabulary as usize, *order as usize);
    let owned = OwnedRnn::<F> { vocabulary, order, parameters: parameters.collect() };
    let rnn = owned.borrow();
    rnn.check(FullNGram::new(vocabulary, order).unwrap().states()).unwrap();
    assert_within("out", &rnn.forward().unwrap(), golden.values("rnn_cacher/out"), values);
    let computed = rnn.backward(&golden.cast::<F>("rnn_cacher/cotangent"));
    let names: Vec<&str> = golden.names_with_prefix("rnn_cacher/grad_params/").collect();
    assert_eq!(computed.len(), names.len());
    for name in names {
        let expected = golden.values(&format!("rnn_cacher/grad_params/{name}"));
        assert_within(name, &computed[&format!("weight_fn_cacher/{name}")], expected, gradients);
    }
}

#[test]
fn f64_values_and_gradients_equal_last() {
    equals_last::<f64>(F64, F64);
}

#[test]
fn f32_values_and_gradients_equal_last() {
    equals_last::<f32>(f32_values(1.0), F32_GRADIENTS);
}

/// Computes embeddings by the definition, state by state.
fn embeddings_by_state(rnn: &SharedRnn<f64>) -> Vec<f64> {
    let r = rnn.width();
    let re = rnn.embedding.len() / (rnn.vocabulary + 1);
    let context = FullNGram::new(rnn.vocabulary, rnn.order).unwrap();
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let mut embeddings = Vec::new();
    for state in 0..context.states() {
        let (mut h, mut c) = (vec![0.0; r], vec![0.0; r]);
        for symbol in std::iter::once(0).chain(context.history(state)) {
            let x = &rnn.embedding[symbol * re..][..re];
            let gate = |gate: usize, unit: usize| -> f64 {
                let input: f64 = (0..re).map(|k| x[k] * rnn.input[gate][k * r + unit]).sum();
                let recurrent: f64 = (0..r).map(|k| h[k] * rnn.recurrent[gate][k * r + unit]).sum();
                input + recurrent + rnn.bias[gate][unit]
            };
            let gates: Vec<[f64; 4]> =
                (0..r).map(|unit| [gate(0, unit), gate(1, unit), gate(2, unit), gate(3, unit)]).collect();
            for (unit, [i, f, g, o]) in gates.into_iter().enumerate() {
                c[unit] = sigmoid(f) * c[unit] + sigmoid(i) * g.tanh();
                h[unit] = sigmoid(o) * c[unit].tanh();
            }
        }
        embeddings.extend(h);
    }
    embeddings
}

#[test]
fn embeddings_equal_state_by_state_evaluation() {
    for shape in [[2, 0, 3, 2], [3, 1, 2, 5], [2, 4, 3, 4], [1, 5, 2, 3], [5, 3, 4, 7]] {
        let owned = OwnedRnn::<f64>::random(shape);
        let rnn = owned.borrow();
        assert_within(&format!("{shape:?}"), &rnn.forward().unwrap(), &embeddings_by_state(&rnn), F64);
    }
}

#[test]
fn gradients_equal_central_differences() {
    for shape in [[2, 0, 3, 2], [3, 2, 2, 3], [1, 3, 2, 2]] {
        let mut owned = OwnedRnn::<f64>::random(shape);
        let weights: Vec<f64> = random(owned.borrow().states() * shape[3], 20, 1.0);
        let computed = owned.borrow().backward(&weights);
        for (name, computed) in computed {
            let values = owned.parameters[&name].clone();
            let loss = |x: &[f64]| {
                owned.parameters.insert(name.clone(), x.to_vec());
                Ok(dot(&owned.borrow().forward().unwrap(), &weights))
            };
            let expected = central_difference(loss, &values).unwrap();
            owned.parameters.insert(name.clone(), values);
            assert_within(
                &format!("{shape:?} {name}"),
                &computed,
                &expected,
                Tolerance { relative: 1e-8, absolute: 1e-9 },
            );
        }
    }
}

#[test]
fn results_do_not_depend_on_threads() {
    let owned = OwnedRnn::<f32>::random([13, 2, 24, 32]);
    let rnn = owned.borrow();
    let weights: Vec<f32> = random(rnn.states() * 32, 20, 1.0);
    assert_thread_independent(|| (rnn.forward().unwrap(), rnn.backward(&weights)));
}

#[test]
fn errors_name_the_parameter() {
    let message = |change: &dyn Fn(&mut SharedRnn<f64>)| {
        let owned = OwnedRnn::<f64>::random([2, 2, 3, 2]);
        let mut rnn = owned.borrow();
        change(&mut rnn);
        rnn.check(7).unwrap_err().to_string()
    };
    static WITH_NAN: [f64; 4] = [0.0, f64::NAN, 0.0, 0.0];
    static LARGEST: [f64; 6] = [f64::MAX; 6];
    assert!(message(&|rnn| rnn.recurrent[1] = &WITH_NAN).contains("weight_fn_cacher/rnn_cell/hf/kernel"));
    assert!(
        message(&|rnn| rnn.input[2] = &WITH_NAN[2..])
            .contains("weight_fn_cacher/rnn_cell/ig/kernel: expected 6 values")
    );
    assert!(message(&|rnn| rnn.bias[3] = &[]).contains("weight_fn_cacher/rnn_cell/ho/bias"));
    assert!(message(&|rnn| rnn.bias = [&[]; 4]).contains("weight_fn_cacher/rnn_cell/hi/bias"));
    assert!(message(&|rnn| rnn.embedding = &WITH_NAN).contains("Embed_0/embedding: expected 3 values"));
    assert!(message(&|rnn| rnn.embedding = &[]).contains("weight_fn_cacher/Embed_0/embedding"));
    assert!(message(&|rnn| rnn.order = 3).contains("7 context states"));
    assert!(message(&|rnn| rnn.order = usize::MAX).contains("7 context states"));
    assert!(message(&|rnn| rnn.input[0] = &LARGEST).contains("sums are finite"));
    let owned = OwnedRnn::<f64>::random([2, 2, 3, 2]);
    let wrong = SharedRnn { bias: [&WITH_NAN; 4], ..owned.borrow() };
    assert!(matches!(wrong.forward(), Err(Error::Shape { .. } | Error::Parameter { .. })));
}
