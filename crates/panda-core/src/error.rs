//! Errors of the selected normalizer: invalid arguments of a call.

use kernels::ShortFloat;

/// An invalid argument of a call.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument has the wrong number of elements.
    #[error("`{argument}`: expected {expected} elements, found {found}")]
    Length {
        /// Name of the argument.
        argument: &'static str,
        /// Number of elements that the other arguments imply.
        expected: usize,
        /// Number of elements given.
        found: usize,
    },
    /// A dimension that must be positive is zero.
    #[error("`{argument}`: expected at least 1, found 0")]
    Zero {
        /// Name of the dimension.
        argument: &'static str,
    },
    /// The budget is below the smallest plan of a call.
    #[error("budget: expected at least {smallest} bytes, found {found}")]
    Budget {
        /// Bytes of the smallest plan ([`Plan::minimal`](crate::Plan::minimal)).
        smallest: usize,
        /// Bytes given.
        found: usize,
    },
    /// An active selected class lies outside the head.
    #[error("selection: site {site}, slot {slot}: expected a class below {classes}, found {class}")]
    ClassOutOfRange {
        /// Row of the selection.
        site: usize,
        /// Column of the selection.
        slot: usize,
        /// The selected class.
        class: u32,
        /// Number of classes of the head.
        classes: usize,
    },
    /// A site selects the same class twice, which makes its adjoint ambiguous.
    #[error("selection: site {site}: expected distinct classes, found class {class} twice")]
    DuplicateClass {
        /// Row of the selection.
        site: usize,
        /// The repeated class.
        class: u32,
    },
    /// A tensor has the wrong shape.
    #[error("`{argument}`: expected shape {expected:?}, found {found:?}")]
    Shape {
        /// Name of the argument.
        argument: &'static str,
        /// The shape that the other arguments imply.
        expected: Vec<usize>,
        /// The shape given.
        found: Vec<usize>,
    },
    /// A row of scores names no site, or a duplicate one.
    #[error(
        "`site_of_row`: row {row}: expected each of the {sites} sites once, or PADDING, found site {site}"
    )]
    SiteOfRow {
        /// The row of the scores.
        row: usize,
        /// The site it names.
        site: usize,
        /// Number of sites.
        sites: usize,
    },
    /// A weight of the head is infinite.
    #[error(
        "`head.weight`: class {class}: expected finite weights, found {value}; a class is masked by a bias of -inf",
        value = ShortFloat(*value)
    )]
    InfiniteWeight {
        /// The first such class.
        class: usize,
        /// The value found.
        value: f64,
    },
    /// The scores of a site contain NaN or +inf.
    #[error("site {site}: expected scores that are finite or -inf, found NaN or +inf")]
    NotFinite {
        /// The first such site.
        site: usize,
    },
    /// Every class of a site is masked.
    #[error("site {site}: expected at least one class with a finite score, found -inf everywhere")]
    AllMasked {
        /// The first such site.
        site: usize,
    },
    /// An adjoint is NaN or infinite.
    #[error("`{argument}`: expected finite values, found {value} at site {site}", value = ShortFloat(*value))]
    Adjoint {
        /// Name of the argument.
        argument: &'static str,
        /// The first such site.
        site: usize,
        /// The value found.
        value: f64,
    },
    /// A gradient clamp is NaN or negative.
    #[error("clamp: expected a limit of at least 0, found {limit}", limit = ShortFloat(*limit))]
    Clamp {
        /// The limit given.
        limit: f64,
    },
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Checks the length of an argument.
pub(crate) fn expect_len(argument: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found { Ok(()) } else { Err(Error::Length { argument, expected, found }) }
}
