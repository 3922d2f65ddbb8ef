//! How much of its bar an error takes.
use golden::{Bar, share};

#[test]
fn errors_are_shares_of_their_bars() {
    assert_eq!(share(1.5, 1.0, 4.0, Bar::Absolute(0.25)), 2.0);
    assert_eq!(share(2.5, 2.0, 4.0, Bar::Relative(0.25)), 1.0);
    assert_eq!(share(1.5, 1.0, 4.0, Bar::OfLargest(0.25)), 0.5);
    assert_eq!(share(1.0, 1.0, 1.0, Bar::Same), 0.0);
    assert_eq!(share(1.0 + 1e-15, 1.0, 1.0, Bar::Same), f64::INFINITY);
    for bar in [Bar::Absolute(1.0), Bar::Relative(1.0), Bar::OfLargest(1.0), Bar::Same] {
        assert_eq!(share(f64::NAN, 1.0, 1.0, bar), f64::INFINITY);
        assert_eq!(share(1.0, f64::NAN, 1.0, bar), f64::INFINITY);
    }
    assert_eq!(share(1e-30, 0.0, 0.0, Bar::OfLargest(1e-5)), f64::INFINITY);
}
