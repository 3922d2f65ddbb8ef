//! Numbers of emission columns of a site.

/// Leading emission columns of a site: blank and next label.
pub(crate) const RNNT_COLUMNS: usize = 2;

/// Numbers of emission columns of a site.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ColumnCounts {
    /// All columns S.
    pub all: usize,
    /// The leading columns, which belong to tokens; those of durations follow.
    pub tokens: usize,
}
