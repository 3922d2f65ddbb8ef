//! Columns of the tables of a report.

/// Returns the width of the column `case`.
pub(crate) fn name_column_width<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    names.map(str::len).max().unwrap_or(0).max("case".len())
}
