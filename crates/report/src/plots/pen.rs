//! `Pen`: colors and dashes of lines in plots of runs and benchmarks.
use plotters::style::RGBColor;

/// Color and dashes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pen {
    pub(crate) color: RGBColor,
    /// Lengths of a dash and of the following gap in pixels; none for a solid line.
    pub(crate) dash: Option<(i32, i32)>,
}

impl Pen {
    /// The main line of a plot.
    pub const BLUE: Self = Self::new(31, 111, 180, None);
    /// First variant of the main line.
    pub const GREEN: Self = Self::new(44, 140, 85, Some((10, 4)));
    /// Second variant of the main line.
    pub const CYAN: Self = Self::new(23, 170, 190, Some((3, 3)));
    /// The line to compare with.
    pub const ORANGE: Self = Self::new(226, 122, 28, None);
    /// The second line to compare with.
    pub const PURPLE: Self = Self::new(150, 80, 160, Some((10, 4)));
    /// The third line to compare with.
    pub const GRAY: Self = Self::new(120, 120, 120, Some((3, 3)));

    const fn new(red: u8, green: u8, blue: u8, dash: Option<(i32, i32)>) -> Self {
        Self { color: RGBColor(red, green, blue), dash }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pens_are_distinguishable() {
        let pens = [Pen::BLUE, Pen::GREEN, Pen::CYAN, Pen::ORANGE, Pen::PURPLE, Pen::GRAY];
        for (i, a) in pens.iter().enumerate() {
            for b in &pens[..i] {
                assert_ne!(a.color, b.color);
            }
        }
        // The main lines differ in their dashes too, and so do the lines to compare with.
        for family in pens.chunks_exact(3) {
            let [a, b, c] = [0, 1, 2].map(|i| family[i].dash);
            assert!(a != b && b != c && a != c);
        }
    }
}
