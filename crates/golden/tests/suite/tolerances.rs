//! Tests of `evaluate`: which errors of losses and gradients pass.
use golden::{Comparison, FloatType, LossOutcome, PeerErrors, StoredTensor, evaluate};

/// Returns an outcome with one loss (stored: 2) and one gradient (stored: 0.5).
fn outcome(loss: f64, gradient: f64) -> LossOutcome {
    let pair = |name, actual, stored| Comparison {
        name,
        actual: vec![actual],
        stored: StoredTensor { shape: vec![1], values: vec![stored], is_stored_in_f32: false },
    };
    LossOutcome {
        losses: vec![pair("loss", loss, 2.0)],
        gradients: vec![pair("grad_logits", gradient, 0.5)],
        ..LossOutcome::default()
    }
}

#[test]
fn f64_tolerances_are_1e_9() {
    assert!(evaluate(&outcome(2.0 + 1.9e-9, 0.5 - 0.9e-9), None, FloatType::F64).passed());
    assert!(!evaluate(&outcome(2.0 + 2.1e-9, 0.5), None, FloatType::F64).passed());
    assert!(!evaluate(&outcome(2.0, 0.5 - 1.1e-9), None, FloatType::F64).passed());
}

#[test]
fn nan_and_infinity_never_pass() {
    for float in [FloatType::F32, FloatType::F64] {
        for bad in [f64::NAN, f64::INFINITY] {
            assert!(!evaluate(&outcome(bad, 0.5), None, float).passed());
            assert!(!evaluate(&outcome(2.0, bad), None, float).passed());
        }
    }
}

#[test]
fn an_infinite_value_must_be_equal() {
    for float in [FloatType::F32, FloatType::F64] {
        let mut infinite = outcome(f64::INFINITY, 0.5);
        infinite.losses[0].stored.values[0] = f64::INFINITY;
        assert!(evaluate(&infinite, None, float).passed());
        infinite.losses[0].actual[0] = 1e300;
        assert!(!evaluate(&infinite, None, float).passed());
        let mut stored = outcome(2.0, 0.5);
        stored.gradients[0].stored =
            StoredTensor { shape: vec![1], values: vec![f64::INFINITY], is_stored_in_f32: true };
        assert!(!evaluate(&stored, None, float).passed());
    }
}

#[test]
fn f32_tolerances_are_relative() {
    assert!(evaluate(&outcome(2.0 + 3.9e-6, 0.5 + 0.9e-5), None, FloatType::F32).passed());
    assert!(!evaluate(&outcome(2.0 + 4.1e-6, 0.5), None, FloatType::F32).passed());
    assert!(!evaluate(&outcome(2.0, 0.5 + 1.1e-5), None, FloatType::F32).passed());
}

#[test]
fn peers_matter_only_if_all_exceed_the_tolerance() {
    let inaccurate = outcome(2.0, 0.5 + 2e-5);
    let peers = |gradient| Some(PeerErrors { loss: 1e-8, gradient });
    // 0.9e-5 / 0.5 is within 2e-5: the best peer may be within the tolerance.
    assert!(!evaluate(&inaccurate, peers(0.9e-5), FloatType::F32).passed());
    // All peers exceed the tolerance, but the best one has a smaller error.
    assert!(!evaluate(&inaccurate, peers(1.9e-5), FloatType::F32).passed());
    assert!(evaluate(&inaccurate, peers(2.1e-5), FloatType::F32).passed());
    // The exception does not apply to f64.
    assert!(!evaluate(&inaccurate, peers(1.0), FloatType::F64).passed());
}

#[test]
fn hard_cases_must_beat_every_peer() {
    let mut hard = outcome(2.0 + 2e-7, 0.5 + 2e-7);
    hard.is_ill_conditioned = true;
    let peers = |loss, gradient| Some(PeerErrors { loss, gradient });
    assert!(evaluate(&hard, peers(1.1e-7, 2.1e-7), FloatType::F32).passed());
    assert!(!evaluate(&hard, peers(0.9e-7, 2.1e-7), FloatType::F32).passed());
    assert!(!evaluate(&hard, peers(1.1e-7, 1.9e-7), FloatType::F32).passed());
}

#[test]
fn storage_in_f32_allows_half_an_ulp() {
    let mut stored = outcome(2.0, 0.1);
    stored.gradients[0].stored =
        StoredTensor { shape: vec![1], values: vec![f64::from(0.1f32)], is_stored_in_f32: true };
    let verdict = evaluate(&stored, None, FloatType::F64);
    assert!(verdict.passed() && verdict.notes == ["stored in f32"], "{verdict:?}");
    stored.gradients[0].actual[0] = 0.1 + 1e-8;
    assert!(!evaluate(&stored, None, FloatType::F64).passed());
}

#[test]
fn nonzero_padding_fails() {
    let mut outcome_with_padding = outcome(2.0, 0.5);
    outcome_with_padding.nonzero_padding.push("grad_logits");
    assert!(!evaluate(&outcome_with_padding, None, FloatType::F64).passed());
}
