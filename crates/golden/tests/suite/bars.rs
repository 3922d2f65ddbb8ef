//! What passes a bar and what does not.
use golden::{Comparison, LossOutcome, Peers, Stored, Width, judge};

fn outcome(found: f64, gradient: f64) -> LossOutcome {
    let pair = |what, found, stored| Comparison {
        what,
        found: vec![found],
        stored: Stored { shape: vec![1], values: vec![stored], single: false },
    };
    LossOutcome {
        losses: vec![pair("loss", found, 2.0)],
        gradients: vec![pair("grad_logits", gradient, 0.5)],
        ..LossOutcome::default()
    }
}

#[test]
fn double_bars_are_1e_9() {
    assert!(judge(&outcome(2.0 + 1.9e-9, 0.5 - 0.9e-9), None, Width::Double).passed());
    assert!(!judge(&outcome(2.0 + 2.1e-9, 0.5), None, Width::Double).passed());
    assert!(!judge(&outcome(2.0, 0.5 - 1.1e-9), None, Width::Double).passed());
}

#[test]
fn nan_and_infinity_never_pass() {
    for width in [Width::Single, Width::Double] {
        for bad in [f64::NAN, f64::INFINITY] {
            assert!(!judge(&outcome(bad, 0.5), None, width).passed());
            assert!(!judge(&outcome(2.0, bad), None, width).passed());
        }
    }
}

#[test]
fn an_infinite_answer_must_be_found_as_such() {
    for width in [Width::Single, Width::Double] {
        let mut endless = outcome(f64::INFINITY, 0.5);
        endless.losses[0].stored.values[0] = f64::INFINITY;
        assert!(judge(&endless, None, width).passed());
        endless.losses[0].found[0] = 1e300;
        assert!(!judge(&endless, None, width).passed());
        let mut stored = outcome(2.0, 0.5);
        stored.gradients[0].stored = Stored { shape: vec![1], values: vec![f64::INFINITY], single: true };
        assert!(!judge(&stored, None, width).passed());
    }
}

#[test]
fn single_bars_are_relative() {
    assert!(judge(&outcome(2.0 + 3.9e-6, 0.5 + 0.9e-5), None, Width::Single).passed());
    assert!(!judge(&outcome(2.0 + 4.1e-6, 0.5), None, Width::Single).passed());
    assert!(!judge(&outcome(2.0, 0.5 + 1.1e-5), None, Width::Single).passed());
}

#[test]
fn peers_excuse_only_when_all_are_proven_worse() {
    let off = outcome(2.0, 0.5 + 2e-5);
    let peers = |gradient| Some(Peers { loss: 1e-8, gradient });
    // 0.9e-5 / 0.5 is within 2e-5: the best peer may be good enough, so we must be too.
    assert!(!judge(&off, peers(0.9e-5), Width::Single).passed());
    // Beyond the bar, but better than ours.
    assert!(!judge(&off, peers(1.9e-5), Width::Single).passed());
    assert!(judge(&off, peers(2.1e-5), Width::Single).passed());
    // f64 has no such excuse.
    assert!(!judge(&off, peers(1.0), Width::Double).passed());
}

#[test]
fn hard_cases_must_beat_every_peer() {
    let mut hard = outcome(2.0 + 2e-7, 0.5 + 2e-7);
    hard.hard = true;
    let peers = |loss, gradient| Some(Peers { loss, gradient });
    assert!(judge(&hard, peers(1.1e-7, 2.1e-7), Width::Single).passed());
    assert!(!judge(&hard, peers(0.9e-7, 2.1e-7), Width::Single).passed());
    assert!(!judge(&hard, peers(1.1e-7, 1.9e-7), Width::Single).passed());
}

#[test]
fn storage_in_f32_allows_half_a_unit() {
    let mut stored = outcome(2.0, 0.1);
    stored.gradients[0].stored = Stored { shape: vec![1], values: vec![f64::from(0.1f32)], single: true };
    let verdict = judge(&stored, None, Width::Double);
    assert!(verdict.passed() && verdict.notes == ["stored in f32"], "{verdict:?}");
    stored.gradients[0].found[0] = 0.1 + 1e-8;
    assert!(!judge(&stored, None, Width::Double).passed());
}

#[test]
fn leaks_fail() {
    let mut leaky = outcome(2.0, 0.5);
    leaky.leaks.push("grad_logits");
    assert!(!judge(&leaky, None, Width::Double).passed());
}
